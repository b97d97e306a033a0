"""Reads tables from information_schema: canonical kinds, keys, and whether a table can be cached."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stream.sources.generated_columns import dependence, shown
from stream.sources.key_range import KeyIndex
from stream.sources.learnt_indexes import SourceIndex
from stream.sources.mariadb.charsets import Charsets, compares_by_character, is_exact_collation
from stream.sources.mariadb.connection import Connection, fetch_all, fetch_whole, is_mysql
from stream.sources.mariadb.information_schema.locked_tables import (
    Name,
    databases_sql,
    limit_sql,
    names_sql,
    read_unlocked,
    table_names,
)
from stream.sources.mariadb.schema import NO_PRIMARY_KEY, ColumnInfo, TableFilter, TableInfo

_KINDS = {
    "tinyint": "int",
    "smallint": "int",
    "mediumint": "int",
    "int": "int",
    "bigint": "int",
    "decimal": "decimal",
    "float": "float",
    "double": "double",
    "char": "text",
    "varchar": "text",
    "tinytext": "text",
    "text": "text",
    "mediumtext": "text",
    "longtext": "text",
    "binary": "binary",
    "varbinary": "binary",
    "tinyblob": "binary",
    "blob": "binary",
    "mediumblob": "binary",
    "longblob": "binary",
    "date": "date",
    "datetime": "datetime",
    "timestamp": "timestamp",
    "time": "time",
    "year": "year",
    "bit": "bit",
    "enum": "enum",
    "json": "json",
    "set": "set",
    "uuid": "uuid",
    "inet4": "inet",
    "inet6": "inet",
}
SQL_TYPE_CHARS_MAX = 1_000
"""Of a column's type in descriptions, which are said again and again."""
_EXACT_KINDS = frozenset({"int", "bit", "uuid", "date"})
_EXACT_BINARY = frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_MEMBER = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
"""A member of an ENUM or SET in information_schema's COLUMN_TYPE."""


def unknown_databases(connection: Connection, names: Iterable[str]) -> list[str]:
    """Those of ``names`` that don't exist, or that the user may not see."""
    found = {name for (name,) in fetch_all(connection, "SHOW DATABASES")}
    return sorted(set(names) - found)


def read_table(
    connection: Connection,
    charsets: Charsets,
    database: str,
    table: str,
    prefixes: tuple[tuple[str, int], ...] = (),
    *,
    wait_s: int | None = None,
) -> TableInfo | None:
    """One table; None if it doesn't exist or is a view. ``wait_s`` as of `read_tables`. Raises PyMySQL's errors."""
    include = TableFilter(prefixes=prefixes)
    found = read_tables(connection, charsets, include, ((database, table),), wait_s=wait_s)
    return found.get(f"{database}.{table}")


def read_unlocked_tables(
    connection: Connection, charsets: Charsets, include: TableFilter
) -> tuple[dict[str, TableInfo], frozenset[str]]:
    """All included tables but those that are locked now, which may be views; and the names of these.

    Raises PyMySQL's errors.
    """
    parts, locked = read_unlocked(
        connection,
        lambda names: read_tables(connection, charsets, include, names, wait_s=0),
        lambda: [name for name in table_names(connection, include.databases) if include(*name)],
    )
    return {name: info for part in parts for name, info in part.items()}, locked


