"""A publisher over a log in memory: it resumes exactly, and begins anew where the log does not tell how to go on."""

from __future__ import annotations

import pytest

from stream.kafka.reader import TopicReadError
from stream.publish import markers as markers_of
from stream.publish import publisher as publisher_of
from stream.publish import resume as resume_of
from stream.publish.publisher import PublisherLost
from stream.publish.resume import ResumeError
from stream.publish.topology import DeclaredTopology
from stream.wire.codec import current_schema, encode
from stream.wire.events import BackfillTable, BindName, OpenTransaction
from stream.wire.keys import Layout, row_key
from tests.consumers.consuming import until
from tests.stream.memory_log import MemoryLog
from tests.stream.reopening import GIANT, foreign, home, publish, reasons, rows_of, start, txn

NOW = 1_700_000_000


@pytest.mark.parametrize("commits", [0, 1, 2, 3, 4, 5, 7, 9])
def test_lost_after_any_commit_it_publishes_every_change_once(log: MemoryLog, commits: int) -> None:
    """A giant transaction that is partly out is continued behind the part that is."""
    log.commits_left = commits
    publish(log, 7)
    sizes = {number: GIANT if number % 3 == 0 else 2 for number in range(1, 8)}
    wanted = [row_key("shop.t", [number * 100 + n]) for number, size in sizes.items() for n in range(size)]
    found = rows_of(log)
    assert sorted(key for _, key in found) == sorted(wanted)
    assert [ordinal for ordinal, _ in found] == list(range(2, 2 + len(wanted)))
    assert reasons(log) == [[(1, "first_start")]] * 2


def test_the_first_batch_of_a_resumed_epoch_holds_no_event(log: MemoryLog) -> None:
    """Who must not read what follows learns it there; the resume point is that of the topic."""
    publish(log, 2)
    before = [len(kept) for kept in log.partitions]
    with log.publisher() as out:
        resumed = out.open(lambda: ("MariaDB/0-1-999", 1))
        names = [log.records(partition)[-2:] for partition in range(2)]
        assert all(name in ("Marker", "SourceState") for each in names for name, _ in each)
        assert (resumed.position, resumed.epoch, resumed.ordinal) == ("MariaDB/0-1-2", 1, 5)
        assert [len(kept) > at for kept, at in zip(log.partitions, before, strict=True)] == [True, True]


def test_what_a_source_leaves_comes_back(log: MemoryLog) -> None:
    """Open transactions, names, what is read, annotations and stamps are those of the last batch."""
    with log.publisher() as out:
        out.open(start)
        out.stamp(1_700_000_123_000)
        out.annotate({"a": "b"})
        opened = (OpenTransaction(7, (), True, ()), OpenTransaction(8, (), True, ()))
        read = BackfillTable("shop.t", False), BackfillTable("shop.t", True), BackfillTable("shop.u", False)
        out.publish(txn(1, BindName("db.t", 4), *read, opened=opened))
        out.publish(txn(2, closed=(7,), checksum=9, cursor="MariaDB/0-1-1"))
    with log.publisher() as out:
        resumed = out.open(start)
    assert set(resumed.open_transactions) == {8}
    assert (resumed.names, set(resumed.complete)) == ({"db.t": 4}, {"shop.t"})
    assert (resumed.checksum, resumed.cursor) == (9, "MariaDB/0-1-1")
    assert resumed.annotations == {"a": "b", "topic_id": "one"}
    stamps = [record["as_of_ms"] for name, record in log.records(1) if name == "Marker"]
    assert 1_700_000_123_000 in stamps


def test_a_new_epoch_is_in_every_partition_and_goes_on_after_a_restart(log: MemoryLog) -> None:
    """The batch before it is whole, and everything of the old epoch is void."""
    with log.publisher() as out:
        out.open(start)
        out.publish(txn(1))
        resumed = out.start_new_epoch("MariaDB/0-1-50", 1_700_000_050, "history_lost")
        assert (resumed.epoch, resumed.position) == (2, "MariaDB/0-1-50")
        assert reasons(log) == [[(1, "first_start"), (2, "history_lost")]] * 2
        out.publish(txn(51))
    with log.publisher() as out:
        assert out.open(start).position == "MariaDB/0-1-51"
    assert len(rows_of(log, 1)) == len(rows_of(log, 2)) == 2


