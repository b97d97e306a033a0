"""When a request is sent again: a server that is busy or away for a moment says when to try."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

_TRY_AGAIN = (429, 503)


@dataclass(frozen=True, slots=True)
class Retries:
    """At most ``count`` more attempts, each after what ``Retry-After`` says, up to ``pause_s_max``, and a bit more.

    ``jitter`` (0 to 1) spreads readers that were refused together. No request changes the source: each may be repeated.
    """

    count: int = 2
    pause_s_max: float = 5.0
    jitter: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic

    def pauses(self, timeout_s: float) -> Pauses:
        """For one request, which has ``timeout_s`` for all its attempts."""
        return Pauses(self, self.clock() + timeout_s)


class Pauses:
    """The pauses between the attempts of one request."""

    def __init__(self, retries: Retries, deadline: float) -> None:
        self._retries = retries
        self._deadline = deadline
        self._left = retries.count

    def after(self, status: int, retry_after: str) -> float | None:
        """How long to pause before the next attempt; None if the response is final."""
        retries = self._retries
        if status not in _TRY_AGAIN or not self._left or not (retry_after.isascii() and retry_after.isdigit()):
            return None
        self._left -= 1
        pause_s = min(int(retry_after[:9]), retries.pause_s_max) * (1 + retries.jitter() / 2)
        return pause_s if retries.clock() + pause_s < self._deadline else None


RETRIES = Retries()
