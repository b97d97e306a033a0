"""A stream that begins in the middle of a topic reads what a newer publisher announced before it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from types import SimpleNamespace

import pytest

from stream.changes.checkpoint import Checkpoint
from stream.changes.following import Follower
from stream.changes.items import Item, Transaction, Unreadable
from stream.changes.last import last_changes
from stream.changes.start import Start
from stream.changes.starting import (
    published_by_now,
    start_after,
    start_and_end,
    start_at_checkpoint,
    start_at_earliest,
)
from stream.kafka import announced
from stream.kafka.announced import announced_before
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import check_topics
from stream.wire.codec import PartitionReader, header_of
from stream.wire.events import VALUE, RowChange, SourceTransaction
from stream.wire.keys import Layout, row_key
from tests.patience import PATIENCE_S
from tests.spark_jobs.topics import TestTopic
from tests.stream.changes.topics import Log, framer_of
from tests.upgrades import next_version
from tokens import Position, Vector
from tokens.vector import Component

TABLE = "shop.t"
FIRST, LAST = 20, 30
"""The last one before a stream begins, and the last one of all."""


class NewerPublisher:
    """Writes transactions of one row into two partitions, all in records of the next version."""

    def __init__(self, kafka: KafkaCluster, keyspace: str) -> None:
        self.shard = f"{keyspace}/0"
        self._kafka, self._topic, self._log = kafka, TestTopic(kafka, keyspace, 2), Log(Layout(2))
        self._framer, self._number = framer_of(self.shard, self._log.layout), 0
        for partition in range(2):
            self._topic.write(partition, next_version.announcements(self.shard))

    def publish(self, last: int) -> None:
        """The transactions up to ``last``, a batch each."""
        written = self._log.ends
        while self._number < last:
            self._number += 1
            gtid = gtid_of(self._number)
            change = RowChange(row_key(TABLE, [self._number]), VALUE, b"{}")
            self._log.publish(self._framer, SourceTransaction(gtid, gtid, 1_700_000_000 + self._number, [change]))
        for partition, begin in enumerate(written):
            new = self._log.partitions[partition][begin:]
            self._topic.write(partition, next_version.topic(new, self.shard))

    def told(self, start: Start, last: int = LAST) -> list[Item]:
        """What a stream tells up to a transaction."""
        found: list[Item] = []
        deadline = monotonic() + PATIENCE_S
        with Follower(self._kafka, check_topics(self._kafka, self._topic.keyspace), start) as follower:
            while gtid_of(last) not in gtids(found):
                assert monotonic() < deadline, f"{last} was not told"
                found += follower.poll()
                assert not [item for item in found if isinstance(item, Unreadable)]
        return found


def gtid_of(number: int) -> str:
    """Of the source's transaction with this number."""
    return f"MariaDB/0-1-{number}"


def gtids(items: list[Item]) -> list[str]:
    """Of the transactions."""
    return [item.gtid for item in items if isinstance(item, Transaction)]


@pytest.fixture
def newer(kafka: KafkaCluster, keyspace_name: str, monkeypatch: pytest.MonkeyPatch) -> NewerPublisher:
    """One that has published the first ones; its announcements are several windows back."""
    for window in ("kafka.announced.WINDOW", "changes.last.WINDOW", "changes.starting.WINDOW_RECORDS"):
        monkeypatch.setattr(f"stream.{window}", 4)
    publisher = NewerPublisher(kafka, keyspace_name)
    publisher.publish(FIRST)
    return publisher


def at_checkpoint(kafka: KafkaCluster, keyspace: str, newer: NewerPublisher) -> Start:
    """Of a stream that has told the first ones."""
    topic = check_topics(kafka, keyspace)
    checkpoint = newer.told(start_at_earliest(kafka, keyspace, topic), FIRST)[-1].checkpoint
    assert all(checkpoint.anchors)
    start = start_at_checkpoint(kafka, keyspace, topic, Checkpoint.parse(str(checkpoint)))
    assert [shard for shard, _ in start.links.values()] == [newer.shard] * 2, "markers go on with those before it"
    return start


def at_token(kafka: KafkaCluster, keyspace: str, newer: NewerPublisher) -> Start:
    """After the position of the first one."""
    vector = Vector({newer.shard: Component(1, Position.parse(gtid_of(FIRST)))})
    return start_after(kafka, keyspace, check_topics(kafka, keyspace), vector)


@pytest.mark.parametrize("begin", [at_checkpoint, at_token])
def test_a_stream_that_goes_on_tells_each_transaction(
    kafka: KafkaCluster,
    keyspace_name: str,
    newer: NewerPublisher,
    begin: Callable[[KafkaCluster, str, NewerPublisher], Start],
) -> None:
    """Frames and markers alike: they were told as unreadable until the publisher said its schemas again."""
    start = begin(kafka, keyspace_name, newer)
    assert min(start.checkpoint.offsets) > len(next_version.announcements(""))
    newer.publish(LAST)
    assert gtids(newer.told(start)) == [gtid_of(number) for number in range(FIRST + 1, LAST + 1)]


def test_a_stream_from_now_on_begins_behind_what_is_whole(
    kafka: KafkaCluster, keyspace_name: str, newer: NewerPublisher
) -> None:
    """The markers that say so are the newer publisher's; with none of them a stream until now would end at once."""
    topic = check_topics(kafka, keyspace_name)
    start, ends = start_and_end(kafka, keyspace_name, topic)
    assert ends == published_by_now(kafka, keyspace_name, topic) == start.checkpoint.offsets
    newer.publish(LAST)
    assert gtids(newer.told(start)) == [gtid_of(number) for number in range(FIRST + 1, LAST + 1)]


def test_the_last_change_of_a_table_is_found_among_newer_frames(
    kafka: KafkaCluster, keyspace_name: str, newer: NewerPublisher
) -> None:
    """They are read from the end back, and what announces them lies before all of it."""
    newer.publish(LAST)
    topic = check_topics(kafka, keyspace_name)
    ends = dict(enumerate(published_by_now(kafka, keyspace_name, topic)))
    assert last_changes(kafka, topic.name, ends, [TABLE])[TABLE].gtid == gtid_of(LAST)


@pytest.mark.parametrize(("bytes_max", "is_found"), [(1, False), (1 << 20, True)])
def test_how_far_back_it_is_looked_is_bounded(monkeypatch: pytest.MonkeyPatch, bytes_max: int, is_found: bool) -> None:
    """A message that nobody announced must not have all of the topic read."""
    monkeypatch.setattr(announced, "BYTES_MAX", bytes_max)
    monkeypatch.setattr(announced, "WINDOW", 4)
    schema = next_version.SCHEMAS["Marker"]
    log = [b"cut off", next_version.announcement(schema, "s/0"), *[b"x" * 100] * 30]

    def read_range(_: object, __: str, ___: int, start: int, end: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(value=lambda value=value: value) for value in log[start:end]]

    monkeypatch.setattr(announced, "read_range", read_range)
    monkeypatch.setattr(announced, "start_offsets", lambda *_: {0: 1})
    reader = PartitionReader(earlier=announced_before(KafkaCluster("nowhere:1"), "topic", 0, len(log)))
    assert reader.name_of(header_of(schema)) == ("Marker" if is_found else "")
