"""Single flight: concurrent reads of a key share one read of the source, where its result proves what each demands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Generic, TypeAlias, TypeVar

Key = TypeVar("Key")
Result = TypeVar("Result")

Start: TypeAlias = Callable[[Collection[Key]], Awaitable[Mapping[Key, Result | Exception]]]
"""Reads some keys: for each its result, or its error. What it raises is the error of each."""


class Flights(Generic[Key, Result]):
    """Reads under way, by key; one flight may carry many keys. One event loop; holds nothing once the reads are done.

    What is under way never fails: a key's error lands like a result.
    """

    def __init__(self, on_shared: Callable[[], None] = lambda: None) -> None:
        """``on_shared`` is called for each read that somebody else's flight answered."""
        self._under_way: dict[Key, asyncio.Future[Result | Exception]] = {}
        self._flying: set[asyncio.Task[None]] = set()
        self._on_shared = on_shared

    def __len__(self) -> int:
        return len(self._under_way)

    async def read(self, key: Key, proves: Callable[[Result], bool], start: Callable[[], Awaitable[Result]]) -> Result:
        """As `read_many`, of one key. Raises its error."""

        async def start_one(keys: Collection[Key]) -> Mapping[Key, Result | Exception]:
            return {each: await start() for each in keys}

        landed = (await self.read_many([key], proves, start_one))[key]
        if isinstance(landed, Exception):
            raise landed
        return landed

    async def read_many(
        self, keys: Collection[Key], proves: Callable[[Result], bool], start: Start[Key, Result]
    ) -> dict[Key, Result | Exception]:
        """What each key's flight brought; those of which none is under way take off together.

        A flight that took off before the demand arose may have read too early. Its result is then used only if it
        ``proves`` the demand; else the key's next flight, started after the demand arose, is joined or started. One
        that was started here is final, whatever it proves. A caller that is cancelled leaves its flights to the others.
        """
        earlier = {key: flight for key in keys if (flight := self._under_way.get(key)) is not None}
        own = self._take_off([key for key in keys if key not in earlier], start)
        found = await _landed({**earlier, **own})
        early = self._not_shared(earlier, found, proves)
        if not early:
            return found
        later = {
            key: flight
            for key in early
            if (flight := self._under_way.get(key)) is not None and flight is not earlier[key]
        }
        own = self._take_off([key for key in early if key not in later], start)
        found |= await _landed({**later, **own})
        if unproved := self._not_shared(later, found, proves):
            found |= await _outcomes(unproved, start)
        return found

    def _not_shared(
        self, joined: Iterable[Key], found: Mapping[Key, Result | Exception], proves: Callable[[Result], bool]
    ) -> list[Key]:
        """The keys whose flights, which were joined, came back with what proves nothing; an error is everybody's."""
        unproved = []
        for key in joined:
            landed = found[key]
            if isinstance(landed, Exception):
                continue
            if proves(landed):
                self._on_shared()
            else:
                unproved.append(key)
        return unproved

    def _take_off(
        self, keys: Collection[Key], start: Start[Key, Result]
    ) -> Mapping[Key, asyncio.Future[Result | Exception]]:
        if not keys:
            return {}
        loop = asyncio.get_running_loop()
        landings: dict[Key, asyncio.Future[Result | Exception]] = {key: loop.create_future() for key in keys}
        self._under_way.update(landings)

        async def fly() -> None:
            try:
                for key, landed in (await _outcomes(keys, start)).items():
                    landings[key].set_result(landed)
            finally:
                for key, landing in landings.items():
                    landing.cancel()  # where the loop ends; one that has landed stays as it is
                    if self._under_way.get(key) is landing:
                        del self._under_way[key]

        flight = loop.create_task(fly())
        self._flying.add(flight)
        flight.add_done_callback(self._flying.discard)
        return landings


async def _outcomes(keys: Collection[Key], start: Start[Key, Result]) -> dict[Key, Result | Exception]:
    try:
        found = await start(keys)
    except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for a key
        return dict.fromkeys(keys, error)
    return {key: found[key] for key in keys}


async def _landed(flights: Mapping[Key, asyncio.Future[Result | Exception]]) -> dict[Key, Result | Exception]:
    if flights:
        await asyncio.wait(flights.values())  # unlike awaiting them, it leaves them be if the caller is cancelled
    return {key: flight.result() for key, flight in flights.items()}
