"""Tables as PostgreSQL's catalog describes them: canonical kinds, keys, and whether a table can be cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import xxhash

from stream.sources.mariadb.schema import NO_PRIMARY_KEY, ColumnInfo, TableFilter, TableInfo
from stream.sources.postgres.connection import fetch_all, one_snapshot
from stream.sources.postgres.locks import RENAMES_SCHEMA, THIS_DATABASE

if TYPE_CHECKING:
    from stream.sources.postgres.connection import Connection

_KINDS: Final = {
    "int2": "int",
    "int4": "int",
    "int8": "int",
    "oid": "int",
    "bool": "bit",
    "float4": "float",
    "float8": "double",
    "numeric": "decimal",
    "text": "text",
    "varchar": "text",
    "bpchar": "text",
    "bytea": "binary",
    "date": "date",
    "timestamp": "datetime",
    "timestamptz": "timestamp",
    "time": "time",
    "uuid": "uuid",
    "json": "json",
    "jsonb": "json",
}
"""Types whose values a connector carries exactly."""
LABELS_CHARS_MAX: Final = 900
"""Of an ENUM's values, by which it is seen that one was renamed."""
_EXACT_TYPES: Final = frozenset({"int2", "int4", "int8", "oid", "bool", "bytea", "date", "uuid"})
_OWN_SCHEMAS: Final = "n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'"

_HAS_CHILDREN: Final = "EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid)"
"""Not ``relhassubclass``, which stays true once there was one."""
_SELF: Final = "SELECT c.oid UNION SELECT relid FROM pg_partition_ancestors(c.oid)"
_TABLES: Final = f"""
SELECT n.nspname, c.relname, c.relkind::text, c.relpersistence::text, {_HAS_CHILDREN}, c.relreplident::text,
 coalesce((SELECT amname FROM pg_am WHERE oid = c.relam), '-') || ' ' || c.relfilenode || ' '
  || ARRAY(SELECT a.attnum FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
  AND NOT a.attisdropped ORDER BY a.attnum)::text,
 ARRAY(SELECT a.attname::text FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
  WHERE i.indrelid = c.oid AND i.indisprimary AND k.place <= i.indnkeyatts ORDER BY k.place),
 CASE WHEN EXISTS (SELECT FROM pg_publication_tables p JOIN pg_publication q USING (pubname) WHERE pubname = %s
  AND p.schemaname = n.nspname AND p.tablename = c.relname AND p.rowfilter IS NULL
  AND q.pubinsert AND q.pubupdate AND q.pubdelete AND q.pubtruncate)
 THEN (SELECT concat_ws(' ', q.oid, q.xmin,
   (SELECT string_agg(concat_ws('/', r.oid, r.xmin), ',' ORDER BY r.oid) FROM pg_publication_rel r
    WHERE r.prpubid = q.oid AND r.prrelid IN ({_SELF})),
   (SELECT string_agg(concat_ws('/', s.oid, s.xmin), ',' ORDER BY s.oid) FROM pg_publication_namespace s
    WHERE s.pnpubid = q.oid AND s.pnnspid IN (SELECT relnamespace FROM pg_class WHERE oid IN ({_SELF}))))
  FROM pg_publication q WHERE q.pubname = %s) END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND {_OWN_SCHEMAS}"""
_ONE: Final = " AND n.nspname = %s AND c.relname = %s"
_COLUMNS: Final = f"""
SELECT n.nspname, c.relname, a.attname, t.typname::text, format_type(a.atttypid, a.atttypmod), a.attgenerated::text,
 coalesce(l.collisdeterministic, true),
 ARRAY(SELECT e.enumlabel::text FROM pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE c.relkind IN ('r', 'p', 'f') AND a.attnum > 0 AND NOT a.attisdropped AND {_OWN_SCHEMAS}"""
_IN_ORDER: Final = " ORDER BY n.nspname, c.relname, a.attnum"
_DEFINITION: Final = f"""
SELECT concat_ws(' ', c.oid, c.relkind, c.relpersistence, {_HAS_CHILDREN}, c.relreplident, c.relam,
 (SELECT string_agg(concat_ws(' ', a.attnum, quote_ident(a.attname), a.atttypid, a.atttypmod, a.attgenerated,
   a.attcollation, (SELECT string_agg(quote_literal(e.enumlabel), ',' ORDER BY e.enumsortorder) FROM pg_enum e
   WHERE e.enumtypid = a.atttypid)), ',' ORDER BY a.attnum)
  FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
 (SELECT i.indkey::text || i.indnkeyatts FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f') AND n.nspname = %s AND c.relname = %s"""
_LOCKED: Final = f"""
SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE {_OWN_SCHEMAS} AND (c.oid IN (SELECT relation FROM pg_locks WHERE granted AND mode = 'AccessExclusiveLock'
 AND locktype = 'relation' AND database = {THIS_DATABASE}
 UNION ALL SELECT a.attrelid FROM pg_locks k JOIN pg_attribute a ON a.atttypid = k.objid
 WHERE k.granted AND k.locktype = 'object' AND k.classid = 'pg_type'::regclass AND k.mode LIKE '%Exclusive%')
 OR EXISTS (SELECT FROM pg_locks k WHERE k.granted AND k.database = {THIS_DATABASE} AND ({RENAMES_SCHEMA}
  OR k.classid = 'pg_publication'::regclass AND k.mode = 'AccessExclusiveLock')))"""
"""Who renames a schema, or changes which tables a publication has, locks none of those that are to be another one."""


class Found(NamedTuple):
    """The tables, and what of each they depend on besides. ``locked``: those that some session may be altering."""

    tables: dict[str, TableInfo]
    locked: frozenset[str]


