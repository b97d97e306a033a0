"""Admission: what of the misses is kept at all. It saves a disk's writes where most data is read once.

Pure: the time is passed in, and the choice by chance is a function of the key, so that a replay decides the same.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

from serving.bytecache.policy.sampling import sampled

DAY_S: Final = 86_400
SEEN_MAX: Final = 100_000


class Admission(Protocol):
    """Decides for each entry that was fetched."""

    def admits(self, key: int, cost: int, now_s: float) -> bool:
        """Whether to keep it. ``now_s`` never goes back."""


class Everything:
    """Keeps all."""

    def admits(self, key: int, cost: int, now_s: float) -> bool:  # noqa: ARG002
        return True


class SecondTouch:
    """Keeps what is fetched for the second time. Remembers the last `SEEN_MAX` keys."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, None] = OrderedDict()

    def admits(self, key: int, cost: int, now_s: float) -> bool:  # noqa: ARG002
        if key in self._seen:
            del self._seen[key]
            return True
        self._seen[key] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        return False


class Share:
    """Keeps a share of all keys, always the same ones."""

    def __init__(self, share: float) -> None:
        self._share = share

    def admits(self, key: int, cost: int, now_s: float) -> bool:  # noqa: ARG002
        return sampled(key, self._share)


class WriteBudget:
    """Keeps what a budget of bytes per day allows; up to an hour of it can be saved up."""

    def __init__(self, bytes_per_day: int) -> None:
        self._rate = bytes_per_day / DAY_S
        self._left = 0.0
        self._since: float | None = None

    def admits(self, key: int, cost: int, now_s: float) -> bool:  # noqa: ARG002
        if self._since is not None:
            self._left = min(self._left + (now_s - self._since) * self._rate, 3_600 * self._rate)
        self._since = now_s
        if cost > self._left:
            return False
        self._left -= cost
        return True


def parse_admission(text: str) -> Admission:
    """``all``, ``second``, ``share=0.5``, or ``budget=BYTES`` a day. Raises ``ValueError``."""
    name, _, number = text.partition("=")
    if name == "all" and not number:
        return Everything()
    if name == "second" and not number:
        return SecondTouch()
    if name == "share" and 0 <= float(number) <= 1:
        return Share(float(number))
    if name == "budget" and int(number) > 0:
        return WriteBudget(int(number))
    raise ValueError(f"admission {text!r} is none of all, second, share=0.5, budget=BYTES")
