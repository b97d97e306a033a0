"""Single flight: concurrent reads of a key share one read of the source, where its result proves what each demands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, TypeAlias, TypeVar

Key = TypeVar("Key")
Wanted = TypeVar("Wanted")
Result = TypeVar("Result")

Fetch: TypeAlias = Callable[[Mapping[Key, Wanted]], Awaitable[Mapping[Key, Result | Exception]]]
"""Reads some keys: for each its result, or its error. What it raises is the error of each."""


class Flights(Generic[Key, Wanted, Result]):
    """Reads under way, by key; one flight may carry many keys. One event loop; holds nothing once the reads are done.

    What is under way never fails: a key's error is a result like any other.
    """

    def __init__(self, fetch: Fetch[Key, Wanted, Result], on_shared: Callable[[], None] = lambda: None) -> None:
        """``on_shared`` is called for each read that another reader's flight answered."""
        self._fetch = fetch
        self._on_shared = on_shared
        self._under_way: dict[Key, asyncio.Future[Result | Exception]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._under_way)

    async def read(self, key: Key, wanted: Wanted, proves: Callable[[Result], bool]) -> Result:
        """As `read_many`, of one key. Raises its error."""
        result = (await self.read_many({key: wanted}, proves))[key]
        if isinstance(result, Exception):
            raise result
        return result

    async def read_many(
        self, wanted: Mapping[Key, Wanted], proves: Callable[[Result], bool]
    ) -> dict[Key, Result | Exception]:
        """What each key's flight brought; those of which none is under way start together.

        A flight that started before the demand arose may have read too early. Its result is then used only if it
        ``proves`` the demand; else the key's next flight, started after the demand arose, is joined or started. One
        that was started here is final, whatever it proves. A caller that is cancelled leaves its flights to the others.
        """
        earlier = {key: flight for key in wanted if (flight := self._under_way.get(key)) is not None}
        own = self._start({key: each for key, each in wanted.items() if key not in earlier})
        found = await _results({**earlier, **own})
        early = self._not_shared(earlier, found, proves)
        if not early:
            return found
        later = {
            key: flight
            for key in early
            if (flight := self._under_way.get(key)) is not None and flight is not earlier[key]
        }
        own = self._start({key: wanted[key] for key in early if key not in later})
        found |= await _results({**later, **own})
        if unproved := self._not_shared(later, found, proves):
            found |= await self._outcomes({key: wanted[key] for key in unproved})
        return found

    def _not_shared(
        self, joined: Iterable[Key], found: Mapping[Key, Result | Exception], proves: Callable[[Result], bool]
    ) -> list[Key]:
        """The keys whose flights were joined and came back with what proves nothing; an error is everyone's."""
        unproved = []
        for key in joined:
            result = found[key]
            if isinstance(result, Exception):
                continue
            if proves(result):
                self._on_shared()
            else:
                unproved.append(key)
        return unproved

    def _start(self, wanted: Mapping[Key, Wanted]) -> Mapping[Key, asyncio.Future[Result | Exception]]:
        if not wanted:
            return {}
        loop = asyncio.get_running_loop()
        results: dict[Key, asyncio.Future[Result | Exception]] = {key: loop.create_future() for key in wanted}
        self._under_way.update(results)

        async def fly() -> None:
            try:
                for key, result in (await self._outcomes(wanted)).items():
                    results[key].set_result(result)
            finally:
                for key, future in results.items():
                    future.cancel()  # where the loop ends; one that is done stays as it is
                    if self._under_way.get(key) is future:
                        del self._under_way[key]

        task = loop.create_task(fly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return results

    async def _outcomes(self, wanted: Mapping[Key, Wanted]) -> dict[Key, Result | Exception]:
        try:
            found = await self._fetch(wanted)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for a key
            return dict.fromkeys(wanted, error)
        return {key: found[key] for key in wanted}


async def _results(flights: Mapping[Key, asyncio.Future[Result | Exception]]) -> dict[Key, Result | Exception]:
    if flights:
        await asyncio.wait(flights.values())  # unlike awaiting them, it leaves them be if the caller is cancelled
    return {key: flight.result() for key, flight in flights.items()}
