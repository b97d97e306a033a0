"""Announcements: whatever comes late, lost or in another order, the last owner of a partition stands."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.owner.overlay import Overlay
from consumers.owner.partitions import Partition
from consumers.process import announcing
from consumers.process.announcing import Announcer, generation_above
from consumers.store.store import PartitionStore
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import Announcement, LocationsReader, announce, encode_announcement
from stream.kafka.topics import Topic
from tests.consumers.consuming import ConsumeProcess, Feed, until
from tests.patience import PATIENCE_S

NOWHERE = KafkaCluster("127.0.0.1:1")
BUSY_S = 20.0
"""More than a busy machine needs to start a thread, less than a request to a Kafka that is away waits."""


class Record:
    """A record of the topic, as Kafka's client gives it."""

    def __init__(self, announced: Announcement) -> None:
        self._value = encode_announcement(announced)

    def value(self) -> bytes:
        return self._value

    def key(self) -> bytes:
        return b""

    def offset(self) -> int:
        return 0


def said(instance: str, generation: int = 0, *, gone: bool = False) -> Announcement:
    """An announcement of the one partition."""
    return Announcement(
        keyspace="shop", partition=0, address=f"{instance}:1", instance=instance, generation=generation, gone=gone
    )


def read(announced: list[Announcement]) -> LocationsReader:
    """A reader that has read these."""
    reader = LocationsReader(NOWHERE)
    records: list[Any] = [Record(each) for each in announced]
    reader._learn(records)
    return reader


def test_a_late_announcement_and_its_withdrawal_leave_the_owner() -> None:
    """B owns; A's announcement comes late, and A withdraws it: B must still be found."""
    late = [said("b", 7), said("a", 6), said("a", 6, gone=True)]
    for count in (1, 2, 3):
        found = read(late[:count]).owner_of("shop", 0)
        assert found is not None, count
        assert found.instance == "b", count


def test_a_withdrawn_owner_is_not_followed_by_an_older_one() -> None:
    """Nobody owns the partition: a stale announcement must not bring its process back."""
    assert read([said("b", 7), said("b", 7, gone=True), said("a", 6)]).owner_of("shop", 0) is None


def test_without_a_generation_the_last_one_stands() -> None:
    """Owners of an older version don't give one: a mixed group works as it did."""
    assert read([said("b", 7), said("a")]).owner_of("shop", 0) == said("a")
    assert read([said("a"), said("b", 7)]).owner_of("shop", 0) == said("b", 7)
    assert read([said("a"), said("b", gone=True)]).owner_of("shop", 0) == said("a")


@st.composite
def takeovers(draw: st.DrawFn) -> tuple[list[Announcement], Announcement]:
    """What the owners of a partition announced, shuffled, in between all of the last one's; and the last one's."""
    owners = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=6))
    generations = sorted(draw(st.sets(st.integers(1, 1 << 40), min_size=len(owners), max_size=len(owners))))
    last = said(owners[-1], generations[-1])
    stale = [last] * draw(st.integers(1, 3))
    for owner, generation in zip(owners[:-1], generations[:-1], strict=True):
        stale += [said(owner, generation)] * draw(st.integers(0, 2))
        stale += [said(owner, generation, gone=True)] * draw(st.integers(0, 1))
    return draw(st.permutations(stale)), last


@given(takeovers())
def test_the_last_owner_stands_in_any_order(history: tuple[list[Announcement], Announcement]) -> None:
    """All announcements of the last owner are delivered, in any order with stale ones: it stands."""
    announced, last = history
    assert read(announced).owner_of("shop", 0) == last


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from("abc"), st.booleans()), max_size=12))
def test_an_owner_whose_group_was_made_anew_stands_in_the_end(past: list[tuple[int, str, bool]]) -> None:
    """The group's numbers begin anew: an owner that keeps the partition gets above all that was announced."""
    reader = read([said(owner, generation << 32 | 9, gone=gone) for generation, owner, gone in past])
    owner: Any = type("Owned", (), {"generation": 1})()
    known = reader.standing("shop", 0)
    above = generation_above(known, owner, "z", settled=True)
    records: list[Any] = [Record(said("z", above))]
    reader._learn(records)
    assert reader.owner_of("shop", 0) == said("z", above)


