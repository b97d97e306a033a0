"""A metastore as naive as possible: its tables as dicts, its log as a list.

`Metastore.valid_write_ids` is TxnHandler.getValidWriteIdsForTable read line by line over rows. Nothing of Freshet is
used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

NONE_OPEN: Final = 2**63 - 1
PARAMETERS: Final = {
    "full": {"transactional": "true", "transactional_properties": "default"},
    "insert_only": {"transactional": "true", "transactional_properties": "insert_only"},
    "external": {"EXTERNAL": "TRUE"},
}


@dataclass
class Metastore:
    """TXNS, TXN_TO_WRITE_ID, NEXT_WRITE_ID, TBLS and NOTIFICATION_LOG."""

    log: list[dict[str, Any]] = field(default_factory=list)
    txns: dict[int, str] = field(default_factory=dict)
    rows: list[tuple[str, int, int]] = field(default_factory=list)
    next_ids: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[int, str]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    """How often a table was changed, by name; an answer shows it as a parameter."""
    last_txn: int = 0
    last_table: int = 0
    untold: set[str] = field(default_factory=set)
    """Tables whose first ids were set without an event, and that have got none since."""

    def _notify(self, event_type: str, name: str = "", **message: Any) -> None:
        db, _, table = name.partition(".")
        event_id = len(self.log) + 1
        row = {"eventId": event_id, "eventTime": 1_700_000_000 + event_id, "eventType": event_type}
        self.log.append(row | {"cat": None, "db": db or None, "table": table or None, "message": message})

    def parameters(self, name: str) -> dict[str, str]:
        """What the stored table says of itself, with the number of its changes."""
        return {**PARAMETERS[self.tables[name][1]], "version": str(self.versions.get(name, 0))}

    def _object(self, name: str) -> str:
        table_id, _ = self.tables[name]
        db, _, table = name.partition(".")
        parameters = self.parameters(name)
        struct = {
            "1": {"str": table},
            "2": {"str": db},
            "9": {"map": ["str", "str", len(parameters), parameters]},
            "25": {"i64": table_id},
        }
        return json.dumps(struct)

    def open_txns(self, count: int) -> list[int]:
        """OPEN_TXN over a range."""
        opened = list(range(self.last_txn + 1, self.last_txn + count + 1))
        self.last_txn += count
        self.txns.update(dict.fromkeys(opened, "open"))
        self._notify("OPEN_TXN", txnIds=None, fromTxnId=opened[0], toTxnId=opened[-1])
        return opened

    def open_read_only(self) -> None:
        """Uses up a transaction id without an event, and ends it without one."""
        self.last_txn += 1
        self.txns[self.last_txn] = "committed"

    def allocate(self, name: str, txns: list[int], *, reallocate: bool = False) -> None:
        """ALLOC_WRITE_ID_EVENT, unless all of them have an id; the table need not exist."""
        if reallocate:
            self.rows = [row for row in self.rows if not (row[0] == name and row[1] in txns)]
        held = {row[1] for row in self.rows if row[0] == name}
        new = [txn for txn in sorted(txns) if txn not in held]
        if not new:
            return
        first = self.next_ids.get(name, 1)
        self.next_ids[name] = first + len(new)
        self.untold.discard(name)
        ids = list(range(first, first + len(new)))
        self.rows += [(name, txn, write_id) for txn, write_id in zip(new, ids, strict=True)]
        db, _, table = name.partition(".")
        self._notify("ALLOC_WRITE_ID_EVENT", name, dbName=db, tableName=table, txnIdList=new, writeIdList=ids)

    def end(self, txn: int, *, commit: bool) -> None:
        """COMMIT_TXN or ABORT_TXN; neither names a table."""
        self.txns[txn] = "committed" if commit else "aborted"
        self._notify("COMMIT_TXN" if commit else "ABORT_TXN", txnid=txn)

    def held_by(self, name: str, txn: int) -> int:
        """The write id that a transaction has on a table; 0: none."""
        return next((row[2] for row in self.rows if row[0] == name and row[1] == txn), 0)

    def create(self, name: str, kind: str) -> None:
        """CREATE_TABLE."""
        self.last_table += 1
        self.tables[name] = (self.last_table, kind)
        self._notify("CREATE_TABLE", name, tableObjJson=self._object(name))

    def alter(self, name: str, txn: int = 0) -> None:
        """ALTER_TABLE, at once and for good; within ``txn`` it carries its write id."""
        before = self._object(name)
        self.versions[name] = self.versions.get(name, 0) + 1
        write_id = self.held_by(name, txn) if txn else -1
        self._notify(
            "ALTER_TABLE", name, tableObjBeforeJson=before, tableObjAfterJson=self._object(name), writeId=write_id
        )

    def write(self, name: str, event_type: str, txn: int = 0, *, shown: bool = False) -> None:
        """An event that writes a part of a table, or its statistics, and thereby the table's parameters.

        ``shown``: the event carries the table.
        """
        self.versions[name] = self.versions.get(name, 0) + 1
        message = {"tableObjJson": self._object(name)} if shown else {}
        self._notify(event_type, name, **message, writeId=self.held_by(name, txn) if txn else -1)

    def note(self, event_type: str, name: str = "", catalog: str | None = None, **message: Any) -> None:
        """An event of something that is no table of this catalog."""
        self._notify(event_type, name, **message)
        self.log[-1]["cat"] = catalog

    def convert(self, name: str) -> None:
        """External to full ACID: the next id is seeded, with no event of its own. Refused where ids were given out."""
        if name in self.next_ids:
            return
        before = self._object(name)
        self.tables[name] = (self.tables[name][0], "full")
        self.next_ids[name] = 10_000_001
        self._notify("ALTER_TABLE", name, tableObjBeforeJson=before, tableObjAfterJson=self._object(name), writeId=-1)

    def seed(self, name: str, count: int) -> bool:
        """``seed_write_id``: a table that has no ids yet gets the first ones, without an event. Whether it did."""
        if name in self.next_ids:
            return False
        self.next_ids[name] = 1 + count
        self.untold.add(name)
        return True

    def rename(self, old: str, new: str) -> None:
        """ALTER_TABLE with another name; ids move at once if the table is transactional. Columns hold the new name."""
        transactional = self.tables[old][1] != "external"
        if transactional and old in self.next_ids and new in self.next_ids:
            return
        before = self._object(old)
        self.tables[new] = self.tables.pop(old)
        self.versions[new] = self.versions.pop(old, 0)
        if transactional:
            self.rows = [(new if name == old else name, txn, write_id) for name, txn, write_id in self.rows]
            if old in self.next_ids:
                self.next_ids[new] = self.next_ids.pop(old)
            if old in self.untold:
                self.untold.add(new)
        self._notify("ALTER_TABLE", new, tableObjBeforeJson=before, tableObjAfterJson=self._object(new), writeId=-1)

    def take_ids(self, name: str, catalog: str) -> None:
        """A transactional table of the same name in another catalog is renamed: ids have no catalog, and go along."""
        db, _, table = name.partition(".")
        before = {"1": {"str": table}, "2": {"str": db}, "9": {"map": ["str", "str", 1, PARAMETERS["full"]]}}
        after = before | {"1": {"str": f"{table}_taken"}}
        self.rows = [(f"{each}_taken" if each == name else each, txn, number) for each, txn, number in self.rows]
        self.next_ids.pop(name, None)
        shown = {"tableObjBeforeJson": json.dumps(before), "tableObjAfterJson": json.dumps(after)}
        self.note("ALTER_TABLE", f"{name}_taken", catalog, **shown, writeId=-1)

    def drop(self, name: str, *, keep: bool = False) -> None:
        """DROP_TABLE; ``keep``: without its data, so its ids stay. The event doesn't say."""
        shown = self._object(name)
        transactional = self.tables.pop(name)[1] != "external"
        if transactional and not keep:
            self.rows = [row for row in self.rows if row[0] != name]
            self.next_ids.pop(name, None)
            self.untold.discard(name)
        self._notify("DROP_TABLE", name, tableObjJson=shown)

    def drop_database(self, db: str) -> None:
        """A cascade: each table, then the database and all ids under its names."""
        for name in sorted(self.tables):
            if name.startswith(f"{db}."):
                self.drop(name)
        self.rows = [row for row in self.rows if not row[0].startswith(f"{db}.")]
        self.next_ids = {name: at for name, at in self.next_ids.items() if not name.startswith(f"{db}.")}
        self._notify("DROP_DATABASE")
        self.log[-1]["db"] = db

    def valid_write_ids(self, name: str) -> str:
        """What get_valid_write_ids answers to a reader outside any transaction."""
        mine = sorted((write_id, txn) for table, txn, write_id in self.rows if table == name)
        hwm = mine[-1][0] if mine else self.next_ids.get(name, 1) - 1
        invalid: list[int] = []
        aborted: list[int] = []
        min_open, found_valid = NONE_OPEN, False
        for write_id, txn in mine:
            state = self.txns[txn]
            if state == "committed":
                found_valid = True
                continue
            invalid.append(write_id)
            if state == "aborted":
                aborted.append(write_id)
            else:
                min_open = min(min_open, write_id)
        if not found_valid and invalid:
            hwm = invalid[0]
            invalid = [hwm]
            aborted = [hwm] if hwm != min_open else []
        opened = [write_id for write_id in invalid if write_id not in aborted]
        return f"{name}:{hwm}:{min_open}:{','.join(map(str, opened))}:{','.join(map(str, aborted))}"
