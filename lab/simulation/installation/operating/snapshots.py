"""Operators make snapshots of what owners have folded, and prune them; consumers without a store begin with them.

An operator is killed anywhere, and files there are damaged. In the end each store is what the rules make of the log,
wherever it began (`lab.simulation.whole_processes.stores`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from consumers.owner.client import OwnerClient
from consumers.snapshots import writing
from consumers.snapshots.checking import check_snapshot
from consumers.snapshots.finding import find_snapshots
from consumers.snapshots.places import Place
from consumers.snapshots.pruning import Verdict, judge, remove_snapshot
from consumers.snapshots.writing import write_snapshot
from lab.simulation.installation.applications.sinking import Sinking
from lab.simulation.installation.operating.guarding import OPERATOR
from lab.simulation.installation.parts import CONSUMERS
from lab.simulation.installation.processes import KAFKA
from lab.simulation.installation.writing import KEYSPACE
from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.whole_processes.run import Bound
from lab.simulation.whole_processes.words import EXPLAINS
from stream.kafka.locations import LocationsReader
from stream.kafka.reader import start_offsets
from stream.kafka.topics import describe_topic, events_topic
from tokens.errors import FreshetError

KEEPER: Final = "snapshots"
"""The operator's process."""
FILE_BYTES: Final = 200
"""Of a snapshot's files: a partition has several."""


def clock_of(kernel: Kernel) -> type[datetime]:
    """A ``datetime`` whose present is the history's."""

    class SimulatedTime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> SimulatedTime:
            return cls.fromtimestamp(kernel.time, tz)

    return SimulatedTime


class Snapshotting(Sinking):
    """The ops of an operator who keeps snapshots. They do nothing in a history that has no place for them."""

    def bounds(self) -> Sequence[Bound]:
        """See `WholeProcesses.bounds`."""
        return [*super().bounds(), (writing, "datetime", clock_of(self.kernel))]

    def op_snapshot(self, what: int, pause: int) -> None:
        """An operator makes a snapshot; or is killed while that is under way."""
        if not self.placed:
            return
        if self.kernel.is_running(KEEPER) and what % 4 == 3:
            self.say("the operator who makes a snapshot is killed")
            self.kernel.kill(KEEPER)
        else:
            self.kernel.run_task(KEEPER, self._make)
        self.pause(pause)

    async def _make(self) -> None:
        """As ``freshet snapshots make``, and what is made is checked as by ``freshet snapshots verify``."""
        try:
            stores = await self._checkpoints()
            place = Place(self.snapshots)
            made = await asyncio.to_thread(write_snapshot, place, stores, made_from="owners", file_bytes=FILE_BYTES)
            [found] = [each for each in find_snapshots(place, KEYSPACE) if each.name == made.name]
            errors = await asyncio.to_thread(lambda: [error for _, error in check_snapshot(place, found, made)])
        except FreshetError as error:
            self._count(f"snapshot: {error.code}")
            self.say(f"no snapshot is made: {error}")
            return
        self._count("snapshot made")
        self.say(f"a snapshot is made: {made.offsets}, {[str(each) for each in errors if each]}")

    async def _checkpoints(self) -> dict[int, Path]:
        """Of each partition its announced owner's, as `freshet.owners.live_checkpoint`."""

        def announced() -> dict[int, str]:
            with LocationsReader(KAFKA) as reader:
                return {number: each.address for number, each in reader.owners(KEYSPACE).items()}

        stores: dict[int, Path] = {}
        owners = await asyncio.to_thread(announced)
        for address in sorted(set(owners.values())):
            client = OwnerClient(address, identity=self.credentials.identity(OPERATOR))
            try:
                for partition in sorted(number for number, each in owners.items() if each == address):
                    [made] = await client.checkpoint(KEYSPACE, partition)
                    stores[partition] = Path(made.directory)
            finally:
                await client.close()
        if not stores:
            raise FreshetError("nobody owns anything")
        return stores

    def op_prune(self, keep: int) -> None:
        """An operator removes the snapshots that are no longer needed, as ``freshet snapshots prune``."""

        def work() -> None:
            try:
                topic = describe_topic(KAFKA, events_topic(KAFKA, KEYSPACE))
                low = start_offsets(KAFKA, topic.name, range(topic.partitions))
                place = Place(self.snapshots)
                now = datetime.fromtimestamp(self.kernel.time, UTC)
                verdicts = judge(find_snapshots(place, KEYSPACE), topic.topic_id, low, 1 + keep % 2, now)
                for verdict in verdicts:
                    self.say(f"{verdict.found.name} {'stays' if verdict.stays else 'goes'}: {verdict.why}")
                    if not verdict.stays:
                        remove_snapshot(place, verdict.found)
                self._judge_pruned(place, topic.topic_id, verdicts)
            except FreshetError as error:
                self.say(f"nothing is pruned: {error}")

        if self.placed:
            self.kernel.spawn(KEEPER, work)
            self.let(0.5)

    def _judge_pruned(self, place: Place, topic_id: str, verdicts: Sequence[Verdict]) -> None:
        """What goes is gone, and of those that can be read with this topic the one that has most of it is there."""
        self._count("snapshots pruned")
        left = {each.name for each in find_snapshots(place, KEYSPACE)}
        if still := left.intersection(each.found.name for each in verdicts if not each.stays):
            self.complain(EXPLAINS, f"the snapshots {still} go, and are there")
        read = [each.found for each in verdicts if each.found.snapshot and each.found.snapshot.topic_id == topic_id]
        most = max((sum(each.snapshot.offsets.values()) for each in read if each.snapshot), default=0)
        best = {each.name for each in read if each.snapshot and sum(each.snapshot.offsets.values()) == most}
        if best and not best & left:
            self.complain(EXPLAINS, f"of {best}, the snapshots with most of the topic, none is left")

    def op_spoil(self, lose: int) -> None:
        """A bit of a snapshot's file flips, or the file is gone."""
        files = sorted(path for path in Path(self.snapshots).rglob("*") if path.is_file()) if self.placed else []
        if not files:
            return
        path = files[int(self.kernel.rng.random() * len(files))]
        self.count_fault("snapshot damaged")
        self.say(f"{path.parent.name}/{path.name} of a snapshot is {'gone' if lose % 2 else 'damaged'}")
        if lose % 2:
            path.unlink()
        elif data := bytearray(path.read_bytes()):
            data[int(self.kernel.rng.random() * len(data))] ^= 1 << int(self.kernel.rng.random() * 8)
            with suppress(OSError):
                path.write_bytes(data)

    def op_lose(self, consumer: int, pause: int) -> None:
        """A consumer is killed and loses its disk, and begins anew: with a snapshot, if there is one."""
        name = CONSUMERS[consumer % len(CONSUMERS)]
        if self.placed and self.kernel.is_running(name):
            self.count_fault("disk lost")
            self.say(f"{name} is killed, and its disk is gone")
            self.kernel.kill(name)
            self.disk.lose(name)
            self.start(name)
            self.pause(pause)