def test_a_late_announcement_never_gets_above_a_standing_one() -> None:
    """A process that does not know yet that it has lost the partition must not win by announcing again."""
    late: Any = type("Owned", (), {"generation": 6})()
    assert generation_above(said("b", 7), late, "a", settled=False) == 6


def partition_of(directory: Path, keyspace: str, generation: int) -> Partition:
    """A partition with an empty store."""
    store = PartitionStore.open(directory, keyspace=keyspace, partition=0, topic_id="t")
    found = Partition(keyspace, 0, Topic(f"freshet.{keyspace}.events", "t", 1), store, Overlay(0))
    found.generation = generation
    return found


def test_an_owner_announces_again_and_above_what_does_not_belong_there(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """A foreign announcement that stands over the owner's is corrected by the owner itself."""
    monkeypatch.setattr(announcing, "CHECK_S", 0.05)
    monkeypatch.setattr(announcing, "SETTLED_S", 0.2)
    partition = partition_of(tmp_path, keyspace_name, 3)
    owner = Announcer(kafka, "here:1", lambda: "me")
    with LocationsReader(kafka) as reader:

        def stands(generation: int) -> bool:
            found = reader.owner_of(keyspace_name, 0)
            return found is not None and found.instance == "me" and found.generation >= generation

        owner.announce(partition)
        until(lambda: stands(3), "announced")
        foreign = said("other", 50)
        announce(kafka, [msgspec.structs.replace(foreign, keyspace=keyspace_name)])
        until(lambda: stands(51), "above the foreign one")
        owner.withdraw(partition)
        owner.close()
        until(lambda: reader.owner_of(keyspace_name, 0) is None, "withdrawn")
    partition.store.close()


def test_orders_neither_block_nor_raise_without_kafka(tmp_path: Path) -> None:
    """The fold thread gives them."""
    partition = partition_of(tmp_path, "shop", 1)
    owner = Announcer(NOWHERE, "here:1", lambda: "me")
    began = time.monotonic()
    owner.announce(partition)
    owner.withdraw(partition)
    owner.close()
    assert time.monotonic() - began < announcing.CLOSE_TIMEOUT_S + BUSY_S
    partition.store.close()
    owner._thread.join(PATIENCE_S)
    assert not owner._thread.is_alive()


def test_the_generation_grows_from_owner_to_owner(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """It is the group's own: the next process that takes the partition over has a higher one."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.load(5)
    found: list[Announcement] = []
    with LocationsReader(kafka) as reader:
        for name in ("one", "two"):
            with ConsumeProcess(kafka, keyspace_name, tmp_path / name) as process:
                process.ready()
                found.append(until(lambda: reader.owner_of(keyspace_name, 0), "announced"))
                assert process.terminate() == 0
            until(lambda: reader.owner_of(keyspace_name, 0) is None, "withdrawn")
    assert 0 < found[0].generation < found[1].generation
    assert found[0].instance != found[1].instance


def test_a_partition_that_is_assigned_and_taken_away_at_once_is_withdrawn(tmp_path: Path, monkeypatch: Any) -> None:
    """Its earlier announcement stands, whether or not a newer one has been sent."""
    sent: list[Announcement] = []
    monkeypatch.setattr("stream.kafka.locations.announce", lambda _, each: sent.extend(each))
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    partition, reader = partition_of(tmp_path, "shop", 3), read([])
    owner = Announcer(NOWHERE, "here:1", lambda: "me")

    def turn(*orders: Any) -> list[bool]:
        sent.clear()
        for order in orders:
            order(partition)
        owner._take_orders(0.001)
        owner._prepare(reader, 1.0)
        owner._send()
        return [each.gone for each in sent]

    owner._again_at = 1e9
    assert turn(owner.announce) == [False]
    assert turn() == []
    assert turn(owner.announce) == [False]
    assert turn(owner.announce, owner.withdraw) == [True]
    partition.store.close()


def test_what_waits_to_be_sent_follows_the_partition(tmp_path: Path, monkeypatch: Any) -> None:
    """That it is leaving is announced at once, and a withdrawal takes the place of what was never sent."""
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    partition, reader = partition_of(tmp_path, "shop", 3), read([])
    owner = Announcer(NOWHERE, "here:1", lambda: "me")
    owner._again_at = 1e9
    owner.announce(partition)
    owner._take_orders(0.001)
    owner._prepare(reader, 1.0)
    owner._sent |= owner._unsent
    owner._unsent.clear()
    partition.leaving = True
    owner._prepare(reader, 2.0)
    assert [(each.leaving, each.gone) for each in owner._unsent.values()] == [(True, False)]
    owner._sent.clear()
    owner.withdraw(partition)
    owner._take_orders(0.001)
    assert [each.gone for each in owner._unsent.values()] == [True]
    partition.store.close()


def test_an_owner_that_has_the_readers_says_how_often_they_were_moved(tmp_path: Path, monkeypatch: Any) -> None:
    """Also after it has announced itself anew: below that number they would go back to the group before."""
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    partition = partition_of(tmp_path, "shop", 3)
    owner = Announcer(NOWHERE, "here:1", lambda: "me")
    owner.announce(partition)
    owner._take_orders(0.001)
    owner._prepare(read([msgspec.structs.replace(said("me", 3), swap=2)]), 1.0)
    assert [each.swap for each in owner._unsent.values()] == [2]
    partition.store.close()


@pytest.mark.parametrize("gone", [False, True])
def test_who_has_withdrawn_succeeds_nobody(gone: bool, tmp_path: Path, monkeypatch: Any) -> None:
    """A partition that is handed over is answered for until another process does."""
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    partition = partition_of(tmp_path, "shop", 3)
    owner = Announcer(NOWHERE, "here:1", lambda: "me")
    owner._sent[partition.name] = said("me", 3)
    owner._reader = read([said("other", 5), said("other", 5, gone=gone)])
    assert owner.is_succeeded(partition) is not gone
    partition.store.close()


@pytest.mark.parametrize("read_when", ["before it is stopped", "when it goes on"])
def test_a_process_that_was_stopped_never_gets_above_who_took_its_place(
    read_when: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """A paused owner goes on: until it has learnt from its group what it lost, its word is below the new owner's."""
    clock = [time.monotonic()]
    monkeypatch.setattr("stream.kafka.locations.monotonic", lambda: clock[0])
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    partition, reader = partition_of(tmp_path, "shop", 3), read([])
    owner = Announcer(NOWHERE, "here:1", lambda: "me")
    owner.announce(partition)
    owner._take_orders(0.001)

    def turn(seconds: float) -> list[Announcement]:
        clock[0] += seconds
        owner._unsent.clear()
        owner._prepare(reader, clock[0])
        said_now = list(owner._unsent.values())
        owner._sent |= owner._unsent
        records: list[Any] = [Record(each) for each in said_now]
        reader._learn(records)
        return said_now

    assert [each.generation for each in turn(0.0)] == [3]
    for _ in range(12):
        turn(announcing.CHECK_S)  # settled long since
    other: list[Any] = [Record(said("other", 5))]
    pauses = (0.0, 60.0) if read_when == "before it is stopped" else (60.0, 0.0)
    clock[0] += pauses[0]
    reader._learn(other)
    clock[0] += pauses[1]
    for _ in range(int(announcing.SETTLED_S / announcing.CHECK_S)):
        assert {each.generation for each in turn(announcing.CHECK_S)} <= {3}
        found = reader.owner_of("shop", 0)
        assert found is not None
        assert found.instance == "other"
    assert [each.generation for each in turn(announcing.CHECK_S)] == [1 << announcing.ERA_BITS | 3]  # it kept it
    partition.store.close()
