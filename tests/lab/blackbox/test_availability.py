"""Which reads count as not answered: a refusal, a late answer, one that is not fresh enough; and what excuses them."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from lab.blackbox.availability import ANSWER_S_MAX, EXCUSED_S, availability, interruptions
from lab.blackbox.judging import RecordedHistory, read_history
from lab.demo import readers as readers_module
from lab.demo.readers import Readers


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


def looped(until_s: float, *, stuck_at: float, stuck_s: float, clients: int = 8) -> list[dict[str, Any]]:
    """What clients read that wait for one answer before they ask again; at one time nobody is answered."""
    reads = []
    for _ in range(clients):
        at = 0.0
        while at < until_s:
            took_s = max(stuck_at + stuck_s - at, 0.1) if at >= stuck_at else 0.1
            reads.append(read(at, took_s=took_s))
            at += took_s
    return reads


def test_an_outage_counts_by_its_time_however_few_reads_meet_it() -> None:
    """Each client has one slow read, which is answered in time: the share of reads shows nothing of it."""
    outage = looped(60, stuck_at=20, stuck_s=ANSWER_S_MAX - 0.5)
    for planned in ([], [fault(20, 30, "drain")]):
        found = availability(recorded(*planned, *outage))
        assert found.unanswered == 0
        assert found.silent_s == pytest.approx(ANSWER_S_MAX - 0.5, abs=0.2)
    assert availability(recorded(*looped(60, stuck_at=20, stuck_s=0.3))).silent_s < 0.5


def test_a_silence_is_excused_for_a_while_after_a_fault_and_not_longer() -> None:
    """What is left of it counts; with a second fault only what is before it."""
    outage = looped(60, stuck_at=20, stuck_s=9)
    assert availability(recorded(fault(20, 22), *outage)).silent_s == pytest.approx(9 - 2 - EXCUSED_S, abs=0.2)
    assert availability(recorded(fault(20, 60), *outage)).silent_s == pytest.approx(9 - EXCUSED_S, abs=0.2)
    assert availability(recorded(fault(20, 26), *outage)).silent_s == pytest.approx(1, abs=0.2)


def test_only_fresh_answers_end_a_silence_and_it_lasts_until_the_last_read() -> None:
    """A client that demands nothing is answered by any cache that is left behind."""
    undemanding = [read(at, session="", freshness="eventual") for at in range(1, 8)]
    assert availability(recorded(read(0), *undemanding, refusal(9))).silent_s == pytest.approx(9)


def test_a_client_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its read is in no recording."""
    monkeypatch.setattr(readers_module, "STOP_S", 0.05)
    nothing: Any = None
    answered = threading.Event()
    readers = Readers(nothing, nothing, 1, 1)
    ended, waiting = threading.Thread(target=answered.is_set), threading.Thread(target=answered.wait, name="reader-1")
    for thread in (ended, waiting):
        thread.start()
    ended.join()
    readers._threads += [ended, waiting]
    readers.stop()
    answered.set()
    assert readers.errors == ["reader-1 still waits for an answer 0.05 s after the stop"]


def test_how_long_a_killed_node_kept_reads_from_being_answered_is_told() -> None:
    """The last refusal after the kill, and the answer that took longest; what was before it or long after is another
    matter."""
    events = [refusal(9), fault(10, 12), read(9.9, took_s=3), refusal(10.2), refusal(10.9), refusal(20), read(30)]
    [(node, refused_s, slowest_s)] = interruptions(recorded(*events), "kill")
    assert node == "node-0"
    assert [refused_s, slowest_s] == pytest.approx([1.0, 3.0])
    assert interruptions(recorded(*events), "pause") == []
