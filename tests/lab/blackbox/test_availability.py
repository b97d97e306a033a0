"""Which reads count as not answered: a refusal, a late answer, one that is not fresh enough; and what excuses them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.blackbox.availability import ANSWER_S_MAX, EXCUSED_S, availability, interruptions
from lab.blackbox.judging import RecordedHistory, read_history


def read(begin: float, *, took_s: float = 0.1, session: str = "a", freshness: str = "fresh") -> dict[str, Any]:
    """A read that was answered."""
    said = {"op": "read", "session": session, "key": "t/1", "version": None, "demanded": 0, "freshness": freshness}
    return said | {"begin": begin, "end": begin + took_s}


def refusal(begin: float) -> dict[str, Any]:
    """A read that was refused."""
    return {"op": "refusal", "begin": begin, "end": begin + 0.1, "code": "unreachable"}


def fault(begin: float, end: float, kind: str = "kill") -> dict[str, Any]:
    """A fault of a node."""
    return {"op": "fault", "begin": begin, "end": end, "target": "node-0", "kind": kind}


def recorded(*events: dict[str, Any]) -> RecordedHistory:
    """A recording of these lines."""
    return read_history(map(json.dumps, events))


@pytest.mark.parametrize(
    "missed",
    [refusal(1), read(1, took_s=ANSWER_S_MAX + 0.1), read(1, freshness="eventual")],
    ids=["refused", "late", "not fresh enough"],
)
def test_a_read_that_did_not_get_in_time_what_it_demanded_counts(missed: dict[str, Any]) -> None:
    """Whatever it got instead."""
    found = availability(recorded(read(0), missed, read(2)))
    assert (found.reads, found.unanswered) == (3, 1)
    assert found.share == pytest.approx(2 / 3)


def test_a_reader_without_a_demand_is_content_with_any_answer() -> None:
    """It is promised no more."""
    found = availability(recorded(read(0, session="", freshness="eventual")))
    assert (found.reads, found.unanswered) == (1, 0)
    assert found.slowest_s == pytest.approx(0.1)


def test_nothing_that_was_read_is_no_availability() -> None:
    """A run in which every read was excused proves nothing, and does not pass."""
    assert availability(recorded(fault(0, 1), read(2))).share == 0


def test_a_fault_excuses_for_a_while_after_its_begin_and_its_end_and_not_between() -> None:
    """While it lasts, others have to answer. What began before it and met it is excused, too."""
    [begin, end] = 100.0, 200.0
    excused = [read(begin - 0.05), refusal(begin + EXCUSED_S - 0.2), refusal(end), refusal(end + EXCUSED_S - 0.2)]
    counted = [refusal(begin - 1), refusal(begin + EXCUSED_S + 0.1), refusal(end - 1), refusal(end + EXCUSED_S + 0.1)]
    found = availability(recorded(fault(begin, end), *excused, *counted))
    assert (found.reads, found.unanswered) == (4, 4)


@pytest.mark.parametrize("kind", ["drain", "join"])
def test_what_an_operator_plans_excuses_nothing(kind: str) -> None:
    """No read is refused while a node gives its partitions away, or joins."""
    assert availability(recorded(fault(0, 1, kind), refusal(0.5))).unanswered == 1


def test_how_long_a_killed_node_kept_reads_from_being_answered_is_told() -> None:
    """The last refusal after the kill, and the answer that took longest; what was before it or long after is another
    matter."""
    events = [refusal(9), fault(10, 12), read(9.9, took_s=3), refusal(10.2), refusal(10.9), refusal(20), read(30)]
    [(node, refused_s, slowest_s)] = interruptions(recorded(*events), "kill")
    assert node == "node-0"
    assert [refused_s, slowest_s] == pytest.approx([1.0, 3.0])
    assert interruptions(recorded(*events), "pause") == []