def read_tables(
    connection: Connection,
    charsets: Charsets,
    include: TableFilter,
    only: Sequence[Name] = (),
    *,
    wait_s: int | None = None,
) -> dict[str, TableInfo]:
    """All included tables, or those of them that are in ``only``, by ``db.table``.

    Of the databases that were chosen alone: MariaDB opens each table that it tells of, and waits while one is locked,
    as by a long CREATE TABLE … SELECT: for ``wait_s``, or as long as the session does. Raises PyMySQL's errors (see
    `connection.translated`).
    """
    arguments: Sequence[str] = include.databases
    where = databases_sql(arguments)
    if only:
        where, arguments = names_sql(only)
    limit = limit_sql(connection, wait_s)
    tables = fetch_whole(
        connection,
        f"{limit}SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES"
        f" WHERE {where} AND TABLE_TYPE <> 'VIEW' AND TABLE_TYPE <> 'SYSTEM VIEW'",
        arguments,
    )
    columns = _group(
        fetch_whole(
            connection,
            f"{limit}SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME,"
            " COLLATION_NAME, CHARACTER_OCTET_LENGTH, EXTRA, GENERATION_EXPRESSION FROM information_schema.COLUMNS"
            f" WHERE {where} ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION",
            arguments,
        )
    )
    keys = _group(
        fetch_whole(
            connection,
            f"{limit}SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, SUB_PART, INDEX_TYPE, COLLATION"
            f" FROM information_schema.STATISTICS WHERE {where}"
            " ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX",
            arguments,
        )
    )
    json_columns = _json_columns(connection, limit, where.replace("TABLE_SCHEMA", "CONSTRAINT_SCHEMA"), arguments)
    found = {}
    for database, table, kind, engine in tables:
        if not include(database, table):
            continue
        rows, parts = columns[database, table], keys[database, table]
        infos = tuple(_column(row[:6], charsets, (database, table, row[0]) in json_columns) for row in rows)
        infos = _with_generated(infos, rows)
        primary = [row[1:] for row in parts if row[0] == "PRIMARY"]
        infos = _with_ambiguous_keys(infos, rows, {name for name, *_ in primary})
        info = _table(database, table, kind, engine or "", infos, [name for name, *_ in primary])
        prefix = include.prefix_of(info.name, len(info.primary_key))
        found[info.name] = replace(
            info,
            prefix=prefix,
            indexes=_indexes(parts),
            key_index=_key_index(primary, {name: collation for name, _, _, _, collation, *_ in rows}),
            is_recomputed=_is_recomputed(rows),
            generated=frozenset(name for name, *_, extra, _ in rows if " GENERATED" in extra),
        )
    return found


def _group(rows: Iterable[tuple[Any, ...]]) -> defaultdict[tuple[str, str], list[tuple[Any, ...]]]:
    found: defaultdict[tuple[str, str], list[tuple[Any, ...]]] = defaultdict(list)
    for database, table, *rest in rows:
        found[database, table].append(tuple(rest))
    return found


def _indexes(parts: Sequence[tuple[Any, ...]]) -> tuple[SourceIndex, ...]:
    """The indexes in rows of information_schema: index, column (in order), length of a prefix, type, direction."""
    found: dict[str, SourceIndex] = {}
    for index, column, length, kind, _ in parts:
        known = found.get(index, SourceIndex(index, ()))
        problem = f"it is a {kind} index" if kind != "BTREE" else ""
        if column is None:
            problem = "it has an expression"
        if not problem and length is not None:
            problem = f"it has only the first {length} characters of column {column}"
        found[index] = SourceIndex(index, (*known.columns, column or ""), known.problem or problem)
    return tuple(index for name, index in found.items() if name != "PRIMARY")


def _key_index(parts: Sequence[tuple[Any, ...]], collations: Mapping[str, str | None]) -> KeyIndex:
    """That of the primary key, from rows of information_schema: column, length of a prefix, type, direction."""
    partial = tuple(name for name, length, *_ in parts if length is not None)
    return KeyIndex(
        descending=tuple(name for name, *_, direction in parts if direction == "D"),
        partial=partial,
        misleading=tuple(name for name in partial if not compares_by_character(collations.get(name))),
    )


def _json_columns(
    connection: Connection, limit: str, where: str, arguments: Sequence[str]
) -> set[tuple[str, str, str]]:
    """MariaDB's JSON columns, which are LONGTEXT with a ``json_valid`` check of the column's name.

    ``limit``: as of `limit_sql`. ``where``: of which tables, by their database and name.
    """
    if is_mysql(connection):
        return set()
    return {
        (database, table, column)
        for database, table, column, clause in fetch_whole(
            connection,
            f"{limit}SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, CHECK_CLAUSE"
            f" FROM information_schema.CHECK_CONSTRAINTS WHERE CHECK_CLAUSE LIKE 'json_valid(%%' AND {where}",
            arguments,
        )
        if clause == f"json_valid(`{column}`)"
    }


