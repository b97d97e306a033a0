"""From notification events to source transactions. Pure: the state is the log so far and the arguments.

Each event becomes one `SourceTransaction` whose gtid and position are ``HiveEvent/<id>``. The translator keeps three
things: the open transactions, the table id of each name, and the server's registry of write ids. So a COMMIT, which
names no table, gets its (table id, write id) pairs. They are complete only if the transaction's OPEN was seen, else an
ALLOC may be missing (docs/concepts/catalog.md). An event that is unreadable or of an unknown type voids what it may
have touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from stream.sources.hive.events import IGNORED, OF_CATALOG, WRITES
from stream.sources.hive.messages import (
    HiveMessageError,
    Notification,
    TableObject,
    has_dot,
    integer,
    integers,
    lower_name,
    parse_envelope,
    parse_notification,
    parse_table,
)
from stream.sources.hive.object_events import ObjectEvents, tables_with_key
from stream.sources.hive.write_id_registry import WriteIdChange, WriteIdRegistry
from stream.wire.events import (
    EVERY_TABLE,
    AbortTransaction,
    AllocateWriteId,
    BindName,
    Change,
    CommitTransaction,
    OpenTransaction,
    ResetWriteIds,
    SourceTransaction,
    TableImage,
    VoidTable,
)
from tokens.errors import one_line
from tokens.writeid_state import WriteIds

DEFAULT_CATALOG: Final = "hive"
TXNS_MAX: Final = 1_000_000
"""An OPEN_TXN with more transactions is treated as damaged."""


@dataclass(slots=True)
class _Open:
    seen_open: bool
    wrote: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Table:
    table_id: int
    kind: str
    columns: int = 0
    """As of `TableObject`, after the last event that may have changed them."""
    is_sure: bool = False
    """Whether an event has given it its name, or the server has shown it, and nothing was missed of the log since."""
    takes_commits: bool | None = None
    """As of `TableObject`; None: nobody has shown the table since the source began."""


class HiveTranslator:
    """Translates one log, event by event, in order.

    ``open_transactions`` and ``names`` (``db.table`` → table id) continue an earlier run. ``with_images``: after each
    write, publish the table as the event shows it, in place of the image that a source would fetch. Use it only for
    replay, where nothing can be fetched.
    """

    def __init__(
        self,
        *,
        open_transactions: Iterable[OpenTransaction] = (),
        names: Mapping[str, int] | None = None,
        catalog: str = DEFAULT_CATALOG,
        with_images: bool = False,
    ) -> None:
        self._catalog = catalog
        self._with_images = with_images
        self._objects = ObjectEvents(catalog, with_images)
        self._ids = WriteIdRegistry()
        self._open: dict[int, _Open] = {}
        self._tables: dict[str, _Table] = {
            name: _Table(at, "transactional", is_sure=True) for name, at in (names or {}).items()
        }
        self._changed: set[int] = set()
        self._names: dict[int, str] = {table.table_id: name for name, table in self._tables.items()}
        """Table id → the name that it is bound to."""
        self.last_event_id: int | None = None
        self.unbound: list[str] = []
        """Tables that the last event wrote and that are bound to no id yet, and names of which it says otherwise than
        what came before it. What was read of them before it is old."""
        self.skipped: list[str] = []
        """Tables to which the last event gave ids that do not follow the ones before: their lists are to be fetched."""
        self.unresolved: list[int] = []
        """Committed transactions whose OPEN was not seen. A live source must look them up at the server."""
        for known in open_transactions:
            self._open[known.txn] = _Open(known.seen_open, set(known.wrote))
            for table_id, write_id in known.write_ids:
                if table_id in self._names:
                    self._ids.restore(self._names[table_id], known.txn, write_id)
        self._handlers: dict[str, Callable[[Notification], list[Change]]] = {
            "OPEN_TXN": self._open_txn,
            "ALLOC_WRITE_ID_EVENT": self._allocate,
            "COMMIT_TXN": self._commit,
            "ABORT_TXN": self._abort,
            "CREATE_TABLE": self._create,
            "ALTER_TABLE": self._alter,
            "DROP_TABLE": self._drop,
            "DROP_DATABASE": self._drop_database,
        }

    @property
    def write_id_changes(self) -> list[WriteIdChange]:
        """What the last event did to write ids, also to those of names that have no table yet."""
        return self._ids.changes

    @property
    def open_transactions(self) -> Mapping[int, bool]:
        """Transaction → whether its OPEN was seen, of those that have not ended."""
        return {txn: state.seen_open for txn, state in self._open.items()}

    def name_of(self, table_id: int) -> str:
        """The name that a table is bound to; empty if it is to none."""
        return self._names.get(table_id, "")

    def is_bound(self, name: str) -> bool:
        """Whether a table has this name."""
        return name in self._tables

    def holders(self, name: str) -> dict[int, int]:
        """Open write id → its transaction, of the ids under ``name`` for which the log told it."""
        ids = self._ids.get(name)
        return {write_id: txn for write_id, txn in ids.open if txn} if ids is not None else {}

    # --- what a live source adds: it can ask the server ---

    def bind(self, table: TableObject) -> list[Change]:
        """The server shows ``table``: bind its name, if that is news."""
        changes = self._rebind(table)
        known = self._bind(table)
        known.columns, known.is_sure = table.columns, True
        return changes

    def forget(self, name: str) -> list[Change]:
        """The server has no table of this name, and no event said so: what had it may live on under another one."""
        return self._forget(name, dropped=False) if name in self._tables else []

    def restore(self, name: str, txn: int, write_id: int) -> OpenTransaction:
        """The server says that ``txn`` is open and holds ``write_id``; returns the open transaction.

        One that nobody has heard of began in events that were lost.
        """
        self._open.setdefault(txn, _Open(seen_open=False))
        self._ids.restore(name, txn, write_id)
        return self._describe(txn)

    def writers_of(self, name: str) -> tuple[OpenTransaction, ...]:
        """The open transactions that hold ids under ``name``."""
        return tuple(self._describe(txn) for txn in sorted({*self.holders(name).values()} & self._open.keys()))

    def abort_unlogged(self, txn: int) -> list[Change]:
        """The server no longer knows ``txn`` as open, and no event ended it: it was aborted."""
        self._open.pop(txn, None)
        self._ids.changes.clear()
        return [
            AbortTransaction(txn, tuple(self._with_table_ids(self._ids.end(txn, committed=False))), reconciled=True)
        ]

    def take_unresolved(self) -> list[str]:
        """The tables whose lists may lack a COMMIT: it was by a transaction of which not all was seen."""
        if not self.unresolved:
            return []
        self.unresolved.clear()
        return self._ids.with_open_ids()

    @property
    def tables(self) -> dict[str, int]:
        """Table name → table id."""
        return {name: table.table_id for name, table in self._tables.items()}

    def translate(self, row: Mapping[str, Any]) -> SourceTransaction | None:
        """Translate one row of the log; None if it was translated before.

        Raises `HiveMessageError` only if the row has no event id or time, so that it cannot be ordered.
        """
        try:
            event = parse_notification(row)
            problem = ""
        except HiveMessageError as error:
            event, problem = parse_envelope(row), str(error)
        last = self.last_event_id
        if last is not None and event.event_id <= last:
            return None
        changes: list[Change] = []
        self._changed.clear()
        self._ids.changes.clear()
        self.unbound.clear()
        self.skipped.clear()
        if last is not None and event.event_id > last + 1:
            changes += self._gap(last + 1, event.event_id - 1)
        self.last_event_id = event.event_id
        before = set(self._open)
        changes += self._changes_of(event, problem)
        opened = tuple(self._describe(txn) for txn in sorted(self._changed & self._open.keys()))
        closed = tuple(sorted(before - self._open.keys()))
        return SourceTransaction(event.position, event.position, event.event_time, changes, "", opened, closed)

    def _changes_of(self, event: Notification, problem: str) -> list[Change]:
        is_elsewhere = bool(event.catalog) and event.catalog != self._catalog
        if is_elsewhere and not _may_take_ids(event):
            return []
        if problem:
            return self._unreadable(event, problem)
        if event.table and has_dot(event.db) and event.event_type not in ("ALTER_TABLE", "ADD_FOREIGNKEY"):
            return []  # nobody is told of its tables, whose names may be those of others
        try:
            if is_elsewhere:
                return self._elsewhere(event)
            handler = self._handlers.get(event.event_type)
            if handler is not None:
                return handler(event)
            if event.event_type in WRITES:
                return self._write(event)
            if event.event_type in OF_CATALOG:
                return self._objects.of_catalog(event)
        except HiveMessageError as error:
            return self._unreadable(event, str(error))
        if event.event_type in IGNORED:
            return []
        return self._unreadable(event, f"unknown event type {event.event_type or '(none)'}")

    def _elsewhere(self, event: Notification) -> list[Change]:
        """A rename or drop in another catalog. The server keeps write ids by ``db.table``, whatever the catalog.

        So a rename there takes along the ids of a table here, and a drop in the default catalog deletes them; one in
        any other catalog leaves them. They begin again from 1 under the same table id: what was cached with the old
        ones would seem to hold the new ones.
        """
        changes: list[Change] = []
        for name in self._ids_moved(event):
            table = self._tables.get(name)
            if table is not None:
                why = f"event {event.event_id}: its write ids are gone with a table of catalog {event.catalog}"
                changes.append(VoidTable(name, one_line(why)))
                changes.append(ResetWriteIds(table.table_id, WriteIds().full_text(name), committed=False))
                changes += self._server_list(name, table.table_id)
        return changes

    def _ids_moved(self, event: Notification) -> list[str]:
        """The names whose ids an event of another catalog has moved or deleted."""
        if event.event_type == "ALTER_TABLE":
            before = parse_table(event.message, "tableObjBeforeJson")
            after = parse_table(event.message, "tableObjAfterJson")
            if before.name == after.name or not after.transactional:
                return []
            self._tell_holders([before.name, after.name])
            self._ids.rename(before.name, after.name)
            return [before.name, after.name]
        if event.event_type == "DROP_TABLE":
            table = parse_table(event.message, "tableObjJson")
            if not table.transactional:
                return []
            self._tell_holders([table.name])
            self._ids.drop(table.name)
            return [table.name]
        if not event.db or has_dot(event.db):
            return []
        names = [name for name in self._tables if name.startswith(f"{event.db}.")]
        self._tell_holders(names)
        self._ids.drop_database(event.db)
        return names

    def _tell_holders(self, names: Iterable[str]) -> None:
        """The topic is to know what the holders of open ids under ``names`` hold after this event."""
        self._changed.update(txn for name in names for txn in self.holders(name).values() if txn in self._open)

    def _unreadable(self, event: Notification, problem: str) -> list[Change]:
        """Void what the event may have touched: its table if it names one, else everything.

        An ALTER_TABLE names one only by its new name, and may have renamed any. An ADD_FOREIGNKEY names another one.
        """
        touched = event.table_name if event.event_type not in ("ALTER_TABLE", "ADD_FOREIGNKEY") else ""
        if not touched:
            self._doubt()
        return [VoidTable(touched or EVERY_TABLE, one_line(f"event {event.event_id}: {problem}"))]

    def _gap(self, first: int, last: int) -> list[Change]:
        """Events are missing from the log: void everything, and no longer trust any open transaction."""
        for txn, state in self._open.items():
            state.seen_open = False
            self._changed.add(txn)
        self._doubt()
        return [VoidTable(EVERY_TABLE, f"events {first} to {last} are missing from the log")]

    def _doubt(self) -> None:
        """What was not seen may have made any table transactional: until it is shown, its writers are waited for."""
        self._ids.doubt(self._tables)
        for table in self._tables.values():
            table.kind, table.is_sure = "transactional", False

    def _describe(self, txn: int) -> OpenTransaction:
        state = self._open[txn]
        pairs = self._with_table_ids(self._ids.pairs_of(txn))
        return OpenTransaction(txn, tuple(pairs), state.seen_open, tuple(sorted(state.wrote)))

    def _with_table_ids(self, pairs: Iterable[tuple[str, int]]) -> list[tuple[int, int]]:
        """(name, write id) pairs as (table id, write id) pairs; names without a table are left out."""
        return [(self._tables[name].table_id, write_id) for name, write_id in pairs if name in self._tables]

    # --- transactions ---

    def _open_txn(self, event: Notification) -> list[Change]:
        txns = integers(event.message, "txnIds")
        if not txns:
            first, last = integer(event.message, "fromTxnId"), integer(event.message, "toTxnId")
            if not 0 < first <= last or last - first >= TXNS_MAX:
                raise HiveMessageError(f"invalid range of transactions, {first} to {last}")
            txns = list(range(first, last + 1))
        for txn in txns:
            self._open[txn] = _Open(seen_open=True)
        self._changed.update(txns)
        return []

    def _allocate(self, event: Notification) -> list[Change]:
        name, pairs = _allocations(event)
        table = self._tables.get(name)
        changes: list[Change] = []
        for txn, write_id in pairs:
            self._open.setdefault(txn, _Open(seen_open=False))
            self._changed.add(txn)
            allocation = self._ids.allocate(name, txn, write_id)
            if table is None:
                continue
            if allocation.skipped and name not in self.skipped:
                self.skipped.append(name)
            if allocation.survived_drop:
                changes += self._server_list(name, table.table_id)
            changes.append(AllocateWriteId(table.table_id, txn, write_id, allocation.reallocated))
        return changes

    def _server_list(self, name: str, table_id: int) -> list[Change]:
        """Publish the server's list of a name, and the transactions that hold its open ids."""
        ids = self._ids.get(name)
        if ids is None or not ids.hwm:
            return []
        self._changed.update(txn for _, txn in ids.open if txn in self._open)  # the topic must know their table too
        changes: list[Change] = [ResetWriteIds(table_id, ids.full_text(name), ids.committed)]
        changes += [AllocateWriteId(table_id, txn, write_id) for write_id, txn in ids.open if txn]
        return changes

    def _commit(self, event: Notification) -> list[Change]:
        txn = integer(event.message, "txnid")
        known = self._open.pop(txn, None)
        held = self._ids.end(txn, committed=True)
        pairs = self._with_table_ids(held)
        may_hold: list[str] = []
        if known is None or not known.seen_open:
            self.unresolved.append(txn)
            held += _named_write_ids(event)
            pairs = sorted({*pairs, *self._with_table_ids(held)})
            may_hold = self._ids.with_open_ids()
        return [
            CommitTransaction(txn, tuple(pairs)),
            *self._set_by_commit(txn, dict.fromkeys(may_hold, 0) | dict(held)),
        ]

    def _set_by_commit(self, txn: int, held: Mapping[str, int]) -> list[Change]:
        """The writes of those tables that a COMMIT may have changed: of those by name of which it held a write id."""
        known = ((name, self._tables.get(name), write_id) for name, write_id in held.items())
        return [
            TableImage(table.table_id, name, table.kind, "written", txn, write_id)
            for name, table, write_id in known
            if table is not None and table.takes_commits is not False
        ]

    def _abort(self, event: Notification) -> list[Change]:
        txn = integer(event.message, "txnid")
        self._open.pop(txn, None)
        return [AbortTransaction(txn, tuple(self._with_table_ids(self._ids.end(txn, committed=False))))]

    # --- tables ---

    def _create(self, event: Notification) -> list[Change]:
        table = parse_table(event.message, "tableObjJson")
        changes = self._forget(table.name, dropped=False) if table.name in self._tables else []
        known = self._bind(table)
        known.columns, known.is_sure = table.columns, True
        changes.append(BindName(table.name, table.table_id))
        changes += self._server_list(table.name, table.table_id)
        is_shown = self._with_images and not table.is_materialized
        image = table.image if is_shown else None
        position = event.position if image is not None else ""
        struct = table.struct if is_shown else None
        created = TableImage(table.table_id, table.name, known.kind, "created", image=image, struct=struct)
        created.lo = created.hi = position
        return [*changes, created, *self._objects.of_new_table(table.table_id)]

    def _bind(self, table: TableObject) -> _Table:
        before = self._tables.get(table.name)
        kind = "transactional" if table.transactional else "external"
        known = _Table(table.table_id, kind, takes_commits=table.takes_commits)
        if before is not None and before.table_id == table.table_id:
            known.columns, known.is_sure = before.columns, before.is_sure
        self._unname(table.name)
        self._tables[table.name] = known
        self._names[table.table_id] = table.name
        return known

    def _unname(self, name: str) -> None:
        """The table that is bound to ``name``, if there is one, is to have no name."""
        known = self._tables.get(name)
        if known is not None and self._names.get(known.table_id) == name:
            del self._names[known.table_id]

    def _unbind(self, name: str) -> _Table | None:
        """Nothing is bound to ``name`` any more; what was."""
        self._unname(name)
        return self._tables.pop(name, None)

    def _rebind(self, table: TableObject) -> list[Change]:
        """Bind the name that a table is shown with. One that it had before is free: its rename was not seen."""
        known = self._tables.get(table.name)
        if known is not None and known.table_id == table.table_id:
            return []
        before = self.name_of(table.table_id)
        freed = self._unbind(before)
        if freed is not None and freed.kind == "transactional":
            self._ids.drop(before)  # or the next table of that name would begin with them
        # Ids that were allocated under the name before are not told of this table yet.
        self._tell_holders([table.name])
        return [BindName(table.name, table.table_id, before)]

    def _shown(self, table: TableObject) -> tuple[TableObject, list[Change]]:
        """An event shows ``table``: the table that it writes, and the binding of its name if that is news.

        Of two changes at once, the one that is logged later shows the name from before the other one's rename. So a
        table whose name is sure keeps it, and both names are to be fetched: what is stored decides.
        """
        before = self.name_of(table.table_id)
        if before in ("", table.name):
            return table, self._rebind(table)
        self.unbound += [before, table.name]
        if self._tables[before].is_sure:
            return replace(table, name=before, image=b""), []
        return table, self._rebind(table)

    def _forget(self, name: str, *, dropped: bool) -> list[Change]:
        """Unbind the name. ``dropped``: its table is known to be dropped; else it may live on, renamed unseen."""
        table = self._unbind(name)
        assert table is not None, "only a bound name is forgotten"
        if table.kind == "transactional":
            self._ids.drop(name)
        changes: list[Change] = [BindName(name, 0)]
        return [*changes, TableImage(table.table_id, name, table.kind, "dropped")] if dropped else changes

    def _drop(self, event: Notification) -> list[Change]:
        table = parse_table(event.message, "tableObjJson")
        known = self._tables.get(table.name)
        other = known is not None and known.table_id != table.table_id
        changes = self._forget(table.name, dropped=False) if other else []
        self._bind(table)
        return changes + self._forget(table.name, dropped=True)

    def _drop_database(self, event: Notification) -> list[Change]:
        """Unbind the names that are left. A cascade has logged its own events for the tables that it dropped."""
        if not event.db:
            raise HiveMessageError("the dropped database has no name")
        changes: list[Change] = []
        if not has_dot(event.db):
            left = [name for name in self._tables if name.startswith(f"{event.db}.")]
            changes = [change for name in left for change in self._forget(name, dropped=False)]
            self._ids.drop_database(event.db)
        return changes + self._objects.of_catalog(event)

    def _alter(self, event: Notification) -> list[Change]:
        before = parse_table(event.message, "tableObjBeforeJson")
        after = shown = parse_table(event.message, "tableObjAfterJson")
        write_id = integer(event.message, "writeId", 0)
        lists: list[Change] = []
        if after.is_ambiguous:
            return self._left(event, before, write_id)
        is_renamed = before.name != after.name and not before.is_ambiguous
        if is_renamed:
            bound, *lists = self._rename(before, after)
            names = [bound]
        else:
            after, names = self._shown(after)
        has_same_columns = self._has_same_columns(event, before, after)
        known = self._bind(after)
        known.columns, known.is_sure = after.columns, known.is_sure or is_renamed
        if after is shown and after.full_acid and not before.full_acid and self._ids.seed(after.name):
            lists += self._seeded_list(after)
        # The image is awaited before the name is bound: else a reader may meet the old image under the new name.
        written = self._written(event, after, write_id)
        is_partitioned = bool(before.partition_keys or after.partition_keys)
        return [
            *(lists + written + names),
            *self._objects.of_altered_table(
                after.table_id, is_partitioned=is_partitioned, has_same_columns=has_same_columns
            ),
        ]

    def _has_same_columns(self, event: Notification, before: TableObject, after: TableObject) -> bool:
        """Whether nothing changed in columns and name, nor since the last event that tells of them.

        The image before may be older than that event: two alters at once each show what they have read.
        """
        known = self._tables.get(after.name)
        is_truncated = str(event.message.get("isTruncateOp", "")).lower() == "true"
        if known is None or known.table_id != after.table_id or is_truncated or before.name != after.name:
            return False
        return known.columns == before.columns == after.columns and before.transactional == after.transactional

    def _left(self, event: Notification, before: TableObject, write_id: int) -> list[Change]:
        """The table was renamed to where nobody is told of it. It is not dropped: it may come back, by its id too."""
        known = self._tables.get(before.name)
        if known is None or known.table_id != before.table_id:
            return []
        written = self._written(event, replace(before, image=b""), write_id)
        return [*written, *self._forget(before.name, dropped=False), *self._objects.of_altered_table(before.table_id)]

    def _seeded_list(self, table: TableObject) -> list[Change]:
        ids = self._ids.get(table.name)
        assert ids is not None, "a seeded name has a list"
        return [ResetWriteIds(table.table_id, ids.full_text(table.name), committed=False)]

    def _rename(self, before: TableObject, after: TableObject) -> list[Change]:
        """The ids of a transactional table move to the new name. Without ids, it gets those of the new name."""
        known_as = self.name_of(after.table_id)
        is_free = known_as not in ("", before.name, after.name)  # it was renamed before, and that was not seen
        freed = self._forget(known_as, dropped=False) if is_free else []
        self.unbound += [known_as] if is_free else []  # or it was renamed twice at once, and it still has that name
        self._unbind(before.name)
        changes: list[Change] = [BindName(after.name, after.table_id, before.name), *freed]
        if after.transactional and self._ids.rename(before.name, after.name):
            return changes
        if self._ids.get(before.name) is not None or self._ids.get(after.name) is not None:
            changes.append(ResetWriteIds(after.table_id, WriteIds().full_text(after.name), committed=False))
            changes += self._server_list(after.name, after.table_id)
        return changes

    def _write(self, event: Notification) -> list[Change]:
        """An event that writes a table or a part of it."""
        write_id = integer(event.message, "writeId", 0)
        if event.event_type == "ADD_FOREIGNKEY":
            return self._add_foreign_key(event, write_id)
        if event.message.get("tableObjJson") is not None:
            table = parse_table(event.message, "tableObjJson")
            table, names = self._shown(table)
            self._bind(table)
            return self._written(event, table, write_id) + names + self._objects.of_write(event, table)
        known = self._tables.get(event.table_name)
        if known is None:
            if not event.table_name:
                raise HiveMessageError("the written table has no name")
            self.unbound.append(event.table_name)
            return []
        shown = TableObject(event.table_name, known.table_id, known.kind == "transactional", False, b"")
        return self._written(event, shown, write_id) + self._objects.of_write(event, shown)

    def _add_foreign_key(self, event: Notification, write_id: int) -> list[Change]:
        """The event is named after the table that the key points to; the tables that have it are in its message."""
        changes: list[Change] = []
        for name in dict.fromkeys([*tables_with_key(event.message), event.table_name]):
            known = self._tables.get(name)
            if known is not None:
                shown = TableObject(name, known.table_id, known.kind == "transactional", False, b"")
                changes += self._written(event, shown, write_id) + self._objects.of_write(event, shown)
            else:
                self.unbound.append(name)
        return changes

    def _written(self, event: Notification, table: TableObject, write_id: int) -> list[Change]:
        ids = self._ids.get(table.name)
        write_id = max(write_id, 0)
        txn = (ids.transaction_of(write_id) if ids is not None and write_id else 0) or 0
        if txn in self._open:
            self._open[txn].wrote.add(table.table_id)
            self._changed.add(txn)
        kind = "transactional" if table.transactional else "external"
        changes: list[Change] = [TableImage(table.table_id, table.name, kind, "written", txn, write_id)]
        if self._with_images and table.image and not table.is_materialized:
            changes.append(
                TableImage(
                    table.table_id,
                    table.name,
                    kind,
                    "image",
                    image=table.image,
                    struct=table.struct,
                    lo=event.position,
                    hi=event.position,
                )
            )
        return changes


