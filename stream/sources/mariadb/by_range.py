"""Read rows in order within a session's open transaction: the statement, and its rows.

A range is bounded by the leading columns of the key, and by a row after which it goes on. A number in quotes would be
compared as a double, which may skip neighbours of a long DECIMAL. Rows come in the order of the key, or of other
columns and then of the key: if no index has them so the server sorts them, which is done for few only. Where the index
of the key itself has them in another order, it says which few are sorted (docs/decisions/0192).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import dropwhile
from typing import Final

import pymysql
from pymysql.cursors import SSCursor

from stream.interpreter import at_work_on
from stream.sources.key_range import KeyRange
from stream.sources.mariadb.by_key import IMPOSSIBLE, KeyNotPossible, SelectedRow, code_of, sql_value, timed
from stream.sources.mariadb.connection import SORT_BYTES, Connection, MariaDBError, fetch_all
from stream.sources.mariadb.schema import TableInfo
from stream.sources.mariadb.selected_rows import canonical_key, canonical_row, quoted, select_columns_sql
from stream.wire.keys import split_row_key

BYTES_MAX: Final = 4 << 20
"""Of the images of one range. It has one row at least."""
COUNTED_MAX: Final = 100_000
"""Rows that are counted one by one, since some may not be there."""
SORTED_MAX: Final = 20_000
"""Rows of a range that the server sorts, where it has no index of their order."""
ORDERED_MAX: Final = SORT_BYTES // 16
"""Bytes of a value by which rows may be ordered: a collation may make sixteen of a character's one."""
_BY_NUMBER: Final = frozenset({"enum", "set"})
"""Kinds that the server sorts by a member's number, and compares by its text."""
_NUMERIC: Final = frozenset({"int", "year", "bit", "decimal", "float", "double"})
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)


class SortTooLarge(MariaDBError):
    """No index has the rows in the order that is wanted, and they are too many, or too long, to be sorted."""

    code = "sort_too_large"


@dataclass(frozen=True, slots=True)
class SelectedRange:
    """The first rows of a range, or their number. ``more``: there are rows after the last one."""

    rows: tuple[SelectedRow, ...] = ()
    number: int = 0
    more: bool = False


def rows_in_range(session: Connection, info: TableInfo, wanted: KeyRange, deadline: float) -> SelectedRange:
    """What a range of a table with a primary key holds. ``deadline``: `time.monotonic`.

    Raises PyMySQL's errors, `KeyNotPossible`, `SortTooLarge`, `stream.wire.values.UndecodableValue`.
    """
    try:
        if wanted.limit and not has_index_for(info, wanted):
            require_few(info, wanted, lambda few: _count(session, info, few, deadline))
        if not wanted.limit and wanted.owns is not None:
            return _count_keys(session, info, wanted, deadline)
        if not wanted.limit:
            return SelectedRange(number=_count(session, info, wanted, deadline))
        return _rows(session, info, wanted, deadline)
    except pymysql.err.MySQLError as error:
        if code_of(error) in IMPOSSIBLE:
            why = f"{info.name} has no such range: no column of its type or character set holds one of the values"
            raise KeyNotPossible(why) from error
        raise


def _rows(session: Connection, info: TableInfo, wanted: KeyRange, deadline: float) -> SelectedRange:
    rows: list[SelectedRow] = []
    size = 0
    is_full = False
    ordered = [at for at, column in enumerate(info.columns) if column.name in wanted.order]
    too_long = ""
    wanted = bounded(session, info, wanted, wanted.limit + 1, deadline)
    cursor = SSCursor(session)
    cursor.execute(timed(session, select_range(session, info, wanted, wanted.limit + 1), deadline))
    while (values := cursor.fetchone()) is not None:
        too_long = next((info.columns[at].name for at in ordered if len(values[at] or b"") > ORDERED_MAX), too_long)
        if is_full or len(rows) == wanted.limit:
            is_full = True  # what is left is read, so that the session can go on, but not kept
            continue
        row = SelectedRow(canonical_key(info, values), canonical_row(info, values))
        size += len(row.image)
        is_full = bool(rows) and size > BYTES_MAX
        if not is_full:
            rows.append(row)
    if too_long:  # those that begin alike may come in any order
        raise SortTooLarge(f"{info.name} has values of column {too_long} that are too long to order rows by")
    return SelectedRange(tuple(rows), len(rows), is_full)


