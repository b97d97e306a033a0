"""A process that is drained gives away what it has, and takes nothing any more, without Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from consumers.process import loop
from consumers.process.assignment import SessionEnd
from tests.consumers.owning import KEYSPACE
from tests.consumers.process.test_folding import Process

Step = Callable[["Drained"], None]


class Drained(Process):
    """A consuming process, and what happens in the steps of its next session."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.steps: list[Step] = []
        self.has_left = False
        self.told: list[bool] = []
        """Whether it said after each step that it is draining."""
        self.group: dict[str, Any] = {}
        """What the group calls it for."""

    @property
    def owned(self) -> Any:
        """What it has."""
        return self.consumption.ownership

    @property
    def places(self) -> list[TopicPartition]:
        """Of its partition."""
        return [TopicPartition(self.partition.topic.name, 0)]

    def search(self, _: float) -> None:
        """Kafka is asked for the topic, which is there."""
        self.consumption._search.found = {self.partition.topic.name: (KEYSPACE, self.partition.topic)}

    def open_consumer(self, *_: object) -> Any:
        """It joins the group."""
        self.calls.append("join")
        return self

    def step(self, _: object) -> None:
        """The next one; the process is stopped in the last."""
        self.told.append(self.owned.is_draining)
        self.steps.pop(0)(self)
        if not self.steps:
            self.consumption.stop()

    # as confluent_kafka's consumer

    def subscribe(self, _: list[str], **group: Any) -> None:
        """To its topics."""
        self.group = group

    def unsubscribe(self) -> None:
        """It leaves the group."""
        self.has_left = True

    def incremental_assign(self, _: object) -> None:
        """It reads them."""

    def consumer_group_metadata(self) -> None:
        """Not told."""

    def close(self) -> None:
        """It ends."""


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drained]:
    """One with a partition that is ready."""
    made = Drained(tmp_path)
    monkeypatch.setattr(loop, "RETRY_S", 0.0)
    monkeypatch.setattr(loop, "open_consumer", made.open_consumer)
    monkeypatch.setattr(made.consumption, "_step", made.step)
    monkeypatch.setattr(made.consumption._search, "begin", made.search)
    monkeypatch.setattr(made.consumption._search, "find_more", lambda _: False)
    yield made
    made.consumption._committer.close()
    made.partition.store.close(commit=False)


def nothing(_: Drained) -> None:
    """A step in which nothing happens."""


def fails(_: Drained) -> None:
    """A step that ends the session."""
    raise SessionEnd


def test_who_has_nothing_takes_nothing_for_a_drain(process: Drained) -> None:
    """An operator who asked for it was told that it may be stopped: then what it took had nobody to be read from."""
    process.owned.remove(process.partition)
    process.consumption.drain()
    assert process.owned.is_draining
    process.consumption._session()
    assert (process.calls, process.owned.is_draining) == ([], False)


def test_who_has_failed_hands_over_what_it_is_given_back(process: Drained) -> None:
    """It says that it is draining until then, also while it has nothing."""

    def give_back(process: Drained) -> None:
        assert not process.has_left
        process.partition.lost = True
        process.owned.add(process.partition)
        process.group["on_assign"](process, process.places)

    process.steps = [fails]
    with pytest.raises(SessionEnd):
        process.consumption._session()
    assert list(process.owned) == []
    process.consumption.drain()
    process.steps = [nothing, give_back, lambda it: it.owned.remove(it.partition), nothing]
    process.consumption._session()
    assert (process.calls, process.has_left) == (["join", "join"], True)
    assert process.told[1:] == [True, True, True, False]


def test_a_drain_before_the_group_has_given_anything_back_waits_for_it(process: Drained) -> None:
    """It left in the same step, and nothing was handed over: the session had begun before it was asked to."""

    def give_back(process: Drained) -> None:
        process.partition.ready = False
        process.owned.add(process.partition)
        process.group["on_assign"](process, [])

    def catch_up(process: Drained) -> None:
        assert not process.has_left
        process.partition.ready = True

    process.steps = [fails]
    with pytest.raises(SessionEnd):
        process.consumption._session()
    process.steps = [nothing, lambda it: it.consumption.drain(), give_back, catch_up]
    process.steps += [lambda it: it.owned.remove(it.partition), nothing]
    process.consumption._session()
    assert process.has_left
    assert process.told[1:] == [False, False, True, True, True, False]


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_drain_does_not_wait_for_what_has_not_caught_up(process: Drained, has_failed: bool) -> None:
    """Nor for anything where no session before had closed what it had."""
    process.partition.ready = False
    process.consumption._has_closed = has_failed
    if has_failed:
        process.steps = [lambda it: it.group["on_assign"](it, [])]
    process.steps += [lambda it: it.consumption.drain(), lambda it: it.owned.remove(it.partition), nothing]
    process.consumption._session()
    assert (process.has_left, process.told[-1]) == (True, False)


def test_who_has_failed_leaves_if_others_have_all(process: Drained) -> None:
    """It stayed in its group for good, and got partitions as soon as another member went."""
    process.partition.lost = True  # so it does not leave at once
    process.steps = [lambda it: it.consumption.drain(), fails]
    with pytest.raises(SessionEnd):
        process.consumption._session()
    process.steps = [nothing, lambda it: it.group["on_assign"](it, []), nothing]
    process.consumption._session()
    assert process.has_left
    assert process.told[1:] == [True, True, True, False]


def test_a_drain_waits_for_what_can_be_handed_over(process: Drained) -> None:
    """Nothing that is lost; and after a session that failed, all that is given back."""
    may_leave, partition = process.consumption._may_leave, process.partition
    assert not may_leave(drains_again=False)
    process.consumption.drain()
    assert [may_leave(each) for each in (False, True)] == [True, False]
    process.consumption._assignment.is_given, partition.ready = True, False
    assert [may_leave(each) for each in (False, True)] == [True, False]
    partition.ready = True
    assert [may_leave(each) for each in (False, True)] == [True, True]
    process.owned.unopened = frozenset({(KEYSPACE, 1)})
    assert [may_leave(each) for each in (False, True)] == [True, False]
    partition.lost = True
    assert [may_leave(each) for each in (False, True)] == [False, False]
