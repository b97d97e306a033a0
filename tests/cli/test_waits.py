"""Commands that wait for another process: until it has answered, no less, and not for ever."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Self

import pytest

from consumers.owner.protocol import PartitionStatus
from freshet import owners
from freshet.commands import backfill
from freshet.commands.backfill import _await_taken, _Place
from freshet.commands.cluster import DrainError, _wait_for_owners
from freshet.commands.source import run_source
from freshet.settings import Settings
from freshet.together.parts import Part
from freshet.together.running import BACKOFF_S, BACKOFF_S_MAX, SETTLED_S, Together
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import Announcement
from stream.sources.mariadb.backfill.choice import CHOICE
from stream.sources.mariadb.backfill.progress import TableProgress
from stream.sources.status import CURSORS, SourceStatus
from stream.wire.events import DescribeTable, ResumePoint


def point(offset: int) -> ResumePoint:
    """Of a source that has read the requests before ``offset``."""
    gtid = "MariaDB/0-1-5"
    return ResumePoint("shop/0", 1, 5, gtid, 0, gtid, annotations={CHOICE: json.dumps([offset, {}, None])})


def test_a_request_is_taken_once_the_source_is_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is about to read it may be killed before."""
    monkeypatch.setattr(backfill, "POLL_S", 0.0)
    monkeypatch.setattr(backfill, "TAKEN_WITHIN_S", 0.0)
    place = _Place(Settings(), "shop", "shop/0")
    for read_to, is_taken in ((6, False), (7, False), (8, True)):
        monkeypatch.setattr(backfill, "_point", lambda *_, at=read_to: point(at))
        assert _await_taken(place, 7, point(0)) is is_taken


