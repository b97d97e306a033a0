"""Single flight: of all who miss a block, one fetches it, and the others wait for that.

A block that nobody fetches any more has no flight: it is stored, or waits to be, or the fetch failed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Key = tuple[object, int]
"""A file (any value that names it) and a block."""


@dataclass(slots=True, eq=False)
class Flight:
    """Blocks that one reader fetches together. ``landed`` is set at its end, in every case.

    ``elsewhere``: by another process, which may stand still.
    """

    keys: list[Key]
    landed: threading.Event = field(default_factory=threading.Event)
    data: Mapping[int, memoryview] = field(default_factory=dict)
    error: Exception | None = None
    elsewhere: bool = False


class Flights:
    """All flights of one directory. Thread-safe."""

    def __init__(self) -> None:
        self._under_way: dict[Key, Flight] = {}
        self._lock = threading.Lock()

    def claim(
        self, file: object, blocks: Iterable[int], *, elsewhere: bool = False
    ) -> tuple[Flight, list[int], dict[int, Flight]]:
        """(a flight of one's own, its blocks, those that others fetch). Its own must be ended by `end`."""
        own, others = [], {}
        with self._lock:
            for block in blocks:
                if (flight := self._under_way.get((file, block))) is not None:
                    others[block] = flight
                else:
                    own.append(block)
            flight = Flight([(file, block) for block in own])
            flight.elsewhere = elsewhere
            self._under_way.update(dict.fromkeys(flight.keys, flight))
        return flight, own, others

    def under_way(self, file: object, block: int) -> Flight | None:
        """Who fetches a block now."""
        return self._under_way.get((file, block))

    def end(self, flight: Flight, data: Mapping[int, memoryview] | None = None, error: Exception | None = None) -> None:
        """The flight is over, with its data or an error for those who wait, or with neither: they look again."""
        flight.data, flight.error = data or {}, error
        with self._lock:
            for key in flight.keys:
                if self._under_way.get(key) is flight:
                    del self._under_way[key]
        flight.landed.set()
