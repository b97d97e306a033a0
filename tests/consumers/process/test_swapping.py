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
from consumers.process.announcing import CHECK_S, SETTLED_S, SILENT_S, Announcer
from freshet.settings import load_settings
from freshet.settings_errors import SettingsError
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import Announcement, LocationsReader
from stream.wire.codec import encode
from stream.wire.events import VALUE
from tests.consumers.consuming import ConsumeProcess, Feed, gtid, until
from tests.consumers.process.test_announcing import NOWHERE, Record, partition_of, read, said
from tests.patience import PATIENCE_S
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

    def start(
        self, instance: str, generation: int, group: str, *, standby: bool = False, follower: bool = False
    ) -> tuple[Announcer, Any]:
        """A process that has owned the partition for long."""
        owner = Announcer(NOWHERE, f"{instance}:1", lambda: instance, group, standby=standby, follower=follower)
        owner._again_at = 1e9
        partition = partition_of(self._directory / f"{instance}-{len(self._partitions)}", "shop", generation)
        partition.taken_at -= SETTLED_S
        self._partitions.append(partition)
        owner.announce(partition)
        return owner, partition

    def turn(self, owner: Announcer, *orders: Callable[[], None], later_s: float = 0.0) -> list[Announcement]:
        """One look of an announcer at what stands; what it sent, which is in the topic now."""
        self._sent.clear()
        for order in orders:
            order()
        owner._take_orders(0.001)
        owner._prepare(self.reader, time.monotonic() + later_s)
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
    (blue, _), (green, _) = owners.start("blue", 7, "old"), owners.start("green", 3, "new", standby=True)
    for _ in range(2):
        owners.turn(blue)
        assert owners.turn(green) == []
        assert owners.stands() == "blue"
    owners.tell(moved("green", owners.reader.standing("shop", 0), 1))
    assert owners.stands() == "green"
    for later_s in (0.0, 100.0):
        assert owners.turn(blue, later_s=later_s) == []
        assert {each.swap for each in owners.turn(green)} <= {1}
        assert owners.stands() == "green"
    owners.tell(moved("blue", owners.reader.standing("shop", 0), 2))
    for later_s in (0.0, 100.0):
        assert owners.turn(green, later_s=later_s) == []
        assert {each.swap for each in owners.turn(blue)} <= {2}
        assert owners.stands() == "blue"


def test_readers_come_back_when_the_group_that_took_them_stops(owners: Owners) -> None:
    """Not at once: one of its members may follow. Then the group that was there stands, and the other leaves it."""
    (blue, _), (green, of_green) = owners.start("blue", 7, "old"), owners.start("green", 3, "new", standby=True)
    owners.turn(blue)
    owners.turn(green)
    owners.tell(moved("green", owners.reader.standing("shop", 0), 1))
    owners.turn(green)
    assert owners.turn(blue) == []
    [withdrawn] = owners.turn(green, lambda: green.withdraw(of_green))
    assert withdrawn.gone
    assert owners.turn(blue) == []
    assert owners.turn(blue, later_s=SETTLED_S - 1) == []
    [back] = owners.turn(blue, later_s=SETTLED_S + 1)
    assert (back.swap, owners.stands()) == (2, "blue")
    late, _ = owners.start("green", 4, "new", standby=True)
    assert owners.turn(late, later_s=100.0) == []


def test_readers_come_back_from_an_owner_that_never_took_them(owners: Owners) -> None:
    """It lost the partition in the moment it was named: its group's next owner can't know that readers were moved."""
    blue, _ = owners.start("blue", 7, "old")
    owners.turn(blue)
    owners.tell(moved("one", owners.reader.standing("shop", 0), 1))
    two, _ = owners.start("two", 4, "new", standby=True)
    assert owners.turn(two) == owners.turn(blue) == []
    assert owners.turn(blue, later_s=SETTLED_S - 1) == []
    assert owners.turn(two, later_s=SETTLED_S + 1) == []
    [back] = owners.turn(blue, later_s=SETTLED_S + 1)
    assert (back.swap, owners.stands()) == (2, "blue")
    owners.tell(moved("two", owners.reader.standing("shop", 0), 3))
    assert (owners.turn(two)[0].swap, owners.turn(blue, later_s=100.0), owners.stands()) == (3, [], "two")


