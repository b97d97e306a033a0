"""Single flight: concurrent reads of a key share one read of the source, where its result proves what each demands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Flights(Generic[Result]):
    """Reads under way, by key. One event loop; holds nothing once the reads are done."""

    def __init__(self, on_shared: Callable[[], None] = lambda: None) -> None:
        """``on_shared`` is called for each read that somebody else's flight answered."""
        self._under_way: dict[Hashable, asyncio.Task[Result]] = {}
        self._on_shared = on_shared

    def __len__(self) -> int:
        return len(self._under_way)

    async def read(
        self, key: Hashable, proves: Callable[[Result], bool], start: Callable[[], Awaitable[Result]]
    ) -> Result:
        """The result of a flight of ``key`` that ``proves`` accepts; takes off itself if none is under way.

        A flight that took off before the demand arose may have read too early. Its result is then not used; the next
        flight of the key, started after the demand arose, is joined or started, and its result is final, whatever it
        proves. A caller that is cancelled leaves its flight to the others. Raises what the flight raises.
        """
        earlier = self._under_way.get(key)
        if earlier is not None:
            result = await asyncio.shield(earlier)
            if proves(result):
                self._on_shared()
                return result
        later = self._under_way.get(key)
        if later is None or later is earlier:
            return await asyncio.shield(self._take_off(key, start))
        result = await asyncio.shield(later)
        if proves(result):
            self._on_shared()
            return result
        return await start()

    def _take_off(self, key: Hashable, start: Callable[[], Awaitable[Result]]) -> asyncio.Task[Result]:
        async def fly() -> Result:
            return await start()

        flight = asyncio.get_running_loop().create_task(fly())
        self._under_way[key] = flight
        flight.add_done_callback(lambda done: self._landed(key, done))
        return flight

    def _landed(self, key: Hashable, flight: asyncio.Task[Result]) -> None:
        if self._under_way.get(key) is flight:
            del self._under_way[key]
        if not flight.cancelled():
            flight.exception()  # seen: a flight whose callers have all gone must not warn about it
