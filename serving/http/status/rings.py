"""What was seen in the last hour, six hours and day: the further back, the fewer points. Pure, and of bounded memory.

A point of a coarser ring is what the finer points in its stretch of time come to: the largest of their ages and of
their records behind, as far as these are known, and the sum of their counts. How often an age was unknown is counted:
a front that has just begun knows none, and one such look must not hide five minutes.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add
from typing import Final, Literal, NamedTuple

Hours = Literal[1, 6, 24]
LOOK_S: Final = 10.0
"""Between two looks that are remembered."""
STEP_S: Final[dict[Hours, float]] = {1: LOOK_S, 6: 60.0, 24: 300.0}
"""Hours that are kept → seconds between two points."""


UNKNOWN: Final = -1
"""Smaller than all that is known."""


class Worst(NamedTuple):
    """The largest age in seconds of a keyspace's partitions, and the most records behind; ``unknown``: looks without.

    `UNKNOWN` at a look: of one partition it is.
    """

    age_s: float
    behind: int
    unknown: int


class Moment(NamedTuple):
    """What was seen at Unix time ``at``, and counted since the moment before.

    ``ages_s``: of each remembered partition, always in the same order; ``unknown``: at how many looks it was not known.
    ``worst``: of each keyspace. ``counts``: answers from the cache, from the source, and errors. ``misses``: reads that
    the cache did not answer, by reason.
    """

    at: float
    ages_s: array[float]
    unknown: array[int]
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
        array("I", map(add, then.unknown, now.unknown)),
        {name: _worse(then.worst[name], worst) for name, worst in now.worst.items()},
        (then.counts[0] + now.counts[0], then.counts[1] + now.counts[1], then.counts[2] + now.counts[2]),
        Counter(then.misses) + Counter(now.misses),
    )


def _worse(then: Worst, now: Worst) -> Worst:
    return Worst(max(then.age_s, now.age_s), max(then.behind, now.behind), then.unknown + now.unknown)


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
