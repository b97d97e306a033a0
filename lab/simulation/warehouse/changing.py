"""What applications do to a catalog, in transactions or outside of any; and what befalls its servers and processes."""

from __future__ import annotations

import json
from typing import Any, Final

from lab.simulation.warehouse.metastore import CATALOG, DATABASES, REMOTE, Values
from lab.simulation.warehouse.parts import CONSUMERS, PROCESSES, SOURCE, WarehouseParts

NAMES: Final = tuple(f"{db}.{table}" for db in DATABASES for table in ("a", "b"))
KINDS_OF_TABLE: Final = ("full", "insert_only", "external", "full")
VALUES: Final[tuple[Values, ...]] = (
    ("x", "1"), ("x", "2"), ("x", "10"), ("y", "1"), ("y", "2"), ("é", "__HIVE_DEFAULT_PARTITION__"),
)  # fmt: skip
FUNCTIONS: Final = (("s", "f"), ("s", "g"), ("w", "f"))
STRANGE: Final[tuple[tuple[str, bool, str | None, dict[str, Any]], ...]] = (
    ("SOMETHING_NEW", True, None, {}),
    ("SOMETHING_NEW", False, None, {}),
    ("ALTER_TABLE", True, None, {}),
    ("DROP_TABLE", True, "spark", {}),
    ("INSERT", True, None, {}),
    ("ADD_FOREIGNKEY", True, None, {"is": "made"}),
    ("ADD_FOREIGNKEY", True, None, {}),
    ("CREATE_DATACONNECTOR", False, None, {}),
    ("ALTER_CATALOG", False, None, {}),
    ("RELOAD", True, None, {}),
)
"""(type, whether it names a table, its catalog, its message) of events; most change nothing here."""
PART_WRITES: Final = ("UPDATE_TBL_COL_STAT_EVENT", "DELETE_TBL_COL_STAT_EVENT", "COMMIT_COMPACTION_EVENT")
SHOWS_NO_TABLE: Final = "DELETE_TBL_COL_STAT_EVENT"
"""An event that only names its table."""


