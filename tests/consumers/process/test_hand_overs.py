"""Partitions that the group gives, takes away and gives back, without Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from consumers.owner.partitions import DISK_FULL, Ownership, Partition
from consumers.process import assignment
from consumers.process.assignment import Assignment, SessionEnd
from consumers.process.opening import open_partition
from consumers.process.restoring import StillRestoring, _Restore, _Turn
from consumers.snapshots.patience import Patience
from consumers.snapshots.restoring import Snapshots
from consumers.store.errors import RebuildNeededError, StoreError
from consumers.store.leader_epochs import UNKNOWN, kept_leader_epoch
from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import TopicReadError
from tests.consumers.histories import marker, start
from tests.consumers.owning import KEYSPACE, Owner
from tests.consumers.process.test_rebalance_errors import Silent


class Group(Silent):
    """A process with one partition: its member of the group, and what it tells of the partition's owners."""

    def __init__(self, data_dir: Path) -> None:
        self.owner = Owner(data_dir)
        self.partition = self.owner.partition
        self.succeeded = False
        """Whether another owner is announced."""
        self.read: list[TopicPartition] = []
        """The places from which partitions are read that it has begun to read since."""
        self.left: list[int] = []
        """Those that it reads no more."""
        self.paused: set[int] = set()
        """Those of which librdkafka reads nothing, also if they are assigned again."""
        self.progressed: list[Partition] = []
        self.assignment = Assignment(
            KafkaCluster("127.0.0.1:1"), data_dir, self.ownership, self, self.progressed.append, Snapshots()
        )
        self.assignment._topics = {self.partition.topic.name: (KEYSPACE, self.partition.topic)}
        self.owner.fold(start())
        self.partition.store.commit()

    @property
    def ownership(self) -> Ownership:
        """What it owns."""
        return self.owner.ownership

    @property
    def places(self) -> list[TopicPartition]:
        """Of its partition, as Kafka names it."""
        return [TopicPartition(self.partition.topic.name, 0)]

    def is_succeeded(self, _: Partition) -> bool:
        """As the test says."""
        return self.succeeded

    def give(self) -> None:
        """The group gives it the partition."""
        self.assignment._on_assign(self._member, self.places)

    def take(self) -> None:
        """The group takes it away."""
        self.assignment._on_revoke(self._member, self.places)

    @property
    def _member(self) -> Any:
        return self

    # as confluent_kafka's consumer

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        """It reads them."""
        self.read += places

    def resume(self, places: Sequence[TopicPartition]) -> None:
        """It reads them on; what is assigned just now might then be read from anywhere."""
        assert not {each.partition for each in self.read} & {each.partition for each in places}
        self.paused -= {each.partition for each in places}

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        """It reads them no more."""
        self.left += [each.partition for each in places]

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        """The topic's first offset and its end."""
        return 0, 1

    def consumer_group_metadata(self) -> None:
        """Not told."""

    def unsubscribe(self) -> None:
        """It leaves the group."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """A process whose partition is ready, and committed."""
    found = Group(tmp_path)
    yield found
    for each in found.ownership:
        each.store.close(commit=False)


def test_a_partition_that_comes_back_is_checked_again(group: Group) -> None:
    """Kafka may have lost the end of its log while no broker answered: nothing is folded before that is known."""
    group.partition.lost, group.partition.leader_epoch = True, 3
    group.give()
    assert (group.partition.lost, group.partition.unchecked) == (False, True)
    assert [(each.offset, each.leader_epoch) for each in group.read] == [(1, 3)]
    assert group.left == []


def test_a_paused_partition_that_comes_back_is_opened_anew(group: Group) -> None:
    """What it waited for may be over, and a new session of the group knows nothing of its pause."""
    group.partition.lost, group.partition.state = True, DISK_FULL
    group.give()
    [opened] = group.ownership
    assert opened is not group.partition
    assert not opened.is_paused
    assert [each.offset for each in group.read] == [1]


def _after_a_hand_over(group: Group) -> None:
    group.partition.leaving = group.succeeded = True
    group.assignment.end_hand_overs(group._member)


def _in_another_topic(group: Group) -> None:
    group.partition.leaving = True
    group.assignment._topics = {group.partition.topic.name: (KEYSPACE, replace(group.partition.topic, topic_id="new"))}
    group.give()


@pytest.mark.parametrize(
    "gives_up",
    [
        Group.take,
        lambda group: group.assignment._on_lost(group._member, group.places),
        _after_a_hand_over,
        _in_another_topic,
    ],
)
def test_what_is_read_no_more_is_not_paused(group: Group, gives_up: Callable[[Group], None]) -> None:
    """For librdkafka a pause outlives the assignment: once it is given back, nothing more would ever be read."""
    group.partition.state, group.paused = DISK_FULL, {0}
    gives_up(group)
    assert (group.left, group.paused) == ([0], set())


def test_reads_that_wait_for_a_partition_are_told_when_it_is_given_up(group: Group) -> None:
    """They would wait until their time is over for what somebody else folds."""
    group.assignment.release([group.partition])
    assert group.progressed == [group.partition]


@pytest.mark.parametrize(
    ("changed", "stays"),
    [({}, True), ({"lost": True}, False), ({"state": DISK_FULL}, False), ({"ready": False}, False)],
)
def test_only_who_goes_on_reading_hands_a_partition_over(group: Group, changed: dict[str, Any], stays: bool) -> None:
    """Who was expelled, is paused or has not caught up yet can't: its answers would be older and older."""
    for name, value in changed.items():
        setattr(group.partition, name, value)
    group.take()
    assert bool(len(group.ownership)) is stays
    assert group.partition.leaving is stays
    assert group.left == ([] if stays else [0])


