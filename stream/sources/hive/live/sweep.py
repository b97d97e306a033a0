"""A sweep: names in order, fetched chunk by chunk, some chunks ahead of the one that is published."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

import structlog

log = structlog.get_logger(__name__)

CHUNK_TABLES: Final = 64
"""Tables that are fetched together, with their lists."""
AHEAD: Final = 16
"""Chunks of a sweep that are fetched ahead of the one that is published."""
REPORT_S: Final = 10.0
"""How often a sweep tells how far it is."""

Fetched = TypeVar("Fetched")


class Sweep(Generic[Fetched]):
    """Fetches ``names`` with ``submit``, and gives the results in order."""

    def __init__(
        self,
        names: Sequence[str],
        submit: Callable[[tuple[str, ...]], Future[Fetched]],
        chunk: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``chunk``: so many are fetched together."""
        self.total = len(names)
        self._chunks = deque(tuple(names[at : at + chunk]) for at in range(0, len(names), chunk))
        self._submit = submit
        self._under_way: deque[tuple[int, Future[Fetched]]] = deque()
        self._clock = clock
        self._began_s = self._reported_s = clock()
        self._done = 0

    @property
    def is_over(self) -> bool:
        """Whether every chunk was given out."""
        return not self._chunks and not self._under_way

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock() - self._began_s

    def next(self) -> Fetched | None:
        """The next chunk in the order of names, if it is there. Raises what its fetch raised."""
        while self._chunks and len(self._under_way) < AHEAD:
            names = self._chunks.popleft()
            self._under_way.append((len(names), self._submit(names)))
        if not self._under_way or not self._under_way[0][1].done():
            return None
        count, future = self._under_way.popleft()
        self._done += count
        return future.result()

    def cancel(self) -> None:
        """Drop what has not begun."""
        for _, future in self._under_way:
            future.cancel()

    def report(self, what: str, shard: str) -> None:
        """Say, once in a while, how far it is and when it will be over."""
        now_s = self._clock()
        if now_s - self._reported_s < REPORT_S:
            return
        self._reported_s = now_s
        rate = self._done / (now_s - self._began_s)
        left_s = round((self.total - self._done) / rate) if rate else -1
        log.info(what, shard=shard, tables=self._done, of=self.total, per_second=round(rate, 1), left_s=left_s)
