"""A publisher over a log in memory: it resumes exactly, and begins anew where the log does not tell how to go on."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from stream.publish import markers as markers_of
from stream.publish import publisher as publisher_of
from stream.publish import resume as resume_of
from stream.publish.publisher import PublisherLost
from stream.publish.resume import ResumeError
from stream.publish.topology import DeclaredTopology, TopologyError
from stream.wire.batch import BatchLimits
from stream.wire.codec import current_schema, encode
from stream.wire.events import BindName, Change, OpenTransaction, RowChange, SourceTransaction
from stream.wire.keys import Layout, row_key
from tests.consumers.consuming import until
from tests.stream.memory_log import KEYSPACE, MemoryLog

SHARD = f"{KEYSPACE}/0"
GIANT = 40
NOW = 1_700_000_000
LIMITS = BatchLimits(batch_bytes=2_000)


def start() -> tuple[str, int]:
    """Where a new epoch begins."""
    return "MariaDB/0-1-0", 1_700_000_000


def txn(number: int, *changes: Change, rows: int = 2, **more: Any) -> SourceTransaction:
    """Transaction ``number``, always the same."""
    gtid = f"MariaDB/0-1-{number}"
    written = [RowChange(row_key("shop.t", [number * 100 + n]), 1, b'{"n":%d}' % n) for n in range(rows)]
    return SourceTransaction(gtid, gtid, 1_700_000_000 + number, [*changes, *written], **more)


def number_of(position: str) -> int:
    """The number of the transaction at this position."""
    return int(position.rpartition("-")[2])


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """An empty topic of two partitions."""
    log = MemoryLog()
    log.install(monkeypatch)
    return log


def rows_of(log: MemoryLog, epoch: int = 1) -> list[tuple[int, bytes]]:
    """(ordinal, key) of every row of an epoch, by ordinal; each partition has them in order."""
    found = []
    for partition in range(len(log.partitions)):
        mine = [
            (record["ordinal"] + ordinal, key)
            for name, record in log.records(partition)
            if name == "RowFrame" and record["epoch"] == epoch
            for ordinal, key in zip(record["ordinals"], record["keys"], strict=True)
        ]
        assert all(before < after for (before, _), (after, _) in pairwise(mine))
        found += mine
    return sorted(found)


def reasons(log: MemoryLog) -> list[list[tuple[int, str]]]:
    """Of each partition: (epoch, why it began)."""
    return [
        [
            (record["epoch"], record["reason"])
            for name, record in log.records(partition)
            if name == "EpochStart" and record["shard"] == SHARD
        ]
        for partition in range(len(log.partitions))
    ]


def publish(log: MemoryLog, last: int, **options: Any) -> None:
    """Publishes up to transaction ``last``; starts again whenever the publisher is lost."""
    while True:
        try:
            with log.publisher(limits=LIMITS, **options) as out:
                resumed = out.open(start)
                for number in range(number_of(resumed.position) + 1, last + 1):
                    out.publish(txn(number, rows=GIANT if number % 3 == 0 else 2))
                return
        except PublisherLost:
            log.commits_left = 1_000_000


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


def test_what_a_source_leaves_comes_back(log: MemoryLog) -> None:
    """Open transactions, descriptions and stamps are those of the last batch."""
    with log.publisher() as out:
        out.open(start)
        out.stamp(1_700_000_123_000)
        opened = (OpenTransaction(7, (), True, ()), OpenTransaction(8, (), True, ()))
        out.publish(txn(1, BindName("db.t", 4), opened=opened))
        out.publish(txn(2, closed=(7,), checksum=9, cursor="MariaDB/0-1-1"))
    with log.publisher() as out:
        resumed = out.open(start)
    assert set(resumed.open_transactions) == {8}
    assert (resumed.checksum, resumed.cursor) == (9, "MariaDB/0-1-1")
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


def home(log: MemoryLog, shard: str = SHARD) -> int:
    """The partition that holds a shard's states."""
    return Layout(len(log.partitions)).home_partition(shard)


def test_a_partition_that_lost_its_end_begins_a_new_epoch(log: MemoryLog) -> None:
    """One transaction wrote all ends, so one that is missing was acknowledged and is lost."""
    publish(log, 3)
    other = 1 - home(log)
    del log.partitions[other][-2:]
    with log.publisher() as out:
        resumed = out.open(lambda: ("MariaDB/0-1-3", 1))
    assert resumed.epoch == 2
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