def has_index_for(info: TableInfo, wanted: KeyRange) -> bool:
    """Whether an index has the rows with the given values in the wanted order. Behind its columns it has the key."""
    given = {*info.primary_key[: len(wanted.leading)], *(name for name, _ in wanted.where)}
    key = [name for name in info.primary_key if name not in given]
    ordered = [*wanted.order, *(name for name in key if name not in wanted.order)]
    if any(_kind(info, name) in _BY_NUMBER or name in info.key_index.misleading for name in ordered):
        return False
    if not wanted.order:
        return True
    for index in info.indexes:
        columns = list(dropwhile(given.__contains__, index.columns))
        columns += [name for name in key if name not in columns]
        if not index.problem and columns[: len(ordered)] == ordered:
            return True
    return not key


def require_few(info: TableInfo, wanted: KeyRange, count: Callable[[KeyRange], int]) -> None:
    """Raises `SortTooLarge` if more rows than `SORTED_MAX` would have to be sorted. ``count``: of a range's rows."""
    if count(replace(wanted, limit=0, count_max=SORTED_MAX + 1, after=None)) > SORTED_MAX:
        by = ", ".join(wanted.order or info.primary_key)
        raise SortTooLarge(f"{info.name} has more than {SORTED_MAX} such rows, and no index that has them by {by}")


def _count(session: Connection, info: TableInfo, wanted: KeyRange, deadline: float) -> int:
    if not wanted.count_max:
        sql = f"SELECT COUNT(*) FROM {_table(info, wanted)}{_where(session, info, wanted)}"
    else:
        some = f"SELECT 1 FROM {_table(info, wanted)}{_where(session, info, wanted)} LIMIT {wanted.count_max}"
        sql = f"SELECT COUNT(*) FROM ({some}) AS some"
    [[number]] = fetch_all(session, timed(session, sql, deadline))
    return int(number)


def _count_keys(session: Connection, info: TableInfo, wanted: KeyRange, deadline: float) -> SelectedRange:
    keys = of_key(info)
    some = f"{_table(info, wanted)}{_where(session, info, wanted)} LIMIT {counted_at_most(wanted)}"
    cursor = SSCursor(session)
    cursor.execute(timed(session, f"SELECT {select_columns_sql(keys)} FROM {some}", deadline))
    return counted(info, wanted, (canonical_key(keys, values) for values in iter(cursor.fetchone, None)))


def of_key(info: TableInfo) -> TableInfo:
    """The table with the columns of its key alone, in key order."""
    return replace(info, columns=tuple(info.columns[at] for at in info.key_indexes))


def counted_at_most(wanted: KeyRange) -> int:
    """How many keys to select for `counted`."""
    return min(wanted.count_max or COUNTED_MAX + 1, COUNTED_MAX + 1)


def counted(info: TableInfo, wanted: KeyRange, keys: Iterable[bytes]) -> SelectedRange:
    """The number of rows of which all may be there; else a row that may not. Reads all ``keys``.

    Raises `MariaDBError` if there are more than `COUNTED_MAX`.
    """
    assert wanted.owns is not None
    number, stranger = 0, b""
    for key in at_work_on(keys):
        number += 1
        if not stranger and not wanted.owns(key):
            stranger = key
    if stranger:
        return SelectedRange((SelectedRow(stranger, b""),), 1)
    if number > COUNTED_MAX:
        raise MariaDBError(
            f"{info.name} has more than {COUNTED_MAX} such rows, of which some may be another shard's",
            hint=f"count with a limit up to {COUNTED_MAX}",
        )
    return SelectedRange(number=number)


def select_range(session: Connection, info: TableInfo, wanted: KeyRange, limit: int) -> str:
    """The statement for the first rows of a range, in the columns of `select_columns_sql`."""
    rows = f"{_table(info, wanted)}{_where(session, info, wanted)}"
    return f"SELECT {select_columns_sql(info)} FROM {rows} ORDER BY {_order(info, wanted)} LIMIT {limit}"


