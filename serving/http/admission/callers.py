"""What each caller has under way and has spent. Pure: time is passed in, in seconds of a monotonic clock.

A caller is a token (by its name, so that a rotation does not change it) or, where none is asked for or none is valid,
an address. A request costs 1, each element of a batch 1 more, which is paid before anything is read. What an answer
turns out to cost besides (`serving.http.limits.SOURCE_COST`, ``ANSWER_BYTES``) is owed: it delays the caller's next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal

from serving.errors import ReadError
from serving.http.limits import CallerLimits
from stream.access.bucket import Bucket

Kind = Literal["in_flight", "streams", "files"]
CALLERS_MAX: Final = 10_000
"""Remembered at a time. Beyond that whoever has nothing under way and was there longest is forgotten, debts too."""
MANY: Final = 2
"""Requests of one caller under way; more of them take their turns one by one, while others ask."""
ALONE_S: Final = 1.0
"""A caller is alone if nobody else has asked for so long."""


@dataclass(slots=True)
class _Caller:
    bucket: Bucket | None
    asked: float = -math.inf
    under_way: dict[Kind, int] = field(default_factory=dict)


class Callers:
    """Admits requests by their callers. Belongs to one event loop."""

    def __init__(self, limits: CallerLimits) -> None:
        self._limits = limits
        self._callers: dict[str, _Caller] = {}

    def enter(self, who: str, kind: Kind, now: float) -> None:
        """Begins a request of the kind; call `leave` when it is over.

        Raises `ReadError` ``too_many_requests``, ``too_many_streams``, ``rate_limited``.
        """
        caller = self._of(who, now)
        most, has = getattr(self._limits, kind), caller.under_way.get(kind, 0)
        if has >= most:
            code = "too_many_streams" if kind == "streams" else "too_many_requests"
            raise ReadError(code, f"{who} has {has} {_NAMES[kind]} under way already", hint=_HINTS[kind])
        self._pay(who, caller, 1.0, now)
        caller.under_way[kind] = has + 1

    def leave(self, who: str, kind: Kind) -> None:
        """Ends one."""
        self._callers[who].under_way[kind] -= 1

    def crowds(self, who: str, now: float) -> bool:
        """Whether a caller has more than `MANY` requests under way while others ask."""
        mine = self._callers.get(who)
        if mine is None or mine.under_way.get("in_flight", 0) <= MANY:
            return False
        last = next((each for name, each in reversed(self._callers.items()) if name != who), None)
        return last is not None and now - last.asked < ALONE_S

    def many_ask(self, now: float) -> bool:
        """Whether another caller than the last one has asked lately."""
        before = next(islice(reversed(self._callers.values()), 1, None), None)
        return before is not None and now - before.asked < ALONE_S

    def pay(self, who: str, cost: float, now: float) -> None:
        """Raises `ReadError` ``rate_limited`` if the caller has not so much left."""
        self._pay(who, self._of(who, now), cost, now)

    def pay_more(self, who: str, cost: float, now: float) -> None:
        """As `pay`, for a request that has paid 1: together they are one cost, for which a full bucket does."""
        caller = self._of(who, now)
        if caller.bucket is not None:
            caller.bucket.owe(now, -1.0)
        try:
            self._pay(who, caller, cost + 1.0, now)
        except ReadError:
            self.owe(who, 1.0, now)
            raise

    def owe(self, who: str, cost: float, now: float) -> None:
        """The caller has spent it, whether it was there or not."""
        bucket = self._of(who, now).bucket
        if bucket is not None:
            bucket.owe(now, cost)

    def _pay(self, who: str, caller: _Caller, cost: float, now: float) -> None:
        bucket = caller.bucket
        if bucket is not None and not bucket.take(now, cost):
            refusal = ReadError("rate_limited", f"{who} asks for more than {self._limits.rate_per_s:g} a second")
            refusal.retry_after_s = math.ceil(bucket.wait_s(now, cost))
            raise refusal

    def _of(self, who: str, now: float) -> _Caller:
        caller = self._callers.pop(who, None)
        if caller is None:
            self._forget(now)
            rate = self._limits.rate_per_s
            caller = _Caller(Bucket(rate, self._limits.burst or 2 * rate) if rate else None)
        caller.asked = now
        self._callers[who] = caller  # the last one is the one that asked last
        return caller

    def _forget(self, now: float) -> None:
        """Makes room for one more."""
        if len(self._callers) < CALLERS_MAX:
            return
        idle = [who for who, each in self._callers.items() if not any(each.under_way.values())]
        free = [who for who in idle if (bucket := self._callers[who].bucket) is None or bucket.is_full(now)]
        for who in free or idle[: CALLERS_MAX // 10]:
            del self._callers[who]


_NAMES: Final[dict[Kind, str]] = {"in_flight": "requests", "streams": "streams", "files": "files"}
_HINTS: Final[dict[Kind, str]] = {
    "in_flight": "wait for answers, or set serve.limits.in_flight_of_caller",
    "streams": "share a stream, or set serve.limits.streams_of_caller",
    "files": "wait for answers, or set serve.limits.files_of_caller",
}


@dataclass(frozen=True, slots=True)
class Meter:
    """What one request spends. Routes and answers have it from the request's scope."""

    callers: Callers
    who: str
    clock: Callable[[], float]

    def pay(self, cost: float) -> None:
        """Before anything is read. Raises `ReadError` ``rate_limited``."""
        if cost > 0:
            self.callers.pay(self.who, cost, self.clock())

    def pay_more(self, cost: float) -> None:
        """As `pay`, of the request itself, which has paid 1 when it began."""
        if cost > 0:
            self.callers.pay_more(self.who, cost, self.clock())

    def owe(self, cost: float) -> None:
        """Of what has been read."""
        if cost > 0:
            self.callers.owe(self.who, cost, self.clock())


metering: Final[ContextVar[Meter | None]] = ContextVar("freshet_metering", default=None)
"""What the request spends that this task runs for, where callers have a rate: of what a stream reads besides."""
