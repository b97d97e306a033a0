"""How long a place of snapshots is waited for: as long as it says something, and not once it has fallen silent."""

from __future__ import annotations

import time
from threading import Lock
from typing import Final

SILENT_S: Final = 60.0
"""A place that has not answered and sent nothing for so long is given up."""


class Stopped(Exception):
    """No store is made: the process ends, or the place has fallen silent."""


class Patience:
    """What one restore has heard of its place, and whether it still may make a store. Any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._heard: float | None = None
        """When the place last said something; None: nothing is waited for, yet or any more."""
        self._is_settled = False
        self.is_over = False

    def hear(self) -> None:
        """The place is asked, or has said something. Raises `Stopped` if nobody waits for it any more."""
        with self._lock:
            if self.is_over:
                raise Stopped
            self._heard, self._is_settled = time.monotonic(), False

    def settle(self) -> None:
        """All has been heard: the store is made, however long that takes. Raises `Stopped` as `hear` does."""
        with self._lock:
            if self.is_over:
                raise Stopped
            self._heard, self._is_settled = None, True

    def silent_s(self) -> float:
        """For how many seconds the place has been waited for."""
        heard = self._heard
        return 0.0 if heard is None else time.monotonic() - heard

    def give_up(self) -> bool:
        """Has `hear` and `settle` raise from now on. False if all has been heard already."""
        with self._lock:
            self.is_over = not self._is_settled
            return self.is_over
