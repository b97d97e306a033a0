"""What an open publisher puts into a log in memory, and when it takes nothing any more."""

from __future__ import annotations

from typing import Any

import pytest

from stream.publish import publisher
from stream.publish.publisher import LayoutMismatch, PublisherLost
from stream.publish.topology import DeclaredTopology
from stream.wire.batch import BatchLimits
from stream.wire.codec import encode
from stream.wire.events import BindName, RowChange, SourceTransaction
from tests.consumers.consuming import until
from tests.stream.memory_log import MemoryLog
from tests.stream.reopening import foreign, home, publish, start, txn


def test_each_batch_ends_with_a_marker_in_every_partition(log: MemoryLog) -> None:
    """Also where nothing changed: else its watermark would stand still."""
    with log.publisher() as out:
        out.open(start)
        out.publish(txn(1, rows=1))
        out.flush()
        for partition in range(2):
            name, record = [each for each in log.records(partition) if each[0] == "Marker"][-1]
            assert (name, record["position"]) == ("Marker", "MariaDB/0-1-1")
        out.advance("MariaDB/0-1-5", 1_700_000_005)
        out.flush()
        assert [record for name, record in log.records(0) if name == "Marker"][-1]["position"] == "MariaDB/0-1-5"


def test_record_times_never_run_backwards(log: MemoryLog) -> None:
    """Also over a restart: Kafka's time index finds offsets by them."""
    publish(log, 3)
    latest = max(kept.time_ms for kept in log.partitions[0] if kept is not None)
    log.commit([(home(log), encode("Marker", foreign("ks/9")))], latest + 60_000_000)
    with log.publisher(topology=DeclaredTopology(shards=("ks/9",))) as out:
        out.open(start)
    assert max(kept.time_ms for kept in log.partitions[0] if kept is not None) >= latest + 60_000_000
    last = [kept for kept in log.partitions[1 - home(log)] if kept is not None][-1]
    assert last.time_ms >= latest + 60_000_000


def test_partitions_that_were_added_to_a_topic_are_refused_for_good(log: MemoryLog) -> None:
    """Each count of the settings would be refused with a hint that leads to the other one."""
    publish(log, 1)
    log.partitions.append([])
    log.lows.append(0)
    with pytest.raises(LayoutMismatch, match="2 partitions, and 3 are there") as refused:
        log.publisher().open(start)
    assert "new keyspace" in refused.value.hint


def test_everything_is_said_again_after_a_while(log: MemoryLog) -> None:
    """Soon after a restart, then each `declare_every_s`: a store may begin anywhere in the topic."""
    with log.publisher() as out:
        out.open(start)
        out.publish(txn(1, BindName("db.t", 4)))

    def said(first: int, **options: Any) -> int:
        before = log.records(0)
        with log.publisher(**options) as out:
            out.open(start)
            for number in range(first, first + 4):
                out.publish(txn(number))
                out.flush()
        return sum(name == "NameBinding" for name, _ in log.records(0)[len(before) :])

    assert said(2, declare_every_s=600.0) == 1
    assert said(6, declare_every_s=0.0) > 2


@pytest.mark.parametrize("repeat_bytes", [4_000, 1_000_000])
def test_what_is_said_again_does_not_count_as_traffic(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, repeat_bytes: int
) -> None:
    """Where all declarations are more than the bytes after which they are due, an idle source says them without end."""
    monkeypatch.setattr(publisher, "REPEAT_BYTES", 20_000)
    with log.publisher(limits=BatchLimits(repeat_bytes=repeat_bytes)) as out:
        out.open(start)
        out.publish(txn(1, *(BindName(f"db.t{number}", number) for number in range(1, 201))))
        for number in range(2, 26):
            out.publish(txn(number))
            out.flush()
        assert out.stats.bytes > 2 * 20_000
    bound = [record["name"] for name, record in log.records(0) if name == "NameBinding"]
    assert bound.count("db.t1") == 2


def test_a_closed_or_lost_publisher_takes_nothing(log: MemoryLog) -> None:
    """What it could not commit is not in the topic, and it says so."""
    out = log.publisher()
    with pytest.raises(PublisherLost):
        out.publish(txn(1))
    out.open(start)
    out.close()
    with pytest.raises(PublisherLost):
        out.publish(txn(1))
    lost = log.publisher()
    lost.open(start)
    log.commits_left = 0
    lost.publish(txn(1))
    with pytest.raises(PublisherLost):
        lost.flush()
    for use in (lost.flush, lost.close, lambda: lost.publish(txn(2)), lambda: lost.stamp(1)):
        with pytest.raises(PublisherLost):
            use()


def test_counters_count_what_was_committed(log: MemoryLog) -> None:
    """Operators see events, rows, transactions, batches and bytes."""
    with log.publisher() as out:
        out.open(start)
        out.publish(txn(1, BindName("db.t", 4), rows=3))
        out.flush()
        stats = out.stats
        assert (stats.rows, stats.transactions, stats.batches >= 2) == (3, 1, True)
        assert stats.events >= 4
        assert stats.bytes > 100


def test_a_flush_that_waits_is_woken_by_the_commit(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the next batch, which may come a second later."""
    with log.publisher() as out:
        out.open(start)
        commit = log.commit

        def commit_while_it_waits(*arguments: Any) -> int:
            while not out._changed._waiters:  # type: ignore[attr-defined]
                pass
            return commit(*arguments)

        monkeypatch.setattr(log, "commit", commit_while_it_waits)
        out.publish(txn(1))
        out.flush()
        assert out._committed == 1
        monkeypatch.setattr(log, "commit", commit)


def test_a_first_change_is_sent_without_being_asked_for(log: MemoryLog) -> None:
    """An idle publisher waits for its next marker otherwise."""
    with log.publisher() as out:
        out.open(start)
        out.publish(txn(1))
        until(lambda: any(name == "RowFrame" for partition in (0, 1) for name, _ in log.records(partition)), "sent")


def test_a_transaction_that_cannot_be_framed_loses_the_publisher(log: MemoryLog) -> None:
    """The framer may hold a half of it, so nothing more is published."""
    out = log.publisher()
    out.open(start)
    broken = SourceTransaction("nowhere", "nowhere", 1, [RowChange(b"no key", 1, b"{}")])
    with pytest.raises(PublisherLost, match="after MariaDB/0-1-0"):
        out.publish(broken)
    with pytest.raises(PublisherLost):
        out.publish(txn(1))
    out.abandon()


def test_an_unexpected_error_of_the_committing_thread_ends_the_publisher(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for a commit hears of it: nobody would ever commit again."""
    out = log.publisher()
    out.open(start)

    def fail(*_: Any) -> int:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(out._producer, "commit", fail)
    out.publish(txn(1))
    with pytest.raises(PublisherLost, match="a mistake"):
        out.flush()
    with pytest.raises(PublisherLost):
        out.close()


@pytest.mark.parametrize("end", ["close", "abandon", "lost"])
def test_a_publisher_that_has_ended_watches_its_topic_no_more(log: MemoryLog, end: str) -> None:
    """A source opens one after the other, and librdkafka ends a process that lets one of its clients go unclosed."""
    out = log.publisher()
    out.open(start)
    assert log.watches == 1
    if end == "lost":
        log.commits_left = 0
        out.publish(txn(1))
        with pytest.raises(PublisherLost):
            out.flush()
    else:
        getattr(out, end)()
    assert log.watches == 0
