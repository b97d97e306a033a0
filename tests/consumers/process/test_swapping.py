"""Two groups of consumers side by side: readers are moved from one to the other, and back, and always answered."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from consumers.fold.state import FOLD_VERSION
from consumers.owner.client import OwnerConnection
from consumers.owner.protocol import OwnerError
from consumers.process.announcing import SETTLED_S, Announcer
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import Announcement, LocationsReader
from stream.wire.codec import encode
from stream.wire.events import VALUE
from tests.consumers.consuming import ConsumeProcess, Feed, gtid, until
from tests.consumers.process.test_announcing import NOWHERE, Record, partition_of, read, said
from tests.spark_jobs.test_live_verify import FRESHET
from tokens import Position, Vector


class Owners:
    """Announcers of several processes over one topic in memory; nothing is sent anywhere."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sent: list[Announcement] = []
        monkeypatch.setattr("stream.kafka.locations.announce", lambda _, each: self._sent.extend(each))
        monkeypatch.setattr("threading.Thread.start", lambda _: None)
        self.reader = read([])
        self._directory = directory
        self._partitions: list[Any] = []

    def start(self, instance: str, generation: int, *, standby: bool = False) -> tuple[Announcer, Any]:
        """A process that has owned the partition for long."""
        owner = Announcer(NOWHERE, f"{instance}:1", instance, standby=standby)
        owner._again_at = 1e9
        partition = partition_of(self._directory / f"{instance}-{len(self._partitions)}", "shop", generation)
        partition.taken_at -= SETTLED_S
        self._partitions.append(partition)
        owner.announce(partition)
        return owner, partition

    def turn(self, owner: Announcer, *orders: Callable[[], None]) -> list[Announcement]:
        """One look of an announcer at what stands; what it sent, which is in the topic now."""
        self._sent.clear()
        for order in orders:
            order()
        owner._take_orders(0.001)
        owner._prepare(self.reader, time.monotonic())
        owner._send()
        self.tell(*self._sent)
        return list(self._sent)

    def tell(self, *announced: Announcement) -> None:
        """Puts announcements into the topic."""
        records: list[Any] = [Record(each) for each in announced]
        self.reader._learn(records)

    def stands(self) -> str:
        """The instance that readers ask."""
        found = self.reader.owner_of("shop", 0)
        return found.instance if found is not None else ""

    def close(self) -> None:
        """Closes the stores."""
        for each in self._partitions:
            each.store.close()


@pytest.fixture
def owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Owners]:
    """No owner yet."""
    found = Owners(tmp_path, monkeypatch)
    yield found
    found.close()


def moved(to: str, above: Announcement | None, swap: int) -> Announcement:
    """What `freshet swap` writes."""
    era = (above.generation >> 32) + 1 if above is not None else 1
    return msgspec.structs.replace(said(to, era << 32 | 1), swap=swap)


def test_readers_go_where_they_are_moved_and_stay_there(owners: Owners) -> None:
    """The standby says nothing before, the other one nothing after, and neither contends; back is the same again."""
    (blue, _), (green, _) = owners.start("blue", 7), owners.start("green", 3, standby=True)
    for _ in range(2):
        owners.turn(blue)
        assert owners.turn(green) == []
        assert owners.stands() == "blue"
    owners.tell(moved("green", owners.reader.standing("shop", 0), 1))
    assert owners.stands() == "green"
    for _ in range(2):
        assert owners.turn(blue) == []
        assert {each.swap for each in owners.turn(green)} <= {1}
        assert owners.stands() == "green"
    owners.tell(moved("blue", owners.reader.standing("shop", 0), 2))
    for _ in range(2):
        assert owners.turn(green) == []
        assert {each.swap for each in owners.turn(blue)} <= {2}
        assert owners.stands() == "blue"


def test_readers_come_back_when_those_that_took_them_stop(owners: Owners) -> None:
    """A withdrawal gives the place free for who was there before, who then stands above it; a standby waits."""
    (blue, _), (green, of_green) = owners.start("blue", 7), owners.start("green", 3, standby=True)
    owners.turn(blue)
    owners.turn(green)
    owners.tell(moved("green", owners.reader.standing("shop", 0), 1))
    owners.turn(green)
    assert owners.turn(blue) == []
    [withdrawn] = owners.turn(green, lambda: green.withdraw(of_green))
    assert withdrawn.gone
    other, _ = owners.start("other", 3, standby=True)
    assert owners.turn(other) == []
    [back] = owners.turn(blue)
    assert (back.swap, owners.stands()) == (1, "blue")