def read_tables(connection: Connection, include: TableFilter, publication: str) -> Found:
    """All included tables, by ``schema.table``. Raises the driver's errors (see `connection.translated`).

    Who alters a table holds its lock until everybody sees what was altered. So the locks are asked for before the
    snapshot is made: whatever is committed by then is seen, or is locked. A lock that is gone at a second look was left
    before the snapshot, too.
    """
    locked = _locked(connection)
    if locked:  # for a moment others than who renames a schema write into pg_namespace
        locked &= _locked(connection)
    with one_snapshot(connection):
        tables = fetch_all(connection, _TABLES, (publication, publication))
        all_columns = fetch_all(connection, _COLUMNS + _IN_ORDER)
    columns: dict[tuple[str, str], list[ColumnInfo]] = {}
    for schema, table, *column in all_columns:
        columns.setdefault((schema, table), []).append(_column(column))
    found = {}
    for schema, table, *row in tables:
        if include(schema, table):
            info = _table(schema, table, columns.get((schema, table), []), row)
            found[info.name] = replace(info, prefix=include.prefix_of(info.name, len(info.primary_key)))
    return Found(found, locked)


def _locked(connection: Connection) -> frozenset[str]:
    return frozenset(name for (name,) in fetch_all(connection, _LOCKED))


def read_table(connection: Connection, schema: str, table: str) -> TableInfo | None:
    """A table as whoever reads it finds it, whatever a publication has of it; None: there is none.

    As of one moment only if it is asked in a snapshot.
    """
    columns = [_column(row) for _, _, *row in fetch_all(connection, _COLUMNS + _ONE + _IN_ORDER, (schema, table))]
    found = fetch_all(connection, _TABLES + _ONE, ("", "", schema, table))
    if not found:
        return None
    _, _, *row, _ = found[0]
    return _table(schema, table, columns, [*row, "-"])


def definition_of(connection: Connection, schema: str, table: str) -> str:
    """A text that differs for tables with other columns, or another key; "" if there is no such table."""
    found = fetch_all(connection, _DEFINITION, (schema, table))
    return str(found[0][0]) if found else ""


def schemas_of(connection: Connection) -> set[str]:
    """The schemas of the database."""
    return {name for (name,) in fetch_all(connection, "SELECT nspname FROM pg_namespace")}


def _column(row: Sequence[Any]) -> ColumnInfo:
    name, typed, shown, generated, is_deterministic, labels = row
    kind = "enum" if labels else _KINDS.get(typed, "opaque")
    problem = ""
    if kind == "opaque":
        problem = f"column {name} has type {shown}, whose values a connector does not tell exactly"
    elif generated:
        problem = f"column {name} is generated, and its values are not in the log"
    exact = kind != "enum" and (typed in _EXACT_TYPES or (typed in ("text", "varchar") and is_deterministic))
    if labels:
        values = ", ".join(labels)
        shown += f" ({values if len(values) <= LABELS_CHARS_MAX else xxhash.xxh3_64_hexdigest(values.encode())})"
    return ColumnInfo(name, kind, exact, 0, problem, shown)


def _table(schema: str, table: str, columns: Sequence[ColumnInfo], row: Sequence[Any]) -> TableInfo:
    kind, persistence, has_children, identity, storage, key, published = row
    problem = _problem(schema + table, kind, persistence, has_children=has_children)
    if not problem and not key:
        problem = NO_PRIMARY_KEY
    elif not problem and identity not in ("d", "f"):
        problem = "its REPLICA IDENTITY is neither its primary key nor FULL"
    elif not problem and not published:
        problem = "the connector's publication does not have all of its rows"
    problem = problem or next((column.problem for column in columns if column.problem), "")
    if kind == "p" or has_children:
        key = ()  # its rows are others', and nobody but those tells who writes them
    engine = f"{identity} {storage} {published or '-'}"
    return TableInfo(schema, table, tuple(columns), tuple(key), engine=engine, problem=problem)


def _problem(name: str, kind: str, persistence: str, *, has_children: bool) -> str:
    if "." in name or "\0" in name or name[:1] < " ":
        return "its name holds a dot or a control character"
    if kind != "r":
        return "it is partitioned: its partitions are published" if kind == "p" else "it is a foreign table"
    if persistence != "p":
        return "it is unlogged, or temporary"
    return "other tables inherit from it: their rows are in it, too" if has_children else ""


def has_whole_rows(info: TableInfo) -> bool:
    """Whether the log has all of a row of before; by default it has its key."""
    return info.engine.startswith("f ")


def is_heap(info: TableInfo) -> bool:
    """Whether rows are stored as PostgreSQL itself does it, and not by an extension."""
    return info.engine.split(" ", 2)[1] == "heap"


def storage_of(tables: Mapping[str, TableInfo]) -> int:
    """A number for the files of all rows, for their columns, and for what publishes them.

    Who rewrites a table, which has another file then, may change all values, without a word in the log or in its
    description. No connector tells what changed while a table was out of the publication; its row there is another one.
    """
    words = "\0".join(f"{name} {tables[name].engine}" for name in sorted(tables))
    return xxhash.xxh3_64_intdigest(words.encode()) >> 1


def differences(before: Mapping[str, TableInfo], now: Mapping[str, TableInfo]) -> set[str]:
    """The tables that are there on one side only, or whose columns differ, also in their types."""
    return {name for name in before.keys() | now.keys() if _shape(before.get(name)) != _shape(now.get(name))}


def _shape(info: TableInfo | None) -> object:
    return None if info is None else (info, [column.sql_type for column in info.columns])
