"""Brings a fetched write-id list forward over the transaction events that were read since. Pure.

A list is fetched at some moment between two positions of the log, and published later than the events up to there. It
may lack what they said. Each of them is applied to it again: that is exact, because the last event of an id decides,
and nothing that the list knows already is later than the events that were read. A server keeps ids by name. So a list
from before its name changed hands can't be brought forward: what was said before that is of another table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final

from stream.sources.hive.write_id_registry import MOVED, WriteIdChange
from tokens.writeid_state import WriteIds

KEPT_MAX: Final = 1_000_000
"""Changes that are kept at most, and ends of transactions. A list from before the oldest one must be fetched again."""


class RecentWriteIds:
    """The changes of write ids since a position, in the order of the log."""

    def __init__(self, begin: int) -> None:
        self._begin = begin
        """Everything after this event is here."""
        self._changes: deque[tuple[int, WriteIdChange]] = deque()
        self._ended: dict[int, tuple[int, bool]] = {}
        """Transaction → (event, whether it committed), since ``_begin``."""

    def note(self, event_id: int, changes: Iterable[WriteIdChange]) -> None:
        """What event ``event_id`` changed."""
        self._changes.extend((event_id, change) for change in changes)
        while len(self._changes) > KEPT_MAX:
            self.forget(self._changes[0][0])

    def ended(self, event_id: int, txn: int, *, committed: bool) -> None:
        """Event ``event_id`` ended ``txn``."""
        self._ended[txn] = (event_id, committed)
        if len(self._ended) > KEPT_MAX:  # half of them at once: each time all are looked at
            self.forget(next(islice(self._ended.values(), KEPT_MAX // 2, None))[0])

    def forget(self, upto: int) -> None:
        """No list from before event ``upto`` will be asked for."""
        self._begin = max(self._begin, upto)
        while self._changes and self._changes[0][0] <= upto:
            self._changes.popleft()
        if len(self._ended) > len(self._changes):
            self._ended = {txn: end for txn, end in self._ended.items() if end[0] > upto}

    def brought_forward(self, name: str, ids: WriteIds, since: int, holders: dict[int, int]) -> bool:
        """Apply to ``ids``, the list of ``name`` as of event ``since`` or later, what followed.

        False if it is too old; ``ids`` are to be forgotten then.

        ``holders``: write id → transaction, of open ids whose allocation was before the log was read. These were open
        when the list was fetched: whatever ended one, an abort without an event too, came later.
        """
        if since < self._begin:
            return False
        for event_id, (of_name, txn, write_id, kind) in self._changes:
            if event_id <= since or of_name != name:
                continue
            if kind == MOVED:
                return False
            if kind == "committed":
                ids.commit(write_id)
            elif kind == "aborted":
                ids.abort(write_id)
            else:
                ids.allocate(txn, write_id, reallocated=kind == "reallocated")
        for write_id, txn in holders.items():
            if txn in self._ended:
                if self._ended[txn][1]:
                    ids.commit(write_id)
                else:
                    ids.abort(write_id)
        return True

    def has_ended(self, txn: int) -> bool:
        """Whether ``txn``, which was open when a list was fetched, has ended since."""
        return txn in self._ended
