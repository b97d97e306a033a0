"""What a notification event says of objects other than tables: partitions, databases, functions, statistics. Pure.

An event only invalidates: each object that it names was *written*, and the source fetches it afterwards. Where the
event does not say which objects it touched, the whole set is void. For replay, where nothing can be fetched, the
object in the event is taken for its image (`ObjectEvents.with_images`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stream.sources.hive.messages import HiveMessageError, Notification, TableObject, lower_name, parse_struct
from stream.sources.hive.objects import image_of, plain_struct
from stream.sources.hive.partition_names import told_by, values_of
from stream.sources.hive.structs import Struct, encode_struct
from stream.wire.events import Change, ObjectImage, ObjectSet

CATALOG: Final = "catalog"
DATABASE: Final = "database"
FUNCTION: Final = "function"
PARTITION: Final = "partition"
CONSTRAINTS: Final = "constraints"
STATISTICS: Final = "statistics"
PARTITION_STATISTICS: Final = "partition_statistics"
AGGREGATE_STATISTICS: Final = "aggregate_statistics"

_OF_PARTITIONS: Final = (PARTITION, PARTITION_STATISTICS)
_OF_COLUMNS: Final = (STATISTICS, AGGREGATE_STATISTICS, CONSTRAINTS)
Values = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ObjectEvents:
    """Translates events of one catalog."""

    catalog: str
    with_images: bool

    def of_catalog(self, event: Notification) -> list[Change]:
        """The changes of an event of a catalog, a database or a function; none for any other event."""
        message, kind = event.message, event.event_type
        if kind.endswith("_DATABASE") and event.db:
            return self._one(DATABASE, 0, (event.db,), kind, _first(message, "dbJson", "dbAfterJson"), "Database")
        if kind.endswith("_FUNCTION"):
            text = message.get("functionObjJson")
            name = _function_name(event, text)
            if not name:
                return [ObjectSet(FUNCTION, 0, "void", reason=f"{kind} names no function")]
            return self._one(FUNCTION, 0, name, kind, text, "Function")
        if kind.endswith("_CATALOG"):
            name = (lower_name(message.get("catalog")) or event.catalog or self.catalog,)
            return self._one(CATALOG, 0, name, kind, None, "Catalog") if name == (self.catalog,) else []
        return []

    def _one(self, kind: str, table_id: int, name: Values, event_type: str, text: Any, struct: str) -> list[Change]:
        if event_type.startswith("DROP_"):
            return [ObjectImage(kind, table_id, name, "dropped")]
        changes: list[Change] = [ObjectImage(kind, table_id, name, "written")]
        if text is not None and self.with_images:
            changes.append(_image(kind, table_id, name, parse_struct(text, kind, struct), struct))
        return changes

    def of_new_table(self, table_id: int) -> list[Change]:
        """A table that was just created has no partitions."""
        return [ObjectSet(kind, table_id, change) for kind in _OF_PARTITIONS for change in ("begun", "complete")]

    def of_altered_table(
        self, table_id: int, *, is_partitioned: bool = True, has_same_columns: bool = False
    ) -> list[Change]:
        """ALTER_TABLE may change every partition: cascades leave no event.

        ``is_partitioned``: the table has partitions, or had them before. ``has_same_columns``: and the same name, so
        the metastore leaves constraints and statistics as they are.
        """
        why = "the table was altered"
        voids: list[Change] = [ObjectSet(kind, table_id, "void", reason=why) for kind in _OF_PARTITIONS]
        kinds = [*(() if has_same_columns else _OF_COLUMNS), *([AGGREGATE_STATISTICS] if is_partitioned else ())]
        return [
            *(voids if is_partitioned else ()),
            *(ObjectImage(kind, table_id, (), "written") for kind in dict.fromkeys(kinds)),
        ]

    def of_write(self, event: Notification, table: TableObject) -> list[Change]:
        """The changes of an event that writes ``table`` or a part of it. Raises `HiveMessageError`."""
        at, message, kind = table.table_id, event.message, event.event_type
        if kind in ("UPDATE_TBL_COL_STAT_EVENT", "DELETE_TBL_COL_STAT_EVENT"):
            return [ObjectImage(STATISTICS, at, (), "written")]
        if kind.endswith(("CONSTRAINT", "KEY")):
            return [ObjectImage(CONSTRAINTS, at, (), "written")]
        if kind in ("ADD_PARTITION", "ALTER_PARTITIONS"):
            structs = _structs(message.get("partitionListJson"))
            if structs or (kind == "ADD_PARTITION" and message.get("partitions") == []):
                return [change for found in structs for change in self._partition(at, _values(found), found)]
        elif kind == "ALTER_PARTITION" and "partitionObjAfterJson" in message:
            return self._altered(at, message)
        elif kind == "DROP_PARTITION":
            named = _named(message.get("partitions"), table.partition_keys)
            return [change for values in named for change in _dropped(at, values)] or self._unnamed(table, event)
        elif kind in ("UPDATE_PART_COL_STAT_EVENT", "DELETE_PART_COL_STAT_EVENT"):
            found = message.get("partVals") or message.get("partValues")
            if isinstance(found, list) and all(isinstance(each, str) for each in found):
                return _of_values(at, told_by(found))
        elif kind == "COMMIT_COMPACTION_EVENT":
            found = message.get("partName")
            if isinstance(found, str) and found:
                return _of_values(at, values_of(found))
        elif kind in ("INSERT", "ACID_WRITE_EVENT", "RELOAD"):
            text = _first(message, "ptnObjJson", "partitionObjJson")
            if text is not None:
                return _of_values(at, _values(parse_struct(text, "partition", "Partition")))
        return self._unnamed(table, event)

    def _unnamed(self, table: TableObject, event: Notification) -> list[Change]:
        """The event names no partition: it may have touched each, unless the table is known to have none."""
        if table.struct is not None and not table.partition_keys:
            return [ObjectImage(STATISTICS, table.table_id, (), "written")]
        why = f"{event.event_type} names no partitions"
        voids: list[Change] = [ObjectSet(kind, table.table_id, "void", reason=why) for kind in _OF_PARTITIONS]
        return [*voids, ObjectImage(AGGREGATE_STATISTICS, table.table_id, (), "written")]

    def _partition(self, table_id: int, values: Values, found: Struct) -> list[Change]:
        changes = _of_values(table_id, values)
        if self.with_images:
            changes.append(_image(PARTITION, table_id, values, found, "Partition"))
        return changes

    def _altered(self, table_id: int, message: Mapping[str, Any]) -> list[Change]:
        before = parse_struct(message.get("partitionObjBeforeJson"), "partitionObjBeforeJson", "Partition")
        after = parse_struct(message.get("partitionObjAfterJson"), "partitionObjAfterJson", "Partition")
        old, new = _values(before), _values(after)
        return [*(_dropped(table_id, old) if old != new else ()), *self._partition(table_id, new, after)]


def _of_values(table_id: int, values: Values) -> list[Change]:
    """A partition was written: with it its statistics, and those of all partitions together."""
    return [
        ObjectImage(PARTITION, table_id, values, "written"),
        ObjectImage(PARTITION_STATISTICS, table_id, values, "written"),
        ObjectImage(AGGREGATE_STATISTICS, table_id, (), "written"),
    ]


def _dropped(table_id: int, values: Values) -> list[Change]:
    return [
        ObjectImage(PARTITION, table_id, values, "dropped"),
        ObjectImage(PARTITION_STATISTICS, table_id, values, "dropped"),
        ObjectImage(AGGREGATE_STATISTICS, table_id, (), "written"),
    ]


def _image(kind: str, table_id: int, name: Values, found: Struct, struct: str) -> ObjectImage:
    return ObjectImage(kind, table_id, name, "image", image_of(found, struct), encode_struct(found))


def _first(message: Mapping[str, Any], *fields: str) -> Any:
    return next((message[field] for field in fields if message.get(field) is not None), None)


def _function_name(event: Notification, text: Any) -> Values:
    message = event.message
    name, db = lower_name(message.get("functionName")), event.db or lower_name(message.get("db"))
    if text is not None:
        plain = plain_struct(parse_struct(text, "functionObjJson", "Function"), "Function")
        name, db = lower_name(plain.get("functionName")), lower_name(plain.get("dbName")) or db
    return (db, name) if name and db else ()


def _structs(texts: Any) -> list[Struct]:
    if not isinstance(texts, list):
        return []
    return [parse_struct(text, "partitionListJson", "Partition") for text in texts]


def _values(found: Struct) -> Values:
    values = plain_struct(found, "Partition").get("values")
    if not isinstance(values, list) or not values or not all(isinstance(each, str) for each in values):
        raise HiveMessageError("a partition has no values")
    return told_by(values)


def _named(named: Any, keys: Sequence[str]) -> Iterable[Values]:
    """The values of partitions that are named ``{key: value}``, in the order of the table's partition keys."""
    for each in named if isinstance(named, list) else ():
        if not isinstance(each, dict) or not all(isinstance(value, str) for value in each.values()):
            raise HiveMessageError("a partition's name is not a JSON object of texts")
        values = {key.lower(): value for key, value in each.items()}
        if keys and values.keys() != set(keys):
            raise HiveMessageError(f"a partition is named by {', '.join(values)}, the keys are {', '.join(keys)}")
        yield told_by(values[key] for key in keys or values)


def tables_with_key(message: Mapping[str, Any]) -> Iterable[str]:
    """``db.table`` of each table that has one of the foreign keys in an ADD_FOREIGNKEY. Raises `HiveMessageError`."""
    texts = message.get("foreignKeyListJson")
    if not isinstance(texts, list) or not texts:
        raise HiveMessageError("the event has no foreign keys")
    for text in texts:
        plain = plain_struct(parse_struct(text, "foreignKeyListJson", "SQLForeignKey"), "SQLForeignKey")
        db, table = lower_name(plain.get("fktable_db")), lower_name(plain.get("fktable_name"))
        if not db or not table:
            raise HiveMessageError("a foreign key names no table that has it")
        yield f"{db}.{table}"
