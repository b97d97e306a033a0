"""How a directory's disk does: how long its calls take, and whether to use it.

One that fails or is slow is left alone for a while; the others go on, and their keys do not move.
"""

from __future__ import annotations

import threading
from typing import Final

ERRORS_MAX: Final = 3
"""Errors of the disk in a row that isolate a directory."""
RETRY_S: Final = 30.0
"""How long it is left alone."""
SLOW_S: Final = 5.0
"""A call of the disk that takes longer counts as an error. One that never returns holds its thread."""
DAMAGED_MAX: Final = 100
"""Blocks that did not verify, after which nothing more is written into the directory."""
TIMES: Final = 40
"""Of `Times`: the last one begins after three days."""


class Times:
    """How long calls took. ``counts[i]``: those below 2 ** i µs and not below half of that. Any thread may count."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * TIMES
        self.seconds = 0.0

    def took(self, seconds: float) -> None:
        """One more call."""
        self.counts[int(seconds * 1e6).bit_length()] += 1
        self.seconds += seconds

    def add(self, other: Times) -> None:
        """Adds what another one counted."""
        self.counts = [one + two for one, two in zip(self.counts, other.counts, strict=True)]
        self.seconds += other.seconds


class Health:
    """Counts errors; says whether to use the directory. Times in seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self.errors = 0
        self.damaged = 0
        self.read_only = False
        self.in_a_row = 0
        self.isolated_until = 0.0
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        """In the child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def usable(self, now: float) -> bool:
        """False while the directory is isolated."""
        return now >= self.isolated_until

    @property
    def writable(self) -> bool:
        """Whether new blocks may be stored."""
        return not self.read_only and self.damaged < DAMAGED_MAX

    def failed(self, now: float) -> None:
        """A call of the disk failed, or took too long."""
        with self._lock:
            self.errors += 1
            self.in_a_row += 1
            if self.in_a_row >= ERRORS_MAX:
                self.isolated_until = now + RETRY_S
                self.in_a_row = ERRORS_MAX - 1  # after the pause one more error is enough

    def succeeded(self) -> None:
        """A call went well."""
        with self._lock:
            self.in_a_row = 0
            self.isolated_until = 0.0

    def took(self, began: float, ended: float) -> None:
        """A call went well, if it was no slow one."""
        if ended - began > SLOW_S:
            self.failed(ended)
        elif self.in_a_row:
            self.succeeded()

    def block_damaged(self) -> None:
        """A block did not verify."""
        with self._lock:
            self.damaged += 1