def test_a_process_that_starts_again_finds_its_readers(owners: Owners) -> None:
    """After a crash and after an orderly end; and the one that was left stays left, also if it starts again."""
    blue, _ = owners.start("blue", 7)
    owners.turn(blue)
    owners.tell(moved("green", owners.reader.standing("shop", 0), 1))
    again, _ = owners.start("green", 4, standby=True)
    assert owners.turn(again)[0].swap == 1
    blue, _ = owners.start("blue", 8)
    assert owners.turn(blue) == []
    standing = owners.reader.standing("shop", 0)
    assert standing is not None
    owners.tell(msgspec.structs.replace(standing, gone=True))
    later, _ = owners.start("green", 5, standby=True)
    assert owners.turn(later)[0].instance == "green"
    assert owners.stands() == "green"


def test_a_late_announcement_of_the_old_owner_changes_nothing_for_long(owners: Owners) -> None:
    """An owner of a version before this one contends; the one that was chosen answers it, as any owner does."""
    green, _ = owners.start("green", 3, standby=True)
    owners.tell(said("old", 9), moved("green", said("old", 9), 1))
    owners.turn(green)
    owners.tell(said("old", 5 << 32 | 9))
    assert owners.stands() == "old"
    owners.turn(green)
    assert owners.stands() == "green"


NEXT_FOLD = """
import consumers.fold.state as state
state.FOLD_VERSION += 1
from freshet.cli import main
main()
"""
"""The next version of Freshet, whose fold has another number."""


def test_an_upgrade_of_the_fold_never_leaves_readers_without_an_answer(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """The next fold's store is made beside while the old one answers; the swap and the way back lose no read."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.load(30)
    key = feed.keys(0)[0]
    feed.put(0, one_row(feed, key))
    feed.mark()
    feed.flush()
    vector = str(Vector({feed.shard: (1, Position.parse(gtid(feed.ordinal)))}))
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "old") as old, LocationsReader(kafka) as reader:
        before = old.ready()
        until(lambda: reader.owner_of(keyspace_name, 0), "announced")
        new = ConsumeProcess(
            kafka,
            keyspace_name,
            tmp_path / "new",
            group=f"{keyspace_name}-next",
            code=NEXT_FOLD,
            FRESHET_CONSUMER__STANDBY="true",
        )
        with new, reading(reader, keyspace_name, key, vector) as answers:
            after = new.ready()
            assert fold_of(tmp_path / "new", keyspace_name) == FOLD_VERSION + 1
            assert fold_of(tmp_path / "old", keyspace_name) == FOLD_VERSION
            for address in (after, before, after):
                swap(kafka, keyspace_name, address)
                found = until(lambda: reader.owner_of(keyspace_name, 0), "announced")
                assert found.address == address
                seen = len(answers)
                until(partial(more_than, answers, seen + 5), "read from the other one")
            assert old.terminate() == 0
            seen = len(answers)
            until(partial(more_than, answers, seen + 5), "read without the old one")
    assert {address for address, _ in answers} == {before, after}
    assert [each for each in answers if each[1]] == []


def one_row(feed: Feed, key: bytes) -> bytes:
    """A frame with one value."""
    feed.ordinal += 1
    record = {
        "shard": feed.shard,
        "epoch": 1,
        "ordinal": feed.ordinal - 1,
        "keys": [key],
        "images": [b'{"n":"last"}'],
        "operations": bytes([VALUE]),
        "ordinals": [1],
        "transactions": [1],
        "gtids": [gtid(feed.ordinal)],
        "positions": [],
        "timestamps": [1_700_000_000],
        "origins": [],
    }
    return encode("RowFrame", record)


def more_than(answers: list[tuple[str, str]], count: int) -> bool:
    """Whether there are more answers than that."""
    return len(answers) > count


def fold_of(data_dir: Path, keyspace: str) -> int:
    """The fold version of a store."""
    return int(json.loads((data_dir / keyspace / "0" / "manifest.json").read_text())["fold_version"])


def swap(kafka: KafkaCluster, keyspace: str, address: str) -> None:
    """`freshet swap`."""
    command = [*FRESHET, "swap", keyspace, "--to", address, "--bootstrap", kafka.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"moved 1 partitions of {keyspace} to {address}")


@contextmanager
def reading(reader: LocationsReader, keyspace: str, key: bytes, vector: str) -> Iterator[list[tuple[str, str]]]:
    """Reads a key again and again from its announced owner; of each read the address, and why it was not answered."""
    answers: list[tuple[str, str]] = []
    stopping = threading.Event()

    def read_on() -> None:
        while not stopping.is_set():
            owner = reader.owner_of(keyspace, 0)
            if owner is None:
                answers.append(("", "no owner"))
                continue
            try:
                with OwnerConnection(owner.address) as connection:
                    [row] = connection.get(keyspace, 0, [key], vector)
                answers.append((owner.address, "" if row.served and row.freshness == "fresh" else row.why))
            except OwnerError as error:
                answers.append((owner.address, f"{error.code}: {error}"))

    thread = threading.Thread(target=read_on)
    thread.start()
    try:
        yield answers
    finally:
        stopping.set()
        thread.join()