class Changing(WarehouseParts):
    """The ops that change something."""

    def changed(self, what: str, *written: tuple[str, int]) -> None:
        """The catalog has just changed. ``written``: tables, with the transaction of each (0: none)."""
        for name, txn in written:
            if name in self.warehouse.tables:
                self.warehouse.wrote(name, txn)
        self.warehouse.record()
        self.say(f"event {len(self.warehouse.log)}: {what}")

    def opened(self) -> list[int]:
        """The open transactions."""
        return [txn for txn, state in self.warehouse.txns.items() if state == "open"]

    def txn(self, which: int) -> int:
        """An open transaction, or none (0)."""
        found = [0, *self.opened()]
        return found[which % len(found)]

    def is_external(self, table: str) -> bool:
        """No transaction gets a write id on such a table."""
        return self.warehouse.tables.get(table, (0, ""))[1] == "external"

    def op_open(self, count: int) -> None:
        """Transactions begin."""
        self.changed(f"transactions {self.warehouse.open_txns(1 + count % 3)} begin")

    def op_read_only(self) -> None:
        """A transaction that writes nothing uses up an id."""
        self.warehouse.open_read_only()
        self.changed("a transaction that only reads")

    def op_allocate(self, name: int, txn: int, count: int) -> None:
        """Open transactions get write ids on a table, which may not be there yet."""
        opened, table = self.opened(), NAMES[name % len(NAMES)]
        if opened and not self.is_external(table):
            first = txn % len(opened)
            self.warehouse.allocate(table, opened[first : first + 1 + count % 2])
            self.changed(f"{opened[first : first + 1 + count % 2]} get write ids on {table}")

    def op_end(self, txn: int, how: int) -> None:
        """A transaction commits, aborts, or is aborted without an event."""
        opened = self.opened()
        if not opened:
            return
        which = opened[txn % len(opened)]
        if how % 5 == 4:
            self.count_fault("abort without an event")
            self.warehouse.abort_unlogged(which)
            self.changed(f"{which} is aborted, and no event says so")
        else:
            self.warehouse.end(which, commit=how % 5 > 0)
            self.changed(f"{which} is {'committed' if how % 5 else 'aborted'}")

    def op_create(self, name: int, kind: int) -> None:
        """A table is made; its database too, if it is not there."""
        table = NAMES[name % len(NAMES)]
        db = table.partition(".")[0]
        if table in self.warehouse.tables:
            return
        if db not in self.warehouse.databases:
            self.warehouse.put_database(db)
            self.changed(f"database {db} is made")
        made = KINDS_OF_TABLE[kind % len(KINDS_OF_TABLE)]
        self.warehouse.create_table(table, made, partitioned=bool(kind % 3))
        self.changed(f"{table} is made, {made}", (table, 0))

    def op_view(self, name: int, kind: int) -> None:
        """A materialized view is made, in a database that is there; one that is there already is rebuilt."""
        table = NAMES[name % len(NAMES)]
        known = self.warehouse.tables.get(table)
        if known is None and table.partition(".")[0] in self.warehouse.databases:
            self.warehouse.create_view(table, ("full", "external")[kind % 2])
            self.changed(f"{table} is made, a materialized view", (table, 0))
        elif known is not None and known[0] in self.warehouse.views:
            [txn] = self.warehouse.open_txns(1)
            if not self.is_external(table):
                self.warehouse.allocate(table, [txn])
            self.warehouse.rebuild(table)
            self.count_fault("rebuilt without an event")
            self.changed(f"{table} is rebuilt by {txn}, and no event says so", (table, txn))
            self.warehouse.end(txn, commit=True)
            self.changed(f"{txn} is committed")

    def op_alter(self, name: int, txn: int) -> None:
        """A table is altered."""
        table, by = NAMES[name % len(NAMES)], self.txn(txn)
        if table in self.warehouse.tables:
            self.warehouse.alter(table, by)
            self.changed(f"{table} is altered by {by}", (table, by))

    def op_entangle(self, name: int, how: int, txn: int) -> None:
        """A table is altered with all its partitions, or by two at once: events don't show what is stored."""
        table, by = NAMES[name % len(NAMES)], self.txn(txn)
        if table in self.warehouse.tables:
            (self.warehouse.alter_merged if how % 2 else self.warehouse.cascade)(table, by)
            self.count_fault("two alters at once" if how % 2 else "cascade without an event")
            self.changed(f"{table} is altered {'twice' if how % 2 else 'with all partitions'} by {by}", (table, by))

    def op_key(self, name: int, to: int) -> None:
        """A table gets a foreign key to another one; or it gets or loses its primary key."""
        table, parent = NAMES[name % len(NAMES)], NAMES[to % len(NAMES)]
        if not {table, parent} <= self.warehouse.tables.keys():
            return
        if table == parent or parent not in self.warehouse.primary:
            table = parent
            self.warehouse.put_primary_key(table)
            self.changed(f"{table}: {self.warehouse.log[-1]['eventType']}", (table, 0))
        else:
            self.warehouse.put_foreign_key(table, parent)
            self.changed(f"{table} points to {parent}", (table, 0), (parent, 0))

    def op_touch(self, name: int, what: int, txn: int) -> None:
        """A part of a table is written that is no partition, and with it the table's parameters."""
        table, by = NAMES[name % len(NAMES)], self.txn(txn)
        if table in self.warehouse.tables:
            kind = PART_WRITES[what % len(PART_WRITES)]
            self.warehouse.write(table, kind, by, shown=kind != SHOWS_NO_TABLE)
            self.changed(f"{table} is touched by {by}", (table, by))

    def op_partition(self, name: int, what: int, which: int, txn: int) -> None:
        """A partition is added, altered, moved, dropped or inserted into; or all of them are changed at once."""
        table, values, by = NAMES[name % len(NAMES)], VALUES[which % len(VALUES)], self.txn(txn)
        if table not in self.warehouse.tables or self.warehouse.tables[table][0] not in self.warehouse.partitioned:
            return
        known = values in self.warehouse.parts[table]
        match what % 8:
            case 0 if known:
                self.warehouse.drop_partition(table, values, by)
            case 1:
                self.warehouse.change_partitions(table, by)
            case 2 if known:
                self.warehouse.insert(table, values, by)
            case 3 if known and (to := VALUES[(which + 1) % len(VALUES)]) not in self.warehouse.parts[table]:
                self.warehouse.move_partition(table, values, to, by)
            case _:
                self.warehouse.put_partition(table, values, by)
        self.changed(f"partition {values} of {table}: {self.warehouse.log[-1]['eventType']} by {by}", (table, by))

    def op_analyze(self, name: int, which: int, how: int, txn: int) -> None:
        """Statistics of a table or of one of its partitions are made, or deleted."""
        table, by = NAMES[name % len(NAMES)], self.txn(txn)
        if self.analyzed is None or table not in self.warehouse.tables:
            return
        forget, values = how % 4 == 0, (*VALUES, ())[which % (len(VALUES) + 1)]
        if not values:
            self.warehouse.write(table, PART_WRITES[forget], by, shown=not forget)
        elif values in self.warehouse.parts[table]:
            self.analyzed.analyze(table, values, by, forget=forget)
        else:
            return
        self.changed(f"{values or table}: {self.warehouse.log[-1]['eventType']} by {by}", (table, by))

    def op_drop(self, name: int) -> None:
        """A table is dropped."""
        table = NAMES[name % len(NAMES)]
        if table in self.warehouse.tables:
            self.warehouse.drop(table)
            self.changed(f"{table} is dropped")

    def op_overtake(self, name: int, to: int) -> None:
        """A table gets another name, while someone else alters it."""
        self.op_rename(name, to, is_overtaken=True)

    def op_rename(self, name: int, to: int, *, is_overtaken: bool = False) -> None:
        """A table gets another name."""
        old, new = NAMES[name % len(NAMES)], NAMES[to % len(NAMES)]
        tables = self.warehouse.tables
        if old in tables and new not in tables and new.partition(".")[0] in self.warehouse.databases:
            (self.warehouse.rename_overtaken if is_overtaken else self.warehouse.rename)(old, new)
            if new in tables:
                self.count_fault("two alters at once" if is_overtaken else "rename")
                self.changed(f"{old} is renamed to {new}", (new, 0))

    def op_convert(self, name: int) -> None:
        """An external table becomes a transactional one."""
        table = NAMES[name % len(NAMES)]
        if self.is_external(table):
            before = len(self.warehouse.log)
            self.warehouse.convert(table)
            if len(self.warehouse.log) > before:
                self.changed(f"{table} is converted", (table, 0))

    def op_seed(self, name: int, count: int) -> None:
        """A transactional table that has none gets write ids that are valid to everyone, and no event says so."""
        table = NAMES[name % len(NAMES)]
        if table in self.warehouse.tables and not self.is_external(table) and self.warehouse.seed(table, 1 + count):
            self.count_fault("ids without an event")
            self.changed(f"{table} gets {1 + count} write ids, and no event says so", (table, 0))

    def op_strange(self, name: int, what: int) -> None:
        """The log has an event of a later version, of another catalog, without its message, or of a foreign key.

        An ALTER_TABLE without its message has altered the table; an INSERT without one has changed its partitions.
        """
        table = NAMES[name % len(NAMES)]
        kind, named, catalog, message = STRANGE[what % len(STRANGE)]
        if kind in ("ALTER_TABLE", "INSERT") and table in self.warehouse.tables:
            (self.warehouse.alter if kind == "ALTER_TABLE" else self.warehouse.change_partitions)(table, 0)
            self.warehouse.log[-1] |= {"eventType": kind, "message": {}}
            self.changed(f"{kind} of {table}, without its message", (table, 0))
            return
        if message:
            db, _, of = table.partition(".")
            message = {"foreignKeyListJson": [json.dumps({"4": {"str": db}, "5": {"str": of}})]}
            table = NAMES[(name + 1) % len(NAMES)]
        self.warehouse.note(kind, table if named else "", catalog, **message)
        self.changed(f"{kind} of {table if named else 'nothing'} in {catalog or CATALOG}")

    def op_database(self, db: int, what: int) -> None:
        """A database is made or altered; or dropped, with all that is in it."""
        name = DATABASES[db % len(DATABASES)]
        if what % 4 == 3 and name in self.warehouse.databases:
            self._drop_database(name)
        else:
            self.warehouse.put_database(name)
            self.changed(f"database {name} is made or altered")

    def _drop_database(self, name: str) -> None:
        self.count_fault("database dropped")
        for table in [each for each in self.warehouse.parts if each.startswith(f"{name}.")]:
            self.warehouse.drop(table)
            self.changed(f"{table} is dropped")
        self.warehouse.remove_database(name)
        self.changed(f"database {name} is dropped")

    def op_function(self, which: int) -> None:
        """A function is made, or dropped if it is there."""
        name = FUNCTIONS[which % len(FUNCTIONS)]
        if name in self.warehouse.functions:
            self.warehouse.drop_function(name)
        elif name[0] in self.warehouse.databases:
            self.warehouse.create_function(name)
        else:
            return
        self.changed(f"function {'.'.join(name)}: {self.warehouse.log[-1]['eventType']}")

    def op_unlogged(self, which: int) -> None:
        """A database or a function is altered, and no event says so."""
        found = [*((db,) for db in self.warehouse.databases), *self.warehouse.functions]
        if found:
            name = found[which % len(found)]
            self.count_fault("altered without an event")
            self.warehouse.alter_unlogged(name)
            self.changed(f"{'.'.join(name)} is altered, and no event says so")

    def op_vanish(self, which: int) -> None:
        """A remote database is made, or dropped without an event; or a database is dropped, its functions without."""
        db = (*DATABASES, REMOTE)[which % (len(DATABASES) + 1)]
        if db not in self.warehouse.databases:
            self.warehouse.put_database(db)
            self.changed(f"database {db} is made")
            return
        self.count_fault("dropped without an event")
        names = [(db,)] if db == REMOTE else [each for each in self.warehouse.functions if each[0] == db]
        for name in names:
            self.warehouse.drop_unlogged(name)
            self.changed(f"{'.'.join(name)} is dropped, and no event says so")
        if db != REMOTE:
            self._drop_database(db)

    # --- faults ---

    def op_metastore(self, down: int, pause: int) -> None:
        """The metastore goes away with all connections, or comes back."""
        if down % 2:
            self.count_fault("metastore down")
            self.say("the metastore is down")
            self.server.crash()
        else:
            self.server.down = False
        self.pause(pause)

    def op_slow(self, what: int, pause: int) -> None:
        """The metastore takes longer than its callers wait, for a while; or, from now on, long for each call."""
        seconds = (8.0, 0.1, 0.3, 0.0)[what % 4]
        if seconds:
            self.count_fault("metastore slow")
        self.say(f"the metastore takes {seconds} s for a call")
        self.server.slow_s = seconds
        self.pause(pause)
        if what % 4 == 0:
            self.server.slow_s = 0.0

    def op_break(self, process: int, count: int) -> None:
        """The metastore's answers to a process are lost, with their connections."""
        name = PROCESSES[process % len(PROCESSES)]
        self.count_fault("connection breaks")
        self.say(f"{name} loses {1 + count % 3} answers of the metastore")
        self.server.to_break[name] = 1 + count % 3

    def op_expire(self, pause: int) -> None:
        """The source is away for so long that the metastore deletes events that it has not read."""
        self.kernel.kill(SOURCE)
        self.pause(pause)
        self.count_fault("events deleted")
        self.server.lost_below = len(self.warehouse.log)
        self.say(f"events up to {self.server.lost_below} are deleted")

    def op_disk(self, consumer: int) -> None:
        """All files of a consumer that is down are gone."""
        name = CONSUMERS[consumer % len(CONSUMERS)]
        if not self.kernel.is_running(name):
            self.count_fault("disk lost")
            self.say(f"the disk of {name} is gone")
            self.disk.lose(name)
