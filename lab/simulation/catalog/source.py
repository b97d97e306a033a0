"""A model of a metastore with transactions, write ids, tables, names, a cleaner, its log and its history.

``undoes``: whether an ABORT undoes writes. If so, writes are staged, as in the workload source. If not, as in Hive, a
write takes effect at once and stays.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from lab.simulation.models.truth import CommitHistory
from lab.workload.catalog import encode_image, position_of
from lab.workload.events import LogRow
from lab.workload.lists import server_list

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
NAMES = ("d.t", "d.u")


@lru_cache(maxsize=1_024)
def image_of(version: int) -> bytes:
    """The image of a version. All versions in a world differ."""
    return encode_image(version, {"long": "x"} if version % 3 == 0 else {})


@dataclass(slots=True)
class MetastoreTable:
    """A table. ``staged``: (transaction, image) of an uncommitted write that an ABORT will undo."""

    table_id: int
    name: str
    kind: str
    image: bytes
    next_write_id: int = 1
    write_ids: dict[int, int] = field(default_factory=dict)
    """Write id → transaction. The cleaner removes aborted ones."""
    staged: tuple[int, bytes] | None = None


class SimulatedMetastore:
    """The source of truth. Events count from 1; event 0 is the start."""

    def __init__(self, *, undoes: bool) -> None:
        self.undoes = undoes
        self.log: list[LogRow] = []
        self.tables: dict[str, MetastoreTable] = {}
        self.by_id: dict[int, MetastoreTable] = {}
        self.txns: dict[int, str] = {}
        self.history = CommitHistory(0, position_of(0))
        """The true images of each table; the slot is the table id."""
        self.writes: dict[int, list[tuple[int, int]]] = {}
        """Table id → (write id, event from which other readers see its write)."""
        self.writer_of: dict[bytes, int] = {}
        """Image → the transaction that wrote it."""
        self.cleaned = False
        self.story: list[tuple[Any, ...]] = []
        """All events, as a key for memoization; the cleaner writes none."""
        self._versions = 0

    @property
    def end(self) -> int:
        """The number of the last event."""
        return len(self.log)

    def copy(self) -> SimulatedMetastore:
        """A replica of the metastore, as of now."""
        seen = copy(self)
        seen.log, seen.txns = self.log[:], dict(self.txns)
        seen.by_id = {each: replace(table, write_ids=dict(table.write_ids)) for each, table in self.by_id.items()}
        seen.tables = {name: seen.by_id[table.table_id] for name, table in self.tables.items()}
        return seen

    def _append(self, event_type: str, txn: int = 0, table_id: int = 0, image: bytes = b"", **fields: Any) -> int:
        event = len(self.log) + 1
        self.log.append(LogRow(event, 1_700_000_000 + event, event_type, txn, table_id, fields, image))
        self.story.append((event_type, txn, table_id, image, *fields.values()))
        position = position_of(event)
        self.history.positions.append(position)
        self.history.index_of[position] = event
        return event

    def _image(self) -> bytes:
        self._versions += 1
        return image_of(self._versions)

    def open_txns(self) -> list[int]:
        """The open transactions."""
        return [txn for txn, state in self.txns.items() if state == OPEN]

    def open(self) -> int:
        """Opens a transaction and returns its number."""
        txn = len(self.txns) + 1
        self.txns[txn] = OPEN
        self._append("OPEN", txn)
        return txn

    def create(self, name: str, kind: str) -> bool:
        """Creates a table if the name is free. Returns whether it did."""
        if name in self.tables:
            return False
        table_id = len(self.by_id) + 1
        table = MetastoreTable(table_id, name, kind, self._image())
        self.tables[name] = self.by_id[table_id] = table
        event = self._append("CREATE", 0, table_id, table.image, name=name, kind=kind)
        self.history.put(table_id, event, table.image)
        return True

    def allocate(self, txn: int, table: MetastoreTable) -> int:
        """The transaction's write id on the table, allocated on the first call."""
        for write_id, holder in table.write_ids.items():
            if holder == txn:
                return write_id
        write_id = table.next_write_id
        table.next_write_id += 1
        table.write_ids[write_id] = txn
        self._append("ALLOC", txn, table.table_id, write_id=write_id)
        return write_id

    def write(self, txn: int, table: MetastoreTable) -> bool:
        """Writes a new image; ``txn`` is ignored for an external table. Returns False if another write is staged."""
        image = self._image()
        fields: dict[str, Any] = {"name": table.name, "kind": table.kind}
        if table.kind == "external":
            table.image = image
            event = self._append("WRITE", 0, table.table_id, image, **fields)
            self.history.put(table.table_id, event, image)
            return True
        if self.undoes and table.staged is not None and table.staged[0] != txn:
            return False
        write_id = self.allocate(txn, table)
        event = self._append("WRITE", txn, table.table_id, image, write_id=write_id, **fields)
        self.writer_of[image] = txn
        if self.undoes:
            table.staged = (txn, image)
        else:
            table.image = image
            self.history.put(table.table_id, event, image)
            self.writes.setdefault(table.table_id, []).append((write_id, event))
        return True

    def finish(self, txn: int, *, commit: bool) -> None:
        """Commits or aborts a transaction."""
        self.txns[txn] = COMMITTED if commit else ABORTED
        event = self._append("COMMIT" if commit else "ABORT", txn)
        for table in self.tables.values():
            if table.staged is not None and table.staged[0] == txn:
                if commit:
                    table.image = table.staged[1]
                    self.history.put(table.table_id, event, table.image)
                    write_id = next(each for each, holder in table.write_ids.items() if holder == txn)
                    self.writes.setdefault(table.table_id, []).append((write_id, event))
                table.staged = None

    def rename(self, table: MetastoreTable, name: str) -> bool:
        """Renames a table if the name is free. Returns whether it did."""
        if name in self.tables:
            return False
        before = table.name
        del self.tables[before]
        table.name = name
        self.tables[name] = table
        self._append("RENAME", 0, table.table_id, name=name, kind=table.kind, previous=before)
        return True

    def drop(self, table: MetastoreTable) -> None:
        """Drops a table."""
        del self.tables[table.name]
        event = self._append("DROP", 0, table.table_id, name=table.name, kind=table.kind)
        self.history.put(table.table_id, event, None)

    def clean(self) -> bool:
        """Removes aborted ids, which count as valid from then on. Returns whether there were any."""
        found = False
        for table in self.tables.values():
            for write_id, txn in list(table.write_ids.items()):
                if self.txns[txn] == ABORTED:
                    del table.write_ids[write_id]
                    self.cleaned = found = True
        return found

    def list_of(self, table: MetastoreTable, own: int = 0) -> str:
        """The table's write-id list, as the server builds it for a reader in transaction ``own``."""
        opened = {txn for txn, state in self.txns.items() if state == OPEN}
        aborted = {txn for txn, state in self.txns.items() if state == ABORTED}
        pairs = list(table.write_ids.items())
        return server_list(table.name, pairs, table.next_write_id, opened, aborted, len(self.txns), own)

    def pairs_of(self, txn: int) -> list[tuple[int, int]]:
        """(table id, write id) pairs of a transaction."""
        return [
            (table.table_id, write_id)
            for table in self.by_id.values()
            for write_id, holder in table.write_ids.items()
            if holder == txn
        ]


