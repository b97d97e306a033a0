"""A metastore whose tables have a column, and statistics of it: of a table, of a partition, of all partitions together.

Statistics are a number, which grows. Their own events alone change them: who alters a table, or writes it, leaves them
as they are, and whether they hold for a reader depends on who has written last what they are of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lab.simulation.hive.judging import read_list
from lab.simulation.warehouse.metastore import State, TableTruth, Values, Warehouse
from lab.simulation.warehouse.serving import Arguments, MetastoreServer, path_of
from lab.simulation.warehouse.thrift import Struct, Typed

COLUMN: Final = (("str", "v"), ("str", "bigint"))
ACCURATE: Final = {"COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'}
KEEPS_TOGETHER: Final = "metastore.aggregate.stats.cache.enabled"
OF_TABLE: Final[Values] = ()
TOGETHER: Final = None
"""What statistics are of, beside the values of a partition: the table, or all partitions together."""


class Analyzed(Warehouse):
    """As `Warehouse`. Each change is told by its event."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.statistics: dict[str, dict[Values, int]] = {}
        """Table → as `TableTruth.statistics`."""
        self.written: dict[str, dict[Values, int]] = {}
        """Table → as `TableTruth.written`."""
        super().__init__(now)

    def details_of(self, name: str) -> tuple[Mapping[Values, int], Mapping[Values, int]]:
        """See `Warehouse.details_of`."""
        return dict(self.statistics.get(name, {})), dict(self.written.get(name, {}))

    # --- changes ---

    def analyze(self, name: str, values: Values, txn: int, *, forget: bool) -> None:
        """ANALYZE of a partition, which is altered by it; ``forget``: its statistics are deleted."""
        self.changes += 1
        self.parts[name][values] = self.changes
        self._put(name, values, forget=forget)
        self._note(name, values, txn)
        kind, named = ("DELETE", "partValues") if forget else ("UPDATE", "partVals")
        self._write_part(name, f"{kind}_PART_COL_STAT_EVENT", txn, **{named: [*values]})

    def write(self, name: str, event_type: str, txn: int = 0, *, shown: bool = False) -> None:
        """As `Metastore.write`."""
        if event_type.endswith("_TBL_COL_STAT_EVENT"):
            self._put(name, OF_TABLE, forget=event_type.startswith("DELETE"))
        self._note(name, OF_TABLE, txn)
        super().write(name, event_type, txn, shown=shown)

    def alter(self, name: str, txn: int = 0) -> None:
        """As `Metastore.alter`."""
        super().alter(name, txn)
        self._note(name, OF_TABLE, txn)

    def rename(self, old: str, new: str) -> None:
        """As `Warehouse.rename`."""
        super().rename(old, new)
        if old not in self.tables:
            for details in (self.statistics, self.written):
                details[new] = details.pop(old, {})

    def drop(self, name: str, *, keep: bool = False) -> None:
        """As `Warehouse.drop`."""
        super().drop(name, keep=keep)
        self.statistics.pop(name, None)
        self.written.pop(name, None)

    def put_partition(self, name: str, values: Values, txn: int) -> None:
        """As `Warehouse.put_partition`."""
        self._note(name, values, txn)
        super().put_partition(name, values, txn)

    def insert(self, name: str, values: Values, txn: int) -> None:
        """As `Warehouse.insert`."""
        self._note(name, values, txn)
        super().insert(name, values, txn)

    def move_partition(self, name: str, old: Values, new: Values, txn: int) -> None:
        """As `Warehouse.move_partition`; its statistics go along."""
        for details in (self.statistics, self.written):
            if old in details.get(name, {}):
                details[name][new] = details[name].pop(old)
        self._note(name, new, txn)
        super().move_partition(name, old, new, txn)

    def drop_partition(self, name: str, values: Values, txn: int) -> None:
        """As `Warehouse.drop_partition`."""
        for details in (self.statistics, self.written):
            details.get(name, {}).pop(values, None)
        super().drop_partition(name, values, txn)

    def change_partitions(self, name: str, txn: int) -> None:
        """As `Warehouse.change_partitions`; all of them are analyzed."""
        for values in self.parts[name]:
            self._put(name, values, forget=False)
            self._note(name, values, txn)
        super().change_partitions(name, txn)

    def _put(self, name: str, values: Values, *, forget: bool) -> None:
        self.changes += 1
        known = self.statistics.setdefault(name, {})
        known.pop(values, None)
        if not forget:
            known[values] = self.changes

    def _note(self, name: str, values: Values, txn: int) -> None:
        if txn and (write_id := self.held_by(name, txn)):
            self.written.setdefault(name, {})[values] = write_id

    # --- objects as structs ---

    def parameters(self, name: str) -> dict[str, str]:
        """As `Metastore.parameters`."""
        return super().parameters(name) | ACCURATE

    def table_struct(self, name: str) -> Struct:
        """As `Warehouse.table_struct`."""
        column: Struct = dict(enumerate(COLUMN, 1))
        storage: Struct = {1: ("lst", ("rec", [column]))}
        return super().table_struct(name) | {7: ("rec", storage)} | self._write_id(name, OF_TABLE, 19)

    def partition_struct(self, name: str, values: Values) -> Struct:
        """As `Warehouse.partition_struct`."""
        found = super().partition_struct(name, values)
        return found | {7: ("map", found[7][1] | ACCURATE)} | self._write_id(name, values, 10)

    def _write_id(self, name: str, values: Values, field: int) -> Struct:
        write_id = self.written.get(name, {}).get(values, 0)
        return {field: ("i64", write_id)} if write_id else {}


