"""When a workload's source publishes the whole catalog, and when in a new epoch: by what its topic already has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab.workload import run
from lab.workload.events import Bootstrap
from lab.workload.run import _open
from stream.wire.events import OpenTransaction, ResumePoint, SourceTransaction

NOW, EARLIER = "HiveEvent/7", "HiveEvent/5"
OPENED = OpenTransaction(3)


class Topic:
    """A publisher's topic, which resumes at a point or is empty; what is published into it, and why in a new epoch."""

    shard = "hive/0"

    def __init__(self, resume: ResumePoint | None) -> None:
        self._resume = resume
        self.steps: list[str] = []

    def open(self, start: Callable[[], tuple[str, int]]) -> ResumePoint:
        if self._resume is not None:
            return self._resume
        position, timestamp = start()
        return ResumePoint(self.shard, 1, 0, position, timestamp, position)

    def start_new_epoch(self, position: str, timestamp: int, reason: str) -> ResumePoint:
        self.steps.append(f"new epoch: {reason}")
        return ResumePoint(self.shard, 2, 0, position, timestamp, position)

    def publish(self, transaction: SourceTransaction) -> None:
        self.steps.append(f"all at {transaction.position}")


class Catalog:
    """One whose snapshots nobody asks anything."""

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        yield


def resumed(position: str, events: int, partial: int = 0) -> ResumePoint:
    """A point after so many events; of the last transaction ``partial`` are out, if it is not whole."""
    return ResumePoint("hive/0", 1, events, position, 1, position, position if partial else "", partial)


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize(
    ("resume", "steps"),
    [
        (None, [f"all at {NOW}"]),
        (resumed(EARLIER, 9), []),
        (resumed(EARLIER, 9, partial=2), []),
        (resumed(NOW, 1), [f"all at {NOW}"]),
        (resumed(EARLIER, 1), ["new epoch: bootstrap_restarted", f"all at {NOW}"]),
        (resumed(NOW, 3, partial=2), ["new epoch: bootstrap_restarted", f"all at {NOW}"]),
    ],
)
def test_the_whole_catalog_is_published_unless_the_topic_has_it(
    resume: ResumePoint | None, steps: list[str], is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new epoch that was asked for begins once: an empty topic has it with its first, and no retry asks for more."""
    whole = SourceTransaction(NOW, NOW, 1, [], "", (OPENED,))
    monkeypatch.setattr(run, "bootstrap", lambda _: Bootstrap(NOW, 1, whole))
    topic, asked = Topic(resume), {"asked_for"} if is_asked else set[str]()
    publisher: Any = topic
    catalog: Any = Catalog()
    found = _open(publisher, catalog, asked)
    asked_for = ["new epoch: asked_for", f"all at {NOW}"]
    assert topic.steps == (asked_for if is_asked and resume is not None else steps)
    assert asked == set()
    assert found.open_transactions == ({3: OPENED} if topic.steps else {})
