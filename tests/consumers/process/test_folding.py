"""What the fold thread does between two batches, without Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from consumers.fold.state import Void
from consumers.owner import partitions
from consumers.owner.partitions import CATCHING_UP, DISK_FULL, NEWER_WIRE, READY
from consumers.owner.reporting import partition_status
from consumers.process import loop, topic_search
from consumers.process.assignment import SessionEnd
from consumers.process.loop import RETRY_S, RETRY_S_MAX, Consumption, ConsumptionSettings
from consumers.process.metrics import ConsumerCollector
from consumers.process.topic_search import TopicSearch
from consumers.store.errors import DiskFullError
from consumers.store.leader_epochs import UNKNOWN, kept_leader_epoch
from consumers.store.store import Commit
from stream.kafka.connection import KafkaCluster, KafkaRequestError, KafkaUnreachable
from stream.kafka.reader import TopicReadError
from stream.kafka.topics import Topic, TopicError
from tests.consumers.fold.test_shards import topology
from tests.consumers.histories import SHARD, marker, start
from tests.consumers.owning import KEYSPACE, Owner
from tests.consumers.process.test_rebalance_errors import Silent
from tokens.errors import FreshetError

NOWHERE = KafkaCluster("127.0.0.1:1")


class Process(Silent):
    """A consuming process with one partition, and the member of the group that it has."""

    def __init__(self, data_dir: Path) -> None:
        owner = Owner(data_dir)
        self.partition = owner.partition
        self.announced: list[str] = []
        self.asked: list[tuple[str, str]] = []
        """Tables and shards whose hot rows were asked for."""
        self.calls: list[str] = []
        """What the member of the group was told."""
        self.end, self.fetched = 1, -1001
        """Of the topic, and what was given: nothing since it was assigned."""
        settings = ConsumptionSettings(kafka=NOWHERE, keyspaces=(KEYSPACE,), data_dir=data_dir)
        self.consumption = Consumption(settings, owner.ownership, self, lambda _: None)
        self.consumption._consumer = self.consumption._pauses.consumer = self
        owner.fold(start())
        self.partition.store.commit()

    def announce(self, partition: Any) -> None:
        """Noted."""
        self.announced.append(partition.name)

    def ask_for_hot(self, _: object, shard: str, table: str) -> None:
        """Noted."""
        self.asked.append((shard, table))

    # as confluent_kafka's consumer

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        """Of the group."""
        assert asynchronous
        self.calls.append(f"commit {offsets[0].offset}")

    def pause(self, _: object) -> None:
        """It fetches no more."""
        self.calls.append("pause")

    def resume(self, _: object) -> None:
        """It fetches again."""
        self.calls.append("resume")

    def seek(self, place: TopicPartition) -> None:
        """From there."""
        self.calls.append(f"seek {place.offset}")

    def position(self, places: list[TopicPartition]) -> list[TopicPartition]:
        """Behind what was given."""
        return [TopicPartition(each.topic, each.partition, self.fetched) for each in places]

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        """The topic's first offset and its end."""
        return 0, self.end


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """One whose partition has one committed message."""
    found = Process(tmp_path)
    yield found
    found.consumption._committer.close()
    found.partition.store.close(commit=False)


def test_a_commit_keeps_the_leader_epoch_of_where_it_ends(process: Process) -> None:
    """More was folded meanwhile, perhaps of another leader: with its epoch Kafka would say that its log was cut off."""
    partition = process.partition
    partition.frozen_epoch, partition.leader_epoch = 3, 9
    process.consumption._record_commit(partition, Commit(1, 1, 1, 0.1))
    assert kept_leader_epoch(partition.store.directory, 1) == 3


@pytest.mark.parametrize(("leaving", "calls"), [(False, ["commit 1"]), (True, [])])
def test_who_hands_a_partition_over_leaves_its_offset_to_the_next_owner(
    process: Process, leaving: bool, calls: list[str]
) -> None:
    """The group would refuse it, or tools that watch the group see it go back."""
    process.partition.leaving = leaving
    process.consumption._record_commit(process.partition, Commit(1, 1, 1, 0.1))
    assert process.calls == calls