@pytest.mark.parametrize("deaf", ["", "no Kafka", "stopped"])
def test_readers_come_back_from_an_owner_that_died_later(owners: Owners, deaf: str) -> None:
    """It took them, and then announces itself no more. Who could not have heard it counts from when it can."""
    (blue, of_blue), (green, _) = owners.start("blue", 7, "old"), owners.start("green", 3, "new", standby=True)
    owners.turn(blue)
    owners.tell(moved("green", owners.reader.standing("shop", 0), 1))
    owners.turn(green)

    def looks(begin_s: float, end_s: float) -> list[Announcement]:
        count = int((end_s - begin_s) / CHECK_S)
        return [said for each in range(count) for said in owners.turn(blue, later_s=begin_s + each * CHECK_S)]

    assert looks(0, SILENT_S - CHECK_S) == []
    heard = owners.reader.standing("shop", 0)
    assert heard is not None
    owners.tell(msgspec.structs.replace(heard))
    begin_s = SILENT_S - CHECK_S
    if deaf == "no Kafka":
        of_blue.lost = True
        assert looks(begin_s, 3 * SILENT_S) == []
        of_blue.lost, begin_s = False, 3 * SILENT_S
    elif deaf == "stopped":
        assert looks(begin_s, SILENT_S) == []
        begin_s = 3 * SILENT_S
    assert looks(begin_s, begin_s + SILENT_S - CHECK_S) == []
    assert owners.stands() == "green"
    assert [each.swap for each in looks(begin_s + SILENT_S - CHECK_S, begin_s + SILENT_S + 3 * CHECK_S)] == [2]
    assert owners.stands() == "blue"
    assert owners.turn(green, later_s=begin_s) == []


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_follower_that_has_readers_can_be_emptied(owners: Owners, by_hand: bool) -> None:
    """Nobody of its group follows it, so the owner of before takes its readers back, and is named before if told so."""
    (blue, _), (green, of_green) = owners.start("blue", 7, "old"), owners.start("green", 3, "new", follower=True)
    green._reader = owners.reader
    owners.turn(blue)
    owners.turn(green)
    owners.tell(moved("green", owners.reader.standing("shop", 0), 1))
    owners.turn(green)
    owners.turn(blue)
    assert not green.is_succeeded(of_green)
    of_green.leaving = True
    assert [each.leaving for each in owners.turn(green)] == [True]
    assert owners.turn(blue) == owners.turn(green) == []
    if by_hand:
        owners.tell(moved("blue", owners.reader.standing("shop", 0), 2))
    else:
        assert owners.turn(blue, later_s=SETTLED_S - 1) == []
        assert not green.is_succeeded(of_green)
    [back] = owners.turn(blue, later_s=SETTLED_S + 1)
    assert (back.swap, owners.stands()) == (2, "blue")
    assert owners.turn(green, later_s=SETTLED_S + 1) == []
    assert green.is_succeeded(of_green)
    owners.turn(green, lambda: green.withdraw(of_green))
    assert (owners.stands(), owners.reader.followers("shop", 0)) == ("blue", [])


