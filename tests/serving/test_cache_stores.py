"""Stores of the application's cache keep what they are given, for about as long as they are told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from serving.client.cache.stores import MemcachedStore

DAY_S = 86_400


class ClientOfMemcached:
    """Keeps what a memcached of this hour would keep: a time above thirty days is one since 1970, long ago."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[bytes, int]] = {}
        self.stamp, self.expiries = 0, list[int]()

    def gets_many(self, names: Sequence[str]) -> dict[str, tuple[bytes, bytes]]:
        return {name: (raw, b"%d" % stamp) for name in names if name in self.kept for raw, stamp in [self.kept[name]]}

    def add(self, name: str, raw: bytes, *, expire: int, noreply: bool) -> bool:
        return name not in self.kept and self._set(name, raw, expire, noreply)

    def cas(self, name: str, raw: bytes, stamp: bytes, *, expire: int, noreply: bool) -> bool:
        return b"%d" % self.kept[name][1] == stamp and self._set(name, raw, expire, noreply)

    def _set(self, name: str, raw: bytes, expire: int, noreply: bool) -> bool:
        assert not noreply
        self.stamp += 1
        self.expiries.append(expire)
        self.kept[name] = raw, self.stamp
        if expire > 30 * DAY_S:
            del self.kept[name]
        return True


@pytest.mark.parametrize("ttl_s", [0, 60, 30 * DAY_S, 30 * DAY_S + 1, 90 * DAY_S])
def test_a_memcached_keeps_entries_of_any_time(ttl_s: int) -> None:
    """It takes more than thirty days for a moment in 1970, and says that it has stored what it has not kept."""
    client = ClientOfMemcached()
    store = MemcachedStore(client)
    assert store.swap("row", b"1", None, ttl_s)
    assert store.swap("row", b"2", store.get(["row"])["row"], ttl_s)
    assert store.get(["row"])["row"].raw == b"2"
    assert client.expiries == [min(ttl_s, 30 * DAY_S)] * 2
