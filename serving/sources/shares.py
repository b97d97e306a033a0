"""Shares of a source's sessions: the reads of one table leave sessions for the reads of others."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from serving.errors import ReadError

WAITING_MAX = 256


class Shares:
    """Admits reads to a number of sessions. A table's reads may hold as many sessions as are free besides.

    So a table that is locked holds half of the sessions, a second one half of the rest, and a read of a third one goes
    on. Belongs to one event loop.
    """

    def __init__(self, sessions: int) -> None:
        self._free = sessions
        self._held: Counter[str] = Counter()
        self._waiting: deque[tuple[frozenset[str], asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, names: Collection[str], timeout_s: float) -> AsyncIterator[None]:
        """Hold one session for a read of the tables ``names``. Raises `ReadError` ``too_many_requests``."""
        tables = frozenset(names)
        if self._may_enter(tables):
            self._enter(tables)
        else:
            await self._wait(tables, timeout_s)
        try:
            yield
        finally:
            self._free += 1
            self._held.subtract(tables)
            self._held += Counter()  # forgets tables that hold nothing
            self._admit()

    def _may_enter(self, tables: frozenset[str]) -> bool:
        return self._free > 0 and all(self._held[name] < self._free for name in tables)

    def _enter(self, tables: frozenset[str]) -> None:
        self._free -= 1
        self._held.update(tables)

    async def _wait(self, tables: frozenset[str], timeout_s: float) -> None:
        if len(self._waiting) >= WAITING_MAX:
            raise ReadError("too_many_requests", f"{WAITING_MAX} reads wait for the source already")
        place = (tables, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        try:
            await asyncio.wait_for(asyncio.shield(place[1]), timeout_s)
        except BaseException as error:
            if place[1].done():  # admitted at the same moment
                self._free += 1
                self._held.subtract(tables)
                self._admit()
            else:
                self._waiting.remove(place)
            if isinstance(error, TimeoutError):
                names = ", ".join(sorted(tables))
                raise ReadError("too_many_requests", f"other reads of {names} take the source's sessions") from error
            raise

    def _admit(self) -> None:
        """Admit those who may enter now, in the order of their arrival."""
        for place in list(self._waiting):
            tables, admitted = place
            if self._may_enter(tables):
                self._waiting.remove(place)
                self._enter(tables)
                admitted.set_result(None)
