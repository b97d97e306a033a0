"""The publisher on a real broker publishes exactly once through kills, restarts and fencing."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from freshet.local.kafka import KafkaServer
from stream.kafka.connection import KafkaCluster, KafkaUnreachable, client_settings
from stream.kafka.reader import end_offsets, read_range
from stream.kafka.topics import TIMESTAMP_AFTER_MS, ensure_topics, events_topic
from stream.publish.clock import SystemClock
from stream.publish.publisher import (
    BACKLOG_AGE_MS,
    SMALL_BYTES,
    LayoutMismatch,
    Publisher,
    PublisherLost,
    record_time_ms,
)
from stream.publish.resume import read_tail
from stream.publish.topology import DeclaredTopology
from stream.wire.codec import MAGIC, decode
from stream.wire.events import VALUE, OpenTransaction, ResumePoint, RowChange, SourceTransaction
from stream.wire.keys import Layout, row_key
from tests.lengths import length
from tests.patience import PATIENCE_S
from tests.stream.committed import markers, records, rows
from tests.stream.publishing import assert_exactly_once, number_of, publisher, transaction

PARTITIONS = 3
ROOT = Path(__file__).resolve().parents[2]


def _start() -> tuple[str, int]:
    return "MariaDB/0-1-0", 1_700_000_000


def _txn(number: int, size: int = 1) -> SourceTransaction:
    gtid = f"MariaDB/0-1-{number}"
    changes = [RowChange(row_key("t", [number, n]), VALUE, b"{}") for n in range(size)]
    return SourceTransaction(gtid, gtid, 1_700_000_000 + number, list(changes))


def _until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition did not come true in time"
        time.sleep(0.02)


@pytest.fixture
def keyspace(kafka: KafkaCluster, keyspace_name: str) -> str:
    """A keyspace whose topics exist."""
    ensure_topics(kafka, keyspace_name, PARTITIONS)
    return keyspace_name


def _publish_flushed(out: Publisher, numbers: range) -> None:
    for number in numbers:
        out.publish(transaction(number))
        out.flush()


@pytest.mark.slow
@pytest.mark.long
def test_killed_at_any_instant_it_publishes_everything_once(kafka: KafkaCluster, keyspace: str) -> None:
    """Kill -9 of a publishing process, also inside a transaction that spans batches, loses and repeats nothing."""
    chance = random.Random(20)
    last, kills_in_flight = 8000, 0
    command = [sys.executable, "-m", "tests.stream.publishing", kafka.bootstrap, keyspace, str(PARTITIONS), str(last)]
    for attempt in range(40):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            if attempt % 4 == 3:
                time.sleep(chance.uniform(0.2, 0.8))  # also while it starts
                process.kill()
            elif attempt < length(8, 12):
                while not process.stdout.readline().startswith("resumed"):
                    assert process.poll() is None
                time.sleep(chance.uniform(0, 0.12))
                process.kill()
            done = "done" in process.stdout.read()
            kills_in_flight += process.wait() < 0 and not done
            if done:
                break
    else:
        pytest.fail("the publishing process never finished")
    assert kills_in_flight >= 3
    assert_exactly_once(kafka, keyspace, PARTITIONS, last)


def test_a_stale_publisher_is_fenced_and_publishes_nothing_more(kafka: KafkaCluster, keyspace: str) -> None:
    """If two processes publish one shard, the later one wins and the earlier one is fenced."""
    stale, fresh = publisher(kafka, keyspace, PARTITIONS), publisher(kafka, keyspace, PARTITIONS)
    stale.open(_start)
    for number in range(1, 6):
        stale.publish(transaction(number))
    stale.flush()
    resume = fresh.open(_start)
    assert resume.position == "MariaDB/0-1-5"
    with pytest.raises(PublisherLost) as lost:
        _publish_flushed(stale, range(6, 10))
    assert lost.value.code == "fenced"
    with pytest.raises(PublisherLost):
        stale.publish(transaction(6))
    with fresh:
        for number in range(6, 10):
            fresh.publish(transaction(number))
    assert_exactly_once(kafka, keyspace, PARTITIONS, 9)


def test_a_lost_publisher_keeps_no_connection_and_no_thread(kafka: KafkaCluster, keyspace: str) -> None:
    """The error of a lost publisher does not keep its producer's threads and connections alive."""

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before = threads()
    gc.disable()
    try:
        stale = publisher(kafka, keyspace, PARTITIONS)
        stale.open(_start)
        with publisher(kafka, keyspace, PARTITIONS) as fresh:
            fresh.open(_start)
            with pytest.raises(PublisherLost) as lost:
                _publish_flushed(stale, range(1, 5))
        del fresh
        _until(lambda: threads() <= before)
        assert lost.value.code == "fenced"
    finally:
        gc.enable()


