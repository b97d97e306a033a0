"""A partition that can not be taken over for now waits, and the others are read: full disks, Kafka without leaders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from structlog.testing import capture_logs

from consumers.owner.partitions import Partition
from consumers.process import assignment, restoring
from consumers.process.assignment import ASK_S, Assignment
from consumers.process.metrics import ConsumerCollector
from consumers.process.opening import open_partition
from consumers.process.restoring import RETRY_S, RETRY_S_MAX, StillRestoring
from consumers.store.errors import DiskFullError, RebuildNeededError
from stream.kafka.connection import REQUEST_TIMEOUT_S
from tests.consumers.owning import KEYSPACE
from tests.consumers.process.test_hand_overs import Group

PARTITIONS = 3
READY = "freshet_consumer_ready"
WARNING = "partition can't be taken yet, trying again"


class Given(Group):
    """A process that is given three partitions; what keeps it from opening them is as the test says."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.assignment.release([self.partition])
        self.topic = replace(self.partition.topic, partitions=PARTITIONS)
        self.assignment._topics = {self.topic.name: (KEYSPACE, self.topic)}
        self.full: set[int] = set()
        """No space for their stores."""
        self.leaderless: set[int] = set()
        self.unreached: set[int] = set()
        """Led by a broker that this host can't reach."""
        self.patience_s: list[object] = []
        """How long each answer of Kafka that did not come was waited for."""
        self.is_away = False
        """Whether no broker answers."""
        self.asked: list[object] = []
        """What Kafka was asked: a topic's name, or a partition."""
        self.opened: list[tuple[int, object]] = []
        """The partitions whose stores were to be opened, and what Kafka has lost of them."""

    @property
    def places(self) -> list[TopicPartition]:
        """Of its partitions."""
        return [TopicPartition(self.topic.name, number) for number in range(PARTITIONS)]

    @property
    def owned(self) -> list[int]:
        """Those that it has taken over; they are read."""
        found = sorted(each.number for each in self.ownership)
        assert found == sorted(each.partition for each in self.read)
        return found

    @property
    def unopened(self) -> list[int]:
        """Those that wait."""
        assert not (self.ownership.unopened and self.ownership.is_ready)
        return sorted(number for _, number in self.ownership.unopened)

    def step(self) -> list[object]:
        """The loop comes by; returns what Kafka was asked."""
        self.asked.clear()
        self.assignment.take_waiting(self._member)
        return list(self.asked)

    def open_partition(self, data_dir: Path, keyspace: str, number: int, *more: Any) -> Partition:
        """As the product's, if there is space."""
        self.opened.append((number, more[3]))
        if number in self.full:
            raise DiskFullError("no space left", hint="make some")
        return open_partition(data_dir, keyspace, number, *more)

    # as confluent_kafka's consumer

    def get_watermark_offsets(
        self, place: TopicPartition | None = None, *_: object, timeout: object = None, **__: object
    ) -> tuple[int, int]:
        """The topic's first offset and its end, if there is a leader."""
        assert place is not None
        self.asked.append(place.partition)
        if self.is_away or place.partition in self.leaderless | self.unreached:
            self.patience_s.append(timeout)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return 0, 1

    def list_topics(self, name: str, timeout: float) -> Any:
        """Who leads the partitions."""
        assert 0 < timeout < RETRY_S_MAX
        self.asked.append(name)
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        ids = [-1 if each in self.leaderless else 2 if each in self.unreached else 1 for each in range(PARTITIONS)]
        leaders = {number: SimpleNamespace(leader=each) for number, each in enumerate(ids)}
        return SimpleNamespace(topics={name: SimpleNamespace(partitions=leaders)})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What time it is."""
    now = [100.0]
    monkeypatch.setattr(restoring, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> Iterator[Given]:  # noqa: ARG001
    """A process that has no partition yet."""
    found = Given(tmp_path)
    monkeypatch.setattr(assignment, "open_partition", found.open_partition)
    yield found
    for each in found.ownership:
        each.store.close(commit=False)


def test_a_store_that_finds_no_space_holds_up_no_other(given: Given, clock: list[float]) -> None:
    """All stores of the process were closed for it, again and again; it is tried again, later each time."""
    given.full = {1}
    pauses: list[float] = []
    with capture_logs() as logs:
        given.give()
        assert (given.owned, given.unopened) == ([0, 2], [1])
        tried, since = len(given.opened), clock[0]
        while len(pauses) < 5:
            given.step()
            if len(given.opened) > tried:
                pauses.append(clock[0] - since)
                tried, since = len(given.opened), clock[0]
            clock[0] += RETRY_S / 2
    assert pauses == [RETRY_S, RETRY_S * 2, RETRY_S * 4, RETRY_S_MAX, RETRY_S_MAX]
    told = [(each["partition"], each["code"]) for each in logs if each["event"] == WARNING]
    assert told == [(f"{KEYSPACE}/1", "disk_full")]
    given.full.clear()
    clock[0] += RETRY_S_MAX
    given.step()
    assert (given.owned, given.unopened) == ([0, 1, 2], [])


def test_the_metrics_tell_of_a_partition_that_waits_for_its_store(given: Given) -> None:
    """Nobody answers for it, and without a series no alert would say so."""
    given.full = {1}
    given.give()
    for each in given.ownership:
        each.ready = True
    consumption: Any = SimpleNamespace(ownership=given.ownership, rebuilds=0)
    server: Any = SimpleNamespace(answered={})
    [ready] = [each for each in ConsumerCollector(consumption, server).collect() if each.name == READY]
    assert {each.labels["partition"]: each.value for each in ready.samples} == {"0": 1, "1": 0, "2": 1}


def test_a_copy_of_a_snapshot_that_finds_no_space_is_begun_again_later_each_time(
    given: Given, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was copied anew each second, and told of each time: for gigabytes of S3 that costs."""
    copied: list[float] = []

    def no_space(*_: object) -> Partition:
        copied.append(clock[0])
        if len(copied) % 2:
            raise StillRestoring
        raise DiskFullError("no space left", hint="make some")

    monkeypatch.setattr(assignment, "open_partition", no_space)
    with capture_logs() as logs:
        given.assignment._on_assign(given._member, given.places[:1])
        while len(copied) < 10:
            given.step()
            clock[0] += RETRY_S / 2
    begun, failed = copied[::2], copied[1::2]
    pauses = [again - at for at, again in zip(failed, begun[1:], strict=False)]
    assert pauses == [RETRY_S, RETRY_S * 2, RETRY_S * 4, RETRY_S_MAX]
    assert [each["code"] for each in logs if each["event"] == WARNING] == ["disk_full"]