@pytest.mark.parametrize(
    ("owners", "is_done"), [([], False), (["a:1"], False), (["b:1"], True), (["a:1", "b:1"], True)]
)
def test_a_drained_instance_is_told_to_be_done_once_another_one_has_each_partition(
    owners: list[str], is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stops it before has nobody to read from."""

    class Locations:
        def __init__(self, _: KafkaCluster) -> None:
            self.told = iter(owners)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def owner_of(self, keyspace: str, partition: int) -> Announcement | None:
            address = next(self.told, owners[-1] if owners else "")
            found = Announcement(keyspace=keyspace, partition=partition, address=address, instance="i")
            return found if address else None

    monkeypatch.setattr("stream.kafka.locations.LocationsReader", Locations)
    monkeypatch.setattr("freshet.commands.cluster.POLL_S", 0.0)
    given = [PartitionStatus("shop", 0, 0, 0, 0, 0, True, "", [], 0, 0, 0, 0, "", "")]
    deadline = time.monotonic() + (60 if is_done else -1)
    if is_done:
        _wait_for_owners(KafkaCluster("127.0.0.1:1"), "a:1", given, deadline)
    else:
        with pytest.raises(DrainError, match="nobody else is announced for shop/0"):
            _wait_for_owners(KafkaCluster("127.0.0.1:1"), "a:1", given, deadline)


def test_a_signal_ends_a_sources_waits_for_kafka_too() -> None:
    """The source alone may be amid one, and would end when Kafka is back."""
    stopping, told = threading.Event(), list[bool]()

    class Source:
        status = SourceStatus()

        def run(self) -> None:
            signal.raise_signal(signal.SIGTERM)

        def stop(self) -> None:
            told.append(stopping.is_set())

    before = signal.getsignal(signal.SIGTERM)
    run_source(Source(), Settings(), "shop", "shop/0", stopping, "freshet source mariadb shop")
    assert told == [True]
    assert signal.getsignal(signal.SIGTERM) is before


class Process:
    """One that lives."""

    returncode = None

    def poll(self) -> None: ...


@pytest.fixture
def together() -> Together:
    """One part, which has died often."""
    found = Together([Part("source a", ())], [], lambda *_: None)
    found._parts[0].backoff_s = BACKOFF_S_MAX
    return found


def test_a_part_that_has_run_for_a_while_is_started_again_at_once(together: Together) -> None:
    """What made it die often at its start is over: the next death must not cost half a minute."""
    [part] = together._parts
    living: Any = Process()
    part.process, part.started_at = living, time.monotonic()
    together._tend(part)
    assert (part.has_settled, part.backoff_s) == (False, BACKOFF_S_MAX)
    part.started_at -= SETTLED_S
    together._tend(part)
    assert (part.has_settled, part.backoff_s) == (True, BACKOFF_S)


def test_owners_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a keyspace with many partitions that nobody has announced, a command says so in seconds, not in minutes."""
    now, waits = [100.0], list[float]()

    class Locations:
        def __init__(self, _: KafkaCluster) -> None: ...

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def wait_for(self, keyspace: str, partition: int, timeout_s: float) -> Announcement:
            waits.append(timeout_s)
            now[0] += 3.0
            return Announcement(keyspace=keyspace, partition=partition, address=f"a:{partition}", instance="i")

    monkeypatch.setattr(owners, "LocationsReader", Locations)
    monkeypatch.setattr("freshet.owners.time", SimpleNamespace(monotonic=lambda: now[0]))
    found = owners._announced(KafkaCluster("127.0.0.1:1"), "shop", range(4))
    assert found == {0: "a:0", 1: "a:1", 2: "a:2", 3: "a:3"}
    assert waits == [5.0, 2.0, 0, 0]


@pytest.mark.parametrize("state", ["reading", "paused", "waiting"])
def test_progress_is_followed_until_nothing_is_left(
    state: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a table becomes is read anew while none is amid being read: one may have begun, and be complete already."""
    monkeypatch.setattr(backfill, "SHOW_EVERY_S", 0.0)
    whole = iter([state, state, "complete"])
    known = [next(whole)]

    looks = iter(range(9))

    def look(_: _Place, before: ResumePoint | None = None) -> ResumePoint:
        assert next(looks) < 8, "it looks for ever"
        if before is None:
            known.append(next(whole, "complete"))
        return point(0)

    def progress(_: ResumePoint, __: str) -> list[TableProgress]:
        return [TableProgress("shop.t", known[-1])]  # type: ignore[arg-type]

    monkeypatch.setattr(backfill, "_point", look)
    monkeypatch.setattr(backfill, "_progress", progress)
    assert backfill._follow(_Place(Settings(), "shop", "shop/0"), "") == point(0)
    assert capsys.readouterr().err.splitlines() == [f"shop.t  {state}", "shop.t  complete"]


@pytest.mark.parametrize(
    ("begun", "then", "is_whole"),
    [("a", "a", False), ("a", "b", True), ("a", "ab", True), ("ab", "b", True), ("a", "", True), ("", "", True)],
)
def test_progress_is_read_anew_when_another_table_is_read(
    begun: str, then: str, is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a table is complete stands beside its rows: a look at the place alone would show it as it was."""
    monkeypatch.setattr(backfill, "SHOW_EVERY_S", 0.0)
    states: Iterator[Any] = iter(["reading", "complete"])
    looks: list[bool] = []

    def look(_: _Place, before: ResumePoint | None = None) -> ResumePoint:
        looks.append(before is None)
        tables = begun if len(looks) == 1 else then
        found = point(0)
        found.annotations[CURSORS] = json.dumps([found.epoch, {each: [None, 0] for each in tables}])
        found.descriptions = dict.fromkeys("ab", DescribeTable("t", (), ()))
        return found

    monkeypatch.setattr(backfill, "_point", look)
    monkeypatch.setattr(backfill, "_progress", lambda *_: [TableProgress("a", next(states))])
    backfill._follow(_Place(Settings(), "shop", "shop/0"), "")
    assert looks == [True, False, *([True] if is_whole else [])]
