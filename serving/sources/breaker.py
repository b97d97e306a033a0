"""A circuit breaker: a source that does not answer is left alone for a while, so that readers need not wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from serving.errors import ReadError

FAILURES_MAX: Final = 3
"""Failures in a row after which the source is left alone."""
REST_S: Final = 2.0
"""For how long. Then one read tries it."""


class Breaker:
    """Counts failures in a row. Safe for several threads."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``name``: of the source, for the error. ``clock``: seconds."""
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._closed_until_s = 0.0
        self._reason = ""

    def check(self) -> None:
        """Raises `ReadError` ``source_unreachable`` while the source is left alone."""
        with self._lock:
            if self._failures < FAILURES_MAX:
                return
            now_s = self._clock()
            if now_s < self._closed_until_s:
                raise ReadError("source_unreachable", f"{self._name} is left alone after failures: {self._reason}")
            self._closed_until_s = now_s + REST_S  # this read tries it, the others wait for what it finds

    def succeeded(self) -> None:
        """The source has answered."""
        with self._lock:
            self._failures = 0

    def failed(self, reason: str) -> None:
        """The source has not answered."""
        with self._lock:
            self._failures += 1
            self._reason = reason
            self._closed_until_s = self._clock() + REST_S