def test_what_was_handed_over_is_read_no_more(group: Group) -> None:
    """As soon as its next owner is announced, and not before."""
    group.take()
    group.assignment.end_hand_overs(group._member)
    assert (list(group.ownership), group.left) == ([group.partition], [])
    group.succeeded = True
    group.assignment.end_hand_overs(group._member)
    assert (list(group.ownership), group.left) == ([], [0])


@pytest.mark.parametrize("loses", [Assignment._on_revoke, Assignment._on_lost])
def test_a_partition_that_is_gone_waits_for_no_store(group: Group, loses: Callable[..., None]) -> None:
    """Whoever is given it waits. Taken over here later it would be folded twice; the client does not read it yet."""
    group.assignment.release([group.partition])
    group.assignment._waiting.keep((group.partition.topic.name, 0), None)
    group.ownership.unopened = frozenset({(KEYSPACE, 0)})
    loses(group.assignment, group._member, group.places)
    assert (group.left, [*group.assignment._waiting], group.ownership.unopened) == ([], [], frozenset())


def test_who_has_left_takes_nothing(group: Group) -> None:
    """The group may give it something just then, and takes it away at once; or a store is done that it waited for."""
    group.assignment.release([group.partition])
    group.assignment.leave(group._member)
    group.give()
    group.assignment.take_waiting(group._member)
    assert (list(group.ownership), group.read) == ([], [])
    group.take()
    assert (group.left, [*group.assignment._waiting]) == ([], [])


def test_a_membership_that_ends_leaves_the_answers(group: Group) -> None:
    """Each proves its freshness; what is read no more is known as lost, so that nobody takes it for the present."""
    group.assignment._on_lost(group._member, group.places)
    assert (list(group.ownership), group.partition.lost, group.left) == ([group.partition], True, [0])


def test_a_lost_partition_that_is_not_given_back_is_released(group: Group) -> None:
    """Another process has it: what nobody folds here would be answered for ever, and a drain would never end."""
    group.assignment._on_lost(group._member, group.places)
    group.assignment._on_assign(group._member, [])
    assert (list(group.ownership), group.read) == ([], [])


