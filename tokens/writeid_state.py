"""The write ids of one table as a metastore keeps them, and the list that it prints from them. Pure.

The fold keeps them in a table's state. Sources use them to know what a server would answer. The rules are those of
Hive's ``TxnHandler.getValidWriteIdsForTable`` (4.0.1), checked against recorded answers:

- The high-water mark is the greatest id that was allocated.
- Ids of open and aborted transactions are exceptions. An id below it that no transaction holds (reallocated or
  compacted) counts as valid.
- While the server's table has no committed id, the list collapses to its lowest exception: ``[x:x]``. ``minOpen`` is
  computed before that, so it may lie above the high-water mark (``s1.fau:1:2::1``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from itertools import chain
from typing import Final

import msgspec

from .writeids import NO_OPEN_ID, list_text

GAP_MAX: Final = 10_000
"""The largest gap of unseen ids that is filled with open ones. After a larger gap the list is unknown."""
ABORTED_RUNS_MAX: Final = 4_096
"""Runs of aborted ids that are remembered. With more, the older half is forgotten, and the list is unknown until the
server's own arrives: that names only those that its cleaner has left."""


class WriteIds(msgspec.Struct, array_like=True):
    """A high-water mark and the exceptions below it. Canonical: equal histories give equal fields."""

    hwm: int = 0
    open: list[tuple[int, int]] = []
    """(write id, transaction), sorted by write id; transaction 0 is unknown."""
    aborted_runs: list[tuple[int, int]] = []
    """Ascending runs of adjacent aborted ids, (first, last): a long history of aborts takes no more than its gaps."""
    committed: bool = False
    """The server's table has a committed id, so the list does not collapse."""
    known: bool = True
    """False: an event was missed. The list proves nothing until the source publishes the server's own."""

    def allocate(self, txn: int, write_id: int, *, reallocated: bool = False) -> None:
        """``write_id`` was allocated to ``txn``. Unseen ids below it become open.

        ``reallocated``: the transaction's earlier ids count as valid from now on.
        """
        if reallocated and txn:
            self.open = [pair for pair in self.open if pair[1] != txn or pair[0] == write_id]
        if not self._reach(write_id):
            return
        self._forget_aborted(write_id)
        self._drop_open(write_id)
        insort(self.open, (write_id, txn))

    def commit(self, write_id: int) -> bool:
        """Take ``write_id`` out of the exceptions. Returns False if it is aborted; it then stays so."""
        if self.is_aborted(write_id):
            return False
        if self._reach(write_id):
            self._drop_open(write_id)
            self.committed = True
        return True

    def abort(self, write_id: int) -> None:
        """Mark an open id as aborted. An id that already counts as valid is left alone, as Impala does."""
        above = write_id > self.hwm
        if self._reach(write_id) and (self._drop_open(write_id) or above) and not self.is_aborted(write_id):
            self._remember_aborted(write_id)

    def replace(
        self, hwm: int, open_ids: Iterable[int], aborted: Iterable[int], *, committed: bool | None = None
    ) -> None:
        """Replace everything by the server's own list. Ids that stay open keep their transactions.

        ``committed`` None: derived from the list. If that is ambiguous (no exception below ``hwm``), the list is taken
        as collapsed: the valid ids are the same, and later lists never have too many valid ids.
        """
        held = dict(self.open)
        self.hwm = hwm
        self.open = sorted((each, held.get(each, 0)) for each in {*open_ids} if 0 < each <= hwm)
        self.aborted_runs = _runs(sorted(each for each in {*aborted} if 0 < each <= hwm))
        below = any(each < hwm for each, _ in self.open) or any(first < hwm for first, _ in self.aborted_runs)
        self.committed = below if committed is None else committed
        self.known = True

    @property
    def aborted(self) -> list[int]:
        """The aborted ids, ascending."""
        return list(chain.from_iterable(range(first, last + 1) for first, last in self.aborted_runs))

    def is_aborted(self, write_id: int) -> bool:
        """Whether ``write_id`` is known to be aborted."""
        at = bisect_right(self.aborted_runs, (write_id, NO_OPEN_ID)) - 1
        return at >= 0 and write_id <= self.aborted_runs[at][1]

    def transaction_of(self, write_id: int) -> int | None:
        """The transaction that holds ``write_id`` open; 0 if it is unknown, None if the id is not open."""
        at = bisect_left(self.open, (write_id, -1))
        return self.open[at][1] if at < len(self.open) and self.open[at][0] == write_id else None

    def held_by(self, txn: int) -> list[int]:
        """The open ids of transaction ``txn``."""
        return [write_id for write_id, holder in self.open if holder == txn]

    def text(self, name: str) -> str:
        """The list, collapsed if need be, as the server prints it for a reader outside any transaction."""
        if self.committed or not (self.open or self.aborted_runs):
            return self.full_text(name)
        min_open = self._min_open
        if self.aborted_runs and (lowest := self.aborted_runs[0][0]) < min_open:
            return list_text(name, lowest, min_open, (), (lowest,))
        return list_text(name, min_open, min_open, (min_open,), ())

    def full_text(self, name: str) -> str:
        """The list with everything that is known, never collapsed."""
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

    def _remember_aborted(self, write_id: int) -> None:
        runs = self.aborted_runs
        at = bisect_left(runs, (write_id, write_id))
        first = last = write_id
        if at < len(runs) and runs[at][0] == write_id + 1:
            last = runs.pop(at)[1]
        if at and runs[at - 1][1] == write_id - 1:
            first = runs.pop(at - 1)[0]
        insort(runs, (first, last))
        if len(runs) > ABORTED_RUNS_MAX:
            del runs[: ABORTED_RUNS_MAX // 2]
            self.known = False

    def _forget_aborted(self, write_id: int) -> None:
        if self.is_aborted(write_id):
            at = bisect_right(self.aborted_runs, (write_id, NO_OPEN_ID)) - 1
            first, last = self.aborted_runs[at]
            self.aborted_runs[at : at + 1] = [
                run for run in ((first, write_id - 1), (write_id + 1, last)) if run[0] <= run[1]
            ]

    def _reach(self, write_id: int) -> bool:
        """Raise ``hwm`` to ``write_id``; ids between become open. False if the gap is too large: the list is lost."""
        if write_id - self.hwm > GAP_MAX:
            self.known = False
            return False
        if write_id > self.hwm:
            self.open.extend((between, 0) for between in range(self.hwm + 1, write_id))
            self.hwm = write_id
        return True


def _runs(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending ids as runs of adjacent ones."""
    runs: list[tuple[int, int]] = []
    for each in ids:
        if runs and runs[-1][1] == each - 1:
            runs[-1] = (runs[-1][0], each)
        else:
            runs.append((each, each))
    return runs