class MetastoreSnapshot:
    """The part of `CatalogSnapshot` that `lab.workload.events.bootstrap` uses, over the model."""

    def __init__(self, store: SimulatedMetastore) -> None:
        self._store = store

    def position(self) -> tuple[str, int]:
        """The position of the last event and its time in seconds."""
        return position_of(self._store.end), 1_700_000_000 + self._store.end

    def rows(self, sql: str, *arguments: int) -> list[tuple[Any, ...]]:
        """The rows of one of the known queries. Raises `ValueError` for any other."""
        store = self._store
        tables = store.tables.values()
        if sql.startswith("SELECT table_id, name, kind, image"):
            return [(each.table_id, each.name, each.kind, each.image, each.next_write_id) for each in tables]
        if sql.startswith("SELECT w.write_id, w.txn, t.state"):
            return [(w, txn, store.txns[txn]) for w, txn in sorted(store.by_id[arguments[0]].write_ids.items())]
        if sql.startswith("SELECT txn, write_id, image FROM catalog_staged"):
            table = store.by_id[arguments[0]]
            if table.staged is None:
                return []
            txn, image = table.staged
            return [(txn, next(w for w, holder in table.write_ids.items() if holder == txn), image)]
        if sql.startswith("SELECT t.txn, w.table_id"):
            held = {txn: store.pairs_of(txn) for txn in store.open_txns()}
            return [(txn, *pair) for txn, pairs in held.items() for pair in pairs] + [
                (txn, None, None) for txn, pairs in held.items() if not pairs
            ]
        if sql.startswith("SELECT txn, table_id FROM catalog_staged"):
            return [(each.staged[0], each.table_id) for each in tables if each.staged is not None]
        if sql.startswith("SELECT name, table_id"):
            return [(each.name, each.table_id) for each in tables]
        raise ValueError(f"unknown query: {sql}")
