"""Leases: of the fronts that miss a key, one reads the source and fills it, and the others wait for that.

They save the source, and prove nothing: a fill is judged by `consumers.owner.rows.judge_fill` whoever brings it. A
lease ends with the fill of its key, kept or refused, or by itself: a front that was killed holds others up for
`LEASE_S` at most. Whoever has waited once reads the source itself, if the cache can't answer it then.

Two requests never wait for each other: only one that got no lease waits.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from consumers.owner.protocol import OwnerRow

LEASE_S: Final = 0.5
LEASES_MAX: Final = 4_096
"""Of a partition. Beyond so many nobody waits for anybody."""
_UNKEPT_MAX: Final = 1_024


class Lease(NamedTuple):
    """``holder``: the front that reads the source. ``until``: on the event loop's clock. ``ended``: done at its end."""

    holder: str
    until: float
    ended: asyncio.Future[None]


class Leases:
    """Those of a partition. Belongs to the answering thread."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Lease] = {}
        self._unkept: OrderedDict[bytes, bytes] = OrderedDict()
        """Key → the stamp over which a fill was not kept: waiting for another one would be in vain."""

    def __len__(self) -> int:
        return len(self._by_key)

    def take(self, keys: Sequence[bytes], rows: Sequence[OwnerRow], holder: str, now: float) -> Lease | None:
        """Gives ``holder`` the missed keys that nobody else has, and marks their rows.

        Returns the lease to wait for, if others have all keys that are missed.
        """
        others: Lease | None = None
        took = False
        for key, row in zip(keys, rows, strict=True):
            if row.served or not row.needs_source or not row.stamp or self._unkept.get(key) == row.stamp:
                took = took or (row.needs_source and not row.served)
                continue
            lease = self._by_key.get(key)
            if lease is None or lease.until <= now:
                row.leased, took = self._give(key, holder, now), True
            elif lease.holder == holder:
                row.leased = took = True
            elif others is None or lease.until > others.until:
                others = lease
        return None if took else others

    def _give(self, key: bytes, holder: str, now: float) -> bool:
        self.end(key)
        if len(self._by_key) >= LEASES_MAX:
            for each in [each for each, lease in self._by_key.items() if lease.until <= now]:
                self.end(each)
        if len(self._by_key) >= LEASES_MAX:
            return False
        self._by_key[key] = Lease(holder, now + LEASE_S, asyncio.get_running_loop().create_future())
        return True

    def end(self, key: bytes, unkept: bytes | None = None) -> None:
        """The key's reader is done. ``unkept``: the stamp over which its value could not be kept."""
        if unkept is not None:
            self._unkept[key] = unkept
            self._unkept.move_to_end(key)
            if len(self._unkept) > _UNKEPT_MAX:
                self._unkept.popitem(last=False)
        lease = self._by_key.pop(key, None)
        if lease is not None and not lease.ended.done():
            lease.ended.set_result(None)