def foreign(shard: str, epoch: int = 3) -> dict[str, Any]:
    """A marker of another shard."""
    return {
        "shard": shard,
        "epoch": epoch,
        "ordinal": 5,
        "position": "MariaDB/0-1-5",
        "timestamp": 1,
        "low_water": "MariaDB/0-1-1",
        "layout": str(Layout(2)),
        "whole": True,
        "continuity": 7,
        "previous": 0,
        "reader_version": 1,
        "as_of_ms": 0,
    }


@pytest.mark.parametrize("ago", [0, 700, 40_000])
def test_an_undeclared_shard_is_found_wherever_it_published(log: MemoryLog, ago: int) -> None:
    """It may write the same keys, so both would be wrong; one that is declared or succeeded may be there."""
    log.commit([(home(log), encode("Marker", foreign("ks/old")))] * 300, 5)
    log.partitions[home(log)] += [None] * ago
    with pytest.raises(TopologyError) as caught:
        log.publisher().open(start)
    assert caught.value.code == "second_shard"
    assert reasons(log) == [[], []]
    with log.publisher(topology=DeclaredTopology(shards=("ks/old",))) as out:
        assert out.open(start).epoch == 1
    topology = next(record for name, record in log.records(home(log)) if name == "Topology")
    assert topology["shards"] == [SHARD, "ks/old"]


@pytest.mark.parametrize(("succeeds", "epoch"), [("ks/old", 3), ("ks/old@2", 2)])
def test_a_successor_names_its_ancestor_and_its_epoch(log: MemoryLog, succeeds: str, epoch: int) -> None:
    """As found in the topic, or as given; a restart repeats what was said."""
    log.commit([(home(log), encode("Marker", foreign("ks/old", number))) for number in (1, 3, 2)], 5)
    for _ in range(2):
        with log.publisher(topology=DeclaredTopology(succeeds=succeeds)) as out:
            out.open(start)
        said = [record for name, record in log.records(home(log)) if name == "Topology"][-1]
        assert said["ancestors"] == [{"shard": "ks/old", "epoch": epoch}]


def test_a_successor_of_nobody_is_refused(log: MemoryLog) -> None:
    """Without the ancestor's epoch its readers could not be taken along."""
    with pytest.raises(TopologyError) as caught:
        log.publisher(topology=DeclaredTopology(succeeds="ks/old")).open(start)
    assert caught.value.code == "ancestor_unknown"
    declared = DeclaredTopology(("ks/2", "ks/1"), "ks/old@4")
    assert declared.first(SHARD, {}).ancestors == (("ks/old", 4),)
    assert declared.first(SHARD, {}).shards == (SHARD, "ks/1", "ks/2")
    anew = declared.of_a_new_history(SHARD, {})
    assert (anew.ancestors, anew.succeeded) == ((), (("ks/old", 4),))
    assert DeclaredTopology(succeeds="ks/old").of_a_new_history(SHARD, {}).succeeded == ()
    assert DeclaredTopology(("ks/1",)).of_a_new_history(SHARD, {"ks/1": 3}).succeeded == ()


def test_the_epoch_of_another_shard_is_the_highest_that_was_seen() -> None:
    """Markers of a window may be read in any order of partitions."""
    found = markers_of.Markers()
    for epoch in (2, 5, 3):
        assert not found.see(SHARD, 0, encode("Marker", foreign("ks/9", epoch)))
    assert found.others == {"ks/9": 5}


def test_a_layout_is_kept_and_another_one_refused(log: MemoryLog) -> None:
    """The topic's own layout decides where keys are; one with fewer buckets or no prefixes is kept as it is."""
    publish(log, 1, layout=Layout.parse("xxh3_64;partitions=2"))
    with log.publisher() as out:
        out.open(start)
        assert str(out.layout) == "xxh3_64;partitions=2"
    with pytest.raises(publisher_of.LayoutMismatch):
        log.publisher(layout=Layout(1)).open(start)


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


def test_a_restart_declares_the_shards_that_are_configured_now(log: MemoryLog) -> None:
    """A shard that was added to the settings is named from the next start on, and ancestors stay as they were."""
    log.commit([(home(log), encode("Marker", foreign("ks/old")))], 5)
    with log.publisher(topology=DeclaredTopology(succeeds="ks/old")) as out:
        out.open(start)
    with log.publisher(topology=DeclaredTopology(("ks/2",), "ks/old")) as out:
        out.open(start)
        out.publish(txn(1))
    said = [record for name, record in log.records(home(log)) if name == "Topology"][-1]
    assert said["shards"] == [SHARD, "ks/2"]
    assert said["ancestors"] == [{"shard": "ks/old", "epoch": 3}]
    assert DeclaredTopology(("ks/2",)).resumed(SHARD, None).shards == (SHARD, "ks/2")


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
