"""The metastore's own book of write ids, followed from its log: which ids each *name* has, and who holds them.

Pure. The server keeps ids by name, not by table id, so a rename moves them (``TxnHandler.onRename``), an ALLOC may come
before the table, and a DROP may keep them or not without saying so (``AcidEventListener.onDropTable``): they are then
*doubtful* until an allocation shows it: it continues where they ended, or starts anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tokens.writeid_state import WriteIds

ACID_CONVERSION_SEED: Final = 10_000_000
"""The high-water mark that a table has after its conversion to full ACID (``seedWriteIdOnAcidConversion``)."""


class Allocated(NamedTuple):
    """What one allocation did. ``kept``: it showed that a dropped table's ids live on under this name."""

    reallocated: bool
    kept: bool


class ServerIds:
    """Write ids by ``db.table`` name, with the transactions that hold them."""

    def __init__(self) -> None:
        self._lists: dict[str, WriteIds] = {}
        self._doubtful: dict[str, WriteIds] = {}
        self._names_of: dict[int, set[str]] = {}

    def get(self, name: str) -> WriteIds | None:
        """The ids under ``name``, or None where none was given out."""
        return self._lists.get(name)

    def allocate(self, name: str, txn: int, write_id: int) -> Allocated:
        """``txn`` was given ``write_id`` under ``name``."""
        doubtful = self._doubtful.get(name)
        ids = self._lists.get(name)
        kept = False
        if ids is None:
            kept = doubtful is not None and write_id == doubtful.hwm + 1
            ids = self._lists[name] = doubtful if kept and doubtful is not None else WriteIds()
        self._doubtful.pop(name, None)
        reallocated = any(each != write_id for each in ids.held_by(txn))
        ids.allocate(txn, write_id, reallocated=reallocated)
        self._names_of.setdefault(txn, set()).add(name)
        return Allocated(reallocated, kept)

    def held(self, name: str, txn: int, write_id: int) -> None:
        """``txn`` is known to hold ``write_id`` from before the log was read; ids between are not known."""
        ids = self._lists.setdefault(name, WriteIds(hwm=write_id))
        ids.hwm = max(ids.hwm, write_id)
        ids.allocate(txn, write_id)
        self._names_of.setdefault(txn, set()).add(name)

    def seed(self, name: str) -> bool:
        """A table was made full ACID; True if that set its first id (it had none)."""
        if name in self._lists:
            return False
        self._lists[name] = WriteIds(hwm=ACID_CONVERSION_SEED)
        return True

    def end(self, txn: int, *, committed: bool) -> list[tuple[str, int]]:
        """A transaction ended: its (name, write id) pairs, of names whose ids are certain."""
        pairs: list[tuple[str, int]] = []
        for name in sorted(self._names_of.pop(txn, ())):
            certain = self._lists.get(name)
            if certain is not None:
                pairs += [(name, write_id) for write_id in _end_in(certain, txn, committed=committed)]
            doubtful = self._doubtful.get(name)
            if doubtful is not None:
                _end_in(doubtful, txn, committed=committed)
        return pairs

    def pairs_of(self, txn: int) -> list[tuple[str, int]]:
        """The (name, write id) pairs that ``txn`` holds."""
        found = ((name, self._lists.get(name)) for name in sorted(self._names_of.get(txn, ())))
        return [(name, write_id) for name, ids in found if ids is not None for write_id in ids.held_by(txn)]

    def rename(self, old: str, new: str) -> bool:
        """All ids under ``old``, those of open writers too, are under ``new`` from here on; False: there are none."""
        ids = self._lists.pop(old, None)
        if ids is None:
            return False
        self._lists[new] = ids
        self._doubtful.pop(new, None)
        for _, txn in ids.open:
            names = self._names_of.setdefault(txn, set())
            names.discard(old)
            names.add(new)
        return True

    def drop(self, name: str) -> None:
        """The transactional table of that name was dropped: its ids may be gone, or kept for the next of the name."""
        ids = self._lists.pop(name, None)
        if ids is not None:
            self._doubtful[name] = ids

    def drop_database(self, db: str) -> None:
        """Everything under the database's names is gone."""
        for book in (self._lists, self._doubtful):
            for name in _of_database(book, db):
                del book[name]


def _end_in(ids: WriteIds, txn: int, *, committed: bool) -> list[int]:
    held = ids.held_by(txn)
    for write_id in held:
        if committed:
            ids.commit(write_id)
        else:
            ids.abort(write_id)
    return held


def _of_database(names: Iterable[str], db: str) -> list[str]:
    return [name for name in names if name.startswith(f"{db}.")]
