"""Where code that must wait or stamp gets its time from, so that a test or a simulator can bring its own."""

from __future__ import annotations

from time import monotonic, time
from typing import Protocol


class Clock(Protocol):
    """Seconds since 1970, and seconds of a clock that never runs backwards."""

    def now(self) -> float: ...
    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time()

    def monotonic(self) -> float:
        return monotonic()