def _allocations(event: Notification) -> tuple[str, list[tuple[int, int]]]:
    """``db.table`` and its (transaction, write id) pairs by write id, from either form of the message."""
    message = event.message
    db = lower_name(message.get("dbName") or event.db)
    table = lower_name(message.get("tableName") or event.table)
    txns, write_ids = integers(message, "txnIdList"), integers(message, "writeIdList")
    listed = message.get("txnToWriteIdList")
    if not txns and isinstance(listed, list):
        pairs = [_allocated_pair(each) for each in listed]
    elif len(txns) == len(write_ids):
        pairs = list(zip(txns, write_ids, strict=True))
    else:
        raise HiveMessageError(f"{len(txns)} transactions but {len(write_ids)} write ids")
    if not db or not table or any(txn < 1 or write_id < 1 for txn, write_id in pairs):
        raise HiveMessageError("the allocation has no table name, or an id below 1")
    return f"{db}.{table}", sorted(pairs, key=lambda pair: pair[1])


def _allocated_pair(each: Any) -> tuple[int, int]:
    if not isinstance(each, dict):
        raise HiveMessageError("txnToWriteIdList has an element that is not a pair")
    return integer(each, "txnId"), integer(each, "writeId")


def _named_write_ids(event: Notification) -> list[tuple[str, int]]:
    """The (name, write id) pairs in a COMMIT (Hive 4.2.0 and later); empty if it names no tables."""
    message = event.message
    write_ids = integers(message, "writeIds")
    dbs, tables = message.get("databases"), message.get("tables")
    if not isinstance(dbs, list) or not isinstance(tables, list) or not len(dbs) == len(tables) == len(write_ids):
        return []
    return [(f"{db}.{table}".lower(), each) for db, table, each in zip(dbs, tables, write_ids, strict=True)]


def _may_take_ids(event: Notification) -> bool:
    """Whether an event of another catalog may take write ids of a table of this one along."""
    is_drop = event.event_type in ("DROP_TABLE", "DROP_DATABASE")
    return event.event_type == "ALTER_TABLE" or (is_drop and event.catalog == DEFAULT_CATALOG)
