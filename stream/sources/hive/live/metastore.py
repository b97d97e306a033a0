"""What Freshet asks a Hive Metastore, as plain values. One `Metastore` is one connection: not safe for several threads.

The numbers are field numbers of ``hive_metastore.thrift`` (4.0.1), given where they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

from stream.sources.hive.live.object_calls import LISTENER, LISTENERS, RAW_STORE
from stream.sources.hive.live.privilege_calls import PrivilegeCalls
from stream.sources.hive.messages import HiveMessageError, TableObject, has_dot, is_listable, table_of
from stream.sources.hive.rpc.connection import (
    CALL_TIMEOUT_S,
    MetastoreConnection,
    MetastoreError,
    MetastoreRefused,
    MetastoreTimeout,
)
from stream.sources.hive.rpc.thrift import field, integer, long, record, text, texts
from stream.sources.hive.rpc.transport import OPEN, Access
from stream.sources.hive.structs import I32, LIST, ListValue, Struct, ThriftError
from tokens.errors import FreshetError
from tokens.writeid_state import GAP_MAX, WriteIds
from tokens.writeids import NO_OPEN_ID

CAPABILITIES: Final = (
    "MANAGERAWMETADATA",  # objects as they are stored, not as they would be shown to an engine that can do less
    "HIVEFULLACIDREAD",
    "HIVEFULLACIDWRITE",
    "HIVEMANAGEDINSERTREAD",
    "HIVEMANAGEDINSERTWRITE",
    "HIVEMQT",
    "HIVESQL",
)
INSERT_ONLY_TABLES: Final = 2
"""A ``ClientCapability``. To who does not claim it, a metastore refuses insert-only tables, the read of a whole
list of tables with one among them too."""
ABORTED_MAX: Final = 16
"""Aborted transactions of which each is asked for its ids behind a list's first exception. With more, none is."""
ASKED_S: Final = 2.0
"""How long a metastore may take to tell a setting: a front must start without one, too."""
LOG_IS_PRIVATE: Final = (
    "with hive.metastore.event.db.notification.api.auth, its default, proxy users alone may read its events"
)
NO_SUCH_OBJECT: Final = 2
"""The field of NoSuchObjectException in ``get_table_req``'s result."""
_EVENT_FIELDS: Final = {
    1: "eventId",
    2: "eventTime",
    3: "eventType",
    4: "dbName",
    5: "tableName",
    6: "message",
    7: "messageFormat",
    8: "catName",
}


@dataclass(frozen=True, slots=True)
class MetastoreSettings:
    """Which metastores, and of which catalog. ``timeout_s``: of each call. ``access``: what they ask of clients."""

    addresses: tuple[tuple[str, int], ...]
    catalog: str = "hive"
    timeout_s: float = CALL_TIMEOUT_S
    access: Access = OPEN


class MetastoreCaches(FreshetError):
    """A metastore answers from a cache that others' writes reach later; code ``metastore_caches``."""

    code = "metastore_caches"


class MetastoreUnlogged(FreshetError):
    """A metastore does not log what it changes; code ``metastore_unlogged``."""

    code = "metastore_unlogged"


@dataclass(frozen=True, slots=True)
class Transactions:
    """The server's transactions: the highest id, and which of those up to it have not committed."""

    hwm: int
    open: frozenset[int]
    aborted: frozenset[int]

    @property
    def listed(self) -> str:
        """As Hive writes a ``ValidTxnList``: ``hwm:minOpen:open,…:aborted,…``."""
        return txn_list(self.hwm, self.open, self.aborted)


@dataclass(frozen=True, slots=True)
class ServerList:
    """A table's write ids, as the server lists them."""

    hwm: int
    open: tuple[int, ...]
    aborted: tuple[int, ...]
    min_open: int = NO_OPEN_ID
    """Of all ids: in a list that is its lowest exception alone, it tells of an open one behind that."""

    @property
    def may_be_collapsed(self) -> bool:
        """Whether it is its lowest exception alone."""
        return (*self.open, *self.aborted) == (self.hwm,)

    def write_ids(self) -> WriteIds:
        """As a value that transaction events can be applied to."""
        ids = WriteIds()
        ids.replace(self.hwm, self.open, self.aborted)
        return ids


