"""The world of whole processes: what it does, and that its rules find what they are for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from consumers.process.announcing import Announcer
from consumers.store.store import PartitionStore
from lab.simulation.engine import History, Outcome, run_one
from lab.simulation.installation.judging import BOUNDED, MONOTONIC, OWN_WRITES
from lab.simulation.installation.operating.clocks import Clocks
from lab.simulation.installation.parts import Installation
from lab.simulation.installation.settling import RECOVERS
from lab.simulation.installation.world import InstallationWorld
from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.whole_processes.disk import Disk
from serving.client.session import SessionState
from stream.sources.mariadb.binlog import statements

WORLD = InstallationWorld()
START: History = [("world", 1, 0, 0, 0, 0), ("let", 3)]
WRITE_AND_READ: History = [*START, ("read", 0, 1, 1, 3), ("write", 0, 1, 1, 3), ("read", 0, 1, 1, 3)]


def answers(ops: History) -> dict[str, int]:
    """What the sessions of a history got; no rule was broken."""
    outcome = run_one(WORLD, ops)
    assert outcome.violations == []
    return outcome.answers


def rule(ops: History) -> str:
    """The rule that a history breaks."""
    violations = run_one(WORLD, ops).violations
    return violations[0].rule if violations else ""


def test_a_session_writes_and_reads_through_every_process() -> None:
    """Binlog, publisher, Kafka, fold, owner, front, session: what was written comes back, in the end from the cache."""
    got = answers(WRITE_AND_READ)
    assert got["write committed"] == 1
    assert got["fresh from the cache"] >= 4


def test_reads_go_on_while_the_cache_is_away() -> None:
    """No consumer, no Kafka: the source answers, freshly, once the epoch is known."""
    got = answers([*WRITE_AND_READ, ("kill", 0, 1), ("kafka", 1, 1), ("read", 0, 1, 1, 3), ("read", 0, 2, 1, 3)])
    assert got["fresh from the source"] >= 2


def test_a_front_without_a_source_answers_what_it_can_prove() -> None:
    """MariaDB is down: what the session has seen is served from the cache, nothing else."""
    got = answers([*WRITE_AND_READ, ("let", 3), ("mariadb", 1, 0), ("read", 0, 1, 1, 3)])
    assert got["fresh from the cache"] >= 5


def test_an_answer_to_a_bound_is_older_by_what_the_clocks_differ() -> None:
    """The server's clock is ahead of the front's, and Kafka is away. The world allows that much, and no more."""
    differing = [("world", 4, 0, 0, 0, 0, 0, 0, 64), ("let", 3)]
    late = [
        ("write", 0, 0, 1, 3),
        ("let", 3),
        ("kafka", 1, 0),
        ("write", 0, 0, 1, 3),
        ("let", 2),
        ("bounded", 1, 0, 1, 3),
    ]
    assert rule([*differing, *late]) == ""
    set_clocks = Installation._set_clocks

    def forget(run: Installation, rng: Random) -> None:
        set_clocks(run, rng)
        run.judge.clocks_differ_s = 0.0

    with replaced(Installation, "_set_clocks", forget):
        assert rule([*differing, *late]) == BOUNDED


def test_an_answer_to_a_bound_is_older_by_what_a_clock_was_ahead() -> None:
    """The server's clock is set forward, and Kafka goes away behind a marker. Once it was ahead that is remembered."""
    run = Installation((4, 0, 0, 0, 0, 0, 0, 64), Outcome(), False)
    run.primary.behaviour.clock_shift_s, run.kernel.clock_errors_s = 0.0, {}
    run.clocks = Clocks()
    allowed = []
    for name, shift_s in (("front-0", 0.0), ("front-0", 3.0), ("front-1", -9.0), ("front-0", -2.0), ("front-0", 0.0)):
        run.kernel.clock_errors_s[name] = shift_s
        run.note_clocks()
        allowed.append(run.judge.clocks_differ_s)
    run.primary.behaviour.clock_shift_s = 5.0
    run.note_clocks()
    assert [*allowed, run.judge.clocks_differ_s] == [0.0, 0.0, 0.0, 2.0, 2.0, 7.0]  # there is no second front


def test_clocks_are_set_only_where_they_differ() -> None:
    """A history that was kept before clocks were set is as it was, and in others the sessions get what is true."""
    steps = [("step", machine, by) for machine, by in ((0, 0), (4, 5), (9, 0), (9, 5))]
    for guarded, times in ((0, 0), (64, len(steps))):
        ops = [("world", 1, 0, 0, 0, 0, 0, 0, guarded), ("let", 2), *steps, ("bounded", 0, 0, 1, 3)]
        outcome = run_one(WORLD, ops)
        assert outcome.violations == []
        assert sum(count for (fault, _), count in outcome.met.items() if fault == "clock stepped") >= times
        assert times or not any(fault == "clock stepped" for fault, _ in outcome.met)


