"""Locations: every reader knows the owner of a partition soon after its announcement."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from confluent_kafka import Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from stream.kafka import locations as announcements
from stream.kafka.connection import KafkaCluster, KafkaUnreachable, client_settings
from stream.kafka.locations import Announcement, LocationError, LocationsReader, announce, withdraw
from stream.kafka.topics import locations_topic
from tests.consumers.consuming import until
from tests.patience import PATIENCE_S


def _announcement(keyspace: str, partition: int = 0, **more: Any) -> Announcement:
    fields: dict[str, Any] = {"address": "127.0.0.1:4000", "instance": "a", **more}
    return Announcement(keyspace=keyspace, partition=partition, **fields)


def test_an_owner_that_announced_itself_is_found(kafka: KafkaCluster, keyspace_name: str) -> None:
    """A reader that starts later knows earlier announcements."""
    said = _announcement(keyspace_name, layout="xxh3_64;partitions=1", positions={"s/0": "MariaDB/0-1-5"}, started_at=9)
    announce(kafka, [said, _announcement(keyspace_name, 1)])
    with LocationsReader(kafka) as locations:
        assert locations.owner_of(keyspace_name, 0) == said
        assert set(locations.owners(keyspace_name)) == {0, 1}
        assert locations.owner_of(keyspace_name, 2) is None


def test_a_later_owner_is_waited_for(kafka: KafkaCluster, keyspace_name: str) -> None:
    """A wait for an owner ends as soon as one is announced."""
    with LocationsReader(kafka) as locations:
        with pytest.raises(LocationError) as missing:
            locations.wait_for(keyspace_name, 0, 0.05)
        assert missing.value.code == "owner_unknown"
        threading.Timer(0.1, announce, (kafka, [_announcement(keyspace_name)])).start()
        assert locations.wait_for(keyspace_name, 0, PATIENCE_S).instance == "a"
        threading.Timer(0.1, announce, (kafka, [_announcement(keyspace_name, instance="b")])).start()
        assert locations.wait_for(keyspace_name, 0, PATIENCE_S, other_than="a").instance == "b"


def test_only_the_owner_itself_can_withdraw(kafka: KafkaCluster, keyspace_name: str) -> None:
    """A late withdrawal by the old owner does not hide the new one."""
    old, new = _announcement(keyspace_name, instance="old"), _announcement(keyspace_name, instance="new")
    announce(kafka, [old, new])
    withdraw(kafka, [old])
    with LocationsReader(kafka) as locations:
        assert locations.owner_of(keyspace_name, 0) == new
    withdraw(kafka, [new])
    with LocationsReader(kafka) as locations:
        assert locations.owner_of(keyspace_name, 0) is None


def test_invalid_announcements_are_ignored(kafka: KafkaCluster, keyspace_name: str) -> None:
    """Invalid records in the topic do not stop the reader."""
    producer = Producer(client_settings(kafka))
    for value in (b"garbage", b'{"keyspace": 1}', b"\xff"):
        producer.produce(locations_topic(kafka), value, uuid.uuid4().hex.encode(), partition=0)
    producer.flush()
    announce(kafka, [_announcement(keyspace_name)])
    with LocationsReader(kafka) as locations:
        assert locations.owner_of(keyspace_name, 0) is not None


def test_following_stops_when_it_is_closed(kafka: KafkaCluster) -> None:
    """Closing the reader ends its thread."""
    locations = LocationsReader(kafka).start()
    began = time.monotonic()
    locations.close()
    assert time.monotonic() - began < PATIENCE_S
    assert "locations" not in {thread.name for thread in threading.enumerate()}


class Record:
    """A message of the topic."""

    def __init__(self, value: bytes | None = b"{}", offset: int = 0) -> None:
        self._value, self._offset = value, offset

    def value(self) -> bytes | None:
        return self._value

    def key(self) -> bytes:
        return b""

    def offset(self) -> int:
        return self._offset


def test_no_read_waits_while_announcements_are_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands come at once after a pause of Kafka: none is decoded while the lock is held, nor two taken in at once,
    so what is known is told meanwhile."""
    reader = LocationsReader(KafkaCluster("127.0.0.1:1"))
    known, seen = _announcement("shop"), list[int]()

    def look(*_: object) -> Announcement:
        looking = threading.Thread(target=lambda: seen.append(reader.changed_after(0)[0]), daemon=True)
        looking.start()
        looking.join(PATIENCE_S)
        return msgspec.structs.replace(known, partition=len(seen))

    monkeypatch.setattr("stream.kafka.locations.decode_announcement", look)
    reader._learn([cast("Message", Record()) for _ in range(100)])
    assert seen == list(range(100))
    assert len(reader.owners("shop")) == 100


def test_what_changed_again_is_found_behind_its_last_change() -> None:
    """Whoever asks for what came since would miss a partition whose owner changed twice."""
    reader = LocationsReader(KafkaCluster("127.0.0.1:1"))
    for partition in (0, 1, 0):
        reader._apply(_announcement("shop", partition))
    assert reader.changed_after(2) == (3, [("shop", 0, 3)])
    assert reader.changed_after(0) == (3, [("shop", 1, 2), ("shop", 0, 3)])