def test_a_partition_that_lost_its_end_begins_a_new_epoch(log: MemoryLog) -> None:
    """One transaction wrote all ends, so one that is missing was acknowledged and is lost."""
    publish(log, 3)
    other = 1 - home(log)
    del log.partitions[other][-2:]
    with log.publisher() as out:
        resumed = out.open(lambda: ("MariaDB/0-1-3", 1))
    assert resumed.epoch == 2
    assert [each[-1] for each in reasons(log)] == [(2, "tail_lost")] * 2


@pytest.mark.parametrize(("between", "behind"), [(0, 0), (700, 0), (0, 700), (700, 3_000)])
def test_a_partition_that_lost_a_batch_before_its_end_begins_a_new_epoch(
    log: MemoryLog, between: int, behind: int
) -> None:
    """That batch's transaction had no end there, and was aborted; the next one was of another producer.

    However much others, or a large batch, have written before the last marker or behind it.
    """
    other, others = 1 - home(log), encode("Marker", foreign("ks/9"))
    with log.publisher() as out:
        out.open(start)
        out.publish(txn(1))
        out.flush()
        before = len(log.partitions[other])
        out.publish(txn(2))
        out.flush()
        after = len(log.partitions[other])
        if between:
            log.commit([(other, others)] * between, 5)
        out.publish(txn(3))
    if behind:
        log.commit([(other, others)] * behind, 5)
    del log.partitions[other][before:after]
    with log.publisher(topology=DeclaredTopology(shards=("ks/9",))) as out:
        assert out.open(lambda: ("MariaDB/0-1-3", 1)).epoch == 2
    with log.publisher(topology=DeclaredTopology(shards=("ks/9",))) as out:
        assert out.open(start).epoch == 2
    assert [each[-1] for each in reasons(log)] == [(2, "tail_lost")] * 2


def test_a_home_that_lost_everything_begins_a_new_epoch(log: MemoryLog) -> None:
    """The other partition still has markers, so this is no new shard."""
    publish(log, 3)
    log.partitions[home(log)].clear()
    with log.publisher() as out:
        assert out.open(start).epoch == 2
    assert reasons(log)[home(log)] == [(2, "tail_lost")]


