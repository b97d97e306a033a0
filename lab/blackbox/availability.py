"""Whether reads were answered, and how long a fault kept them waiting: judged from a recording (`lab.blackbox`).

A read was answered if it got what it had demanded in time. A fault excuses what it meets within a while of its begin or
of its end: while it lasts longer, the others have to answer. What an operator plans excuses nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final, NamedTuple

from lab.blackbox.judging import RecordedHistory

EXCUSED_S: Final = 5.0
"""For so long after a fault begins or ends, reads may be refused."""
ANSWER_S_MAX: Final = 10.0
"""A later answer is none. A client turns from a node that is silent to the next one after 3 s, and to at most four."""
PLANNED: Final = frozenset({"drain", "join"})
"""Kinds of faults that are none: reads must be answered meanwhile."""


class Availability(NamedTuple):
    """Of the reads that no fault excuses. ``slowest_s``: the longest answer."""

    reads: int
    unanswered: int
    slowest_s: float

    @property
    def share(self) -> float:
        """The share that was answered."""
        return 1 - self.unanswered / self.reads if self.reads else 0.0


NONE: Final = Availability(0, 0, 0.0)


def availability(history: RecordedHistory) -> Availability:
    """How many reads were answered, apart from those that a fault excuses."""
    moments = sorted(at for each in _faults(history) for at in (each["begin"], each["end"]))
    calm = [each for each in _attempts(history) if not _excused(moments, each)]
    answered = [each["end"] - each["begin"] for each in calm if _is_answered(each)]
    return Availability(len(calm), len(calm) - len(answered), max(answered, default=0.0))


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


def _is_answered(attempt: dict[str, Any]) -> bool:
    if "code" in attempt or attempt["end"] - attempt["begin"] > ANSWER_S_MAX:
        return False
    return bool(attempt["freshness"] == "fresh" or not (attempt["session"] or attempt["demanded"]))