def test_a_partition_without_a_leader_is_not_asked_for_and_holds_up_no_other(given: Given, clock: list[float]) -> None:
    """Each question to it takes seconds, in which nothing is folded."""
    given.leaderless = {0}
    given.give()
    assert (given.asked, given.owned, given.unopened) == ([0], [], [0, 1, 2])
    clock[0] += RETRY_S
    assert given.step() == [given.topic.name, 1, 2]
    assert (given.owned, given.unopened) == ([1, 2], [0])
    assert given.step() == []
    given.leaderless.clear()
    clock[0] += RETRY_S_MAX
    assert given.step() == [given.topic.name, 0]
    assert (given.owned, given.unopened) == ([0, 1, 2], [])


def test_a_leader_that_can_not_be_reached_holds_up_no_partition_of_another(given: Given, clock: list[float]) -> None:
    """Kafka names it all the same. All of its partitions wait for one short question, which comes ever more rarely."""
    given.unreached, asked_at = {0, 1}, list[float]()
    given.give()
    assert (given.asked, given.owned, given.unopened) == ([0], [], [0, 1, 2])
    clock[0] += RETRY_S
    assert given.step() == [given.topic.name, 1]
    assert given.step() == [given.topic.name, 2]
    assert (given.owned, given.unopened) == ([2], [0, 1])
    for _ in range(60):
        clock[0] += RETRY_S / 2
        asked_at += [clock[0]] * len(given.step()[1:])
    pauses = [later - earlier for earlier, later in zip([100.0 + RETRY_S, *asked_at], asked_at, strict=False)]
    assert pauses == [RETRY_S * 2, RETRY_S * 4, *[RETRY_S_MAX] * 3]
    assert given.patience_s == [REQUEST_TIMEOUT_S, *[ASK_S] * 6]
    given.unreached.clear()
    clock[0] += RETRY_S_MAX
    given.step()
    assert (given.owned, given.unopened) == ([0, 1, 2], [])


