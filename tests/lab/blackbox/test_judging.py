"""The judge of recorded histories: it finds each kind of wrong answer, and nothing in a history that is right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.blackbox.judging import (
    AFTER_READS,
    COMMIT_ORDER,
    HONEST,
    INVALID,
    MONOTONIC,
    NO_FUTURE,
    NO_INVENTION,
    OWN_WRITES,
    RULES,
    STALE,
    judge,
    read_history,
)
from lab.blackbox.recording import Recorder

X, Y = "shop.items/1", "shop.items/2"


def commit(begin: float, sequence: int, session: str = "", **writes: int | None) -> dict[str, Any]:
    """A commit that took half a second. ``writes``: x or y → version."""
    named = {{"x": X, "y": Y}[key]: version for key, version in writes.items()}
    end = begin + 0.5 if sequence else None
    told = {"session": session, "begin": begin, "end": end, "sequence": sequence, "transaction": 7, "writes": named}
    return {"op": "commit"} | told


def read(
    begin: float, version: int | None, session: str = "", *, key: str = X, demanded: int = 0, freshness: str = ""
) -> dict[str, Any]:
    """A read that took half a second."""
    said = freshness or ("fresh" if session or demanded else "eventual")
    told = {"session": session, "begin": begin, "end": begin + 0.5, "key": key, "version": version}
    return {"op": "read", "demanded": demanded, "freshness": said, "told": "cache: ...", "token": ""} | told


def broken(*events: dict[str, Any]) -> list[tuple[str, int]]:
    """(rule, line) of each complaint about a recording of these lines."""
    return [(each.rule, each.line) for each in judge(read_history(map(json.dumps, events)))]


ONE, TWO = commit(1, 1, x=10), commit(2, 2, x=20)
BAD = {
    INVALID: ([ONE, commit(2, 2, x=10)], 2),
    COMMIT_ORDER: ([commit(1, 2, x=20), commit(2, 1, x=10)], 2),
    NO_INVENTION: ([ONE, read(3, 11)], 2),
    NO_FUTURE: ([ONE, read(1.1, 20), TWO], 2),
    STALE: ([ONE, TWO, read(3, 10, demanded=2)], 3),
    OWN_WRITES: ([ONE, commit(2, 2, "a", x=20), read(3, 10, "a")], 3),
    MONOTONIC: ([ONE, TWO, read(3, 20, "a"), read(4, 10, "a")], 4),
    AFTER_READS: ([commit(5, 1, "a", x=10), commit(5, 2, y=20), read(6, 20, "a", key=Y), commit(7, 0, "a", x=30),
                   {"op": "outcome", "transaction": 7, "sequence": 1}], 4),
    HONEST: ([ONE, read(3, 10, freshness="fresh")], 2),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_finds_the_history_that_breaks_it(rule: str) -> None:
    """Every kind of wrong answer is found, at its line."""
    events, line = BAD[rule]
    assert (rule, line) in broken(*events)


@pytest.mark.parametrize("rule", sorted({*RULES} - {AFTER_READS}))
def test_a_wrong_answer_is_called_by_one_name(rule: str) -> None:
    """A person is told what is wrong, not everything that follows from it."""
    events, line = BAD[rule]
    assert broken(*events) == [(rule, line)]


def test_what_a_session_has_seen_of_one_key_holds_for_all_keys() -> None:
    """A session that has seen a commit may not get another row as it was before that commit."""
    both = [commit(1, 1, x=10, y=11), commit(2, 2, y=21), commit(3, 3, x=30)]
    assert broken(*both, read(4, 30, "a"), read(5, 11, "a", key=Y)) == [(MONOTONIC, 5)]
    assert broken(*both, read(4, 10, "a"), read(5, 11, "a", key=Y)) == []


def test_a_deleted_row_is_a_version_too() -> None:
    """No row is right while there is none, and stale once it is there again."""
    events = [ONE, commit(2, 2, x=None), commit(3, 3, x=30)]
    assert broken(*events, read(4, None, demanded=2)) == []
    assert broken(*events, read(4, None, demanded=3)) == [(STALE, 4)]
    assert broken(*events, read(4, None, "a"), read(5, 10, "a")) == []  # the row was not there at first either


def test_a_read_that_overlaps_a_commit_may_see_it_or_not() -> None:
    """Only what had ended before an operation began binds it."""
    own = commit(2, 2, "a", x=20)
    assert broken(ONE, own, read(2.2, 10, "a")) == []
    assert broken(ONE, own, read(2.2, 20, "a")) == []


def test_a_commit_in_doubt_counts_once_it_is_found_and_binds_no_session() -> None:
    """Its version may be read from its begin on. If it is not found, reading it is reading an invention."""
    lost, found = commit(2, 0, "a", x=20), {"op": "outcome", "transaction": 7, "sequence": 2}
    assert broken(ONE, lost, found, read(3, 20), read(4, 10, "a")) == []
    assert broken(ONE, lost, read(3, 20)) == [(NO_INVENTION, 3)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["commit", "read"]),
        st.sampled_from(["a", "b", ""]),
        st.sampled_from([X, Y]),
        st.integers(0, 4),
        st.floats(0.1, 6),
        st.booleans(),
    ),
    max_size=60,
)


@given(STEPS)
def test_a_right_history_is_not_complained_of(steps: list[tuple[str, str, str, int, float, bool]]) -> None:
    """A cache that lags, but never behind what a session has seen or a read demands, breaks no rule."""
    history: list[dict[str, int | None]] = [{X: None, Y: None}]
    floors: dict[str, int] = {}
    events: list[dict[str, Any]] = []
    for begin, (kind, session, key, lag, lasting, is_delete) in enumerate(steps):
        told = {"session": session, "begin": begin, "end": begin + lasting}
        if kind == "commit":
            version = None if is_delete else len(history)
            history.append(history[-1] | {key: version})
            floors[session] = len(history) - 1
            events.append(
                {"op": "commit", "sequence": len(history) - 1, "transaction": 0, "writes": {key: version}} | told
            )
            continue
        demanded = max(len(history) - 1 - lag, 0) if is_delete else 0
        at = max(len(history) - 1 - lag, demanded, floors.get(session, 0) if session else 0)
        floors[session] = max(at, floors.get(session, 0))
        freshness = "fresh" if session or demanded else "eventual"
        state = {"key": key, "version": history[at][key], "demanded": demanded, "freshness": freshness, "told": ""}
        events.append({"op": "read"} | state | told)
    assert broken(*events) == []


def test_a_recording_is_judged_again_by_the_command(tmp_path: Path) -> None:
    """What a failed run keeps can be judged by anybody, with the line and an exit code."""
    with Recorder(tmp_path / "history.jsonl") as recorder:
        recorder.commit("a", recorder.now(), 1, {X: 10})
        recorder.commit("a", recorder.now(), 0, {X: 20}, transaction=3)
        recorder.outcome(3, 2)
        for version, session in ((20, "a"), (10, "b"), (10, "a")):
            recorder.read(
                session, recorder.now(), X, version, demanded=0, freshness="fresh", told="cache: ...", token="v2."
            )
    recorder.outcome(9, 9)  # after its end: dropped
    command = [sys.executable, "-m", "lab.blackbox", str(recorder.path)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert told.stdout.startswith(f"{recorder.path}:6: monotonic reads: a got version 10")
    assert told.stdout.endswith("2 commits, 3 reads: 1 × monotonic reads\n")
    as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert [each["line"] for each in json.loads(as_json.stdout)["complaints"]] == [6]