def _column(row: tuple[Any, ...], charsets: Charsets, is_json: bool) -> ColumnInfo:
    name, data_type, column_type, charset, collation, octets = row
    data_type = data_type.lower()
    kind = _KINDS.get(data_type, "opaque")
    problem = ""
    if kind == "opaque":
        problem = f"column {name} has type {data_type}"
    elif column_type.lower().startswith("year(2)"):
        problem = f"column {name} has type year(2), which is read without its century"
    elif "compressed" in column_type.lower() and re.search(r"/\*.*compressed", column_type, re.IGNORECASE):
        problem = f"column {name} is COMPRESSED"
    elif "mariadb-5.3" in column_type:
        problem = f"column {name} has the old temporal format (ALTER TABLE … FORCE rewrites it)"
    elif charset is not None and not charsets.is_exact(charset):
        problem = f"column {name} has character set {charset}"
    if kind == "text" and is_json:
        kind = "json"
    length = {"inet4": 4, "inet6": 16}.get(data_type, int(octets or 0) if data_type == "binary" else 0)
    exact = kind in _EXACT_KINDS or data_type in _EXACT_BINARY
    if kind == "text" and collation is not None:
        exact = is_exact_collation(collation)
    return ColumnInfo(name, kind, exact, length, problem, _sql_type(column_type))


def _sql_type(column_type: str) -> str:
    """information_schema's COLUMN_TYPE. The list of a long ENUM or SET, of up to 65,535 words, is left out."""
    return column_type if len(column_type) <= SQL_TYPE_CHARS_MAX else column_type.partition("(")[0]


def _with_generated(columns: tuple[ColumnInfo, ...], rows: Sequence[tuple[Any, ...]]) -> tuple[ColumnInfo, ...]:
    """``columns`` with the problems of those that are computed when they are read. ``rows``: information_schema's."""
    if not any("VIRTUAL" in extra for *_, extra, _ in rows):
        return columns
    types = _types(rows)
    found = []
    for column, (*_, extra, expression) in zip(columns, rows, strict=True):
        problem = column.problem
        if "VIRTUAL" in extra and not problem:
            made, why = _dependence(column.name, expression, types)
            problem = (
                f"column {column.name} may not be a function of its row: {why}, in AS ({shown(made)})" if why else ""
            )
        found.append(replace(column, problem=problem))
    return tuple(found)


def _with_ambiguous_keys(
    columns: tuple[ColumnInfo, ...], rows: Sequence[tuple[Any, ...]], key: set[str]
) -> tuple[ColumnInfo, ...]:
    """``columns`` with the problems of those in ``key`` that show two values as one text. ``rows`` as above.

    The server shows number 0 of an ENUM, an invalid value, and of a SET, no member, as ``''``; and without strict mode
    it takes a member twice.
    """
    found = []
    for column, (_, kind, full, *_) in zip(columns, rows, strict=True):
        problem = column.problem
        if column.name in key and kind.lower() in ("enum", "set") and not problem:
            [(text, times)] = Counter(["", *_MEMBER.findall(full)]).most_common(1)
            problem = f"column {column.name} of its key shows two values as '{text}'" if times > 1 else ""
        found.append(replace(column, problem=problem))
    return tuple(found)


def _is_recomputed(rows: Sequence[tuple[Any, ...]]) -> bool:
    """Whether a stored column may not be a function of its row. ``rows``: information_schema's."""
    types = _types(rows)
    return any("STORED" in extra and _dependence(name, made, types)[1] for name, *_, extra, made in rows)


def _types(rows: Sequence[tuple[Any, ...]]) -> dict[str, str]:
    return {name: kind.lower() + " unsigned" * ("unsigned" in full) for name, kind, full, *_ in rows}


def _dependence(name: str, expression: str | None, types: Mapping[str, str]) -> tuple[str, str]:
    """The expression of a generated column, and what keeps it from being a function of its row."""
    made = (expression or "").replace("\\'", "'")  # MySQL escapes the quotes of texts
    return made, dependence(types[name], made, types) if made else "its expression is hidden"


def _table(
    database: str,
    table: str,
    kind: str,
    engine: str,
    columns: tuple[ColumnInfo, ...],
    keys: Sequence[str],
) -> TableInfo:
    names = {column.name for column in columns}
    primary_key = tuple(keys) if set(keys) <= names else ()
    if "." in database or "." in table or "\0" in table or (database + table)[:1] < " ":
        problem = "its name holds a dot or a control character"
    elif kind != "BASE TABLE":
        problem = f"it is a {kind.lower().replace('_', ' ')}"
    elif engine.lower() != "innodb":
        problem = f"engine {engine} has no snapshots"
    else:
        problem = next((column.problem for column in columns if column.problem), "")
        problem = problem or ("" if primary_key else NO_PRIMARY_KEY)
    return TableInfo(database, table, columns, primary_key, engine, problem)
