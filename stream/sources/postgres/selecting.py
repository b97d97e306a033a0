"""Read rows by key, or in order, within a session's open snapshot of PostgreSQL.

A row of a heap has ``xmax`` 0 if nobody has begun to change it, or to lock it, since it was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from stream.interpreter import at_work_on
from stream.sources.key_range import KeyRange
from stream.sources.mariadb.by_key import Found, Key, KeyNotPossible, SelectedRow
from stream.sources.mariadb.by_range import (
    BYTES_MAX,
    SelectedRange,
    counted,
    counted_at_most,
    of_key,
    require_few,
)
from stream.sources.mariadb.schema import TableInfo
from stream.sources.postgres.selected_rows import RowForm, argument, quoted, select_columns_sql, table_sql
from stream.sources.postgres.tables import is_heap
from stream.wire.values import UndecodableValue

if TYPE_CHECKING:
    from stream.sources.postgres.connection import Connection

STATEMENT_KEYS_MAX: Final = 100
PIECE_ROWS: Final = 64
"""What is fetched of a cursor at a time: a row may be large."""
_IMPOSSIBLE: Final = "22"
"""The class of SQLSTATE of a value that its type can't have."""


def rows_by_key(
    connection: Connection, info: TableInfo, keys: Sequence[Key]
) -> tuple[tuple[Found, ...], frozenset[int]]:
    """The results for keys, in their order, and the places of those rows that nobody had begun to change.

    Each key gets the answer that a statement of its own would give. Raises psycopg's errors, but of single keys.
    """
    found: list[Found] = []
    untouched: set[int] = set()
    for at in range(0, len(keys), STATEMENT_KEYS_MAX):
        some = keys[at : at + STATEMENT_KEYS_MAX]
        selected = _select_keys(connection, info, some)
        results: list[_Row | KeyNotPossible | None] = []
        if isinstance(selected, KeyNotPossible):
            alone = [_select_keys(connection, info, [key]) for key in some] if len(some) > 1 else [selected]
            results += [one if isinstance(one, KeyNotPossible) else one[0] for one in alone]
        else:
            results += selected
        untouched.update(
            place for place, result in enumerate(results, at) if isinstance(result, _Row) and result.untouched
        )
        found += [result.row if isinstance(result, _Row) else result for result in results]
    return tuple(found), frozenset(untouched)


class _Row(NamedTuple):
    row: SelectedRow | UndecodableValue
    untouched: bool


def _select_keys(connection: Connection, info: TableInfo, keys: Sequence[Key]) -> list[_Row | None] | KeyNotPossible:
    """The rows by one statement, a SELECT for each key; or the error of a key that no row can have."""
    import psycopg

    condition = " AND ".join(f"{quoted(name)} = %s" for name in info.primary_key)
    untouched = "xmax = '0'::xid" if is_heap(info) else "false"
    select = f"SELECT {{}}, {untouched}, {select_columns_sql(info)} FROM {table_sql(info)} WHERE {condition}"
    parts = [select.replace("{}", str(place), 1) for place in range(len(keys))]
    arguments = [argument(value) for key in keys for value in key]
    connection.execute("SAVEPOINT keys")
    try:
        selected = raw_rows(connection, " UNION ALL ".join(parts), arguments)
    except psycopg.DataError as error:
        if error.sqlstate is not None and not error.sqlstate.startswith(_IMPOSSIBLE):
            raise
        connection.execute("ROLLBACK TO SAVEPOINT keys")
        return KeyNotPossible(f"{info.name} can have no key {list(keys[0])}: {' '.join(str(error).split())}")
    form = RowForm(info)
    found: list[_Row | None] = [None] * len(keys)
    for place, is_untouched, *values in at_work_on(selected) if len(keys) > 1 else selected:
        found[int(place or 0)] = _Row(_row(form, values), is_untouched == b"t")
    return found


def _row(form: RowForm, values: Sequence[bytes | None]) -> SelectedRow | UndecodableValue:
    try:
        return SelectedRow(form.key(values), form.image(values))
    except UndecodableValue as error:
        return error


def raw_rows(
    connection: Connection, sql: str, arguments: Sequence[str] | Mapping[str, str]
) -> list[list[bytes | None]]:
    """What a statement returns, as the server writes it."""
    cursor = connection.execute(sql.encode(), arguments)
    result = cursor.pgresult
    assert result is not None
    return [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]


def rows_in_range(connection: Connection, info: TableInfo, wanted: KeyRange) -> SelectedRange:
    """What a range of a table with a primary key holds.

    Raises psycopg's errors, `KeyNotPossible`, `UndecodableValue`, and as `counted` and `require_few` of
    `stream.sources.mariadb.by_range`.
    """
    import psycopg

    try:
        if wanted.limit and wanted.order:  # it is not known which indexes there are
            require_few(info, wanted, partial(_count, connection, info))
        if not wanted.limit and wanted.owns is not None:
            return _count_keys(connection, info, wanted)
        if not wanted.limit:
            return SelectedRange(number=_count(connection, info, wanted))
        return _rows(connection, info, wanted)
    except psycopg.DataError as error:
        if error.sqlstate is not None and not error.sqlstate.startswith(_IMPOSSIBLE):
            raise
        raise KeyNotPossible(f"{info.name} can have no such key: {' '.join(str(error).split())}") from error


