"""Single flight: concurrent reads of a key share one read of the source, if its result proves each one's demand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from serving.errors import ReadError
from stream.access.who import asking

Key = TypeVar("Key")
Wanted = TypeVar("Wanted")
Result = TypeVar("Result")

Fetch: TypeAlias = Callable[[Mapping[Key, Wanted]], Awaitable[Mapping[Key, Result | Exception]]]
"""Reads keys; returns the result or the error of each. An exception that it raises is the error of every key."""


class Flight(NamedTuple, Generic[Key, Result]):
    """One read of many keys, on behalf of ``caller``."""

    landed: asyncio.Future[Mapping[Key, Result | Exception]]
    caller: str


class Flights(Generic[Key, Wanted, Result]):
    """The reads under way, by key. One flight may read many keys. Belongs to one event loop.

    A flight never fails as a whole: the error of a key is that key's result.
    """

    def __init__(self, fetch: Fetch[Key, Wanted, Result], on_shared: Callable[[], None] = lambda: None) -> None:
        """``on_shared`` is called for each key that a flight of another reader answered."""
        self._fetch = fetch
        self._on_shared = on_shared
        self._under_way: dict[Key, Flight[Key, Result]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._under_way)

    async def read(self, key: Key, wanted: Wanted, proves: Callable[[Result], bool]) -> Result:
        """`read_many` for one key. Raises the key's error."""
        result = (await self.read_many({key: wanted}, proves))[key]
        if isinstance(result, Exception):
            raise result
        return result

    async def read_many(
        self, wanted: Mapping[Key, Wanted], proves: Callable[[Result], bool]
    ) -> dict[Key, Result | Exception]:
        """The result of each key. Keys without a flight start one together; the others join theirs.

        A joined flight started before this demand arose and may have read too early. Its result is used only if it
        ``proves`` the demand, and its error unless another caller has reached his limit. Otherwise the key's next
        flight is joined or started. The result of a flight that was started here is final. Cancelling the caller does
        not cancel its flights, which others may have joined.
        """
        earlier = {key: flight for key in wanted if (flight := self._under_way.get(key)) is not None}
        own = self._start({key: each for key, each in wanted.items() if key not in earlier})
        found = await self._results(earlier | own)
        unproved = self._unproved(earlier, found, proves)
        if not unproved:
            return found
        later = {key: flight for key in unproved if (flight := self._under_way.get(key)) is not None}
        own = self._start({key: wanted[key] for key in unproved if key not in later})
        found |= await self._results(later | own)
        if unproved := self._unproved(later, found, proves):
            found |= await self._fetch_all({key: wanted[key] for key in unproved})
        return found

    def _unproved(
        self,
        joined: Mapping[Key, Flight[Key, Result]],
        found: Mapping[Key, Result | Exception],
        proves: Callable[[Result], bool],
    ) -> list[Key]:
        """The joined keys whose results do not prove the demand. Errors are shared by all who joined, but for limits.

        These are each caller's own. One caller's readers share them, else each of a crowd would ask for itself.
        """
        unproved = []
        for key, flight in joined.items():
            result = found[key]
            if isinstance(result, Exception):
                is_limit = isinstance(result, ReadError) and result.code == "too_many_requests"
                if is_limit and flight.caller != asking.get():
                    unproved.append(key)
            elif proves(result):
                self._on_shared()
            else:
                unproved.append(key)
        return unproved

    def _start(self, wanted: Mapping[Key, Wanted]) -> dict[Key, Flight[Key, Result]]:
        if not wanted:
            return {}
        loop = asyncio.get_running_loop()
        flight = Flight[Key, Result](loop.create_future(), asking.get())
        started = dict.fromkeys(wanted, flight)
        self._under_way.update(started)

        async def run() -> None:
            try:
                flight.landed.set_result(await self._fetch_all(wanted))
            finally:
                flight.landed.cancel()  # no effect on a result that is set; readers must not hang if the loop ends
                for key in wanted:
                    if self._under_way.get(key) is flight:
                        del self._under_way[key]

        task = loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return started

    async def _fetch_all(self, wanted: Mapping[Key, Wanted]) -> dict[Key, Result | Exception]:
        try:
            found = await self._fetch(wanted)
        except Exception as error:  # noqa: BLE001 - the readers of the keys get it
            return dict.fromkeys(wanted, error)
        return {key: found[key] for key in wanted}

    @staticmethod
    async def _results(flights: Mapping[Key, Flight[Key, Result]]) -> dict[Key, Result | Exception]:
        if flights:
            await asyncio.wait({each.landed for each in flights.values()})  # cancelling it does not cancel the futures
        return {key: flight.landed.result()[key] for key, flight in flights.items()}