def test_who_failed_is_tried_again_after_who_was_not_tried() -> None:
    """Of many leaders that can't be reached one would always be due first, and those behind them never tried."""
    waiting = restoring.Waiting()
    for number in range(4):
        waiting.keep(("topic", number), None)
    waiting.fail(("topic", 0), "keyspace/0", DiskFullError("no space left", hint="make some"))
    waiting.put_off(("topic", 0), [("topic", 1)])
    assert [number for _, number in waiting] == [2, 3, 1, 0]


def test_while_no_broker_answers_one_question_is_asked_at_a_time(given: Given, clock: list[float]) -> None:
    """One for each partition, and each second, would leave no time for anything else. The log tells it once."""
    given.is_away, asked_at = True, list[float]()
    with capture_logs() as logs:
        given.give()
        assert given.asked == [0]
        for _ in range(60):
            clock[0] += RETRY_S / 2
            found = given.step()
            assert found in ([], [given.topic.name])
            asked_at += [clock[0]] * len(found)
    pauses = [later - earlier for earlier, later in zip([100.0, *asked_at], asked_at, strict=False)]
    assert pauses == [RETRY_S, RETRY_S * 2, RETRY_S * 4, RETRY_S_MAX, RETRY_S_MAX]
    assert [each["code"] for each in logs if each["event"] == WARNING] == ["kafka_unreachable"]
    given.is_away = False
    clock[0] += RETRY_S_MAX
    given.step()
    assert given.owned == [0, 1, 2]


@pytest.mark.parametrize("was", ["leaving", "lost"])
def test_what_is_open_still_does_not_wait_for_what_is_not(given: Given, was: str) -> None:
    """It needs no answer of Kafka; who is leaving is read all the time, which would never end if it counted as not."""
    given.give()
    gone, _, kept = sorted(given.ownership, key=lambda each: each.number)
    given.assignment.release([gone])
    setattr(kept, was, True)
    given.is_away = True
    given.assignment._on_assign(given._member, [given.places[0], given.places[2]])
    assert sorted(each.number for each in given.ownership) == [1, 2]
    assert (kept.leaving, kept.lost, given.unopened) == (False, False, [0])


@pytest.mark.parametrize("loses", [Assignment._on_revoke, Assignment._on_lost])
def test_what_is_taken_away_while_it_waits_is_tried_no_more(given: Given, clock: list[float], loses: Any) -> None:
    """Another process has it. It was not read, so its reading can't end."""
    given.full = {0, 1, 2}
    given.give()
    loses(given.assignment, given._member, given.places)
    clock[0] += RETRY_S_MAX
    assert (given.step(), given.left, given.unopened) == ([], [], [])


def test_that_a_log_has_lost_its_end_is_known_until_there_is_space_for_another_store(
    given: Given, clock: list[float]
) -> None:
    """The old one would be read on."""
    lost = RebuildNeededError("the log was cut off", code="log_truncated")
    given.assignment._lost[given.topic.name, 1] = lost
    given.full = {1}
    given.give()
    given.full.clear()
    clock[0] += RETRY_S
    given.step()
    assert given.opened == [(0, None), (1, lost), (2, None), (1, lost)]
