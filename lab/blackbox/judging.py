"""Judges a recorded history: real-time order, versions of each key, and what a session was promised.

The manner is Elle's and porcupine's. Since each write has a version of its own and the database tells the order of its
commits, a read names the commit that it saw, and no search is needed: the time is that of sorting. Freshet promises
order within a session and against a demand, not linearizability of reads without one, so nothing more is asked.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any, Final, NamedTuple

INVALID: Final = "the recording is valid"
COMMIT_ORDER: Final = "commits have the order of real time"
NO_INVENTION: Final = "what is read was committed"
NO_FUTURE: Final = "nothing is read before it is written"
STALE: Final = "no answer is older than its demand"
OWN_WRITES: Final = "read your writes"
MONOTONIC: Final = "monotonic reads"
AFTER_READS: Final = "writes follow reads"
HONEST: Final = "fresh only with a demand"
RULES: Final = (
    INVALID, COMMIT_ORDER, NO_INVENTION, NO_FUTURE, STALE, OWN_WRITES, MONOTONIC, AFTER_READS, HONEST,
)  # fmt: skip


class Complaint(NamedTuple):
    """A rule that the history breaks. ``line``: number of the recorded line, from 1."""

    rule: str
    line: int
    what: str


class State(NamedTuple):
    """A version of a key, from the commit ``since`` on."""

    since: int
    version: int | None


@dataclass(slots=True)
class RecordedHistory:
    """A recording as it is judged: lines with their numbers, and the states of each key in commit order."""

    commits: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Those that took place. ``end`` is infinite where the answer was lost."""
    reads: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    refusals: list[dict[str, Any]] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)
    states: dict[str, list[State]] = field(default_factory=lambda: defaultdict(lambda: [State(0, None)]))
    begins: dict[tuple[str, int | None], float] = field(default_factory=dict)
    """(key, version) → when its first commit began. Every key has no row at first."""

    def began(self, read: dict[str, Any]) -> float | None:
        """When the first commit began that a read may have seen; None if no commit wrote what it got."""
        return -inf if read["version"] is None else self.begins.get((read["key"], read["version"]))


def read_history(lines: Iterable[str]) -> RecordedHistory:
    """The history in a recording. Raises ``ValueError`` or ``KeyError`` if it is damaged."""
    history = RecordedHistory()
    doubtful: dict[int, tuple[int, dict[str, Any]]] = {}
    for number, line in enumerate(lines, 1):
        event = json.loads(line)
        if event["op"] == "read":
            history.reads.append((number, event))
        elif event["op"] == "refusal":
            history.refusals.append(event)
        elif event["op"] == "fault":
            history.faults.append(event)
        elif event["op"] == "outcome":
            at, commit = doubtful[event["transaction"]]
            history.commits.append((at, commit | {"sequence": event["sequence"], "end": inf}))
        elif event["sequence"]:
            history.commits.append((number, event))
        else:
            doubtful[event["transaction"]] = number, event
    history.commits.sort(key=lambda each: int(each[1]["sequence"]))
    for _, commit in history.commits:
        for key, version in commit["writes"].items():
            history.states[key].append(State(commit["sequence"], version))
            history.begins[key, version] = min(commit["begin"], history.begins.get((key, version), inf))
    return history


