"""How a source is doing, for metrics and health checks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

CURSORS: Final = "backfills"
"""Name of the annotation in a source's state that says how far each table is that has begun."""
PROGRESS: Final = "backfill_progress"
"""Name of the one with the table that is read now."""
HOLDERS: Final = "backfill_holders"
"""Name of the one that says who holds up which table."""


@dataclass(frozen=True, slots=True)
class TableReading:
    """How far the reading of a table from its beginning is. ``estimated_rows``: of the whole table; 0: unknown.

    ``paused``: why no row is published for now; "": nothing is in the way.
    """

    table: str
    rows: int = 0
    estimated_rows: int = 0
    rows_per_s: int = 0
    paused: str = ""

    @classmethod
    def told(cls, annotations: Mapping[str, str]) -> Self:
        """What a source's state says of it; of no table, if nothing is read."""
        words = annotations.get(PROGRESS)
        return cls(*json.loads(words)[:5]) if words else cls("")

    @property
    def eta_s(self) -> int:
        """Seconds until the table is complete, about; -1: unknown."""
        if not self.rows_per_s or not self.estimated_rows:
            return -1
        return max(self.estimated_rows - self.rows, 0) // self.rows_per_s


CLOCK_AHEAD_MAX_S: Final = 1.0


@dataclass(slots=True)
class SourceStatus:
    """Written by the source's thread, read by others. ``outage`` says what it waits for; empty: nothing."""

    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    position: str = ""
    timestamp: int = 0
    epoch: int = 0
    is_ready: bool = False
    outage: str = ""
    outages: int = 0
    transactions: int = 0
    commits_looked_up: int = 0
    """Those of a catalog's transactions whose beginning was not seen: the lists of all with open ids were fetched."""
    as_of_ms: int = 0
    clock_ahead_s: float = 0.0
    """By how much at least the server's clock is ahead of this machine's: `caught_up` comes after the look at it."""
    backfilled_rows: int = 0
    tables_complete: int = 0
    backfill: TableReading = field(default_factory=lambda: TableReading(""))
    """The table that is published from its beginning; its name is "" if there is none."""
    tables_held: Mapping[str, str] = field(default_factory=dict)
    """Tables whose backfill waits until somebody ends what holds them → what that is."""
    _caught_up_at: float = field(default=-1.0)

    def caught_up(self, as_of_ms: int) -> None:
        """Everything that the server had committed by ``as_of_ms`` of its own clock is given to the publisher."""
        self.as_of_ms, self._caught_up_at = as_of_ms, self.clock()
        self.clock_ahead_s = max(0.0, as_of_ms / 1000 - self.wall_clock())

    def is_behind(self) -> None:
        """The server had committed more when it was asked than is given to the publisher. Before the first time that it
        had not, the lag counts from here.
        """
        if self._caught_up_at < 0:
            self._caught_up_at = self.clock()

    def ready(self, position: str) -> None:
        """The source reads from ``position`` on."""
        self.position, self.is_ready, self.outage = position, True, ""

    def waits(self, what: str) -> None:
        """The source waits until an outage is over."""
        self.outages += self.outage != what
        self.is_ready, self.outage = False, what

    @property
    def is_clock_ahead(self) -> bool:
        """Whether clocks differ by more than the bounds of staleness that are common."""
        return self.clock_ahead_s > CLOCK_AHEAD_MAX_S

    @property
    def not_ready(self) -> str:
        """Why the source does not publish; empty if it does."""
        return "" if self.is_ready else self.outage or "it has not begun to read"

    @property
    def lag_seconds(self) -> float:
        """Since when it is not known that everything is published; -1 before that is looked at for the first time."""
        return self.clock() - self._caught_up_at if self._caught_up_at >= 0 else -1.0