def bounded(session: Connection, info: TableInfo, wanted: KeyRange, limit: int, deadline: float) -> KeyRange:
    """The range up to a key, with ``limit`` rows at least, if the index of the key has them in another order.

    Else the server would sort all that is left of the table. The key is the last one, in the order that is wanted, of
    the index's first ``limit`` rows: whichever these are, no row is left out. Raises PyMySQL's errors,
    `UndecodableValue`.
    """
    if wanted.order or wanted.where or _has_order(info, wanted):
        return wanted
    key = of_key(info)
    names = ", ".join(map(quoted, info.primary_key))
    some = f"SELECT {names} FROM {_table(info, wanted)}{_where(session, info, wanted)} LIMIT {limit}"
    order = _order(info, replace(wanted, descending=not wanted.descending))
    with session.cursor() as cursor:
        sql = f"SELECT {select_columns_sql(key)} FROM ({some}) AS some ORDER BY {order} LIMIT 1"
        cursor.execute(timed(session, sql, deadline))
        last = cursor.fetchone()
    return wanted if last is None else replace(wanted, up_to=split_row_key(canonical_key(key, last))[1])


def _has_order(info: TableInfo, wanted: KeyRange) -> bool:
    """Whether a bound would gain nothing: the index of the key has the order that is wanted, or is of no use at all."""
    index, left = info.key_index, info.primary_key[len(wanted.leading) :]
    if any(name in index.misleading for name in left):
        return True
    backwards = {wanted.descends(name) is not (name in index.descending) for name in left}
    return len(backwards) < 2 and not any(name in index.partial for name in left)


def _order(info: TableInfo, wanted: KeyRange) -> str:
    names = [*wanted.order, *(name for name in info.primary_key if name not in wanted.order)]
    return ", ".join(_sorted_by(info, name) + (" DESC" if wanted.descends(name) else "") for name in names)


def _table(info: TableInfo, wanted: KeyRange) -> str:
    """The table; where other columns choose the rows, or order them, the server may take another index."""
    name = f"{quoted(info.database)}.{quoted(info.table)}"
    return name if wanted.where or wanted.order else f"{name} FORCE INDEX (PRIMARY)"


def _where(session: Connection, info: TableInfo, wanted: KeyRange) -> str:
    names, kinds = list(map(quoted, info.primary_key)), [info.columns[index].kind for index in info.key_indexes]
    given = len(wanted.leading)
    conditions = [
        f"{name} = {_literal(session, kind, value)}"
        for name, kind, value in zip(names[:given], kinds, wanted.leading, strict=False)
    ]
    conditions += [f"{quoted(name)} = {_literal(session, _kind(info, name), value)}" for name, value in wanted.where]
    if wanted.after is not None:
        conditions.append(_behind(session, info, wanted))
    if wanted.up_to is not None:
        before = _behind(session, info, replace(wanted, after=wanted.up_to, descending=not wanted.descending))
        last = zip(info.primary_key, wanted.up_to, strict=True)
        same = " AND ".join(f"{_sorted_by(info, name)} = {_compared(session, info, name, each)}" for name, each in last)
        conditions.append(f"({before} OR ({same}))")
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _behind(session: Connection, info: TableInfo, wanted: KeyRange) -> str:
    return wanted.behind(info.primary_key, partial(_sorted_by, info), partial(_compared, session, info))


def _compared(session: Connection, info: TableInfo, name: str, value: object) -> str:
    """A value of the last row of a page, as `_sorted_by` has its column."""
    kind = _kind(info, name)
    if isinstance(value, str) and kind in _BY_NUMBER:
        return f"x'{value.encode().hex()}'"
    return _literal(session, kind, value)


def _sorted_by(info: TableInfo, name: str) -> str:
    """What a column is sorted by, and compared by with the last row of a page."""
    column = quoted(name)
    if name in info.key_index.misleading:
        return f"CONCAT({column})"  # the same text, for which the server searches no index
    return f"CAST(CONVERT({column} USING utf8mb4) AS BINARY)" if _kind(info, name) in _BY_NUMBER else column


def _kind(info: TableInfo, name: str) -> str:
    """The kind of a column. Raises `KeyNotPossible`."""
    found = next((column.kind for column in info.columns if column.name == name), None)
    if found is None:
        raise KeyNotPossible(f"{info.name} has no column {name}")
    return found


def _literal(session: Connection, kind: str, value: object) -> str:
    """A canonical key value in SQL. Raises `KeyNotPossible`."""
    if kind in _NUMERIC and isinstance(value, str):
        if _NUMBER.fullmatch(value) is None:
            raise KeyNotPossible(f"{value!r} is no number")
        return value
    found = sql_value(value)
    return f"x'{found.hex()}'" if isinstance(found, bytes) else str(session.escape(found))
