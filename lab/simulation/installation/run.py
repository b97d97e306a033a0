"""One history of the installation: its servers, its processes, and what happens to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from signal import SIGTERM
from typing import Any, Final, NoReturn

import structlog

from consumers.owner.client import OwnerClient
from consumers.owner.protocol import OwnerError
from lab.simulation.engine import Outcome
from lab.simulation.installation.disk import Disk
from lab.simulation.installation.kafka_faults import KafkaFaults
from lab.simulation.installation.processes import KAFKA, KEYSPACE, new_publisher, start_consumer
from lab.simulation.kafka.cluster import Cluster
from lab.simulation.kafka.twins import twins
from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.kernel.substitution import installed
from stream.kafka.connection import KafkaUnreachable
from stream.kafka.locations import LocationsReader
from stream.publish.publisher import PublisherLost
from stream.wire.events import VALUE, RowChange, SourceTransaction
from stream.wire.keys import Layout, row_key

CONSUMERS: Final = ("consumer-0", "consumer-1")
SOURCE: Final = "source"
READER: Final = "reader"
PROCESSES: Final = (*CONSUMERS, SOURCE)
ROWS: Final = 6
PAUSES_S: Final = (0.05, 0.3, 1.0, 3.0, 12.0)
"""How long an op lets the world go on."""
SETTLES_IN_S: Final = 120.0
"""All must be well again so long after the last fault has ended."""
TABLE: Final = "shop.accounts"
RECOVERS: Final = "recovers by itself"
NEVER_RAISES: Final = "never raises"
RULES: Final = (RECOVERS, NEVER_RAISES)


class InstallationRun(KafkaFaults):
    """See `lab.simulation.engine.HistoryRun`."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        """``shape``: seed of the scheduler; 1 for two partitions; 1 for a second consumer from the start."""
        super().__init__(outcome, trace)
        seed, partitions, consumers = shape
        self.kernel = Kernel(Random(seed))
        self.kafka = Cluster(self.kernel, self.kernel.rng)
        self.disk = Disk(self.kernel)
        self.partitions = 1 + partitions % 2
        self.wanted = [*CONSUMERS[: 1 + consumers % 2], SOURCE]
        """Processes that run when all is well."""
        self.rows: dict[int, bytes] = {}
        self.commits: list[tuple[int, bytes]] = []
        self.locations: LocationsReader | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While the product is the simulation's. It says nothing, but its errors count."""
        config = structlog.get_config()
        structlog.configure(processors=[self._log], wrapper_class=structlog.BoundLogger)
        try:
            with installed(self.kernel, twins(self.kafka), self.disk.twins()):
                yield
        finally:
            structlog.configure(**config)
            self.disk.close()

    def _log(self, _: Any, level: str, event: MutableMapping[str, Any]) -> NoReturn:
        if not self.kernel.is_over:
            if event.get("exc_info"):
                self.complain(NEVER_RAISES, f"{self.kernel.current} logged {event}")
            if self.tracing:
                said = ", ".join(f"{name}={value}" for name, value in event.items() if name in ("partition", "reason"))
                said = said.replace(str(self.disk.root), "")  # another one each time
                self.say(f"  {self.kernel.now:.3f} {self.kernel.current}: {level}: {event['event']} {said}")
        raise structlog.DropEvent

    def begin(self) -> None:
        """Starts everything."""
        for name in self.wanted:
            self._start(name)
        self.kernel.spawn(READER, self._follow_locations)

    def _follow_locations(self) -> None:
        self.locations = LocationsReader(KAFKA).start(patient=True)

    def _start(self, name: str) -> None:
        if self.kernel.is_running(name):
            return
        self.kernel.process(name).at_end.append(partial(self.kafka.forget, name))
        if name == SOURCE:
            self.kernel.spawn(name, self._publish)
        else:
            start_consumer(self.kernel, name, self.disk.data_dir(name))

    def _publish(self) -> None:
        """Publishes the commits, in order, whatever happens to the publisher."""
        while True:
            try:
                publisher = new_publisher(self.partitions)()
                point = publisher.open(lambda: (_position(0), int(self.kernel.time)))
                at = int(point.position.rpartition("-")[2])
                while True:
                    if not self.kernel.wait(partial(self._is_committed, at), 0.25):
                        publisher.flush()  # raises if the publisher was lost meanwhile
                        continue
                    slot, image = self.commits[at]
                    at += 1
                    change = RowChange(_key(slot), VALUE, image)
                    publisher.publish(SourceTransaction(_position(at), _position(at), int(self.kernel.time), [change]))
            except (PublisherLost, KafkaUnreachable):
                self.kernel.park(1.0)

    def _is_committed(self, at: int) -> bool:
        return len(self.commits) > at

    # --- ops ---

    def let(self, seconds: float) -> None:
        """Lets the world go on."""
        self.kernel.run_until(lambda: bool(self.kernel.errors), seconds)
        self._check_errors()

    def op_write(self, slot: int, pause: int) -> None:
        """A commit at the source."""
        slot %= ROWS
        image = b'{"v":%d}' % (len(self.commits) + 1)
        self.commits.append((slot, image))
        self.rows[slot] = image
        self.say(f"row {slot} becomes {image.decode()}")
        self.outcome.answers["commits"] += 1
        self.let(PAUSES_S[pause % len(PAUSES_S)] / 10)

    def op_let(self, pause: int) -> None:
        """Time passes."""
        self.let(PAUSES_S[pause % len(PAUSES_S)])

    def op_kill(self, process: int, pause: int) -> None:
        """A process dies at any place."""
        name = PROCESSES[process % len(PROCESSES)]
        if self.kernel.is_running(name):
            self.count_fault("kill")
            self.say(f"{name} is killed")
            self.kernel.kill(name)
        self.let(PAUSES_S[pause % len(PAUSES_S)])

    def op_die_writing(self, consumer: int, steps: int) -> None:
        """A consumer dies in the middle of a write to its disk."""
        name = CONSUMERS[consumer % len(CONSUMERS)]
        if self.kernel.is_running(name):
            self.count_fault("death while writing")
            self.say(f"{name} will die in step {1 + steps % 40} of its writes")
            self.disk.dies_at[name] = 1 + steps % 40

    def op_stop(self, consumer: int) -> None:
        """A consumer is told to stop, and ends in order."""
        name = CONSUMERS[consumer % len(CONSUMERS)]
        if self.kernel.is_running(name) and self.kernel.loop_of(name).handles(SIGTERM):
            self.count_fault("stop")
            self.say(f"{name} stops")
            self.kernel.loop_of(name).signal(SIGTERM)
            self.let(10.0)
            self.kernel.kill(name)

    def op_start(self, process: int) -> None:
        """A process starts (again)."""
        name = PROCESSES[process % len(PROCESSES)]
        if not self.kernel.is_running(name):
            self.say(f"{name} starts")
            self._start(name)
        self.let(0.1)

    def op_pause(self, process: int, pause: int) -> None:
        """A process is held for a while, and goes on."""
        name = PROCESSES[process % len(PROCESSES)]
        if self.kernel.is_running(name):
            self.count_fault("pause")
            self.say(f"{name} is held")
            self.kernel.pause(name)
            self.kafka.cut.add(name)
            self.let(PAUSES_S[pause % len(PAUSES_S)])
            self.kafka.cut.discard(name)
            self.kernel.resume(name)

    def op_kafka(self, down: int, pause: int) -> None:
        """Kafka goes away, or comes back."""
        self.kafka.down = bool(down % 2)
        if self.kafka.down:
            self.count_fault("Kafka down")
            self.say("Kafka is down")
        self.let(PAUSES_S[pause % len(PAUSES_S)])

    def op_cut(self, process: int, pause: int) -> None:
        """A process does not reach Kafka for a while."""
        name = PROCESSES[process % len(PROCESSES)]
        self.count_fault("cut from Kafka")
        self.say(f"{name} does not reach Kafka")
        self.kafka.cut.add(name)
        self.let(PAUSES_S[pause % len(PAUSES_S)])
        self.kafka.cut.discard(name)

    def op_link(self, consumer: int, pause: int) -> None:
        """Nothing passes between a consumer and its readers for a while."""
        name = CONSUMERS[consumer % len(CONSUMERS)]
        self.count_fault("link cut")
        self.say(f"nothing passes between readers and {name}")
        self.kernel.network.cut(name, READER)
        self.let(PAUSES_S[pause % len(PAUSES_S)])
        self.kernel.network.heal()

    def op_disk(self, consumer: int, what: int, pause: int) -> None:
        """A consumer's disk is full, or fails, for a while."""
        name = CONSUMERS[consumer % len(CONSUMERS)]
        fault, where = (("disk full", self.disk.full), ("disk fails", self.disk.failing))[what % 2]
        self.count_fault(fault)
        self.say(f"{name}: {fault}")
        where.add(name)
        self.let(PAUSES_S[pause % len(PAUSES_S)])
        where.discard(name)

    def op_damage(self, consumer: int) -> None:
        """A bit of a store flips."""
        name = CONSUMERS[consumer % len(CONSUMERS)]
        damaged = self.disk.damage(name)
        if damaged:
            self.count_fault("damage")
            self.say(f"a bit of {damaged} flips")

    # --- the end ---

    def count_fault(self, fault: str) -> None:
        """Counts a fault under every state that holds now."""
        for state, holds in STATES.items():
            if holds(self):
                self.outcome.met[fault, state] += 1

    def finish(self) -> None:
        """Everything is mended and up: within bounded time every row is in the cache."""
        self.say("all faults end")
        self.mend_kafka()
        self.disk.full.clear()
        self.disk.failing.clear()
        self.disk.dies_at.clear()
        for name in self.wanted:
            self._start(name)
        if self.must_write_again:
            self.let(SETTLES_IN_S / 4)
            for slot in sorted(self.rows):
                self.op_write(slot, 0)
        self._settle()
        self._check_errors()

    def _settle(self) -> None:
        missing = list(self.rows)
        end = self.kernel.now + SETTLES_IN_S
        while missing and self.kernel.now < end:
            found = self._read(missing)
            missing = [slot for slot in missing if found.get(slot) != self.rows[slot]]
            self.kernel.run_until(lambda: bool(self.kernel.errors), 1.0)
            if self.kernel.errors:
                return
        if missing:
            waits = "; ".join(self.kernel.waits())
            self.complain(RECOVERS, f"rows {missing} are not in the cache after {SETTLES_IN_S} s: {waits}")

    def _read(self, slots: list[int]) -> dict[int, bytes | None]:
        found: dict[int, bytes | None] = {}
        done: list[bool] = []

        async def read() -> None:
            for partition in range(self.partitions):
                located = self.locations.owner_of(KEYSPACE, partition) if self.locations else None
                keys = [slot for slot in slots if self._partition(slot) == partition]
                if located is None or not keys:
                    continue
                owner = OwnerClient(located.address, topic_id=located.topic_id)
                try:
                    rows = await owner.get(KEYSPACE, partition, [_key(slot) for slot in keys])
                    found.update((slot, row.image) for slot, row in zip(keys, rows, strict=True) if row.served)
                except OwnerError:
                    continue
                finally:
                    await owner.close()
            done.append(True)

        self.kernel.run_task(READER, read)
        self.kernel.run_until(lambda: bool(done), 60.0)
        return found

    def _partition(self, slot: int) -> int:
        return Layout(self.partitions).partition_of(_key(slot))

    def _check_errors(self) -> None:
        for where, error in self.kernel.errors:
            self.complain(NEVER_RAISES, f"{where} ended with {type(error).__name__}: {error}")

    def close(self) -> None:
        """See `engine.HistoryRun.close`."""


def _key(slot: int) -> bytes:
    return row_key(TABLE, [slot])


def _position(commits: int) -> str:
    return f"MariaDB/0-1-{commits}"


STATES: Final[dict[str, Callable[[InstallationRun], bool]]] = {
    "all up": lambda run: all(map(run.kernel.is_running, run.wanted)),
    "source down": lambda run: not run.kernel.is_running(SOURCE),
    "a consumer down": lambda run: not all(map(run.kernel.is_running, CONSUMERS)),
    "Kafka away": lambda run: run.kafka.down,
    "a disk fails": lambda run: bool(run.disk.full or run.disk.failing),
}