class AnalyzedServer(MetastoreServer):
    """As `MetastoreServer`. It keeps no statistics of all partitions together."""

    warehouse: Analyzed

    def call_get_config_value(self, arguments: Arguments) -> Typed:
        return "str", "false" if arguments[1] == KEEPS_TOGETHER else arguments[2]

    def call_get_table_statistics_req(self, arguments: Arguments) -> Typed:
        return "rec", {1: _listed(self._known(arguments).get(OF_TABLE))}

    def call_get_partitions_statistics_req(self, arguments: Arguments) -> Typed:
        by_path = {path: _listed(number)[1] for path, number in self._asked(arguments).items()}
        return "rec", {1: ("map", ("lst", by_path))}

    def call_get_aggr_stats_for(self, arguments: Arguments) -> Typed:
        found = self._asked(arguments).values()
        return "rec", {1: _listed(sum(found) or None), 2: ("i64", len(found))}

    def _known(self, arguments: Arguments) -> Mapping[Values, int]:
        return self.warehouse.statistics.get(f"{arguments[1][1]}.{arguments[1][2]}", {})

    def _asked(self, arguments: Arguments) -> Mapping[str, int]:
        """Path → statistics, of those of the partitions that were asked for that have some."""
        known = {path_of(values): number for values, number in self._known(arguments).items() if values != OF_TABLE}
        return {path: known[path] for path in arguments[1][4] if path in known}


def _listed(number: int | None) -> Typed:
    """A list of ``ColumnStatisticsObj``."""
    if number is None:
        return "lst", ("rec", [])
    longs: Struct = {3: ("i64", 0), 4: ("i64", number)}
    found: Struct = {**dict(enumerate(COLUMN, 1)), 3: ("rec", {2: ("rec", longs)})}
    return "lst", ("rec", [found])


# --- answers ---


def shown_by(image: Mapping[str, Any] | None) -> tuple[int, int]:
    """The number that statistics show, and of how many partitions they are, where they are of all together; 0: none."""
    listed = (image or {}).get("statsObj") or (image or {}).get("colStats") or []
    number = int(listed[0]["statsData"]["longStats"]["numDVs"]) if listed else 0
    return number, int((image or {}).get("partsFound", 0))


def are_statistics(
    name: str, table_id: int, of: Values | None, shown: tuple[int, int], hold: Sequence[bool] | None, listed: str
) -> Callable[[State], bool]:
    """Whether the statistics ``of`` a table are so in a state. ``hold``: whether they are said to, for ``listed``."""

    def holds(state: State) -> bool:
        table = state.tables.get(name)
        if table is None or table_id not in (0, table.table_id):
            return table is None and shown == (0, 0)
        if of is TOGETHER:
            found = [table.statistics[each] for each in table.partitions if each in table.statistics]
            is_so = shown == (sum(found), len(found))
        else:
            is_so = shown == (table.statistics.get(of, 0), 0)
        return is_so and (not hold or not listed or hold[0] == _do_hold(table, of, listed))

    return holds


def _do_hold(table: TableTruth, of: Values | None, listed: str) -> bool:
    """Whether a reader with the list counts each last write of what they are of."""
    hwm, exceptions, _ = read_list(listed)
    written = [table.written.get(each, 0) for each in (table.partitions if of is TOGETHER else [of])]
    return all(each <= hwm and each not in exceptions for each in written)
