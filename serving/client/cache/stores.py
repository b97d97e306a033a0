"""Stores for the application's cache: anything that compares and sets. memcached, and a dict of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from .._tokens import FreshetError

MEMCACHED_TTL_S_MAX: Final = 30 * 86_400
"""A memcached takes a longer time for a moment since 1970, and keeps nothing, although it says that it did."""


class Found(NamedTuple):
    """An entry and what `Store.swap` compares. ``stamp`` differs after each change of the entry."""

    raw: bytes
    stamp: Any


class EntryTooLarge(Exception):
    """A store does not take an entry of this size."""


class StoreRefused(FreshetError):
    """A store that can't compare and set: two that write at once would leave an old row in it for good."""

    code = "store_refused"


class Store(Protocol):
    """What a store must do. It may drop any entry at any time. It must not bring back an older one."""

    def get(self, names: Sequence[str]) -> dict[str, Found]:
        """The entries that are there."""
        ...

    def swap(self, name: str, raw: bytes, found: Found | None, ttl_s: int) -> bool:
        """Sets an entry if it is still what was ``found``; None: if there is none. ``ttl_s`` 0: no end of its own.

        Raises `EntryTooLarge`.
        """
        ...


def checked(store: Store) -> Store:
    """``store``. Raises `StoreRefused` if it has not what a `Store` has, as a client of one has not."""
    if lacks := [name for name in ("get", "swap") if not callable(getattr(store, name, None))]:
        raise StoreRefused(
            f"{type(store).__name__} has no {lacks[0]}: it is no store for the application's cache",
            hint="give a MemcachedStore or a DictStore, or one of your own that compares and sets, as Store does",
        )
    return store


class DictStore:
    """In the memory of one process. Thread-safe. ``entries_max``: the oldest go."""

    def __init__(self, entries_max: int = 100_000, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries: dict[str, tuple[Found, float]] = {}
        self._entries_max, self._clock, self._stamp = entries_max, clock, 0
        self._lock = threading.Lock()

    def get(self, names: Sequence[str]) -> dict[str, Found]:
        """As `Store.get`."""
        with self._lock:
            return {name: found for name in names if (found := self._found(name)) is not None}

    def swap(self, name: str, raw: bytes, found: Found | None, ttl_s: int) -> bool:
        """As `Store.swap`."""
        with self._lock:
            there = self._found(name)
            if (there.stamp if there else None) != (found.stamp if found else None):
                return False
            self._entries.pop(name, None)
            while len(self._entries) >= self._entries_max:
                del self._entries[next(iter(self._entries))]
            self._stamp += 1
            self._entries[name] = Found(raw, self._stamp), self._clock() + ttl_s if ttl_s else float("inf")
            return True

    def drop(self, name: str) -> None:
        """Forgets an entry, as a full store does."""
        with self._lock:
            self._entries.pop(name, None)

    def _found(self, name: str) -> Found | None:
        found, ends_at = self._entries.get(name, (None, 0.0))
        return found if ends_at > self._clock() else None


class MemcachedStore:
    """A memcached, through an application's pymemcache client (``Client`` or ``PooledClient``) of one server.

    Not through one that hashes over several servers and leaves out those that fail: a server that comes back would
    bring back what was invalidated meanwhile.
    """

    def __init__(self, client: Any) -> None:
        """Raises `StoreRefused`."""
        if lacks := [name for name in ("gets_many", "add", "cas") if not callable(getattr(client, name, None))]:
            raise StoreRefused(
                f"{type(client).__name__} has no {lacks[0]}: it can't compare and set",
                hint="give pymemcache's Client or PooledClient",
            )
        self._client = client

    def get(self, names: Sequence[str]) -> dict[str, Found]:
        """As `Store.get`. Raises `StoreRefused` if the server takes no ``cas``: an invalidator would try for ever."""
        found = {name: Found(raw, stamp) for name, (raw, stamp) in self._client.gets_many(list(names)).items()}
        if any(int(each.stamp or 0) == 0 for each in found.values()):
            raise StoreRefused(
                "this memcached can't compare and set: all its entries have the number 0",
                hint="start it without the option -C (--disable-cas)",
            )
        return found

    def swap(self, name: str, raw: bytes, found: Found | None, ttl_s: int) -> bool:
        """As `Store.swap`; an entry goes after thirty days at the latest, if it has an end."""
        expire = min(ttl_s, MEMCACHED_TTL_S_MAX)
        try:
            if found is None:
                return bool(self._client.add(name, raw, expire=expire, noreply=False))
            return bool(self._client.cas(name, raw, found.stamp, expire=expire, noreply=False))
        except Exception as error:
            if "object too large" in str(error):  # memcached's words; its client is the application's
                raise EntryTooLarge(f"memcached does not take {len(raw)} bytes (its option -I)") from error
            raise
