"""How often the sources of locations may be asked: tokens by keyspace and for all, batches side by side, a breaker.

Pure: time is passed in, in seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .bucket import Bucket

READS_PER_S: Final = 200.0
READS_PER_S_OF_KEYSPACE: Final = 100.0
FORCED_PER_S: Final = 20.0
"""Of a keyspace: refreshes from the topic that nobody asked for, because peers don't see every follower."""
PARALLEL_MAX: Final = 20
FAILURES_MIN: Final = 5
FAILED_SHARE: Final = 0.5
WINDOW_S: Final = 10.0
OPEN_S: Final = 1.0
OPEN_S_MAX: Final = 30.0


@dataclass(slots=True)
class Breaker:
    """Open when many reads failed: nothing is asked for a while, then one read tries whether it works again."""

    _from: float = float("-inf")
    _good: int = 0
    _bad: int = 0
    _open_until: float | None = None
    _open_s: float = OPEN_S
    _is_trying: bool = False

    def is_open(self, now: float) -> bool:
        """Whether nothing may be asked."""
        return self._open_until is not None and (now < self._open_until or self._is_trying)

    def begin(self) -> None:
        """A read begins that `is_open` allowed."""
        self._is_trying = self._open_until is not None

    def end(self, now: float, *, good: bool) -> None:
        """A read has ended."""
        if now - self._from > WINDOW_S:
            self._from, self._good, self._bad = now, 0, 0
        self._good, self._bad = self._good + good, self._bad + (not good)
        if self._is_trying:
            self._is_trying = False
            if good:
                self._from, self._open_until, self._open_s = float("-inf"), None, OPEN_S
            else:
                self._open_s = min(2 * self._open_s, OPEN_S_MAX)
                self._open_until = now + self._open_s
        elif self._open_until is None and self._bad >= max(FAILURES_MIN, FAILED_SHARE * (self._good + self._bad)):
            self._open_until = now + self._open_s

    @property
    def wakes_at(self) -> float | None:
        """When it may be tried again; None: it is closed."""
        return self._open_until


class Limits:
    """Whether one more batch may be read."""

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.under_way = 0
        self._all = Bucket(READS_PER_S)
        self._keyspaces: dict[str, Bucket] = {}
        self._forced: dict[str, Bucket] = {}

    @property
    def is_busy(self) -> bool:
        """Whether as many batches run as may; the end of one is what to wait for."""
        return self.under_way >= PARALLEL_MAX

    def may_begin(self, now: float) -> bool:
        """Whether any batch may begin."""
        return not self.is_busy and not self.breaker.is_open(now) and self._all.has(now)

    def take(self, keyspace: str, now: float) -> bool:
        """Takes the tokens of one batch, if it may begin."""
        if not self.may_begin(now) or not self._keyspace(keyspace).take(now):
            return False
        return self._all.take(now)

    def _keyspace(self, name: str) -> Bucket:
        return self._keyspaces.setdefault(name, Bucket(READS_PER_S_OF_KEYSPACE))

    def may_force(self, keyspace: str, now: float) -> bool:
        """Takes a token for a refresh that nobody asked for."""
        return self._forced.setdefault(keyspace, Bucket(FORCED_PER_S)).take(now)

    def wait_s(self, now: float) -> float:
        """How long until a batch that was refused should be tried again; it does not wait for others that run."""
        if self.breaker.is_open(now):
            return max((self.breaker.wakes_at or now) - now, 0.01)
        buckets = [self._all, *self._keyspaces.values()]
        return max((bucket.wait_s(now) for bucket in buckets), default=0.0)

    def forget(self, keyspace: str) -> None:
        """Of a keyspace that is gone."""
        self._keyspaces.pop(keyspace, None)
        self._forced.pop(keyspace, None)