@pytest.mark.parametrize("last", [None, b"no announcement"])
def test_who_waits_for_the_topics_end_has_come_to_it_whatever_is_there(
    last: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What says nothing has been read, too. Nobody waits for a topic that has nothing any more."""
    kafka, (start, end) = KafkaCluster("127.0.0.1:1"), (5, 7)
    monkeypatch.setattr(announcements, "start_offsets", lambda *_: {0: start})
    monkeypatch.setattr(announcements, "end_offsets", lambda *_: {0: end})
    reader = LocationsReader(kafka)
    with pytest.raises(KafkaUnreachable):
        reader.catch_up(0)
    reader._learn([cast("Message", Record(last, offset)) for offset in (5, 6)])
    reader.catch_up(0)
    start = end = 9
    reader.catch_up(0)


@pytest.fixture
def own(kafka: KafkaCluster) -> KafkaCluster:
    """With a topic of announcements that no other test has."""
    return replace(kafka, prefix=f"freshet-{uuid.uuid4().hex[:8]}")


def found(reader: LocationsReader, keyspace: str, instance: str) -> None:
    """Waits until this one is the owner."""
    until(lambda: (known := reader.owner_of(keyspace, 0)) is not None and known.instance == instance, "it is found")


@pytest.mark.parametrize("gone", [False, True])
def test_a_topic_that_is_made_anew_has_owners_for_who_has_read_the_one_before(
    own: KafkaCluster, keyspace_name: str, gone: bool
) -> None:
    """The groups count from 1 in a Kafka that is set up anew: a front that stays up would find nobody for good."""
    old = _announcement(keyspace_name, generation=41, instance="old")
    announce(own, [old] * 3)
    with LocationsReader(own) as reader, AdminClient(client_settings(own)) as admin:
        if gone:
            withdraw(own, [old])
            until(lambda: reader.owner_of(keyspace_name, 0) is None, "it has withdrawn")
        admin.delete_topics([locations_topic(own)])[locations_topic(own)].result()
        new = _announcement(keyspace_name, generation=1, instance="new")

        def told() -> bool:
            announce(own, [new])  # again and again, as owners do: what comes first may be lost with the old topic
            known = reader.owner_of(keyspace_name, 0)
            return known is not None and known.instance == "new"

        until(told, "it is found")
        anew = reader.anew_of(keyspace_name, 0)
        assert anew
        announce(own, [msgspec.structs.replace(old, gone=False)])  # it is alive, and speaks beside the new one
        found(reader, keyspace_name, "old")
        assert reader.anew_of(keyspace_name, 0) == anew
        with LocationsReader(own) as another:  # as for who starts now
            found(another, keyspace_name, "old")


def test_an_announcement_that_retention_has_taken_keeps_nobody_out(
    own: KafkaCluster, keyspace_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All were away for longer than that, and the group, which Kafka had forgotten, counts from 1."""
    new = _announcement(keyspace_name, generation=1, instance="new")
    announce(own, [_announcement(keyspace_name, generation=41, instance="old")])
    monkeypatch.setattr(announcements, "QUIET_S", 0.0)
    with LocationsReader(own) as reader, AdminClient(client_settings(own)) as admin:
        found(reader, keyspace_name, "old")
        passes = reader._passes
        announce(own, [new])  # the topic still has the one above it, however long that has been quiet
        until(lambda: reader._whole > passes, "the topic is read again")
        found(reader, keyspace_name, "old")
        place = TopicPartition(locations_topic(own), 0, 2)
        for done in admin.delete_records([place]).values():
            done.result()
        announce(own, [new])
        found(reader, keyspace_name, "new")


def test_who_stands_and_speaks_is_not_looked_for_again(own: KafkaCluster, keyspace_name: str) -> None:
    """An old owner that goes on announcing itself has nobody read the topic from its beginning each minute."""
    announce(own, [_announcement(keyspace_name, generation=41, instance="new")])
    with LocationsReader(own) as reader:
        change = reader.change
        announce(own, [_announcement(keyspace_name, generation=40, instance="old")])
        until(lambda: reader.change > change, "it is read")
        assert (reader._passes, reader._doubted) == (1, False)
        found(reader, keyspace_name, "new")


def test_a_follower_of_before_keeps_none_of_its_group_out() -> None:
    """The same with a group of followers."""
    reader = LocationsReader(KafkaCluster("127.0.0.1:1"))
    old = _announcement("shop", generation=7, instance="old", group="g", role="follower")
    new = msgspec.structs.replace(old, generation=1, instance="new")
    reader._apply(old)
    for passed in (False, True):
        reader._passes += passed
        reader._conclude()
        reader._apply(new)
        assert [each.instance for each in reader.followers("shop", 0)] == ["new" if passed else "old"]
