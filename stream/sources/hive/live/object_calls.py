"""What Freshet asks a Hive Metastore of objects other than tables, as the Thrift structs that it answers.

The numbers are field numbers of ``hive_metastore.thrift`` (4.0.1), given where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from stream.sources.hive.partition_names import told_by, values_of
from stream.sources.hive.rpc.connection import MetastoreConnection, MetastoreRefused
from stream.sources.hive.rpc.thrift import field, record, text, texts
from stream.sources.hive.structs import BOOL, I16, I64, LIST, STRUCT, ListValue, MapValue, Struct

ENGINE: Final = "hive"
"""Whose column statistics are read: each engine has its own."""
DEFAULT_CATALOG: Final = "hive"
"""The one that each metastore has. ``get_all_functions`` tells of no other (``HMSHandler`` names it itself)."""
RAW_STORE: Final = "metastore.rawstore.impl"
LISTENERS: Final = "metastore.transactional.event.listeners"
LISTENER: Final = "org.apache.hive.hcatalog.listener.DbNotificationListener"
AGGREGATES_CACHED: Final = "metastore.aggregate.stats.cache.enabled"
_USUAL: Final = {
    "metastore.pre.event.listeners": ("",),
    "metastore.filter.hook": ("", "org.apache.hadoop.hive.metastore.DefaultMetaStoreFilterHookImpl"),
    "metastore.metadata.transformer.class": ("", "org.apache.hadoop.hive.metastore.MetastoreDefaultTransformer"),
    "metastore.limit.partition.request": ("-1",),
    "metastore.catalog.default": ("hive",),
}
"""Settings → what they say if a metastore answers each reader alike (``MetastoreConf`` of Hive 4.0.1)."""
Values = tuple[str, ...]


class ObjectCalls:
    """Calls as methods over one connection. Each raises `MetastoreError` and its subclasses, `ThriftError`."""

    def __init__(self, catalog: str, connection: MetastoreConnection) -> None:
        self.catalog = catalog
        self._connection = connection
        self._asked_on = -1
        """The number of the connection on which the metastore told the following."""
        self._caches_aggregates = True

    def catalog_object(self) -> Struct | None:
        """The catalog itself, as it is stored."""
        found = self._found("get_catalog", {1: record({1: text(self.catalog)})}, missing=1)
        return None if found is None else field(found, 1)

    def databases(self) -> list[str]:
        """The catalog's databases."""
        return sorted(self._connection.call("get_databases", {1: text(f"@{self.catalog}#")}))

    def database(self, db: str) -> Struct | None:
        """A database, as it is stored, or None."""
        return self._found("get_database", {1: text(f"@{self.catalog}#{db}")}, missing=1)

    def function(self, db: str, name: str) -> Struct | None:
        """A function, as it is stored, or None."""
        return self._found("get_function", {1: text(f"@{self.catalog}#{db}"), 2: text(name)}, missing=2)

    def functions(self) -> list[tuple[Values, Struct]]:
        """All functions of the catalog, by (database, name) in lower case: those that are not dropped meanwhile."""
        if self.catalog != DEFAULT_CATALOG:
            return [each for db in self.databases() for each in self._functions_of(db)]
        found = self._connection.call("get_all_functions", {})
        of_catalog = [each for each in field(found, 1, []) if field(each, 9, self.catalog) == self.catalog]
        return [((field(each, 2, "").lower(), field(each, 1, "").lower()), each) for each in of_catalog]

    def _functions_of(self, db: str) -> Iterator[tuple[Values, Struct]]:
        for name in self._connection.call("get_functions", {1: text(f"@{self.catalog}#{db}"), 2: text("*")}):
            if (found := self.function(db, name)) is not None:
                yield (db.lower(), name.lower()), found

    # --- partitions ---

    def partition(self, name: str, values: Sequence[str]) -> Struct | None:
        """The partition with these values of a table, as it is stored, or None."""
        return self._found("get_partition", {**self._place(name), 3: texts(values)}, missing=2)

    def partition_names(self, name: str, count: int = -1) -> list[str]:
        """The names of the partitions of a table, as ``p=a/q=b``: of all, or of up to ``count``."""
        names: list[str] = self._connection.call("get_partition_names", {**self._place(name), 3: (I16, count)})
        return names

    def partitions_by_names(self, name: str, names: Sequence[str]) -> list[tuple[Values, Struct]]:
        """Those partitions of a table that exist, by their values."""
        if not names:
            return []
        found = self._connection.call("get_partitions_by_names", {**self._place(name), 3: texts(names)})
        return [(told_by(field(each, 1, [])), each) for each in found]

    def first_partitions(self, name: str, count: int) -> list[tuple[Values, Struct]]:
        """Up to ``count`` partitions of a table, by their values: all, if they are fewer."""
        db, _, table = name.partition(".")
        request = {1: text(self.catalog), 2: text(db), 3: text(table), 4: (I16, count)}
        found = self._connection.call("get_partitions_req", {1: record(request)})
        return [(told_by(field(each, 1, [])), each) for each in field(found, 1, [])]

    def partitions(self, name: str, count: int) -> Iterator[list[tuple[Values, Struct]]]:
        """All partitions of a table by their values, up to ``count`` at a time."""
        names = self.partition_names(name)
        for at in range(0, len(names), count):
            yield self.partitions_by_names(name, names[at : at + count])

    # --- constraints and statistics ---

    def constraints(self, name: str) -> Struct:
        """All constraints of a table: an ``SQLAllTableConstraints``."""
        db, _, table = name.partition(".")
        request = {1: text(db), 2: text(table), 3: text(self.catalog)}
        answer = self._connection.call("get_all_table_constraints", {1: record(request)})
        found: Struct = field(answer, 1, {})
        return found

    def pointing_to(self, name: str) -> list[str]:
        """The names of the tables with a foreign key to the table ``name``, as far as the metastore shows it."""
        db, _, table = name.partition(".")
        request = {1: text(db), 2: text(table), 5: text(self.catalog)}
        answer = self._connection.call("get_foreign_keys", {1: record(request)})
        return [*dict.fromkeys(f"{field(each, 4)}.{field(each, 5)}".lower() for each in field(answer, 1, []))]

    def statistics(self, name: str, columns: Sequence[str]) -> Struct | None:
        """The statistics of a table's ``columns`` as a ``ColumnStatistics``; None if there are none.

        The metastore tells neither when they were made nor, without a list, whether they hold.
        """
        if not columns:
            return None
        db, _, table = name.partition(".")
        request = {1: text(db), 2: text(table), 3: texts(columns), 4: text(self.catalog), 6: text(ENGINE)}
        found = self._connection.call("get_table_statistics_req", {1: record(request)})
        return self._statistics_of(name, found.get(1))

    def partition_statistics(
        self, name: str, columns: Sequence[str], partitions: Sequence[str]
    ) -> list[tuple[Values, Struct]]:
        """The statistics of those of the ``partitions`` (``p=a/q=b``) that have some, by values."""
        if not columns or not partitions:
            return []
        found = self._connection.call(
            "get_partitions_statistics_req", {1: record(self._statistics_request(name, columns, partitions))}
        )
        _, by_name = found.get(1, (0, MapValue(0, 0, [])))
        named = [(raw.decode("utf-8", "surrogateescape"), listed) for raw, listed in by_name.pairs]
        shown = [(values_of(each), self._statistics_of(name, (LIST, listed), each)) for each, listed in named]
        return [(values, each) for values, each in shown if each is not None]

    @property
    def opened(self) -> int:
        """How many connections there were: what one metastore said of itself may not hold on the next one."""
        return self._connection.opened

    def caches_aggregates(self) -> bool:
        """Whether `aggregate_statistics` may be answered from the metastore's cache; also if it does not say so.

        That cache (``AggregateStatsCache``) keeps an answer for a while, whatever is written meanwhile. Each metastore
        has its own settings, so it is asked once on each connection.
        """
        if self._asked_on != self._connection.opened:
            self._caches_aggregates = self._setting(AGGREGATES_CACHED, "true").lower() != "false"
            self._asked_on = self._connection.opened
        return self._caches_aggregates

    def caches_objects(self) -> bool:
        """Whether all is answered from a cache (``CachedStore``) that learns later of what other metastores write."""
        return "CachedStore" in self._setting(RAW_STORE, "")

    def own_answers(self) -> str:
        """The first setting by which answers depend on more than the catalog, as ``name = value``; "": none does.

        They may depend on who asks (listeners that refuse a read, filters), or be bounded. A metastore that does not
        tell may do either: raises `MetastoreRefused`.
        """
        for name, usual in _USUAL.items():
            found = str(self._connection.call("get_config_value", {1: text(name), 2: text(usual[0])})).strip()
            if found not in usual:
                return f"{name} = {found}"
        return ""

    def logs_changes(self) -> bool:
        """Whether what it changes is in the log once it is committed; also if it does not say so.

        The listener may be one of several, or a class that was made of it. As one of ``metastore.event.listeners`` it
        logs afterwards, or never if the metastore is killed before, and no transactions.
        """
        return LISTENER.rpartition(".")[2].removeprefix("Db") in self._setting(LISTENERS, LISTENER)

    def _setting(self, name: str, otherwise: str) -> str:
        """As the metastore has it. ``otherwise``: it has none, or gives such settings to nobody."""
        try:
            found = self._connection.call("get_config_value", {1: text(name), 2: text(otherwise)})
        except MetastoreRefused:
            return otherwise
        return str(found) if found is not None else otherwise

    def aggregate_statistics(
        self, name: str, columns: Sequence[str], partitions: Sequence[str], timeout_s: float = 0.0
    ) -> Struct:
        """The statistics of these partitions together: an ``AggrStats``."""
        if not columns or not partitions:
            return {1: (LIST, ListValue(STRUCT, [])), 2: (I64, 0)}
        request = self._statistics_request(name, columns, partitions)
        found: Struct = self._connection.call("get_aggr_stats_for", {1: record(request)}, timeout_s=timeout_s)
        return found

    def _statistics_request(self, name: str, columns: Sequence[str], partitions: Sequence[str]) -> Struct:
        db, _, table = name.partition(".")
        named = {3: texts(columns), 4: texts(partitions), 5: text(self.catalog), 7: text(ENGINE)}
        return {1: text(db), 2: text(table), **named}

    def _statistics_of(self, name: str, listed: tuple[int, ListValue] | None, partition: str = "") -> Struct | None:
        """A ``ColumnStatistics`` around the list that the metastore gave; None if that is empty."""
        if listed is None or not listed[1].values:
            return None
        db, _, table = name.partition(".")
        of: Struct = {1: (BOOL, not partition), 2: text(db), 3: text(table)}
        if partition:
            of[4] = text(partition)
        of[6] = text(self.catalog)
        return {1: (STRUCT, of), 2: listed, 4: text(ENGINE)}

    def _place(self, name: str) -> Struct:
        """The first two arguments of a call about the table ``db.table``."""
        db, _, table = name.partition(".")
        return {1: text(f"@{self.catalog}#{db}"), 2: text(table)}

    def _found(self, call: str, arguments: Struct, missing: int) -> Struct | None:
        """What ``call`` returns; None if it answers with its exception ``missing``."""
        try:
            found: Struct = self._connection.call(call, arguments)
        except MetastoreRefused as refused:
            if refused.number == missing:
                return None
            raise
        return found