@pytest.mark.parametrize(
    "error",
    [
        KafkaUnreachable("away"),
        KafkaRequestError("refused"),
        TopicReadError("cut"),
        TopicError("not yet"),
        KafkaException(KafkaError(KafkaError._TRANSPORT)),
        DiskFullError("no space left", hint="make some"),
        SessionEnd(),
    ],
)
def test_what_passes_ends_no_process(process: Process, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins anew by itself, from what is committed; its answers would be missing until somebody starts it."""
    consumption: Any = process.consumption
    errors = [error]

    def session() -> None:
        if errors:
            raise errors.pop()
        consumption.stop()

    consumption._retry_s = 0.0
    monkeypatch.setattr(consumption, "_session", session)
    consumption.run()
    assert consumption.stopping


def test_after_messages_an_interruption_is_short_again(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause grows with each that failed: an outage of an hour would make all later ones longer."""
    consumption: Any = process.consumption
    consumption._retry_s, consumption._refresh_at = RETRY_S_MAX, inf
    folded: list[object] = []
    monkeypatch.setattr(consumption, "_fold_batch", folded.append)
    for messages, pause_s in (([], RETRY_S_MAX), (["message"], RETRY_S)):
        monkeypatch.setattr(loop, "poll_batch", lambda *_, messages=messages: messages)
        monkeypatch.setattr(consumption, "_refresh_positions", lambda *_: None)
        consumption._step(process)
        assert consumption._retry_s == pause_s
    assert folded == [["message"]]


def test_partitions_commit_in_turn(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come first would be due again before the last ones were reached: these would never commit."""
    consumption: Any = process.consumption
    others = [replace(process.partition, number=number, committed_at=at) for number, at in enumerate((7.0, 5.0, 6.0))]
    order: list[int] = []
    for each in others:
        consumption.ownership.add(each)
    monkeypatch.setattr(loop, "poll_batch", lambda *_: [])
    monkeypatch.setattr(consumption, "_refresh_positions", lambda *_: None)
    monkeypatch.setattr(consumption, "_commit", lambda partition, _: order.append(partition.number))
    consumption._step(process)
    assert order == [1, 2, 0]


def test_a_commit_by_somebody_else_ends_the_pause(process: Process) -> None:
    """A checkpoint has committed all: there is nothing whose commit would."""
    partition = process.partition
    partition.state, partition.ready, partition.commit_not_before = DISK_FULL, False, inf
    process.consumption._commit(partition, 0.0)
    assert partition.state == CATCHING_UP
    assert process.calls == ["resume", "seek 1"], "what was fetched before the pause is not folded"


def test_a_pause_that_ends_where_the_group_took_the_partition_away_ends_no_session(process: Process) -> None:
    """What is not read can't be sought, and all stores would be closed for the error of that."""
    partition = process.partition
    partition.state, partition.ready, partition.commit_not_before, partition.lost = DISK_FULL, True, inf, True
    process.consumption._commit(partition, 0.0)
    assert (partition.state, process.calls) == (READY, [])


def test_what_the_group_took_away_is_paused_without_a_word_to_its_member(process: Process) -> None:
    """For librdkafka the pause would be that of the next assignment, which nobody would end."""
    partition = process.partition
    partition.lost = True
    process.consumption._pauses.await_commit(partition, DiskFullError("no space left", hint="make some"))
    assert (partition.state, process.calls) == (DISK_FULL, [])


def test_a_pause_that_ends_before_newer_records_reads_nothing_of_them(process: Process) -> None:
    """Only a newer version can: each message would be refused once more."""
    partition: Any = process.partition
    partition.state, partition.commit_not_before = DISK_FULL, inf
    partition.store.newer = ValueError("newer")
    process.consumption._commit(partition, 0.0)
    assert (partition.state, process.calls) == (NEWER_WIRE, [])


def test_a_partition_that_ends_before_newer_records_is_ready(process: Process) -> None:
    """It will not come further: nobody would be told of what it has, and all reads would go to the source."""
    partition, message = process.partition, SimpleNamespace(leader_epoch=lambda: 3)
    partition.ready = False
    process.consumption._fold_run(partition, [(1, marker(2, reader_version=99))], message)
    assert (partition.state, partition.ready, process.announced) == (NEWER_WIRE, True, [partition.name])
    assert (partition.position, process.calls) == (1, ["pause"])
    assert partition.leader_epoch == UNKNOWN, "that of the message is of what is not folded"


def test_each_shard_has_a_silence_of_its_own_until_it_is_over(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' markers keep the partition awake: of one whose source is gone nobody would hear."""
    partition: Any = process.partition
    now = [partition.taken_at]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(partitions, "time", clock)

    def after(seconds: float, *messages: bytes) -> dict[str, float]:
        now[0] += seconds
        records = list(enumerate(messages, partition.store.state.head.offset))
        process.consumption._fold_run(partition, records, SimpleNamespace(leader_epoch=lambda: 3))
        server: Any = SimpleNamespace(answered={})
        consumption: Any = SimpleNamespace(ownership=process.consumption.ownership, rebuilds=0)
        families = {each.name: each for each in ConsumerCollector(consumption, server).collect()}
        samples = families["freshet_consumer_shard_silence_seconds"].samples
        return {each.labels["shard"]: round(each.value) for each in samples}

    assert after(7, start(shard="shop/1")) == {SHARD: 7, "shop/1": 0}
    assert after(5, marker(1, continuity=1)) == {SHARD: 0, "shop/1": 5}
    assert after(1, marker(1, continuity=2, previous=1)) == {SHARD: 0, "shop/1": 6}, (
        "one is like the other but for its number"
    )
    told = {each.shard: each.silent_seconds for each in partition_status(partition, 0).shards}
    assert told == {SHARD: 0, "shop/1": 6}
    assert after(1, topology(SHARD, ancestors={"shop/1": 1})) == {SHARD: 1}


@pytest.mark.parametrize(("changed", "position"), [({}, 5), ({"unchecked": True}, 1), ({"state": DISK_FULL}, 1)])
def test_what_was_given_and_not_folded_is_still_to_come(
    process: Process, changed: dict[str, Any], position: int
) -> None:
    """A partition would be ready, and say that it has come to the end, before it has."""
    process.partition.position, process.fetched = 1, 5
    for name, value in changed.items():
        setattr(process.partition, name, value)
    process.consumption._refresh_positions(process, 0.0)
    assert process.partition.position == position


def test_another_session_waits_for_no_store_of_the_one_before(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group says anew who has what: a partition that another process has by now would be read here, too."""
    consumption: Any = process.consumption
    topics = {"t": (KEYSPACE, process.partition.topic)}
    consumption._assignment._waiting.keep(("t", 0), None)
    consumption._search = SimpleNamespace(
        begin=lambda _: None, found=topics, missing=(), find_more=lambda _: False, replaced=frozenset(topics)
    )
    member = SimpleNamespace(subscribe=lambda *_, **__: None, close=lambda: None)
    waiting: list[object] = []
    monkeypatch.setattr(loop, "open_consumer", lambda *_: member)
    monkeypatch.setattr(consumption, "_step", lambda _: waiting.append([*consumption._assignment._waiting]))
    with pytest.raises(SessionEnd):
        consumption._session()
    assert (waiting, consumption.ownership.unopened) == ([[]], frozenset())


@pytest.mark.parametrize(("end", "is_ready"), [(-1, False), (1, True), (2, False)])
def test_a_partition_is_ready_where_the_topic_ended_when_it_was_taken(
    process: Process, end: int, is_ready: bool
) -> None:
    """Not where nobody has said yet where that is."""
    partition = process.partition
    partition.ready, partition.position, partition.end_at_start = False, 1, end
    process.consumption._refresh_positions(process, 0.0)
    assert partition.ready is is_ready
    assert process.announced == [partition.name] * is_ready


def test_nothing_is_folded_before_the_log_is_known_to_lead_there(process: Process) -> None:
    """Kafka may have lost its end: what comes after it belongs to another history."""
    partition, message = process.partition, SimpleNamespace(leader_epoch=lambda: 3)
    for unchecked, offset in ((True, 1), (False, 2)):
        partition.unchecked = unchecked
        process.consumption._fold_run(partition, [(1, marker(2))], message)
        assert partition.store.state.head.offset == offset


@pytest.mark.parametrize(("state", "after"), [(CATCHING_UP, READY), (DISK_FULL, DISK_FULL)])
def test_a_partition_that_is_ready_amid_a_pause_stays_paused(process: Process, state: str, after: str) -> None:
    """It would be called ready, and fold what no commit can follow."""
    partition = process.partition
    partition.ready, partition.state = False, state
    process.consumption._make_ready(partition)
    assert (partition.ready, partition.state) == (True, after)


def test_hot_rows_of_a_table_are_asked_for_once_in_a_while(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is voided again and again, as by a script of ALTER TABLEs, would cost the source more and more."""
    partition: Any = process.partition
    clock = [100.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    scope = ("shop.items", "shop/0")
    seen: list[int] = []
    for at, now_s in enumerate((100.0, 100.0 + loop.HOT_EVERY_S - 1, 100.0 + loop.HOT_EVERY_S + 1)):
        clock[0] = now_s
        head = SimpleNamespace(voids={scope: SimpleNamespace(at=at)}, backfills={scope: None})
        held: Any = SimpleNamespace(name=partition.name, ready=True, store=SimpleNamespace(visible=head))
        before: dict[tuple[str, str], Void] = {}
        process.consumption._ask_for_hot(held, before)
        seen.append(len(process.asked))
    assert seen == [1, 1, 2]


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> TopicSearch:
    """Of a keyspace whose topic is there."""
    monkeypatch.setattr(topic_search, "check_topics", lambda *_: Topic("t", "id", 2))
    found = TopicSearch(NOWHERE, "g", ["shop"])
    found.begin(0.0)
    return found


def test_what_nobody_has_is_given_a_rebalance_of_its_own_each_time(
    search: TopicSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look after one may come amid it: what it finds then is no proof that nothing has moved."""
    rebalanced: list[object] = []
    monkeypatch.setattr(topic_search, "unassigned", lambda *_: frozenset({("t", 0)}))
    monkeypatch.setattr(topic_search, "rebalance", lambda *words: rebalanced.append(words))
    counts: list[int] = []
    for _ in range(4):
        search._assign_what_nobody_has(search.found)
        counts.append(len(rebalanced))
    assert counts == [0, 1, 1, 2]


def test_a_session_that_begins_again_knows_the_topics_by_their_new_ids(search: TopicSearch) -> None:
    """Else it would end at once, and each one after it."""
    search.replaced = frozenset({"t"})
    search.begin(1.0)
    assert not search.replaced
    assert search.missing == ()


def test_a_topic_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While Kafka does not answer, the group is not told of it again and again: it would have no peace."""
    topics = {"shop": Topic("t", "id", 2)}
    error: list[FreshetError] = [TopicError("not yet")]

    def check(_: object, keyspace: str) -> Topic:
        if keyspace not in topics:
            raise error[-1]
        return topics[keyspace]

    monkeypatch.setattr(topic_search, "check_topics", check)
    monkeypatch.setattr(topic_search, "describe_topic", lambda _, name: Topic(name, "id", 2))
    monkeypatch.setattr(topic_search, "unassigned", lambda *_: frozenset())
    search = TopicSearch(NOWHERE, "g", ["shop", "later", "never"])
    search.begin(0.0)
    topics["later"] = Topic("l", "id", 2)
    seen: list[bool] = []
    for now in (10.0, 11.0, 20.0, 21.0):
        seen.append(search.find_more(now))
        if search._asking is not None:
            search._asking.join()
            error.append(KafkaUnreachable("away"))
    assert seen == [False, True, False, False]
    assert search.missing == ("never",)


@pytest.mark.parametrize(
    ("before", "is_read", "is_ready", "is_asked"),
    [
        (None, True, True, True),
        (1, True, True, True),
        (2, True, True, False),
        (1, False, True, False),
        (1, True, False, False),
    ],
)
def test_hot_rows_are_asked_for_where_a_table_was_voided_just_now_and_is_read_anew(
    process: Process, before: int | None, is_read: bool, is_ready: bool, is_asked: bool
) -> None:
    """A void of before has been asked for; and those that a partition folds while it catches up are of long ago."""
    scope = ("shop.items", "shop/0")
    head = SimpleNamespace(voids={scope: Void(1, 2, "")}, backfills={scope: None} if is_read else {})
    held: Any = SimpleNamespace(name="shop/0", ready=is_ready, store=SimpleNamespace(visible=head))
    process.consumption._ask_for_hot(held, {scope: Void(1, before, "")} if before is not None else {})
    assert process.asked == [("shop/0", "shop.items")] * is_asked