def txn_list(hwm: int, opened: Iterable[int], aborted: Iterable[int] = ()) -> str:
    """A ``ValidTxnList`` as text."""
    still_open = sorted(opened)
    first = still_open[0] if still_open else NO_OPEN_ID
    return f"{hwm}:{first}:{','.join(map(str, still_open))}:{','.join(map(str, sorted(aborted)))}"


class Metastore(PrivilegeCalls):
    """Calls as methods. Each raises `MetastoreError` and its subclasses, `ThriftError`. A context manager."""

    def __init__(self, settings: MetastoreSettings) -> None:
        connection = MetastoreConnection(settings.addresses, timeout_s=settings.timeout_s, access=settings.access)
        super().__init__(settings.catalog, connection)

    def close(self) -> None:
        """Close the connection. The next call opens another."""
        self._connection.close()

    def limit(self, seconds: float) -> None:
        """From now on no call lasts longer than until ``seconds`` from now. Until the next `limit`."""
        self._connection.limit(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def last_event(self) -> int:
        """The id of the log's last event; 0 if there never was one."""
        try:
            found = self._connection.call("get_current_notificationEventId", {})
        except MetastoreError as error:
            if type(error) is MetastoreError:  # what it refuses here it does not declare, and it does not say why
                raise MetastoreError(str(error), hint=f"the metastore's log tells why; {LOG_IS_PRIVATE}") from error
            raise
        event_id: int = field(found, 1)
        return event_id

    def events(self, after: int, count: int, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """Up to ``count`` events with ids above ``after``, as `parse_notification` takes them."""
        request = record({1: long(after), 2: integer(count)})
        found = self._connection.call("get_next_notification", {1: request}, timeout_s=timeout_s)
        return [{name: field(row, number) for number, name in _EVENT_FIELDS.items()} for row in field(found, 1, [])]

    def table_names(self, db: str) -> list[str]:
        """``db.table`` of all tables of a database; empty if there is no such database, or its own name has a dot."""
        if has_dot(db):
            return []
        names = self._connection.call("get_all_tables", {1: text(f"@{self.catalog}#{db}")})
        return sorted(f"{db}.{name}" for name in names)

    def table(self, name: str, timeout_s: float = 0.0) -> TableObject | None:
        """The table ``db.table`` as it is stored, or None. Raises `HiveMessageError` too, also for another table."""
        db, _, table = name.partition(".")
        request: Struct = {1: text(db), 2: text(table), 3: client_capabilities(), 4: text(self.catalog)}
        request[8] = texts([*CAPABILITIES])
        try:
            found = self._connection.call("get_table_req", {1: record(request)}, timeout_s=timeout_s)
        except MetastoreRefused as refused:
            if refused.number == NO_SUCH_OBJECT:
                return None
            raise
        shown = _table_of(field(found, 1))
        if shown.name != name.lower():
            raise HiveMessageError(f"the metastore was asked for {name} and answered {shown.name}")
        return shown

    def tables(self, names: Sequence[str]) -> dict[str, TableObject | HiveMessageError]:
        """The tables of ``names`` (``db.table``) that exist. One that cannot be read or understood is its error."""
        by_db: dict[str, list[str]] = {}
        for name in names:
            db, _, table = name.partition(".")
            by_db.setdefault(db, []).append(table)
        found: dict[str, TableObject | HiveMessageError] = {}
        for db, tables in by_db.items():
            found |= self._tables_or_errors(db, tables)
        return found

    def _tables_or_errors(self, db: str, tables: list[str]) -> dict[str, TableObject | HiveMessageError]:
        """One of them may be what the metastore cannot read, or not in time, or what cannot be read of it."""
        try:
            return self._tables_of(db, tables)
        except MetastoreRefused:
            found: dict[str, TableObject | HiveMessageError] = {}
            for table in tables:
                found |= self._table_or_error(f"{db}.{table}")
            return found
        except (MetastoreTimeout, ThriftError) as error:
            self.last_event()  # an outage is raised as what it is
            if len(tables) == 1:
                return {f"{db}.{tables[0]}": HiveMessageError(str(error))}
            half = len(tables) // 2
            return self._tables_or_errors(db, tables[:half]) | self._tables_or_errors(db, tables[half:])

    def _tables_of(self, db: str, tables: list[str]) -> dict[str, TableObject | HiveMessageError]:
        request: Struct = {1: text(db), 2: texts(tables), 3: client_capabilities(), 4: text(self.catalog)}
        request[5] = texts([*CAPABILITIES])
        answer = self._connection.call("get_table_objects_by_name_req", {1: record(request)})
        found: dict[str, TableObject | HiveMessageError] = {}
        for each in field(answer, 1, []):
            try:
                shown = _table_of(each)
                found[shown.name] = shown
            except HiveMessageError as error:
                found[f"{db}.{str(field(each, 1, '')).lower()}"] = error
        return found

    def _table_or_error(self, name: str) -> dict[str, TableObject | HiveMessageError]:
        try:
            table = self.table(name)
        except (MetastoreRefused, HiveMessageError) as error:
            return {name: HiveMessageError(str(error))}
        except (MetastoreTimeout, ThriftError) as error:
            self.last_event()
            return {name: HiveMessageError(str(error))}
        return {name: table} if table is not None else {}

    def transactions(self) -> Transactions:
        """The open and aborted transactions."""
        found = self._connection.call("get_open_txns", {})
        exceptions, bits = field(found, 2, []), field(found, 4, "")
        opened, aborted = _by_bits(exceptions, bits)
        return Transactions(field(found, 1), frozenset(opened), frozenset(aborted))

    def write_ids(self, names: Sequence[str], txns: str = "", timeout_s: float = 0.0) -> dict[str, ServerList]:
        """The list of each of ``names`` for a reader whose ``ValidTxnList`` is ``txns`` (empty: the server's now)."""
        request = {1: texts([*names])} | ({2: text(txns)} if txns else {})
        found = self._connection.call("get_valid_write_ids", {1: record(request)}, timeout_s=timeout_s)
        lists: dict[str, ServerList] = {}
        for each in field(found, 1, []):
            opened, aborted = _by_bits(field(each, 3, []), field(each, 5, ""))
            lists[str(field(each, 1)).lower()] = ServerList(
                field(each, 2), tuple(opened), tuple(aborted), field(each, 4, NO_OPEN_ID)
            )
        return lists

    def without_collapse(self, lists: Mapping[str, ServerList], of: Transactions) -> dict[str, ServerList]:
        """Those of ``lists``, as seen with the transactions ``of``, behind whose first exception there are open ids.

        Where no id is committed, the server lists the lowest exception alone. To a reader to whom other transactions
        seem committed, it tells the ids after that one too. Where all that are left are open, no such reader is told
        each of them: those between that nobody holds were aborted, and the server's cleaner has forgotten them. Those
        behind which all are aborted are told too, while few transactions are.
        """
        asked = [name for name, listed in lists.items() if listed.may_be_collapsed]
        highest = self.write_ids(asked, txn_list(of.hwm, ())) if asked else {}
        asked = [name for name in asked if name in highest and highest[name].hwm > lists[name].hwm]
        opened = self.write_ids(asked, txn_list(of.hwm, of.open)) if asked else {}
        found: dict[str, ServerList] = {}
        between: dict[str, range] = {}
        for name, listed in opened.items():
            if listed.may_be_collapsed and listed.hwm < highest[name].hwm:  # nothing is aborted
                between[name] = range(listed.hwm, min(highest[name].hwm, listed.hwm + GAP_MAX) + 1)
            elif listed.open and listed.open[-1] > lists[name].hwm:
                found[name] = listed
        mixed = [name for name, listed in found.items() if found[name] is opened[name]]
        for name, listed in (self.write_ids(mixed, txn_list(of.hwm, (), of.aborted)) if mixed else {}).items():
            found[name] = replace(opened[name], aborted=listed.aborted)
        held = self.holders(between, of.open, of.hwm) if between else {}
        found |= {name: ServerList(between[name][-1], tuple(sorted(ids)), ()) for name, ids in held.items()}
        left = {name: range(lists[name].hwm + 1, highest[name].hwm + 1) for name in opened if name not in found}
        return found | self._aborted_behind({name: lists[name] for name in left}, left, of)

    def _aborted_behind(
        self, lists: Mapping[str, ServerList], behind: Mapping[str, range], of: Transactions
    ) -> dict[str, ServerList]:
        """Those of ``lists`` behind which ids are aborted, if that is soon found out: a writer may be waited for."""
        if not lists or len(of.aborted) > ABORTED_MAX:
            return {}
        held = self.holders({name: ids[:GAP_MAX] for name, ids in behind.items()}, of.aborted, of.hwm)
        return {
            name: ServerList(max(ids), lists[name].open, (*lists[name].aborted, *sorted(ids)))
            for name, ids in held.items()
            if ids
        }

    def holders(self, wanted: Mapping[str, Iterable[int]], txns: Iterable[int], hwm: int) -> dict[str, dict[int, int]]:
        """Table → write id → the one of ``txns`` that holds it, for the ``wanted`` ids of each table.

        No call tells it. But for a reader to whom one transaction alone seems open, its ids are the open ones.
        """
        missing = {name: set(ids) for name, ids in wanted.items()}
        found: dict[str, dict[int, int]] = {name: {} for name in missing}
        for txn in sorted(txns):
            asked = [name for name, ids in missing.items() if ids]
            if not asked:
                break
            for name, listed in self.write_ids(asked, txn_list(max(hwm, txn), [txn])).items():
                for write_id in missing[name].intersection(listed.open):
                    found[name][write_id] = txn
                    missing[name].discard(write_id)
        return found


def client_capabilities() -> tuple[int, Struct]:
    """A ``ClientCapabilities`` field: the older form of `CAPABILITIES`, which is looked at as well."""
    return record({1: (LIST, ListValue(I32, [INSERT_ONLY_TABLES]))})


def _table_of(struct: Any) -> TableObject:
    if not isinstance(struct, dict):
        raise ThriftError("the answer has no table")
    table = table_of(struct, "table")
    if table.transactional and not is_listable(table.name):
        raise HiveMessageError(
            f"the transactional table {table.name} has a dot or a colon in its name: Hive gives no right list of it",
            hint="rename the table",
        )
    return table


def _by_bits(ids: list[int], bits: str) -> tuple[list[int], list[int]]:
    """Open and aborted ones of ``ids``: the bit at an aborted one's index is set (``BitSet.toByteArray``)."""
    raw = bits.encode("utf-8", "surrogateescape")
    flags = [at // 8 < len(raw) and raw[at // 8] >> (at % 8) & 1 for at in range(len(ids))]
    return (
        [each for each, aborted in zip(ids, flags, strict=True) if not aborted],
        [each for each, aborted in zip(ids, flags, strict=True) if aborted],
    )


def check_settings(settings: MetastoreSettings) -> None:
    """Ask each metastore whether it answers from a cache, which no position of the log says anything about; and whether
    it logs what it changes, in the transaction that does.

    One that is down, or does not tell, is passed over. Raises `MetastoreCaches`, `MetastoreUnlogged`.
    """
    for host, port in settings.addresses:
        one = replace(settings, addresses=((host, port),), timeout_s=min(settings.timeout_s, ASKED_S))
        with suppress(MetastoreError, ThriftError), Metastore(one) as metastore:
            if metastore.caches_objects():
                raise MetastoreCaches(
                    f"the metastore at {host}:{port} answers from a cache, which may be behind its own log",
                    hint=f"leave {RAW_STORE} at ObjectStore there, or name another metastore in uris",
                )
            if not metastore.logs_changes():
                raise MetastoreUnlogged(
                    f"the metastore at {host}:{port} does not log what it changes: all would seem to stay as it is",
                    hint=f"let {LISTENERS} name {LISTENER} there, and at each metastore over its database",
                )