def judge(history: RecordedHistory) -> list[Complaint]:
    """Every complaint about the history, in the order of its lines."""
    complaints: list[Complaint] = []

    def complain(rule: str, line: int, what: str) -> None:
        complaints.append(Complaint(rule, line, what))

    _check_recording(history, complain)
    _check_commit_order(history, complain)
    for number, read in history.reads:
        _check_read(history, number, read, complain)
    by_session: dict[str, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for each in (*history.commits, *history.reads):
        if each[1]["session"]:
            by_session[each[1]["session"]].append(each)
    for events in by_session.values():
        _check_session(history, events, complain)
    return sorted(complaints, key=lambda each: each.line)


Complain = Callable[[str, int, str], None]


def _check_recording(history: RecordedHistory, complain: Complain) -> None:
    """Checks that sequences and versions are unique: else a read would not name a commit."""
    sequences: set[int] = set()
    versions: dict[str, set[int]] = defaultdict(set)
    for number, commit in history.commits:
        if commit["sequence"] in sequences:
            complain(INVALID, number, f"two commits have the sequence {commit['sequence']}")
        sequences.add(commit["sequence"])
        for key, version in commit["writes"].items():
            if version is not None and version in versions[key]:
                complain(INVALID, number, f"two commits write version {version} of {key}")
            versions[key].add(version)


def _check_commit_order(history: RecordedHistory, complain: Complain) -> None:
    """Checks that no commit began after one had ended that the database put behind it."""
    earliest_end = inf  # of all commits with a higher sequence
    for number, commit in reversed(history.commits):
        if commit["begin"] > earliest_end:
            what = f"the commit {commit['sequence']} began after a commit of a higher sequence had ended"
            complain(COMMIT_ORDER, number, what)
        earliest_end = min(earliest_end, commit["end"])


def _check_read(history: RecordedHistory, number: int, read: dict[str, Any], complain: Complain) -> None:
    """Checks what holds without a session: the version is real, not of the future, and not older than the demand."""
    states = history.states[read["key"]]
    began = history.began(read)
    if began is None:
        complain(NO_INVENTION, number, f"{_told(read)}, which no commit wrote")
    elif began > read["end"]:
        complain(NO_FUTURE, number, f"{_told(read)}, whose commit began after the read had ended")
    elif read["demanded"] and _seen(states, read["version"], read["demanded"]) is None:
        what = f"{_told(read)}, demanded was commit {read['demanded']}; {_around(states, read['demanded'])}"
        complain(STALE, number, what)
    if read["freshness"] == "fresh" and not read["session"] and not read["demanded"]:
        complain(HONEST, number, f"{_told(read)}, without a demand")


def _seen(states: list[State], version: int | None, floor: int) -> int | None:
    """The least commit at or after ``floor`` at which a key had the version; None if it never had it again."""
    at = bisect_right(states, floor, key=lambda state: state.since) - 1
    return next((max(state.since, floor) for state in states[at:] if state.version == version), None)


def _check_session(history: RecordedHistory, events: list[tuple[int, dict[str, Any]]], complain: Complain) -> None:
    """Checks each operation against what the session knew when it began: what had ended by then."""
    pending: list[tuple[float, int, bool]] = []
    wrote = saw = 0
    for number, event in sorted(events, key=lambda each: float(each[1]["begin"])):
        while pending and pending[0][0] <= event["begin"]:
            _, sequence, is_write = heappop(pending)
            wrote, saw = (max(wrote, sequence), saw) if is_write else (wrote, max(saw, sequence))
        if event["op"] == "commit":
            if event["sequence"] <= saw:
                what = f"the commit {event['sequence']} is before {saw}, which its session had read"
                complain(AFTER_READS, number, what)
            heappush(pending, (event["end"], event["sequence"], True))
            continue
        states, floor = history.states[event["key"]], max(wrote, saw)
        seen = _seen(states, event["version"], floor)
        if seen is None and history.began(event) is not None:
            rule = OWN_WRITES if wrote > saw else MONOTONIC
            what = f"{_told(event)}, but its session had got to commit {floor}; {_around(states, floor)}"
            complain(rule, number, what)
        elif seen is not None:
            heappush(pending, (event["end"], max(seen, event["demanded"]), False))


def _told(read: dict[str, Any]) -> str:
    version = "no row" if read["version"] is None else f"version {read['version']}"
    return f"{read['session'] or 'a reader'} got {version} of {read['key']} ({read['freshness']}: {read['told']})"


def _around(states: list[State], sequence: int) -> str:
    at = bisect_right(states, sequence, key=lambda state: state.since)
    near = [f"{state.since}: {state.version}" for state in states[max(at - 3, 0) : at + 2]]
    return f"versions by commit: {', '.join(near)}"
