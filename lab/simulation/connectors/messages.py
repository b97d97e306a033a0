"""What Debezium's connectors for MariaDB and MySQL write of a commit, as JSON with its schema.

Not all that they can write: the types of `lab.simulation.connectors.tables` are here. What real ones write is in
`tests/sources/debezium/fixtures`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from lab.simulation.connectors.committed import Changed
from lab.simulation.mariadb.log import events
from lab.simulation.mariadb.server import EPOCH_S, Commit
from lab.simulation.mariadb.sql.definitions import AlterTable, CreateTable, DropTables, RenameTables, TruncateTable
from lab.simulation.mariadb.sql.syntax import Name
from lab.simulation.mariadb.storage.columns import Column, Stored
from lab.simulation.mariadb.storage.schema_changes import resolved
from lab.simulation.mariadb.storage.tables import Row, Table

Payload = dict[str, Any]
SMALL: Final = 3
"""Rows of a transaction that writes each of them once."""
_ENDS_XA: Final = 0x80
_PREPARES_XA: Final = 0x40
_PLAIN: Final = {
    "tinyint": "int16",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "varchar": "string",
    "text": "string",
    "longtext": "string",
    "double": "double",
}
_NAMED: Final = {
    "decimal": ("bytes", "org.apache.kafka.connect.data.Decimal"),
    "date": ("int32", "io.debezium.time.Date"),
    "timestamp": ("string", "io.debezium.time.ZonedTimestamp"),
}
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  (a DATETIME has no zone)


class Told(NamedTuple):
    """A message. ``topic``: without the prefix. ``is_row``: it counts at the end of its transaction."""

    topic: str
    value: bytes
    is_row: bool = False


class Writer:
    """Writes the messages of commits, for the connector that reads them."""

    def __init__(self, file: str, uuid: str, *, tells_ends: bool = True) -> None:
        """``file``: of the binlog, for those who look at places. ``uuid``: of a MySQL; "" for a MariaDB.

        ``tells_ends``: it writes which transaction a row belongs to, and where that ends.
        """
        self._file, self._uuid, self._tells_ends = file, uuid, tells_ends

    def commit(self, number: int, commit: Commit, changed: Sequence[Changed], skip: int) -> list[Told]:
        """The messages of a commit. ``skip``: rows that were told before the task was started again."""
        gtid = f"{self._uuid}:{commit.gtid[2]}" if self._uuid else "-".join(map(str, commit.gtid))
        flags = events.GTID_BODY.unpack_from(commit.group[0].body)[2]
        if flags & _ENDS_XA == _ENDS_XA:
            return []  # what has become of the rows is not told
        source = self._source(number, commit.at) | {"gtid": gtid}
        begin = [] if skip or not self._tells_ends else [_boundary("BEGIN", gtid, source)]
        if commit.change is not None:
            return ([] if self._uuid else begin) + self._statement(commit, source)
        if not commit.changes and not commit.prepared:
            return []  # GRANT and the like
        if flags & _PREPARES_XA and self._uuid:
            return [_row(source, step, {}) for step in changed][skip:]
        steps = [*enumerate(_steps(changed), 1)][skip:]
        if not self._tells_ends:
            return [_row(source, step, {}) for _, step in steps]
        rows = [_row(source, step, {"id": gtid, "total_order": at, "data_collection_order": at}) for at, step in steps]
        counts = Counter(".".join(step.table.name) for _, step in steps)
        ends = [] if flags & _PREPARES_XA else [_boundary("END", gtid, source, counts)]
        return begin + rows + ends

    def _source(self, number: int, at: float) -> Payload:
        ts_ms = int(EPOCH_S + at) * 1000
        kind = "mysql" if self._uuid else "mariadb"
        return {"connector": kind, "ts_ms": ts_ms, "snapshot": "false", "file": self._file, "pos": number}

    def _statement(self, commit: Commit, source: Payload) -> list[Told]:
        assert commit.change is not None
        change, default = commit.change
        sql = _sql(commit)
        match change:
            case TruncateTable(table):
                database, name = resolved(table, default)
                payload = {"op": "t", "source": source | {"db": database, "table": name}, "before": None, "after": None}
                return [Told(f".{database}.{name}", _wrapped(payload, {"type": "struct"}))]
            case RenameTables(pairs):
                named = sorted({name for old, new in pairs for name in (old[1], new[1])})
                words = [f"RENAME TABLE {_printed(old)} TO {_printed(new)}" for old, new in pairs]
                at = [resolved(new, default)[0] for _, new in pairs]
            case DropTables(tables):
                named, words = [name for _, name in tables], []
                for table in tables:
                    words.append("DROP TABLE `{}`.`{}`".format(*resolved(table, default)))
                at = [resolved(table, default)[0] for table in tables]
            case CreateTable() | AlterTable():
                named, words, at = [change.table[1]], [sql], [resolved(change.table, default)[0]]
            case _:
                named, words, at = [], [sql], [change.name]
        source = source | {"table": ",".join(named) or None}
        return [_ddl(source, database, each) for database, each in zip(at, words, strict=True)]

    def snapshot(self, place: str, at: float, tables: Sequence[tuple[Table, Sequence[Row]]]) -> list[Told]:
        """The messages of a snapshot at a place in the binlog: the tables' definitions, then their rows."""
        file, _, pos = place.rpartition(":")
        source = self._source(int(pos), at) | {"snapshot": "true", "file": file, "gtid": None}
        found = [_ddl(source | {"db": "", "table": None}, "", "SET character_set_server=utf8mb4")]
        for table, _ in tables:
            found.append(_ddl(source | {"table": table.name[1]}, table.name[0], table.show_create()))
        for table, rows in tables:
            found += [_row(source, Changed(table, None, row), None, "r") for row in rows]
        return found


