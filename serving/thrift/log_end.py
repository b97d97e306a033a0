"""The end of a metastore's log, as of a moment after each question. Readers that come together share one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class LogEnd:
    """Belongs to one event loop. ``fetch``: asks the metastore for the id of its last event."""

    def __init__(self, fetch: Callable[[], Awaitable[int]]) -> None:
        self._fetch = fetch
        self._running: asyncio.Task[int] | None = None
        self._next: asyncio.Task[int] | None = None
        """Begins when ``_running`` has ended; whoever comes before that may share it."""

    async def now(self) -> int:
        """The last event's id. All that was committed before this was called has an event up to it.

        Raises what ``fetch`` raises.
        """
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._fetch_after(self._running))
        return await asyncio.shield(self._next)  # a reader that leaves takes no answer from the others

    async def _fetch_after(self, before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        return await self._fetch()