def test_a_follower_that_nobody_follows_can_be_emptied_while_there_is_an_owner(
    owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at once, for another one of its group may need a while; without an owner it is the last to answer."""
    (blue, of_blue), (green, of_green) = owners.start("blue", 7, "old"), owners.start("green", 3, "new", follower=True)
    green._reader = owners.reader
    owners.turn(blue)
    owners.turn(green)
    of_green.leaving = True
    owners.turn(green)
    assert not green.is_succeeded(of_green)
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + SILENT_S)
    assert green.is_succeeded(of_green)
    owners.turn(blue, lambda: blue.withdraw(of_blue))
    assert not green.is_succeeded(of_green)


def test_another_member_follows_one_that_leaves_with_readers(owners: Owners) -> None:
    """They stay with its group, as when it stops."""
    (blue, _), (one, of_one) = owners.start("blue", 7, "old"), owners.start("one", 3, "new", follower=True)
    one._reader = owners.reader
    owners.turn(blue)
    owners.tell(moved("one", owners.reader.standing("shop", 0), 1))
    owners.turn(one)
    of_one.leaving = True
    owners.turn(one)
    owners.turn(blue)
    two, _ = owners.start("two", 4, "new", follower=True)
    owners.turn(two)
    assert one.is_succeeded(of_one)
    assert owners.turn(blue, later_s=SETTLED_S + 1) == []
    assert owners.stands() == "two"


@pytest.mark.parametrize("ends", ["in order", "killed"])
def test_another_member_of_the_group_takes_the_readers_over(owners: Owners, ends: str) -> None:
    """The group shares its partitions anew, or one of its processes dies: its next owner answers, standby or not."""
    (blue, _), (one, of_one) = owners.start("blue", 7, "old"), owners.start("one", 3, "new", standby=True)
    owners.turn(blue)
    owners.tell(moved("one", owners.reader.standing("shop", 0), 1))
    owners.turn(one)
    owners.turn(blue)
    if ends == "in order":
        owners.turn(one, lambda: one.withdraw(of_one))
    two, _ = owners.start("two", 4, "new", standby=True)
    [taken] = owners.turn(two)
    assert (taken.swap, owners.stands()) == (1, "two")
    assert owners.turn(blue, later_s=100.0) == []
    assert owners.stands() == "two"


def test_a_process_that_starts_again_finds_its_readers(owners: Owners) -> None:
    """After a crash and after an orderly end; and the group that was left stays left, also if it starts again."""
    blue, _ = owners.start("blue", 7, "old")
    owners.turn(blue)
    owners.tell(moved("green", owners.reader.standing("shop", 0), 1))
    again, _ = owners.start("green", 4, "new", standby=True)
    assert owners.turn(again)[0].swap == 1
    blue, _ = owners.start("blue", 8, "old")
    assert owners.turn(blue) == []
    standing = owners.reader.standing("shop", 0)
    assert standing is not None
    owners.tell(msgspec.structs.replace(standing, gone=True))
    later, _ = owners.start("green", 5, "new", standby=True)
    assert owners.turn(later)[0].instance == "green"
    assert owners.stands() == "green"


def test_a_late_announcement_of_the_old_owner_changes_nothing_for_long(owners: Owners) -> None:
    """An owner of a version before this one contends; the one that was chosen answers it once it can't be a zombie."""
    green, _ = owners.start("green", 3, "new", standby=True)
    owners.tell(said("old", 9), moved("green", said("old", 9), 1))
    owners.turn(green)
    owners.tell(said("old", 5 << 32 | 9))
    assert owners.stands() == "old"
    for look in range(int(SETTLED_S / CHECK_S) + 2):
        owners.turn(green, later_s=look * CHECK_S)
    assert owners.stands() == "green"


def test_groups_that_were_never_swapped_are_as_before(owners: Owners) -> None:
    """Another name of the group, without a swap: the new one announces itself at once."""
    old, of_old = owners.start("a", 7, "old")
    owners.turn(old)
    owners.turn(old, lambda: old.withdraw(of_old))
    new, _ = owners.start("b", 1, "new")
    assert owners.turn(new)[0].swap == 0
    assert owners.stands() == "b"


def test_a_second_group_takes_the_place_only_of_an_owner_that_has_fallen_silent(owners: Owners) -> None:
    """Its group numbers say nothing about the first one's: however high they are, the readers stay."""
    old, _ = owners.start("a", 7, "old")
    owners.turn(old)
    new, _ = owners.start("b", 900, "new")
    assert owners.turn(new) == owners.turn(new, later_s=SILENT_S - 1) == []
    heard = owners.reader.standing("shop", 0)
    assert heard is not None
    owners.tell(msgspec.structs.replace(heard))
    assert owners.turn(new, later_s=SILENT_S + 1) == []
    assert owners.stands() == "a"
    assert [each.role for each in owners.turn(new, later_s=2 * SILENT_S + 2)] == ["owner"]
    assert owners.stands() == "b"


def test_a_follower_never_takes_the_owners_place_until_readers_are_moved_to_it(owners: Owners) -> None:
    """It is announced beside the owner, also when that is gone; a swap makes it the owner, the way back a follower."""
    (blue, of_blue), (green, of_green) = (
        owners.start("blue", 7, "old"),
        owners.start("green", 900, "new", follower=True),
    )

    def followers() -> list[str]:
        return [each.instance for each in owners.reader.followers("shop", 0)]

    owners.turn(green)
    assert (owners.stands(), followers()) == ("", ["green"])
    owners.turn(blue)
    assert (owners.stands(), followers()) == ("blue", ["green"])
    owners.turn(blue, lambda: blue.withdraw(of_blue))
    assert owners.turn(green, later_s=10 * SILENT_S) == []
    assert (owners.stands(), followers()) == ("", ["green"])
    owners.turn(blue, lambda: blue.announce(of_blue))
    owners.tell(moved("green", owners.reader.standing("shop", 0), 1))
    assert [each.role for each in owners.turn(green)] == ["owner"]
    assert (owners.stands(), followers()) == ("green", [])
    owners.tell(moved("blue", owners.reader.standing("shop", 0), 2))
    assert [each.role for each in owners.turn(green)] == ["follower"]
    assert (owners.stands(), followers()) == ("blue", ["green"])
    owners.turn(green, lambda: green.withdraw(of_green))
    assert (owners.stands(), followers()) == ("blue", [])


def test_a_follower_that_became_the_owner_is_neither_once_it_is_gone(owners: Owners) -> None:
    """It withdraws once, as what it was last. Fronts that knew it as a follower must not ask it for ever."""
    (blue, _), (green, of_green) = owners.start("blue", 7, "old"), owners.start("green", 9, "new", follower=True)
    owners.turn(blue)
    owners.turn(green)
    owners.tell(moved("green", owners.reader.standing("shop", 0), 1))
    owners.turn(green)
    owners.turn(green, lambda: green.withdraw(of_green))
    assert (owners.stands(), owners.reader.followers("shop", 0)) == ("", [])
    green, _ = owners.start("green again", 10, "new", follower=True)
    owners.turn(green)
    owners.tell(moved("blue", owners.reader.standing("shop", 0), 2))
    owners.turn(green)
    assert [each.instance for each in owners.reader.followers("shop", 0)] == ["green again"]


def test_the_last_follower_of_a_group_stands(owners: Owners) -> None:
    """Members of one group are ordered by its generations; another group has its own follower."""
    one, of_one = owners.start("one", 3, "next", follower=True)
    two, _ = owners.start("two", 4, "next", follower=True)
    three, _ = owners.start("three", 1, "third", follower=True)
    for each in (one, two, three):
        owners.turn(each)
    owners.turn(one, lambda: one.withdraw(of_one))
    assert [each.instance for each in owners.reader.followers("shop", 0)] == ["two", "three"]


@pytest.mark.parametrize("kind", ["standby", "follower"])
def test_a_standby_needs_a_group_of_its_own(kind: str) -> None:
    """In the group of the others it would take their partitions away, and leave them without an announced owner."""
    with pytest.raises(SettingsError, match="group of its own"):
        load_settings(flags={"consumer": {kind: True}})
    assert getattr(load_settings(flags={"consumer": {kind: True, "group": "next"}}).consumer, kind)


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
                until(partial(stands, reader, keyspace_name, address), "the reader has heard of it")
                seen = len(answers)
                until(partial(more_than, answers, seen + 5), "read from the other one")
            other = Feed(kafka, f"{keyspace_name}-other", partitions=1).keyspace
            refused = run_swap(kafka, other, after)
            assert refused.returncode == 1
            assert f"error[swap_refused]: the consumers at {after} do not own the partitions [0]" in refused.stderr
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


def stands(reader: LocationsReader, keyspace: str, address: str) -> bool:
    """Whether readers are sent to this owner."""
    owner = reader.owner_of(keyspace, 0)
    return owner is not None and owner.address == address


def more_than(answers: list[tuple[str, str]], count: int) -> bool:
    """Whether there are more answers than that."""
    return len(answers) > count


def fold_of(data_dir: Path, keyspace: str) -> int:
    """The fold version of a store."""
    return int(json.loads((data_dir / keyspace / "0" / "manifest.json").read_text())["fold_version"])


def swap(kafka: KafkaCluster, keyspace: str, address: str) -> None:
    """`freshet swap`, which succeeds."""
    done = run_swap(kafka, keyspace, address)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"moved 1 partitions of {keyspace} to {address}")


def run_swap(kafka: KafkaCluster, keyspace: str, address: str) -> subprocess.CompletedProcess[str]:
    """`freshet swap`."""
    command = [*FRESHET, "swap", keyspace, "--to", address, "--bootstrap", kafka.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


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