def _steps(changed: Sequence[Changed]) -> list[Changed]:
    """The events of a transaction. A large one has written each row that it keeps twice, first without its numbers."""
    if len(changed) <= SMALL:
        return [*changed]
    kept = [each for each in changed if each.before is not None and each.after is not None]
    firsts = [each._replace(after=_without_numbers(each.table, each.after)) for each in kept]
    between = {id(each): first.after for each, first in zip(kept, firsts, strict=True)}
    return [*firsts, *(each._replace(before=between.get(id(each), each.before)) for each in changed)]


def _without_numbers(table: Table, row: Row | None) -> Row:
    values = enumerate(row or ())
    return tuple(0 if type(value) is int and at not in table.key_indexes else value for at, value in values)


def _ddl(source: Payload, database: str, sql: str) -> Told:
    payload = {"source": {"db": database} | source, "databaseName": database, "schemaName": None, "ddl": sql}
    return Told("", _wrapped(payload, {"type": "struct"}))


def _boundary(status: str, gtid: str, source: Payload, counts: Counter[str] | None = None) -> Told:
    payload: Payload = {"status": status, "id": gtid, "ts_ms": source["ts_ms"], "event_count": None}
    if counts is not None:
        tables = [{"data_collection": table, "event_count": count} for table, count in counts.items()]
        payload |= {"event_count": counts.total(), "data_collections": tables}
    return Told(".transaction", _wrapped(payload, {"type": "struct"}))


def _row(source: Payload, changed: Changed, transaction: Payload | None, operation: str = "") -> Told:
    table, before, after = changed
    database, name = table.name
    payload = {
        "op": operation or ("c" if before is None else "d" if after is None else "u"),
        "source": source | {"db": database, "table": name},
        "before": _values(table, before),
        "after": _values(table, after),
        "transaction": transaction or None,
    }
    fields = [_field(column) for column in table.columns]
    schema = {"type": "struct", "fields": [{"type": "struct", "field": at, "fields": fields} for at in _IMAGES]}
    return Told(f".{database}.{name}", _wrapped(payload, schema), is_row=transaction is not None)


_IMAGES: Final = ("before", "after")


def _values(table: Table, row: Row | None) -> Payload | None:
    if row is None:
        return None
    return {column.name: _value(column, value) for column, value in zip(table.columns, row, strict=True)}


def _field(column: Column) -> Payload:
    definition = column.definition
    said = {"__debezium.source.column.type": column.kind.upper() + " UNSIGNED" * definition.unsigned}
    said["__debezium.source.column.name"] = column.name
    if column.size:
        said["__debezium.source.column.length"] = str(column.size)
    if column.kind == "decimal":
        said |= {"scale": str(column.scale), "__debezium.source.column.scale": str(column.scale)}
    plain, named = _NAMED.get(column.kind, (_PLAIN.get(column.kind, "int64"), None))
    if column.kind == "datetime":
        named = "io.debezium.time.MicroTimestamp" if column.size > 3 else "io.debezium.time.Timestamp"
    form: Payload = {"type": plain, "optional": definition.nullable, "field": column.name, "parameters": said}
    return form | ({"name": named} if named else {})


def _value(column: Column, value: Stored) -> Any:
    match value:
        case Decimal():
            unscaled = int(value.scaleb(column.scale))
            return b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)).decode()
        case datetime() if column.kind == "timestamp":
            moment = value.replace(tzinfo=UTC)
            return moment.strftime("%Y-%m-%dT%H:%M:%S") + (f".{moment.microsecond:06d}" if column.size else "") + "Z"
        case datetime():
            micros = (value - _EPOCH).days * 86_400_000_000 + (value - _EPOCH).seconds * 1_000_000 + value.microsecond
            return micros if column.size > 3 else micros // 1000
        case date():
            return (value - _EPOCH.date()).days
        case int() if value >= 1 << 63:
            return value - (1 << 64)
    return value


def _wrapped(payload: Payload, schema: Payload) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}).encode()


def _sql(commit: Commit) -> str:
    body = commit.group[1].body
    _, _, database, _, status = events.QUERY_BODY.unpack_from(body)
    return body[events.QUERY_BODY.size + status + database + 1 :].decode()


def _printed(name: Name) -> str:
    return ".".join(each for each in name if each)
