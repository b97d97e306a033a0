"""A checkpoint whose partition lost its end and was filled again; on a real broker, too."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest

from stream.changes.assembling import LogReplaced
from stream.changes.checkpoint import Checkpoint, CheckpointError, Place
from stream.changes.following import Follower
from stream.changes.items import Transaction
from stream.changes.start import Start
from stream.changes.starting import start_and_end, start_at_checkpoint
from stream.kafka.reader import end_offsets
from stream.kafka.topics import check_topics, ensure_topics
from stream.wire.codec import decode
from stream.wire.keys import Layout
from tests.consumers.process.test_topic_losses import lose_tail
from tests.patience import PATIENCE_S
from tests.stream.changes.test_assembling import SHARD, rows_txn
from tests.stream.changes.topics import Log, follow, framer_of
from tests.stream.publishing import number_of, publisher, transaction


def test_a_checkpoint_past_a_lost_end_is_refused_once_the_log_has_grown_past_it(
    new_kafka: Callable[..., Any], keyspace_name: str
) -> None:
    """Its offsets are in the topic again, behind other events, which would never be told. It is told to read anew."""
    server = new_kafka()
    kafka = server.cluster
    ensure_topics(kafka, keyspace_name, 1)
    topic = check_topics(kafka, keyspace_name)

    def publish(count: int) -> int:
        with publisher(kafka, keyspace_name, 1) as out:
            last = number_of(out.open(lambda: ("MariaDB/0-1-0", 1_700_000_000)).position) + count
            for number in range(last - count + 1, last + 1):
                out.publish(transaction(number))
                out.flush()
        return last

    def told(start: Start, last: int) -> Checkpoint:
        deadline = monotonic() + PATIENCE_S
        with Follower(kafka, topic, start) as follower:
            while monotonic() < deadline:
                for item in follower.poll():
                    if isinstance(item, Transaction) and number_of(item.gtid) == last:
                        return follower.checkpoint
        raise AssertionError(f"{last} was not told")

    publish(1)
    start, _ = start_and_end(kafka, keyspace_name, topic)
    checkpoint = told(start, publish(22))
    resumed = start_at_checkpoint(kafka, keyspace_name, topic, Checkpoint.parse(str(checkpoint)))
    assert resumed.checkpoint == checkpoint
    told(resumed, publish(2))  # every fourth is empty, and not told
    lose_tail(server, topic.name)
    [left] = end_offsets(kafka, topic.name, [0]).values()
    assert left < checkpoint.offsets[0]
    with pytest.raises(CheckpointError, match="ends before the checkpoint"):
        start_at_checkpoint(kafka, keyspace_name, topic, checkpoint)
    while end_offsets(kafka, topic.name, [0])[0] <= checkpoint.offsets[0] + 5:
        publish(5)
    with pytest.raises(CheckpointError, match="filled it again") as lost:
        start_at_checkpoint(kafka, keyspace_name, topic, checkpoint)
    assert lost.value.code == "checkpoint_lost"
    unanchored = replace(checkpoint, anchors=())
    assert start_at_checkpoint(kafka, keyspace_name, topic, unanchored).checkpoint == unanchored, "c1 can't know it"


def test_a_stream_that_goes_on_notices_what_is_missing_right_behind_its_checkpoint() -> None:
    """The message before it is still there, and the next marker follows another one: what was between is lost."""
    log, framer = Log(Layout(1)), framer_of(SHARD, Layout(1))
    for number in (1, 2, 3):
        log.publish(framer, rows_txn(number, 1))
    values = log.partitions[0]
    first, second, _ = (at for at, value in enumerate(values) if decode(value)[0] == "Marker")
    [*_, before] = follow(log, log.beginning(), random.Random(1), until=(first + 1,))
    marker = decode(values[first])[1]
    start = Start(before.checkpoint, links={0: (SHARD, Place(marker["epoch"], marker["continuity"]))})
    assert [*follow(log, start, random.Random(1))]
    del values[first + 1 : second + 1]
    with pytest.raises(LogReplaced):
        list(follow(log, start, random.Random(1)))