def test_a_giant_transaction_resumes_where_it_was_cut(kafka: KafkaCluster, keyspace: str) -> None:
    """A transaction that spans batches is resumed after its published part, without a marker inside it."""
    first = publisher(kafka, keyspace, PARTITIONS)
    first.open(_start)
    first.publish(transaction(1))
    first.flush()
    giant = transaction(40)
    cut = SourceTransaction("MariaDB/0-1-2", "MariaDB/0-1-2", giant.timestamp, giant.changes)
    framer = first._framer
    assert framer is not None
    end = framer.room(cut)
    assert 0 < end < len(cut.changes)
    framer.add(cut, 0, end)
    first.close()

    second = publisher(kafka, keyspace, PARTITIONS)
    with second:
        resume = second.open(_start)
        assert (resume.position, resume.partial_gtid, resume.partial_events) == ("MariaDB/0-1-1", "MariaDB/0-1-2", end)
        second.publish(cut)
    found = records(kafka, keyspace, PARTITIONS)
    keys = [key for _, key, _, gtid in rows(found) if gtid == "MariaDB/0-1-2"]
    assert keys == [change.key for change in cut.changes if isinstance(change, RowChange)]
    inside = [marker for marker in markers(found) if not marker["whole"]]
    assert {marker["position"] for marker in inside} == {"MariaDB/0-1-1"}


def test_a_source_that_resumes_elsewhere_is_stopped(kafka: KafkaCluster, keyspace: str) -> None:
    """Rows of another transaction are never mixed into a partly published one."""
    first = publisher(kafka, keyspace, PARTITIONS)
    first.open(_start)
    assert first._framer is not None
    first._framer.add(transaction(40), 0, 10)
    first.close()
    second = publisher(kafka, keyspace, PARTITIONS)
    second.open(_start)
    with pytest.raises(PublisherLost, match=r"events of .* are published"):
        second.publish(transaction(41))


def test_a_single_transaction_is_sent_at_once_and_an_idle_shard_still_marks(kafka: KafkaCluster, keyspace: str) -> None:
    """A single transaction is sent at once, and an idle shard repeats its markers each idle interval."""
    out = Publisher(kafka, keyspace, f"{keyspace}/0", Layout(PARTITIONS), idle_marker_s=0.2)
    with out:
        out.open(_start)
        waits = []
        for number in range(1, 6):
            out.publish(_txn(number))
            began = time.monotonic()
            _until(lambda n=number: out.stats.transactions == n)  # type: ignore[misc]
            waits.append(time.monotonic() - began)
        assert min(waits) < 1.0  # a busy machine delays some, a publisher that waits delays each
        batches = out.stats.batches
        _until(lambda: out.stats.batches >= batches + 3)
    found = records(kafka, keyspace, PARTITIONS)
    for partition in range(PARTITIONS):
        idle = markers(found, partition)[-3:]
        assert {(marker["position"], marker["ordinal"]) for marker in idle} == {("MariaDB/0-1-5", 6)}
    home = Layout(PARTITIONS).home_partition(f"{keyspace}/0")
    sequences = [fields["sequence"] for name, fields in found[home] if name == "SourceState"]
    assert sequences == list(range(1, len(sequences) + 1))


