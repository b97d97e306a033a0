"""The naive metastore with everything else that a catalog has: partitions, constraints, databases and functions.

Every change is recorded as a state of the whole catalog, with the time from which it may be seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from lab.simulation.hive.judging import Truth
from lab.simulation.hive.metastore import NONE_OPEN, Metastore
from lab.simulation.warehouse.thrift import Struct, in_json

CATALOG: Final = "hive"
KEYS: Final = (("ds", "string"), ("hr", "int"))
"""The partition columns of a table that has any."""
DATABASES: Final = ("s", "w")
REMOTE: Final = "r"
"""A database of type REMOTE: no event tells of its DROP. It has no tables here."""
Values = tuple[str, ...]


class Listed(NamedTuple):
    """The write ids of a table for a reader. ``invalid``: the exceptions, of which some are ``aborted``."""

    hwm: int
    invalid: Sequence[int]
    aborted: Sequence[int]
    min_open: int


class TableTruth(NamedTuple):
    """A table in one state. ``listed``: its write-id list; ``partitions``: values → how often it was changed.

    ``keys``: the name of its primary key, and the table and primary key that its foreign key points to; "": none.
    ``built``: of a materialized view, what it was made from, as a number; 0: it is none.
    ``statistics``: of the table, (), or of a partition, by its values, as a number. ``written``: by which write id.
    """

    table_id: int
    kind: str
    parameters: Mapping[str, str]
    partitions: Mapping[Values, int]
    pending: bool
    listed: str
    keys: tuple[str, str, str]
    built: int
    statistics: Mapping[Values, int]
    written: Mapping[Values, int]


class State(NamedTuple):
    """The catalog, from ``time`` on until the next state. Databases and functions → how often they were changed.

    ``unlogged``: name of a database or function → what no event tells of it, each value since its last event.
    ``gone``: those that went without an event, and have not been made again, by how often they were changed.
    ``txns``: transaction → open, committed or aborted. ``write_ids``: (table, transaction, its write id).
    ``next_ids``: table → the write id that is given out next.
    """

    time: float
    tables: Mapping[str, TableTruth]
    databases: Mapping[str, int]
    functions: Mapping[tuple[str, str], int]
    unlogged: Mapping[Values, Sequence[int]]
    gone: Mapping[Values, int]
    txns: Mapping[int, str]
    write_ids: Sequence[tuple[str, int, int]]
    next_ids: Mapping[str, int]


class Write(NamedTuple):
    """A table was written in the state of this number, with this write id (0: none)."""

    state: int
    table_id: int
    write_id: int


class Warehouse(Metastore):
    """The metastore, its truth, and all its states. ``now``: the time."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self._now = now
        self.truth = Truth(self)
        self.parts: dict[str, dict[Values, int]] = {}
        """Table → its partitions."""
        self.partitioned: set[int] = set()
        """Ids of tables that have partitions."""
        self.views: dict[int, int] = {}
        """Ids of materialized views, as `TableTruth.built`."""
        self.primary: dict[str, str] = {}
        """Table → the name of its primary key."""
        self.foreign: dict[str, str] = {}
        """Table → the one that its foreign key points to."""
        self.databases: dict[str, int] = {}
        self.functions: dict[tuple[str, str], int] = {}
        self.unlogged: dict[Values, tuple[int, ...]] = {}
        """As `State.unlogged`; also of what is gone."""
        self.gone: dict[Values, int] = {}
        self.changes = 0
        self.writes: list[Write] = []
        self.states: list[State] = []
        self.record()

    def record(self) -> None:
        """What is true from now on."""
        tables = {
            name: TableTruth(
                table_id,
                kind,
                self.parameters(name),
                dict(self.parts.get(name, {})),
                self.truth.is_pending(table_id),
                self.valid_write_ids(name),
                self.keys_of(name),
                self.views.get(table_id, 0),
                *self.details_of(name),
            )
            for name, (table_id, kind) in self.tables.items()
        }
        catalog = State(
            self._now(),
            tables,
            dict(self.databases),
            dict(self.functions),
            dict(self.unlogged),
            dict(self.gone),
            dict(self.txns),
            tuple(self.rows),
            dict(self.next_ids),
        )
        self.states.append(catalog)

    def details_of(self, _: str) -> tuple[Mapping[Values, int], Mapping[Values, int]]:
        """As `TableTruth.statistics` and `TableTruth.written`: here no table has a column that could have any."""
        return {}, {}

    def wrote(self, name: str, txn: int = 0) -> None:
        """A table was written just now, by a transaction or by none. To be called before `record`."""
        self.truth.writes(name, txn, shown=True)
        self.writes.append(Write(len(self.states), self.tables[name][0], self.held_by(name, txn) if txn else 0))

    # --- objects as structs ---

    def table_struct(self, name: str) -> Struct:
        """A ``Table``."""
        table_id, _ = self.tables[name]
        db, _, table = name.partition(".")
        keys = KEYS if table_id in self.partitioned else ()
        built: Struct = {5: ("str", str(self.views.get(table_id)))}
        return {
            1: ("str", table),
            2: ("str", db),
            8: ("lst", ("rec", [{1: ("str", key), 2: ("str", of)} for key, of in keys])),
            9: ("map", self.parameters(name)),
            **({12: ("str", "MATERIALIZED_VIEW"), 16: ("rec", built)} if table_id in self.views else {}),
            17: ("str", CATALOG),
            25: ("i64", table_id),
        }

    def partition_struct(self, name: str, values: Values) -> Struct:
        """A ``Partition``."""
        db, _, table = name.partition(".")
        return {
            1: ("lst", ("str", list(values))),
            2: ("str", db),
            3: ("str", table),
            7: ("map", {"version": str(self.parts[name][values])}),
        }

    def keys_of(self, name: str) -> tuple[str, str, str]:
        """As `TableTruth.keys`. A foreign key is not shown while the table that it points to has no primary one."""
        parent = self.foreign.get(name, "")
        pointed = self.primary.get(parent, "")
        return self.primary.get(name, ""), parent if pointed else "", pointed

    def constraints_struct(self, name: str) -> Struct:
        """``SQLAllTableConstraints``."""
        primary, parent, pointed = self.keys_of(name)
        found: Struct = {}
        (db, table), (parent_db, parent_table) = name.split("."), (parent or ".").split(".")
        if primary:
            found[1] = "lst", ("rec", [{1: ("str", db), 2: ("str", table), 5: ("str", primary)}])
        if parent:
            of = {1: ("str", parent_db), 2: ("str", parent_table), 4: ("str", db), 5: ("str", table)}
            found[2] = "lst", ("rec", [{**of, 11: ("str", pointed)}])
        return found

    def database_struct(self, db: str) -> Struct:
        """A ``Database``. Its comment is what no event tells."""
        comment, version = str(self.unlogged[db,][-1]), str(self.databases[db])
        return {1: ("str", db), 2: ("str", comment), 4: ("map", {"version": version}), 8: ("str", CATALOG)}

    def function_struct(self, name: tuple[str, str]) -> Struct:
        """A ``Function``. Its class says how often one of its name was made. Its owner is what no event tells."""
        db, function = name
        made, owner = f"v{self.functions[name]}", str(self.unlogged[name][-1])
        return {1: ("str", function), 2: ("str", db), 3: ("str", made), 4: ("str", owner), 9: ("str", CATALOG)}

    def _object(self, name: str) -> str:
        return _text(self.table_struct(name))

    # --- changes ---

    def create_table(self, name: str, kind: str, *, partitioned: bool) -> None:
        """CREATE_TABLE."""
        if partitioned:
            self.partitioned.add(self.last_table + 1)
        self.parts[name] = {}
        self.create(name, kind)

    def create_view(self, name: str, kind: str) -> None:
        """CREATE MATERIALIZED VIEW."""
        self.changes += 1
        self.views[self.last_table + 1] = self.changes
        self.create_table(name, kind, partitioned=False)

    def rebuild(self, name: str) -> None:
        """What the REBUILD of a materialized view does to it by ``update_creation_metadata``: no event says so."""
        self.changes += 1
        self.views[self.tables[name][0]] = self.changes

    def rename(self, old: str, new: str) -> None:
        """As `Metastore.rename`; partitions go along."""
        parts = self.parts.pop(old)
        self.parts[new] = parts
        super().rename(old, new)
        if old in self.tables:  # it was refused
            self.parts[old] = self.parts.pop(new)
            return
        if old in self.primary:
            self.primary[new] = self.primary.pop(old)
        self.foreign = {
            new if child == old else child: new if parent == old else parent for child, parent in self.foreign.items()
        }

    def drop(self, name: str, *, keep: bool = False) -> None:
        """As `Metastore.drop`."""
        super().drop(name, keep=keep)
        del self.parts[name]
        self.primary.pop(name, None)
        self.foreign = {child: parent for child, parent in self.foreign.items() if name not in (child, parent)}

    def put_primary_key(self, name: str) -> None:
        """DROP_CONSTRAINT where the table has one, else ADD_PRIMARYKEY."""
        self.changes += 1
        if self.primary.pop(name, ""):
            self.write(name, "DROP_CONSTRAINT")
        else:
            self.primary[name] = f"key{self.changes}"
            self.write(name, "ADD_PRIMARYKEY")

    def put_foreign_key(self, name: str, parent: str) -> None:
        """ADD_FOREIGNKEY, in the place of the one before. The event is named after the table that it points to."""
        self.foreign[name] = parent
        db, _, table = name.partition(".")
        self.versions[name] = self.versions.get(name, 0) + 1
        key = json.dumps({"4": {"str": db}, "5": {"str": table}})
        self._notify("ADD_FOREIGNKEY", parent, foreignKeyListJson=[key])

    def cascade(self, name: str, txn: int) -> None:
        """ALTER_TABLE that changes every partition, with no event of theirs."""
        for values in self.parts[name]:
            self.changes += 1
            self.parts[name][values] = self.changes
        self.alter(name, txn)

    def alter_merged(self, name: str, txn: int) -> None:
        """Two ALTER TABLE at once. The second one's event shows what it had read, and what is never stored."""
        before, write_id = self._object(name), self.held_by(name, txn) if txn else -1
        self.alter(name, txn)
        self.versions[name] += 1
        lost = {**self.table_struct(name), 9: ("map", {**self.parameters(name), "version": "never stored"})}
        self._notify("ALTER_TABLE", name, tableObjBeforeJson=before, tableObjAfterJson=_text(lost), writeId=write_id)

    def rename_overtaken(self, old: str, new: str) -> None:
        """Renamed and altered at once: the event of the alter comes later, and shows the name from before."""
        before = self._object(old)
        self.rename(old, new)
        if new in self.tables:
            self.versions[new] += 1
            self._notify("ALTER_TABLE", old, tableObjBeforeJson=before, tableObjAfterJson=before, writeId=-1)

    def _write_part(self, name: str, event_type: str, txn: int, **message: Any) -> None:
        self.versions[name] = self.versions.get(name, 0) + 1
        write_id = self.held_by(name, txn) if txn else -1
        self._notify(event_type, name, tableObjJson=self._object(name), writeId=write_id, **message)

    def put_partition(self, name: str, values: Values, txn: int) -> None:
        """ADD_PARTITION, or ALTER_PARTITION where it is there already."""
        self.changes += 1
        known = values in self.parts[name]
        before = _text(self.partition_struct(name, values)) if known else ""
        self.parts[name][values] = self.changes
        after = _text(self.partition_struct(name, values))
        if known:
            self._write_part(name, "ALTER_PARTITION", txn, partitionObjBeforeJson=before, partitionObjAfterJson=after)
        else:
            self._write_part(name, "ADD_PARTITION", txn, partitionListJson=[after])

    def move_partition(self, name: str, old: Values, new: Values, txn: int) -> None:
        """ALTER_PARTITION with other values."""
        before = _text(self.partition_struct(name, old))
        self.parts[name][new] = self.parts[name].pop(old)
        after = _text(self.partition_struct(name, new))
        self._write_part(name, "ALTER_PARTITION", txn, partitionObjBeforeJson=before, partitionObjAfterJson=after)

    def insert(self, name: str, values: Values, txn: int) -> None:
        """INSERT into a partition, which changes it."""
        self.changes += 1
        self.parts[name][values] = self.changes
        self._write_part(name, "INSERT", txn, ptnObjJson=_text(self.partition_struct(name, values)))

    def drop_partition(self, name: str, values: Values, txn: int) -> None:
        """DROP_PARTITION, which names it. The columns go along that the table's primary key belonged to."""
        self.changes += 1
        self.primary |= {name: f"key{self.changes}"} if name in self.primary else {}
        del self.parts[name][values]
        named = dict(zip((key for key, _ in KEYS), values, strict=True))
        self._write_part(name, "DROP_PARTITION", txn, partitions=[named])

    def change_partitions(self, name: str, txn: int) -> None:
        """A write that says nothing of which partitions it changes: it changes all of them."""
        for values in self.parts[name]:
            self.changes += 1
            self.parts[name][values] = self.changes
        self._write_part(name, "UPDATE_PART_COL_STAT_EVENT_BATCH", txn)

    def put_database(self, db: str) -> None:
        """CREATE_DATABASE, or ALTER_DATABASE where it is there already."""
        self.changes += 1
        known = db in self.databases
        self.gone.pop((db,), None)
        before = _text(self.database_struct(db)) if known else ""
        self.databases[db] = self.changes
        self.unlogged[db,] = self.unlogged[db,][-1:] if known else (self.changes,)
        after = _text(self.database_struct(db))
        if known:
            self._notify("ALTER_DATABASE", dbBeforeJson=before, dbAfterJson=after)
        else:
            self._notify("CREATE_DATABASE", dbJson=after)
        self.log[-1]["db"] = db

    def remove_database(self, db: str) -> None:
        """A cascade, with all that is in it."""
        for name in [each for each in self.functions if each[0] == db]:
            self.drop_function(name)
        del self.databases[db]
        self.drop_database(db)

    def create_function(self, name: tuple[str, str]) -> None:
        """CREATE_FUNCTION."""
        self.changes += 1
        self.gone.pop(name, None)
        self.functions[name] = self.changes
        self.unlogged[name] = (self.changes,)
        self._notify("CREATE_FUNCTION", functionObjJson=_text(self.function_struct(name)))
        self.log[-1]["db"] = name[0]

    def drop_function(self, name: tuple[str, str]) -> None:
        """DROP_FUNCTION."""
        del self.functions[name]
        self._notify("DROP_FUNCTION", functionName=name[1])
        self.log[-1]["db"] = name[0]

    def alter_unlogged(self, name: Values) -> None:
        """ALTER DATABASE of the comment, or ALTER FUNCTION: no event says so."""
        self.changes += 1
        self.unlogged[name] += (self.changes,)

    def drop_unlogged(self, name: Values) -> None:
        """DROP of a REMOTE database, or of a function with its database: no event says so."""
        self.gone[name] = self.functions.pop((name[0], name[1])) if len(name) > 1 else self.databases.pop(name[0])

    def abort_unlogged(self, txn: int) -> None:
        """A write conflict ends a transaction, and no event says so."""
        self.txns[txn] = "aborted"

    def lists_for(self, name: str, hwm: int, opened: set[int], aborted: set[int]) -> Listed:
        """The list of a reader that sees the transactions so.

        TxnHandler.getValidWriteIdsForTable, with the reader's ValidTxnList.
        """
        mine = sorted((write_id, txn) for table, txn, write_id in self.rows if table == name)
        known = [write_id for write_id, txn in mine if txn <= hwm]
        last = known[-1] if known else self.next_ids.get(name, 1) - 1
        below = [(write_id, txn) for write_id, txn in mine if write_id <= last]
        invalid = [write_id for write_id, txn in below if txn > hwm or txn in opened or txn in aborted]
        gone = [write_id for write_id, txn in below if txn in aborted]
        min_open = min(set(invalid) - set(gone), default=NONE_OPEN)
        if invalid and len(invalid) == len(below):
            last = invalid[0]
            invalid = [last]
            gone = [each for each in gone if each == last]
        return Listed(last, invalid, gone, min_open)


def _text(found: Struct) -> str:
    return json.dumps(in_json(found))
