"""Whether reads were answered, and how long a fault kept them waiting: judged from a recording (`lab.blackbox`).

A read was answered if it got what it had demanded in time. A fault excuses what it meets within a while of its begin or
of its end: while it lasts longer, the others have to answer. What an operator plans excuses nothing.

Clients wait for one answer before they ask again, so a count of reads sees little of an outage: one slow read of each.
That is why the longest silence is told as well.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final, NamedTuple

from lab.blackbox.judging import RecordedHistory

EXCUSED_S: Final = 5.0
"""For so long after a fault begins or ends, reads may be refused."""
ANSWER_S_MAX: Final = 10.0
"""A later answer is none. A client turns from a node that is silent to the next one after 3 s, and to at most four."""
PLANNED: Final = frozenset({"drain", "join", "upgrade"})
"""Kinds of faults that are none: reads must be answered meanwhile."""


class Availability(NamedTuple):
    """Of the reads and the times that no fault excuses.

    ``slowest_s``: the longest answer. ``silent_s``: the longest time in which no client got a fresh answer.
    """

    reads: int
    unanswered: int
    slowest_s: float
    silent_s: float

    @property
    def share(self) -> float:
        """The share that was answered."""
        return 1 - self.unanswered / self.reads if self.reads else 0.0


NONE: Final = Availability(0, 0, 0.0, 0.0)


def availability(history: RecordedHistory) -> Availability:
    """How many reads were answered, apart from those that a fault excuses."""
    moments = sorted(at for each in _faults(history) for at in (each["begin"], each["end"]))
    attempts = _attempts(history)
    calm = [each for each in attempts if not _excused(moments, each)]
    answered = [each["end"] - each["begin"] for each in calm if _is_answered(each)]
    longest_s = max(answered, default=0.0)
    return Availability(len(calm), len(calm) - len(answered), longest_s, _longest_silence(moments, attempts))


def interruptions(history: RecordedHistory, kind: str) -> list[tuple[str, float, float]]:
    """Of each fault of a ``kind``, in seconds: its target, until when reads were refused, and the longest answer.

    Both of what began within `EXCUSED_S` of the fault; 0 if nothing was refused.
    """
    found = []
    for fault in history.faults:
        if fault["kind"] == kind:
            at = fault["begin"]
            near = [each for each in _attempts(history) if each["end"] >= at and each["begin"] <= at + EXCUSED_S]
            refused = max((each["end"] - at for each in near if "code" in each), default=0.0)
            slowest = max((each["end"] - each["begin"] for each in near if "code" not in each), default=0.0)
            found.append((str(fault["target"]), refused, slowest))
    return found


def _attempts(history: RecordedHistory) -> list[dict[str, Any]]:
    return [*(read for _, read in history.reads), *history.refusals]


def _faults(history: RecordedHistory) -> list[dict[str, Any]]:
    return [each for each in history.faults if each["kind"] not in PLANNED]


def _excused(moments: list[float], attempt: dict[str, Any]) -> bool:
    """Whether a fault began or ended during the attempt, or within `EXCUSED_S` before it."""
    before = bisect_right(moments, attempt["end"])
    return before > 0 and moments[before - 1] >= attempt["begin"] - EXCUSED_S


def _longest_silence(moments: list[float], attempts: list[dict[str, Any]]) -> float:
    """The longest time without a fresh answer, from the first read to the last; what a fault excuses counts as one."""
    if not attempts:
        return 0.0
    first, last = min(each["begin"] for each in attempts), max(each["end"] for each in attempts)
    answers = [(each["end"], each["end"]) for each in attempts if _is_answered(each) and each["freshness"] == "fresh"]
    longest, silent_since = 0.0, first
    for begin, end in sorted([*answers, *((at, at + EXCUSED_S) for at in moments), (last, last)]):
        longest = max(longest, min(begin, last) - silent_since)
        silent_since = max(silent_since, end)
    return longest


def _is_answered(attempt: dict[str, Any]) -> bool:
    if "code" in attempt or attempt["end"] - attempt["begin"] > ANSWER_S_MAX:
        return False
    return bool(attempt["freshness"] == "fresh" or not (attempt["session"] or attempt["demanded"]))