def test_a_partition_that_leaves_is_not_read_in_another_topic(group: Group) -> None:
    """The topic was made anew meanwhile: its store is, too, and is read from there."""
    group.take()
    group.assignment._topics = {group.partition.topic.name: (KEYSPACE, replace(group.partition.topic, topic_id="new"))}
    group.give()
    [opened] = group.ownership
    assert (opened.topic.topic_id, opened.leaving) == ("new", False)
    assert (group.left, [each.offset for each in group.read]) == ([0], [0])


def test_a_store_that_was_made_from_a_snapshot_is_made_again_if_it_is_lost(group: Group) -> None:
    """That it was made once says nothing of one that is missing later."""
    made: Future[bool] = Future()
    made.set_result(True)
    restores = group.assignment._restores
    restores._started[KEYSPACE, 0] = _Restore(group.partition.topic.topic_id, made, Patience(), _Turn(), 0.0)
    group.assignment.release([group.partition])
    group.give()
    assert restores._started == {}


def test_a_member_whose_name_another_process_took_joins_by_another_name(group: Group, tmp_path: Path) -> None:
    """Its data directory was copied. By one name each would evict the other for good; the new one outlives restarts."""
    before = group.ownership.instance
    with pytest.raises(TopicReadError):
        group.assignment.lose(TopicReadError("broken", code="read_failed"))
    assert group.ownership.instance == before
    with pytest.raises(TopicReadError):
        group.assignment.lose(TopicReadError("fenced", code="member_replaced"))
    assert group.ownership.instance != before
    assert Ownership(tmp_path).instance == group.ownership.instance


def test_a_log_that_lost_its_end_costs_a_store_once(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store that is made then is of the log as it is: it must not be set aside at the next assignment, too."""
    why: list[object] = []

    def opening(*arguments: Any) -> Partition:
        why.append(arguments[6])
        return open_partition(*arguments)

    monkeypatch.setattr(assignment, "open_partition", opening)
    gone = TopicReadError("the log was cut off", code="offset_out_of_range")
    gone.place = group.partition.topic.name, 0
    with pytest.raises(SessionEnd):
        group.assignment.lose(gone)
    for _ in range(2):
        group.assignment.release(list(group.ownership))
        group.give()
    assert [type(each) for each in why] == [RebuildNeededError, type(None)]


def test_why_a_store_is_made_anew_is_known_once_it_is_made(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes several looks: a partition that says that it only catches up hides that its store was damaged."""
    reasons: list[StoreError | None] = [RebuildNeededError("it is damaged"), None]
    seen: list[object] = []

    def opening(*arguments: Any) -> Partition:
        seen.append(arguments[-1])
        if reasons:
            waiting = StillRestoring()
            waiting.why = reasons.pop(0)
            raise waiting
        return open_partition(*arguments)

    monkeypatch.setattr(assignment, "open_partition", opening)
    group.assignment.release(list(group.ownership))
    group.give()
    for _ in range(2):
        group.assignment.take_waiting(group._member)
    assert [str(each) for each in seen] == ["None", "it is damaged", "it is damaged"]


@pytest.mark.parametrize(("pending", "epoch"), [(False, 5), (True, UNKNOWN)])
def test_a_leader_epoch_is_kept_with_the_offset_that_it_is_of(group: Group, pending: bool, epoch: int) -> None:
    """Of an earlier one Kafka would say that its log was cut off, and a good store would be set aside."""
    partition = group.partition
    group.owner.fold(marker(2))
    partition.leader_epoch, partition.dead_letters_pending = 5, pending
    group.assignment.release([partition])
    assert kept_leader_epoch(partition.store.directory, partition.store.committed_offset) == epoch


@pytest.mark.parametrize("was", ["lost", "leaving"])
def test_a_partition_that_comes_back_counts_as_taken_just_now(
    group: Group, was: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have had it in between: this one's word is of its present generation, and not settled yet."""
    monkeypatch.setattr(assignment, "group_generation", lambda _: 7)
    setattr(group.partition, was, True)
    group.partition.taken_at = -inf
    group.give()
    assert list(group.ownership) == [group.partition]
    assert (group.partition.generation, group.partition.taken_at > -inf) == (7, True)
