"""The write ids of one table as a metastore keeps them, and the list that it prints from them.

Pure. Shared by the fold (a table's state) and by sources that must know what a server would answer. The rules are
those of Hive's ``TxnHandler.getValidWriteIdsForTable`` (4.0.1), read and recorded:

- the high-water mark is the greatest id given out, whoever holds it;
- ids of open and aborted transactions are exceptions; an id between that nobody holds (reallocated, compacted) counts
  as valid;
- while no committed id is left in the server's table, the list collapses to its lowest exception: ``[x:x]``.
  ``minOpen`` is taken before that, so it may lie above the high-water mark (``s1.fau:1:2::1``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final

import msgspec

from .writeids import NO_OPEN_ID, list_text

GAP_MAX: Final = 10_000
"""Ids that may be unknown between two known ones and are then held as open; beyond it the list is not known."""


class WriteIds(msgspec.Struct, array_like=True):
    """``hwm``, and below it the exceptions. Canonical: two equal histories give equal fields."""

    hwm: int = 0
    open: list[tuple[int, int]] = []
    """(write id, transaction), by write id; transaction 0 is not known."""
    aborted: list[int] = []
    """Ascending."""
    committed: bool = False
    """A committed id is left in the server's table: the list does not collapse."""
    known: bool = True
    """False: an event was missed; nothing may be proved by this list until the source publishes its own."""

    def allocate(self, txn: int, write_id: int, *, reallocated: bool = False) -> None:
        """``txn`` was given ``write_id``; ids between the high-water mark and it are held as open.

        ``reallocated``: what the transaction held before counts as valid from here on.
        """
        if reallocated and txn:
            self.open = [pair for pair in self.open if pair[1] != txn or pair[0] == write_id]
        if not self._reach(write_id):
            return
        if write_id in self.aborted:
            self.aborted.remove(write_id)
        self._drop_open(write_id)
        insort(self.open, (write_id, txn))

    def commit(self, write_id: int) -> bool:
        """Takes ``write_id`` out of the exceptions; False: it is aborted, and stays so."""
        if write_id in self.aborted:
            return False
        if self._reach(write_id):
            self._drop_open(write_id)
            self.committed = True
        return True

    def abort(self, write_id: int) -> None:
        """Marks an open id aborted. One that already counts as valid is left alone, as Impala does."""
        above = write_id > self.hwm
        if self._reach(write_id) and (self._drop_open(write_id) or above) and write_id not in self.aborted:
            insort(self.aborted, write_id)

    def replace(
        self, hwm: int, open_ids: Iterable[int], aborted: Iterable[int], *, committed: bool | None = None
    ) -> None:
        """The server's own list takes the place of what was known; transactions of ids that stay open are kept.

        ``committed`` None: read off the list. Where that is ambiguous (at most its high-water mark is an exception),
        the list is taken as collapsed: the valid ids are the same, and later ones are never too many.
        """
        held = dict(self.open)
        self.hwm = hwm
        self.open = sorted((each, held.get(each, 0)) for each in {*open_ids} if 0 < each <= hwm)
        self.aborted = sorted(each for each in {*aborted} if 0 < each <= hwm)
        below = any(each < hwm for each, _ in self.open) or any(each < hwm for each in self.aborted)
        self.committed = below if committed is None else committed
        self.known = True

    def transaction_of(self, write_id: int) -> int | None:
        """Who holds ``write_id`` open: 0 where that is not known, None if it is not open."""
        at = bisect_left(self.open, (write_id, -1))
        return self.open[at][1] if at < len(self.open) and self.open[at][0] == write_id else None

    def held_by(self, txn: int) -> list[int]:
        """The open ids of a transaction."""
        return [write_id for write_id, holder in self.open if holder == txn]

    def text(self, name: str) -> str:
        """The list as the server prints it for a reader outside any transaction; collapsed where it collapses."""
        if self.committed or not (self.open or self.aborted):
            return self.full_text(name)
        min_open = self._min_open
        if self.aborted and self.aborted[0] < min_open:
            return list_text(name, self.aborted[0], min_open, (), self.aborted[:1])
        return list_text(name, min_open, min_open, (min_open,), ())

    def full_text(self, name: str) -> str:
        """The list with all that is known, never collapsed."""
        return list_text(name, self.hwm, self._min_open, (write_id for write_id, _ in self.open), self.aborted)

    @property
    def _min_open(self) -> int:
        return self.open[0][0] if self.open else NO_OPEN_ID

    def _drop_open(self, write_id: int) -> bool:
        at = bisect_left(self.open, (write_id, -1))
        if at < len(self.open) and self.open[at][0] == write_id:
            del self.open[at]
            return True
        return False

    def _reach(self, write_id: int) -> bool:
        """Raises the high-water mark to ``write_id``, ids between held as open; False: too far, the list is lost."""
        if write_id - self.hwm > GAP_MAX:
            self.known = False
            return False
        if write_id > self.hwm:
            self.open.extend((between, 0) for between in range(self.hwm + 1, write_id))
            self.hwm = write_id
        return True
