"""Stretches of a table as readers got them, judged by what was committed: all rows of one moment, none more or less."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from lab.simulation.installation.committed import History, Image


@dataclass(frozen=True, slots=True)
class FoundStretch:
    """Rows of a table, or their number. Implements `lab.simulation.installation.judging.Judged`.

    ``after``, ``until``: the numbers of the rows between which it lies, the second included; None: without bound.
    ``number``: how many rows there are, counted up to ``limit`` (0: all); None if the rows themselves were asked for.
    """

    table: str
    images: Sequence[Image]
    served_from: str
    freshness: str
    why: str
    descending: bool = False
    after: int | None = None
    until: int | None = None
    only: int | None = None
    """The one row that is asked for, if it is only one."""
    number: int | None = None
    limit: int = 0

    @property
    def said(self) -> str:
        """See `Judged`."""
        what = list(self.images) if self.number is None else f"{self.number} rows"
        return f"{what} of {self.table} after {self.after} from the {self.served_from}"

    def first_in(self, history: History, demanded: int, time: float) -> int | None:
        """See `Judged`."""
        return history.first_state(self.table, self._within, self._holds, demanded, time)

    def versions_in(self, history: History) -> str:
        """See `Judged`."""
        states: list[str] = []

        def note(rows: Sequence[Image]) -> bool:
            states.append(f"{[*rows]}")
            return False

        history.first_state(self.table, self._within, note, 0, history.times[-1])
        return "; ".join(states)

    def _within(self, number: int) -> bool:
        if self.only is not None and number != self.only:
            return False
        low, high = (self.until, self.after) if self.descending else (self.after, self.until)
        above = low is None or (number >= low if self.descending else number > low)
        below = high is None or (number < high if self.descending else number <= high)
        return above and below

    def _holds(self, rows: Sequence[Image]) -> bool:
        if self.number is not None:
            return self.number == (min(len(rows), self.limit) if self.limit else len(rows))
        return list(self.images) == (list(reversed(rows)) if self.descending else list(rows))


def number_of(image: Image) -> int:
    """The number of a row, which is the last column of its key."""
    columns = json.loads(image or "{}")
    found: int = columns.get("number", columns.get("id"))
    return found
