"""Token buckets: how much may be asked in a time. Pure: time is passed in, in seconds of a monotonic clock."""

from __future__ import annotations


class Bucket:
    """Tokens that come back at ``rate`` a second (above 0), and lie there up to ``size`` (default: of one second)."""

    __slots__ = ("_at", "_left", "_rate", "_size")

    def __init__(self, rate: float, size: float = 0.0) -> None:
        self._rate = rate
        self._size = self._left = size or rate
        self._at = float("-inf")

    def has(self, now: float, cost: float = 1.0) -> bool:
        """Whether ``cost`` tokens are there. What costs more than a full bucket needs a full one."""
        if now > self._at:
            self._left = min(self._size, self._left + (now - self._at) * self._rate)
            self._at = now
        return self._left >= min(cost, self._size)

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Takes ``cost`` tokens, if they are there."""
        if not self.has(now, cost):
            return False
        self._left -= cost
        return True

    def owe(self, now: float, cost: float) -> None:
        """Takes them in any case: what is not there is missing to those who ask later."""
        self.has(now)
        self._left -= cost

    def wait_s(self, now: float, cost: float = 1.0) -> float:
        """How long until they are there, if nobody takes any meanwhile."""
        return 0.0 if self.has(now, cost) else (min(cost, self._size) - self._left) / self._rate

    def is_full(self, now: float) -> bool:
        """Whether it is as it was made."""
        return self.has(now, self._size)
