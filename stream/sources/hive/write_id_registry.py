"""The metastore's registry of write ids, reconstructed from its log: the ids of each table *name*. Pure.

The server keeps ids by name, not by table id. So a rename moves them (``TxnHandler.onRename``), and an ALLOC may come
before its table. A DROP may keep or delete them, and the log doesn't tell (``AcidEventListener.onDropTable``). After a
DROP they are *doubtful* until the next allocation: it either continues after the last id, or starts again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final, NamedTuple

from tokens.writeid_state import WriteIds

ACID_CONVERSION_SEED: Final = 10_000_000
"""The high-water mark that a table has after its conversion to full ACID (``seedWriteIdOnAcidConversion``)."""


DOUBTFUL_MAX: Final = 10_000
"""Names whose table was dropped, and that have got no id since, whose ids are remembered. Names of tables that are made
for an hour never come back. Where one does whose ids were forgotten, its first id seems to skip those before it."""
MOVED: Final = "moved"
"""A `WriteIdChange`: the ids under a name have gone, or come from another one. Those before it are of another table."""


class Allocation(NamedTuple):
    """The result of one allocation. ``survived_drop``: it shows that the name kept the ids of a dropped table.

    ``reallocated``: the transaction already held another id under this name. ``skipped``: nobody told of the id before
    it: the server may have set the ids up to there without an event.
    """

    reallocated: bool
    survived_drop: bool
    skipped: bool = False


class WriteIdChange(NamedTuple):
    """What an event did to a write id of the table ``name``.

    ``kind``: allocated, reallocated (the transaction's earlier ids count as valid), committed or aborted. Or `MOVED`,
    with ids 0.
    """

    name: str
    txn: int
    write_id: int
    kind: str


class WriteIdRegistry:
    """Write ids by ``db.table`` name, with the transactions that hold them."""

    def __init__(self) -> None:
        self.changes: list[WriteIdChange] = []
        """What was done since somebody last emptied this."""
        self._lists: dict[str, WriteIds] = {}
        self._doubtful: dict[str, WriteIds] = {}
        self._names_by_txn: dict[int, set[str]] = {}

    def get(self, name: str) -> WriteIds | None:
        """The ids under ``name``, or None if none is known."""
        return self._lists.get(name)

    def allocate(self, name: str, txn: int, write_id: int) -> Allocation:
        """``write_id`` was allocated to ``txn`` under ``name``."""
        doubtful = self._doubtful.get(name)
        ids = self._lists.get(name)
        survived_drop = False
        if ids is None:
            survived_drop = doubtful is not None and write_id == doubtful.hwm + 1
            ids = self._lists[name] = doubtful if survived_drop and doubtful is not None else WriteIds()
        self._doubtful.pop(name, None)
        reallocated = any(each != write_id for each in ids.held_by(txn))
        skipped = write_id > ids.hwm + 1
        ids.allocate(txn, write_id, reallocated=reallocated)
        self.changes.append(WriteIdChange(name, txn, write_id, "reallocated" if reallocated else "allocated"))
        self._names_by_txn.setdefault(txn, set()).add(name)
        return Allocation(reallocated, survived_drop, skipped)

    def restore(self, name: str, txn: int, write_id: int) -> None:
        """``txn`` has held ``write_id`` since before the log was read; other ids are unknown."""
        ids = self._lists.setdefault(name, WriteIds(hwm=write_id))
        ids.hwm = max(ids.hwm, write_id)
        ids.allocate(txn, write_id)
        self._names_by_txn.setdefault(txn, set()).add(name)

    def with_open_ids(self) -> list[str]:
        """The names under which an id is open."""
        return [name for name, ids in self._lists.items() if ids.open]

    def seed(self, name: str) -> bool:
        """A table was converted to full ACID. True if it had no ids, so that the conversion set its first one."""
        if name in self._lists:
            return False
        self._lists[name] = WriteIds(hwm=ACID_CONVERSION_SEED)
        return True

    def end(self, txn: int, *, committed: bool) -> list[tuple[str, int]]:
        """End a transaction; return its (name, write id) pairs without doubtful ones."""
        pairs: list[tuple[str, int]] = []
        for name in sorted(self._names_by_txn.pop(txn, ())):
            certain = self._lists.get(name)
            if certain is not None:
                pairs += [(name, write_id) for write_id in _end_in(certain, txn, committed=committed)]
            doubtful = self._doubtful.get(name)
            if doubtful is not None:
                _end_in(doubtful, txn, committed=committed)
        kind = "committed" if committed else "aborted"
        self.changes += [WriteIdChange(name, txn, write_id, kind) for name, write_id in pairs]
        return pairs

    def pairs_of(self, txn: int) -> list[tuple[str, int]]:
        """The (name, write id) pairs that ``txn`` holds."""
        found = ((name, self._lists.get(name)) for name in sorted(self._names_by_txn.get(txn, ())))
        return [(name, write_id) for name, ids in found if ids is not None for write_id in ids.held_by(txn)]

    def rename(self, old: str, new: str) -> bool:
        """Move all ids from ``old`` to ``new``, those of open writers too. False if none of them is certain.

        Doubtful ones go along and stay doubtful. If both names have some, at most one of them kept its ids, and nobody
        can tell which: they are forgotten, and an allocation that goes on after them is one of which ids are unknown.
        """
        self.changes += [_moved(old), _moved(new)]
        ids, doubtful = self._lists.pop(old, None), self._doubtful.pop(old, None)
        moved = doubtful if ids is None else ids
        if moved is None:
            return False
        rivals = self._doubtful.pop(new, None)
        if ids is not None:
            self._lists[new] = ids
        elif rivals is None and new not in self._lists:
            self._doubtful[new] = moved
        else:
            return False
        for _, txn in moved.open:
            names = self._names_by_txn.setdefault(txn, set())
            names.discard(old)
            names.add(new)
        return ids is not None

    def drop(self, name: str) -> None:
        """The transactional table ``name`` was dropped: its ids are doubtful from now on."""
        self.changes.append(_moved(name))
        ids = self._lists.pop(name, None)
        if ids is not None:
            self._doubtful.pop(name, None)  # the last one is to be at the end
            self._doubtful[name] = ids
            if len(self._doubtful) > DOUBTFUL_MAX:
                del self._doubtful[next(iter(self._doubtful))]

    def doubt(self, names: Container[str]) -> None:
        """Events were lost: ids may be gone that were allocated before there is a table. ``names``: those of tables."""
        for name in [each for each in self._lists if each not in names]:
            self.drop(name)

    def drop_database(self, db: str) -> None:
        """Delete the ids of all tables of a database."""
        for book in (self._lists, self._doubtful):
            for name in _of_database(book, db):
                del book[name]
                self.changes.append(_moved(name))


def _moved(name: str) -> WriteIdChange:
    return WriteIdChange(name, 0, 0, MOVED)


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
