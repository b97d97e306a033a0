"""A directory whose disk fails is left alone for a while; the others go on, and their keys do not move."""

from __future__ import annotations

import threading
from typing import Final

ERRORS_MAX: Final = 3
"""Errors of the disk in a row that isolate a directory."""
RETRY_S: Final = 30.0
"""How long it is left alone."""
DAMAGED_MAX: Final = 100
"""Blocks that did not verify, after which nothing more is written into the directory."""


class Health:
    """Counts errors; says whether to use the directory. Times in seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self.errors = 0
        self.damaged = 0
        self.read_only = False
        self._in_a_row = 0
        self._isolated_until = 0.0
        self._lock = threading.Lock()

    def after_fork(self) -> None:
        """In the child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def usable(self, now: float) -> bool:
        """False while the directory is isolated."""
        return not self._isolated_until or now >= self._isolated_until

    @property
    def writable(self) -> bool:
        """Whether new blocks may be stored."""
        return not self.read_only and self.damaged < DAMAGED_MAX

    def failed(self, now: float) -> None:
        """A call of the disk failed."""
        with self._lock:
            self.errors += 1
            self._in_a_row += 1
            if self._in_a_row >= ERRORS_MAX:
                self._isolated_until = now + RETRY_S
                self._in_a_row = ERRORS_MAX - 1  # after the pause one more error is enough

    def succeeded(self) -> None:
        """A write went well."""
        with self._lock:
            self._in_a_row = 0
            self._isolated_until = 0.0

    def block_damaged(self) -> None:
        """A block did not verify."""
        with self._lock:
            self.damaged += 1
