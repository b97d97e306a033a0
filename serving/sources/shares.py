"""Shares of a source's sessions: the reads of one table leave sessions for others, and so do those of one caller."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from serving.errors import ReadError
from stream.access.who import asking

WAITING_MAX: Final = 256
"""Reads that wait for a session; half of them may be one caller's."""


class _Waiting(NamedTuple):
    tables: frozenset[str]
    caller: str
    admitted: asyncio.Future[None]


class Shares:
    """Admits reads to a number of sessions.

    A table's reads may hold as many sessions as are free besides. So a table that is locked holds half of the sessions,
    a second one half of the rest, and a read of a third one goes on.

    The last free session is for a caller who holds none, and of those who wait, who holds the fewest is admitted first.
    So whoever comes new waits for no more than one read of a caller who asks for very much, while a lone caller has all
    sessions but one. Reads on nobody's behalf (`asking`) are no caller's. Belongs to one event loop.
    """

    def __init__(self, sessions: int) -> None:
        self._free = sessions
        self._held: Counter[str] = Counter()
        self._held_by: Counter[str] = Counter()
        self._waiting: deque[_Waiting] = deque()

    @asynccontextmanager
    async def hold(self, names: Collection[str], timeout_s: float) -> AsyncIterator[None]:
        """Hold one session for a read of the tables ``names``. Raises `ReadError` ``too_many_requests``."""
        tables, caller = frozenset(names), asking.get()
        if self._may_enter(tables, caller):
            self._enter(tables, caller)
        else:
            await self._wait(tables, caller, timeout_s)
        try:
            yield
        finally:
            self._leave(tables, caller)

    def _may_enter(self, tables: frozenset[str], caller: str) -> bool:
        if self._free == 1 and caller and self._held_by[caller]:
            return False
        return self._free > 0 and all(self._held[name] < self._free for name in tables)

    def _enter(self, tables: frozenset[str], caller: str) -> None:
        self._free -= 1
        self._held.update(tables)
        self._held_by[caller] += 1

    def _leave(self, tables: frozenset[str], caller: str) -> None:
        self._free += 1
        self._held.subtract(tables)
        self._held_by[caller] -= 1
        self._held += Counter()  # forgets who holds nothing
        self._held_by += Counter()
        self._admit()

    async def _wait(self, tables: frozenset[str], caller: str, timeout_s: float) -> None:
        if len(self._waiting) >= WAITING_MAX:
            raise ReadError("too_many_requests", f"{WAITING_MAX} reads wait for the source already")
        if caller and sum(each.caller == caller for each in self._waiting) >= WAITING_MAX // 2:
            raise ReadError("too_many_requests", f"{WAITING_MAX // 2} reads of {caller} wait for the source already")
        place = _Waiting(tables, caller, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        try:
            await asyncio.wait_for(asyncio.shield(place.admitted), timeout_s)
        except BaseException as error:
            if place.admitted.done():  # at the same moment
                self._leave(tables, caller)
            else:
                self._waiting.remove(place)
            if isinstance(error, TimeoutError):
                of = f" of {', '.join(sorted(tables))}" if tables else ""
                raise ReadError("too_many_requests", f"other reads{of} take the source's sessions") from error
            raise

    def _admit(self) -> None:
        """Admit those who may enter now: who holds the fewest first, else in the order of their arrival."""
        while fitting := [each for each in self._waiting if self._may_enter(each.tables, each.caller)]:
            place = min(fitting, key=lambda each: self._held_by[each.caller] if each.caller else 0)
            self._waiting.remove(place)
            self._enter(place.tables, place.caller)
            place.admitted.set_result(None)