def test_a_topic_without_its_last_whole_map_begins_a_new_epoch(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention deleted which transactions are open: a COMMIT could not be told any more."""
    publish(log, 2)
    at = home(log)
    names = [name for name, _ in log.records(at)]
    assert "SourceState" in names
    monkeypatch.setattr(resume_of, "_is_snapshot", lambda _: False)
    with log.publisher() as out:
        assert out.open(start).epoch == 2
    assert reasons(log)[at][-1] == (2, "open_map_lost")


def test_a_newer_versions_record_after_the_last_state_begins_a_new_epoch(log: MemoryLog) -> None:
    """A newer publisher has been here; its epochs can't be read, so the new one is above all that began by now."""
    publish(log, 2)
    value = current_schema("Marker").header[:2] + b"\xfe" * 8 + b"x"
    log.commit([(home(log), value)], 1)
    log.clock.seconds = NOW
    with log.publisher() as out:
        epoch = out.open(start).epoch
    assert epoch == NOW
    assert reasons(log)[0][-1] == (epoch, "newer_records")


def test_a_state_that_is_damaged_is_passed_over(log: MemoryLog) -> None:
    """As the fold passes it over. What it would have said is in the one before it: nobody can have published since."""
    publish(log, 2)
    at = home(log)
    log.commit([(at, current_schema("SourceState").header + b"\xff")], 1)
    with log.publisher() as out:
        resumed = out.open(start)
    assert (resumed.epoch, resumed.position) == (1, "MariaDB/0-1-2")


def test_states_that_contradict_each_other_are_an_error_until_told_otherwise(log: MemoryLog) -> None:
    """Two publishers of the shard ran at once: nobody knows whose events count."""
    publish(log, 2)
    at = home(log)
    state = next(record for name, record in reversed(log.records(at)) if name == "SourceState")
    log.commit([(at, encode("SourceState", state | {"whole": False}))], 1)
    with pytest.raises(ResumeError) as caught:
        log.publisher().open(start)
    assert caught.value.code == "states_contradict"
    with log.publisher(new_epoch=True) as out:
        assert out.open(start).epoch == 2


@pytest.mark.parametrize("behind", [1, 600, 3_000])
@pytest.mark.parametrize("kind", ["Marker", "EpochStart"])
def test_the_last_state_is_found_behind_a_long_tail_of_others(log: MemoryLog, behind: int, kind: str) -> None:
    """Larger and larger windows are read until the last whole map is found."""
    publish(log, 2)
    begun = {"shard": "ks/9", "epoch": 3, "ordinal": 1, "gtid": "", "timestamp": 1, "position": "", "reason": "x"}
    others = encode(kind, foreign("ks/9") if kind == "Marker" else begun)
    log.commit([(partition, others) for partition in (0, 1) for _ in range(behind)], 5)
    with log.publisher(topology=DeclaredTopology(shards=("ks/9",))) as out:
        resumed = out.open(start)
    assert (resumed.position, resumed.epoch) == ("MariaDB/0-1-2", 1)
    assert all(len(each) == 1 for each in reasons(log))


def test_a_layout_is_kept_and_another_one_refused(log: MemoryLog) -> None:
    """The topic's own layout decides where keys are; one with fewer buckets or no prefixes is kept as it is."""
    publish(log, 1, layout=Layout.parse("xxh3_64;partitions=2"))
    with log.publisher() as out:
        out.open(start)
        assert str(out.layout) == "xxh3_64;partitions=2"
    with pytest.raises(publisher_of.LayoutMismatch):
        log.publisher(layout=Layout(1)).open(start)


def test_a_publisher_that_lost_its_declarations_begins_anew(log: MemoryLog) -> None:
    """Retention deleted where everything was said: descriptions might be missing for good."""
    with log.publisher() as out:
        out.open(start)
        out.publish(txn(1, BindName("db.t", 4)))
    with log.publisher() as out:
        out.open(start)
        for number in range(2, 5):
            out.publish(txn(number))
            out.flush()
    at = home(log)
    states = [
        kept.offset()
        for kept in log.partitions[at]
        if kept is not None and kept.content.startswith(current_schema("SourceState").header)
    ]
    log.lows[at] = states[-2] + 2
    with log.publisher() as out:
        out.open(start)
    assert reasons(log)[at][-1] == (2, "declarations_lost")


def test_no_epoch_number_comes_again_whatever_kafka_has_lost(log: MemoryLog) -> None:
    """Readers keep the numbers that they have seen: one that comes again would be taken for the same history."""
    log.clock.seconds = NOW
    with log.publisher() as out:
        epochs = [out.open(start).epoch]
        epochs += [out.start_new_epoch("MariaDB/0-1-1", 1, "history_lost").epoch for _ in range(3)]
    assert epochs == [NOW, NOW + 1, NOW + 2, NOW + 3]
    for kept in log.partitions:
        kept.clear()
    log.clock.seconds += 60
    with log.publisher() as out:
        assert out.open(start).epoch == NOW + 60
        log.clock.seconds += 60
        assert out.start_new_epoch("MariaDB/0-1-2", 1, "history_lost").epoch == NOW + 120
    assert [each[0] for each in reasons(log)] == [(NOW + 60, "first_start")] * 2


def test_a_topic_that_is_made_anew_under_a_publisher_begins_a_new_epoch(log: MemoryLog) -> None:
    """It goes on there for a moment, notices, and begins anew; so does a restart that comes before it notices."""
    publish(log, 2)
    log.topic_id = "two"
    with log.publisher() as out:
        assert out.open(lambda: ("MariaDB/0-1-2", 1)).epoch == 2
    assert reasons(log) == [[(1, "first_start"), (2, "topic_replaced")]] * 2
    with log.publisher() as out:
        assert out.open(start).epoch == 2
    running = log.publisher(idle_marker_s=0.0)
    running.open(start)
    log.topic_id = "three"
    lost = until(lambda: running._lost, "it has noticed")
    assert (lost.code, "two" in str(lost), "three" in str(lost)) == ("topic_replaced", True, True)
    with log.publisher() as out:
        assert out.open(start).epoch == 3


def test_the_next_epoch_is_above_the_highest_of_the_states(log: MemoryLog) -> None:
    """Of two publishers that ran at once, the later one in the log may be of the lower epoch."""
    publish(log, 2)
    at = home(log)
    state = next(record for name, record in reversed(log.records(at)) if name == "SourceState")
    for epoch in (7, 3):
        log.commit([(at, encode("SourceState", state | {"epoch": epoch, "whole": False}))], 1)
    with log.publisher(new_epoch=True) as out:
        assert out.open(start).epoch == 8


def test_an_open_transaction_of_another_shard_does_not_hide_the_end(log: MemoryLog) -> None:
    """What is committed lies behind the last stable offset then, and still counts. It might be the shard's own, too."""
    publish(log, 3)
    with log.publisher() as out:
        out.open(start)
    assert log.ended_in == []
    log.stable = [0, len(log.partitions[1])]
    with log.publisher() as out:
        assert out.open(start).position == "MariaDB/0-1-3"
    assert log.ended_in == [0]
    assert reasons(log) == [[(1, "first_start")]] * 2


def test_a_crowded_partition_without_any_marker_of_the_shard_has_lost_its_end(log: MemoryLog) -> None:
    """It is searched to its beginning, once, and then known to have none."""
    publish(log, 3)
    other = 1 - home(log)
    log.partitions[other].clear()
    log.commit([(other, encode("Marker", foreign("ks/9")))] * 700, 5)
    with log.publisher(topology=DeclaredTopology(shards=("ks/9",))) as out:
        assert out.open(start).epoch == 2
    assert reasons(log)[other] == [(2, "tail_lost")]


@pytest.mark.parametrize(
    ("wanted", "is_kept"),
    [
        (Layout(2), True),
        (Layout(2, {"shop.t": 1}), True),
        (Layout(2, {"shop.t": 1}, buckets=0), True),
        (Layout(2, {"shop.t": 2}), False),
        (Layout(3, {"shop.t": 1}), False),
    ],
)
def test_a_topic_with_prefixes_of_its_own_keeps_them(log: MemoryLog, wanted: Layout, is_kept: bool) -> None:
    """Whoever wants none, or the same, goes on with the topic's; others are refused before anything is written."""
    publish(log, 1, layout=Layout(2, {"shop.t": 1}, buckets=0))
    before = [len(kept) for kept in log.partitions]
    if is_kept:
        with log.publisher(layout=wanted) as out:
            out.open(start)
            assert out.layout == Layout(2, {"shop.t": 1}, buckets=0)
    else:
        while len(log.partitions) < wanted.partitions:
            log.partitions.append([])
            log.lows.append(0)
        with pytest.raises(publisher_of.LayoutMismatch):
            log.publisher(layout=wanted).open(start)
        assert [len(kept) for kept in log.partitions][:2] == before


def test_a_beginning_that_is_still_there_tells_everything(log: MemoryLog) -> None:
    """What was deleted before it is of another history."""
    for kept in log.partitions:
        kept.extend([None] * 3)
    log.lows = [3, 3]
    log.commits_left = 1
    killed = log.publisher()
    epoch = killed.open(start).epoch
    killed.abandon()
    log.commits_left = 10
    with log.publisher() as out:
        resumed = out.open(start)
    assert (resumed.epoch, resumed.position) == (epoch, "MariaDB/0-1-0")
    assert all(len(each) == 1 for each in reasons(log))


def test_a_topic_that_lost_its_home_by_age_begins_above_all_epochs(log: MemoryLog) -> None:
    """Retention took the states; what is left elsewhere does not say how many epochs there were."""
    publish(log, 3)
    at = home(log)
    log.lows[at] = len(log.partitions[at])
    log.clock.seconds = NOW
    with log.publisher() as out:
        epoch = out.open(start).epoch
    assert epoch == NOW
    assert reasons(log)[at][-1] == (epoch, "first_start")


def test_records_have_the_time_of_their_source(log: MemoryLog) -> None:
    """Kafka finds a time by them: each batch has its last transaction's, not that of the batches before."""
    log.clock.seconds = NOW + 60
    with log.publisher() as out:
        out.open(start)
        for number in (1, 2, 3):
            out.publish(txn(number))
            out.flush()
    times = [kept.time_ms for kept in log.partitions[home(log)] if kept is not None]
    assert times == sorted(times)
    assert {(NOW + number) * 1000 for number in (1, 2, 3)} <= set(times)


def test_an_error_in_the_committing_thread_reaches_the_source(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is, the publisher is lost: its source does not wait for ever for a thread that has ended."""
    out = log.publisher()
    out.open(start)

    def fail(*_: object) -> int:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(log, "commit", fail)
    out.publish(txn(1))
    with pytest.raises(PublisherLost, match="failed: a defect"):
        out.flush()
    out.abandon()


@pytest.mark.parametrize(
    ("code", "is_lost"),
    [("kafka_denied", False), ("read_failed", False), ("offset_out_of_range", True), ("read_timeout", True)],
)
def test_a_topic_that_cannot_be_read_is_tried_again_only_where_that_may_help(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, code: str, is_lost: bool
) -> None:
    """Each try fences whoever publishes the shard: one that may not read would stop one that works, for ever."""
    publish(log, 1)

    def fail(*_: object, **__: object) -> None:
        raise TopicReadError("it cannot be read", code=code)

    monkeypatch.setattr(markers_of, "read_ranges", fail)
    with pytest.raises(PublisherLost if is_lost else TopicReadError):
        log.publisher().open(start)
