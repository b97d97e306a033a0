"""What was seen in the last hour, six hours and day: the further back, the fewer points. Pure, and of bounded memory.

A point of a coarser ring is what the finer points in its stretch of time come to: the worst of their ages and of their
records behind, and the sum of their counts. Unknown is the worst of all: it is infinite here.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from functools import reduce
from math import inf
from typing import Final, Literal, NamedTuple

Hours = Literal[1, 6, 24]
STEP_S: Final[dict[Hours, float]] = {1: 10.0, 6: 60.0, 24: 300.0}
"""Hours that are kept → seconds between two points."""


class Worst(NamedTuple):
    """The largest age in seconds of a keyspace's partitions, and the most records behind. `inf`: one is unknown."""

    age_s: float
    behind: float


class Moment(NamedTuple):
    """What was seen at Unix time ``at``, and counted since the moment before.

    ``ages_s``: of each remembered partition, always in the same order. ``worst``: of each keyspace. ``counts``: answers
    from the cache, from the source, and errors. ``misses``: reads that the cache did not answer, by reason.
    """

    at: float
    ages_s: array[float]
    worst: Mapping[str, Worst]
    counts: tuple[int, int, int]
    misses: Mapping[str, int]


def together(moments: Iterable[Moment]) -> Moment:
    """What ``moments``, the oldest first, come to; there is at least one."""
    return reduce(_both, moments)


def _both(then: Moment, now: Moment) -> Moment:
    return Moment(
        now.at,
        array("d", map(max, then.ages_s, now.ages_s)),
        {
            name: Worst(max(then.worst[name].age_s, worst.age_s), max(then.worst[name].behind, worst.behind))
            for name, worst in now.worst.items()
        },
        (then.counts[0] + now.counts[0], then.counts[1] + now.counts[1], then.counts[2] + now.counts[2]),
        Counter(then.misses) + Counter(now.misses),
    )


class Ring:
    """The points of the last ``hours``, one for each stretch of ``STEP_S[hours]`` in which something was seen."""

    def __init__(self, hours: Hours) -> None:
        self.kept_s = hours * 3_600.0
        self._step_s = STEP_S[hours]
        self._points: deque[Moment] = deque(maxlen=int(self.kept_s / self._step_s) + 1)

    def add(self, moment: Moment) -> None:
        """Keeps a moment, in the point of its stretch if there is one."""
        if self._points and self._points[-1].at // self._step_s == moment.at // self._step_s:
            self._points.append(together([self._points.pop(), moment]))
        else:
            self._points.append(moment)

    def since(self, at: float) -> list[Moment]:
        """The points of which the last moment is later than ``at``, the oldest first."""
        return [each for each in self._points if each.at > at]


class Rings:
    """A ring for each number of hours."""

    def __init__(self) -> None:
        self._rings: dict[Hours, Ring] = {hours: Ring(hours) for hours in STEP_S}

    def add(self, moment: Moment) -> None:
        """Keeps a moment, which is later than the last."""
        for ring in self._rings.values():
            ring.add(moment)

    def last(self, hours: Hours, now: float) -> list[Moment]:
        """The points of the last ``hours`` before Unix time ``now``, the oldest first."""
        ring = self._rings[hours]
        return ring.since(now - ring.kept_s)


def unless_unknown(value: float) -> float | None:
    """``value``, or None for what is unknown."""
    return None if value == inf else value


def badness(ages_s: list[float]) -> tuple[int, float]:
    """By what partitions are put in order: how often the age was unknown, then the largest."""
    return ages_s.count(inf), max((each for each in ages_s if each != inf), default=0.0)