def _rows(connection: Connection, info: TableInfo, wanted: KeyRange) -> SelectedRange:
    where, arguments = _where(info, wanted)
    order = [*wanted.order, *(name for name in info.primary_key if name not in wanted.order)]
    direction, nulls = ("DESC", " NULLS LAST") if wanted.descending else ("ASC", " NULLS FIRST")
    ordered = [f"{_column(info, name)} {direction}{nulls if name in wanted.order else ''}" for name in order]
    sql = (
        f"SELECT {select_columns_sql(info)} FROM {table_sql(info)}{where}"
        f" ORDER BY {', '.join(ordered)} LIMIT {wanted.limit + 1}"
    )
    form, rows, size = RowForm(info), list[SelectedRow](), 0
    for values in chain.from_iterable(_pieces(connection, sql, arguments, wanted.limit + 1)):
        if len(rows) == wanted.limit:
            return SelectedRange(tuple(rows), len(rows), more=True)
        row = SelectedRow(form.key(values), form.image(values))
        size += len(row.image)
        if rows and size > BYTES_MAX:
            return SelectedRange(tuple(rows), len(rows), more=True)
        rows.append(row)
    return SelectedRange(tuple(rows), len(rows))


def _pieces(
    connection: Connection, sql: str, arguments: Mapping[str, str], limit: int
) -> Iterator[list[list[bytes | None]]]:
    """The rows of a statement, of which there are ``limit`` at most, some at a time.

    By a cursor, unless they are few: the driver holds all that a statement returns.
    """
    if limit <= PIECE_ROWS:
        yield raw_rows(connection, sql, arguments)
        return
    raw_rows(connection, f"DECLARE in_order NO SCROLL CURSOR FOR {sql}", arguments)
    left = limit
    while left > 0:
        piece = raw_rows(connection, f"FETCH {PIECE_ROWS} FROM in_order", {})
        yield piece
        left = left - PIECE_ROWS if len(piece) == PIECE_ROWS else 0


class RowsInOrder(NamedTuple):
    """Keys and images in the order of the key; no image if it can't be decoded. ``is_end``: no row follows."""

    rows: list[tuple[bytes, bytes]]
    is_end: bool


def rows_in_order(
    connection: Connection, info: TableInfo, after: Sequence[object] | None, limit: int, bytes_max: int
) -> RowsInOrder:
    """The rows after a key, until there are ``limit`` or they have ``bytes_max``.

    Raises psycopg's errors, `UndecodableValue`.
    """
    where, arguments = _where(info, KeyRange(after=after))
    order = ", ".join(quoted(name) for name in info.primary_key)
    sql = f"SELECT {select_columns_sql(info)} FROM {table_sql(info)}{where} ORDER BY {order} LIMIT {limit}"
    form, found, size = RowForm(info), list[tuple[bytes, bytes]](), 0
    for piece in _pieces(connection, sql, arguments, limit):
        for values in piece:
            size += sum(len(value) for value in values if value)
            try:
                image = form.image(values)
            except UndecodableValue:
                image = b""
            found.append((form.key(values), image))
        if size >= bytes_max and len(piece) == PIECE_ROWS:
            return RowsInOrder(found, is_end=False)
    return RowsInOrder(found, len(found) < limit)


def _count(connection: Connection, info: TableInfo, wanted: KeyRange) -> int:
    where, arguments = _where(info, wanted)
    limit = f" LIMIT {wanted.count_max}" if wanted.count_max else ""
    sql = f"SELECT count(*) FROM (SELECT FROM {table_sql(info)}{where}{limit}) AS counted"
    [[number]] = raw_rows(connection, sql, arguments)
    return int(number or 0)


def _count_keys(connection: Connection, info: TableInfo, wanted: KeyRange) -> SelectedRange:
    keys, limit = of_key(info), counted_at_most(wanted)
    where, arguments = _where(info, wanted)
    sql = f"SELECT {select_columns_sql(keys)} FROM {table_sql(info)}{where} LIMIT {limit}"
    pieces = _pieces(connection, sql, arguments, limit)
    return counted(info, wanted, map(RowForm(keys).key, chain.from_iterable(pieces)))


def _where(info: TableInfo, wanted: KeyRange) -> tuple[str, dict[str, str]]:
    """The condition, and its arguments by name."""
    arguments: dict[str, str] = {}

    def literal(_name: str, value: object) -> str:
        arguments[f"a{len(arguments)}"] = argument(value)
        return f"%(a{len(arguments) - 1})s"

    given = [*zip(info.primary_key, wanted.leading, strict=False), *wanted.where]
    conditions = [f"{_column(info, name)} = {literal(name, value)}" for name, value in given]
    left = info.primary_key[len(wanted.leading) :]
    if wanted.after is not None and len(left) > 1 and not wanted.order:
        # One comparison, of which PostgreSQL finds the place in the key's index; for alternatives it reads all before.
        values = [literal(name, value) for name, value in zip(left, wanted.after[len(wanted.leading) :], strict=True)]
        names = ", ".join(_column(info, name) for name in left)
        conditions.append(f"({names}) {'<' if wanted.descending else '>'} ({', '.join(values)})")
    elif wanted.after is not None:
        conditions.append(wanted.behind(info.primary_key, partial(_column, info), literal))
    return f" WHERE {' AND '.join(conditions)}" if conditions else "", arguments


def _column(info: TableInfo, name: str) -> str:
    """A column in SQL. Raises `KeyNotPossible`."""
    if all(column.name != name for column in info.columns):
        raise KeyNotPossible(f"{info.name} has no column {name}")
    return quoted(name)
