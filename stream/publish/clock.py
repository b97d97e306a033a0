"""The source of time for code that waits or stamps, so that a test or a simulator can provide its own."""

from __future__ import annotations

from time import monotonic, time
from typing import Protocol


class Clock(Protocol):
    """``now``: seconds since 1970. ``monotonic``: seconds of a clock that never goes back."""

    def now(self) -> float: ...
    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time()

    def monotonic(self) -> float:
        return monotonic()