def test_a_batch_has_no_room_while_it_is_large(kafka: KafkaCluster, keyspace: str) -> None:
    """Who can wait adds nothing to it until it is on its way; and whoever waits for room is told of a loss."""
    with Publisher(kafka, keyspace, f"{keyspace}/0", Layout(PARTITIONS), batch_interval_s=3_600) as out:
        out.open(_start)
        assert out.has_room()
        image = b"x" * (SMALL_BYTES // 2)
        out.publish(SourceTransaction("MariaDB/0-1-1", "MariaDB/0-1-1", 1, [_value(1, image)]))
        assert out.has_room()
        out.publish(SourceTransaction("MariaDB/0-1-2", "MariaDB/0-1-2", 1, [_value(2, image)]))
        assert not out.has_room()
        assert not out.has_room(0.01)
        flushing = threading.Thread(target=out.flush)
        flushing.start()
        assert out.has_room(PATIENCE_S)
        flushing.join()
    with pytest.raises(PublisherLost):
        out.has_room()


def _value(number: int, image: bytes) -> RowChange:
    return RowChange(row_key("shop.t", [number]), VALUE, image)


def test_a_position_without_changes_moves_the_watermark(kafka: KafkaCluster, keyspace: str) -> None:
    """A position without changes is published in markers, so that sessions need not wait for the next change."""
    with publisher(kafka, keyspace, PARTITIONS) as out:
        out.open(_start)
        out.advance("MariaDB/0-1-17", 1_700_000_017)
        out.flush()
    assert markers(records(kafka, keyspace, PARTITIONS))[-1]["position"] == "MariaDB/0-1-17"


def test_a_new_epoch_is_in_every_partition_and_outlives_a_restart(kafka: KafkaCluster, keyspace: str) -> None:
    """A new epoch starts once in every partition and is kept after a restart."""
    with publisher(kafka, keyspace, PARTITIONS) as out:
        first = out.open(_start).epoch
        out.publish(_txn(1, 5))
        resume = out.start_new_epoch("MariaDB/0-2-900", 1_700_000_900, "history_lost")
        second = resume.epoch
        assert (resume.ordinal, resume.low_water) == (1, "MariaDB/0-2-900")
    with publisher(kafka, keyspace, PARTITIONS) as out:
        resume = out.open(_start)
        assert (resume.epoch, resume.ordinal, resume.position) == (second, 1, "MariaDB/0-2-900")
    found = records(kafka, keyspace, PARTITIONS)
    for partition in range(PARTITIONS):
        starts = [(f["epoch"], f["reason"]) for name, f in found[partition] if name == "EpochStart"]
        assert starts == [(first, "first_start"), (second, "history_lost")]
        assert first < second


def test_records_of_a_newer_version_start_a_new_epoch(kafka: KafkaCluster, keyspace: str) -> None:
    """After going back from a newer version nothing is published over what that version published."""
    with publisher(kafka, keyspace, PARTITIONS) as out:
        out.open(_start)
        out.publish(_txn(1, 5))
    home = Layout(PARTITIONS).home_partition(f"{keyspace}/0")
    newer = Producer(client_settings(kafka))
    newer.produce(events_topic(kafka, keyspace), MAGIC + b"\xff" * 8 + b"a state of tomorrow", partition=home)
    assert newer.flush(60) == 0
    with publisher(kafka, keyspace, PARTITIONS) as out:
        resume = out.open(_start)
        assert resume.epoch > 1_700_000_000, "above every epoch that the newer version can have begun"
    with publisher(kafka, keyspace, PARTITIONS) as out:
        assert out.open(_start).epoch == resume.epoch
    topic, other = events_topic(kafka, keyspace), (home + 1) % PARTITIONS
    [end] = end_offsets(kafka, topic, [other]).values()
    decoded = [decode(message.value()) for message in read_range(kafka, topic, other, 0, end)]
    reasons = [fields["reason"] for name, fields in decoded if name == "EpochStart"]
    assert reasons == ["first_start", "newer_records"]


def test_open_transactions_come_back_after_a_restart(kafka: KafkaCluster, keyspace: str) -> None:
    """A restarted catalog source gets its open transactions from the topic, however old they are."""
    opened = tuple(OpenTransaction(n, ((n, 1),), n % 2 == 0, (n,)) for n in range(1, 50))
    with publisher(kafka, keyspace, PARTITIONS) as out:
        out.open(_start)
        out.publish(SourceTransaction("HiveEvent/1", "HiveEvent/1", 1, opened=opened))
        for number in range(2, 300):
            position = f"HiveEvent/{number}"
            out.publish(SourceTransaction(position, position, number, closed=(number,)))
            out.flush()
    with publisher(kafka, keyspace, PARTITIONS) as out:
        assert out.open(_start).open_transactions == {1: opened[0]}


@pytest.mark.slow
def test_the_last_state_is_found_behind_a_long_tail_of_others(kafka: KafkaCluster, keyspace: str) -> None:
    """The state of a quiet shard is found far back, and also behind another shard's unfinished transaction."""
    layout = Layout(1)
    ensure_topics(kafka, f"{keyspace}x", 1)
    quiet = Publisher(kafka, f"{keyspace}x", "quiet", layout, topology=DeclaredTopology(("busy",)))
    with quiet:
        quiet.open(_start)
        quiet.publish(_txn(7))
    topic = events_topic(kafka, f"{keyspace}x")
    topology = DeclaredTopology(("quiet",))
    with Publisher(kafka, f"{keyspace}x", "busy", layout, idle_marker_s=60, topology=topology) as busy:
        busy.open(_start)
        for number in range(1, 400):
            busy.publish(_txn(number))
            busy.flush()
    hanging = Producer(client_settings(kafka, **{"transactional.id": topic, "transaction.timeout.ms": 2000}))
    hanging.init_transactions(60)
    hanging.begin_transaction()
    hanging.produce(topic, b"unfinished", partition=0)
    hanging.flush()
    tail = read_tail(kafka, topic, 0, "quiet", window=64)
    assert tail.point is not None
    assert (tail.point.position, tail.layout, tail.is_untruncated) == ("MariaDB/0-1-7", str(layout), True)
    assert read_tail(kafka, topic, 0, "nobody").point is None


def test_another_layout_is_refused(kafka: KafkaCluster, keyspace: str) -> None:
    """Another layout is refused, because keys would be looked for in the wrong partition."""
    with publisher(kafka, keyspace, PARTITIONS) as out:
        out.open(_start)
    other = Publisher(kafka, keyspace, f"{keyspace}/0", Layout(PARTITIONS, {"t": 1}))
    with pytest.raises(LayoutMismatch) as refused:
        other.open(_start)
    assert refused.value.code == "layout_changed"


@pytest.mark.slow
def test_it_survives_a_broker_that_dies_under_it(new_kafka: Callable[..., KafkaServer]) -> None:
    """After kill -9 of the broker every transaction is in the topic exactly once."""
    server = new_kafka()
    ensure_topics(server.cluster, "ks", PARTITIONS)
    number, last = 0, 1500

    def restarted() -> None:
        server.kill()
        server.start()

    killer = threading.Timer(0.3, restarted)
    killer.start()
    for _ in range(int(PATIENCE_S / 0.2)):
        out = publisher(server.cluster, "ks", PARTITIONS)
        try:
            with out:
                number = number_of(out.open(_start).position)
                while number < last:
                    number += 1
                    out.publish(transaction(number))
                    time.sleep(0.0005)
            break
        except (PublisherLost, KafkaUnreachable):
            time.sleep(0.2)
    killer.join()
    assert number == last
    assert_exactly_once(server.cluster, "ks", PARTITIONS, last)


def test_an_absent_broker_is_one_clear_error(keyspace_name: str) -> None:
    """If Kafka is unreachable at start, opening fails within seconds with a code and a hint."""
    out = publisher(KafkaCluster("127.0.0.1:1"), keyspace_name, 1)
    began = time.monotonic()
    with pytest.raises(KafkaUnreachable) as away:
        out.open(_start)
    assert time.monotonic() - began < 30
    assert (away.value.code, bool(away.value.hint)) == ("kafka_unreachable", True)


def test_a_publisher_that_was_never_opened_raises_its_error() -> None:
    """Publishing before `open` raises `PublisherLost`."""
    with pytest.raises(PublisherLost):
        publisher(KafkaCluster("127.0.0.1:1"), "ks", 1).publish(_txn(1))


@pytest.mark.parametrize(
    ("last", "source_s", "now_s", "expected"),
    [
        (0, 1_000_000, 1_000_001.5, 1_000_000_000),
        (0, 2_000_000, 1_000_000.0, 1_000_000_000),
        (1_000_000_500, 900_000, 1_000_001.0, 1_000_000_500),
        (0, 0, 1_000_000.0, 1_000_000_000 - BACKLOG_AGE_MS),
        (1_000_000_000 + TIMESTAMP_AFTER_MS, 0, 1_000_000.0, 1_000_000_000 + TIMESTAMP_AFTER_MS),
        (1_000_000_001 + TIMESTAMP_AFTER_MS, 0, 1_000_000.0, 1_000_000_000),
        (1_900_000_000_000, 1_900_000_000, 1_900_000_000 - 8 * 86400, 1_900_000_000_000),
    ],
    ids=[
        "source time",
        "bounded by now",
        "never backwards",
        "a backlog is not expired on arrival",
        "a clock was ahead",
        "a clock was further ahead than Kafka allows",
        "this clock is behind",
    ],
)
def test_record_times_follow_the_source(last: int, source_s: int, now_s: float, expected: int) -> None:
    """Record times follow source times, never go back, and never make retention delete a backlog at once."""
    assert record_time_ms(last, source_s, now_s) == expected


class StepsAhead(SystemClock):
    """The machine's clock, ``ahead_s`` ahead."""

    ahead_s = 0.0

    def now(self) -> float:
        """Seconds since 1970."""
        return super().now() + self.ahead_s


def test_a_clock_that_is_far_ahead_publishes_nothing_until_it_is_right(kafka: KafkaCluster, keyspace: str) -> None:
    """Kafka would delete nothing until then. Nothing is lost or told twice for it; a few minutes are nothing."""
    clock = StepsAhead()

    def publish(*numbers: int) -> None:
        with Publisher(kafka, keyspace, f"{keyspace}/0", Layout(PARTITIONS), batch_interval_s=0.01, clock=clock) as out:
            out.open(lambda: ("MariaDB/0-1-0", 1_700_000_000))
            for number in numbers:
                out.publish(transaction(number))
                out.flush()
            clock.ahead_s = 2 * TIMESTAMP_AFTER_MS / 1000
            out.publish(transaction(numbers[-1] + 1))
            out.flush()

    for ahead_s, numbers in ((0.0, (1, 2)), (600.0, (3, 4)), (0.0, (5, 6))):
        clock.ahead_s = ahead_s
        with pytest.raises(PublisherLost) as lost:
            publish(*numbers)
        assert (lost.value.code, bool(lost.value.hint)) == ("clock_refused", True)
        with pytest.raises(PublisherLost) as lost:
            publish(*numbers)
        assert lost.value.code == "clock_refused", "it opens once the clock is right, not before"
    assert_exactly_once(kafka, keyspace, PARTITIONS, 6)
    latest_ms = max(
        message.timestamp()[1]
        for partition, end in end_offsets(kafka, events_topic(kafka, keyspace), range(PARTITIONS)).items()
        for message in read_range(kafka, events_topic(kafka, keyspace), partition, 0, end)
    )
    assert latest_ms < (time.time() + 601) * 1000


def test_a_resume_point_names_its_shard(kafka: KafkaCluster, keyspace: str) -> None:
    """`open` returns a complete resume point."""
    with publisher(kafka, keyspace, PARTITIONS) as out:
        resume = out.open(_start)
    start = ("MariaDB/0-1-0", 1_700_000_000, "MariaDB/0-1-0")
    assert resume.continuity
    assert resume.epoch > 1_700_000_000
    expected = ResumePoint(f"{keyspace}/0", resume.epoch, 1, *start, sequence=1)
    assert resume == replace(expected, continuity=resume.continuity, annotations=resume.annotations)