REKEYED: History = [
    ("world", 1, 0, 0, 0, 0, 0, 0, 128),
    ("let", 2),
    ("write", 0, 4, 1, 3),
    ("write", 0, 5, 1, 3),
    ("let", 3),
    ("read", 0, 5, 1, 3),
    ("rekey", 0, 3),
    ("read", 0, 5, 1, 3),
    ("read", 0, 6, 1, 3),
    ("find", 0, 4, 0, 9, 3),
]


def test_a_table_gets_another_primary_key_while_it_is_read() -> None:
    """The same number means another row then, for rows and for ranges."""
    assert answers(REKEYED)["range, fresh from the source"] >= 1


def test_a_source_that_does_not_see_another_primary_key_is_found() -> None:
    """An ALTER TABLE is taken for one that changes no row."""
    alter = statements._BY_FIRST_WORD["ALTER"]

    def harmless(tokens: Any, sql: str) -> statements.Statement:
        return replace(alter(tokens, sql), effect="none")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(statements._BY_FIRST_WORD, "ALTER", harmless)
        assert rule(REKEYED) == RECOVERS


@contextmanager
def replaced(owner: type, name: str, by: Any) -> Iterator[None]:
    """Plants a defect."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, by)
        yield


def test_a_session_that_forgets_its_writes_is_found() -> None:
    """Its next read may be answered with what was before."""
    stale = [*WRITE_AND_READ, ("cut", 0, 0, 0), ("write", 0, 1, 1, 3), ("read", 0, 1, 1, 3)]
    with replaced(SessionState, "observe", lambda *_: None):
        assert rule(stale) in (OWN_WRITES, MONOTONIC)


def test_a_consumer_that_nobody_finds_is_found() -> None:
    """Every answer is right, but none ever comes from the cache."""
    with replaced(Announcer, "announce", lambda *_: None):
        assert rule(WRITE_AND_READ) == RECOVERS


def test_a_store_that_loses_what_it_folded_is_found() -> None:
    """A fold that drops entries leaves old rows behind a new watermark."""
    fold = PartitionStore.get

    def forget(store: PartitionStore, key: bytes) -> bytes | None:
        found = fold(store, key)
        return None if found is not None and b'"version":2' in found else found

    with replaced(PartitionStore, "get", forget):
        assert rule([*WRITE_AND_READ, ("write", 0, 1, 1, 3), ("let", 2), ("read", 0, 1, 1, 3)])


def test_a_killed_process_leaves_its_locks_and_files() -> None:
    """The operating system closes what it had open; what was written stays."""
    kernel = Kernel(Random(1))
    disk = Disk(kernel)
    system = next(twin for real, twin in disk.twins().items() if getattr(real, "__name__", "") == "os")
    path = disk.root / "file"
    seen: list[int] = []

    def work() -> None:
        handle = system.open(path, 0o102)
        seen.append(handle)
        kernel.park()

    kernel.spawn("p", work)
    kernel.run_until(lambda: bool(seen), 1)
    kernel.kill("p")
    assert path.exists()
    kernel.spawn("q", work)
    kernel.run_until(lambda: len(seen) == 2, 1)
    assert seen[0] == seen[1]
    kernel.close()
    disk.close()
    assert not disk.root.exists()


def test_a_fault_that_meets_no_state_of_interest_counts_where_the_end_is_judged() -> None:
    """Consumers call rows void, their source knows nothing of it, and so the table may stay incomplete."""
    ops: History = [("world", 0, 0, 1, 0, 0, 1), ("let", 0), ("stop", 0), ("letters topic", 0)]
    assert run_one(WORLD, ops).violations == []


def test_a_consumer_that_is_held_loses_what_it_owns() -> None:
    """Its heartbeats are held as well: another one takes its partition meanwhile, and it wakes to find that."""
    told = run_one(WORLD, [("world", 1, 1, 1, 0, 0), ("let", 3), ("let", 3), ("hold", 0, 4), ("let", 4)], trace=True)
    assert told.violations == []
    held = "\n".join(told.trace).partition("consumer-0 is held")[2]
    before_it_knew, _, _ = held.partition("consumer-0: info: partition released shop/0")
    assert "consumer-1: info: partition taken shop/0" in before_it_knew


def test_a_bit_that_flips_has_a_store_rebuilt() -> None:
    """It is found when the store is opened again, and nobody complains of that."""
    flipped: History = [*START, ("write", 0, 1, 1, 3), ("let", 3), ("damage", 0, 0), ("kill", 0, 2)]
    told = run_one(WORLD, flipped, trace=True)
    assert told.violations == []
    assert told.met["damage", "all up"]
    assert "store moved aside, rebuilding it from the topic" in "\n".join(told.trace)
