"""The rules by which changes get into the copy (seed 001, "Data Dump, Keeping It Up To Date").

Of a row that is not there, or has no token, the change is taken. If the row's token is known to be newer, the change is
passed over. Otherwise, older or unknown, it is taken. All changes of a batch are decided in memory, then written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from serving.sink.tables import COPY, TOKEN, CopyTable
from tokens import EventToken, Order, TokenError, order

_KEYS_MAX: Final = 200
"""Of one SELECT: databases bound the parameters of a statement."""
_IS: Final = "is_"
"""Begins the names of parameters that are compared: others are columns' new values."""
Key = tuple[Any, ...]


class _Change(NamedTuple):
    """``spelled``: the key as the stream has it, whose numbers are texts. None for ``values``: there is no row."""

    table: CopyTable
    key: Key
    spelled: Key
    token: str
    values: dict[str, Any] | None


@dataclass(slots=True)
class Batch:
    """Changes that are written together. The last one of a key counts."""

    changes: list[_Change] = field(default_factory=list)

    def add(self, table: CopyTable, key: Sequence[Any], token: str, row: Mapping[str, Any] | None, number: int) -> None:
        """A row of the stream, or None: there is none any more. ``number``: of the table's reading at the event.

        A void that comes later in the batch begins another reading, which may find that the row is gone.
        """
        values = None if row is None else {**table.values_of(row), TOKEN: token, COPY: number}
        self.changes.append(_Change(table, table.key_of(key), tuple(map(str, key)), token, values))

    def write(self, connection: sa.Connection) -> None:
        """Writes what the rules let through."""
        by_table: dict[str, list[_Change]] = {}
        for change in self.changes:
            by_table.setdefault(change.table.name, []).append(change)
        for changes in by_table.values():
            table = changes[-1].table
            tokens = _tokens(connection, table, {change.key for change in changes})
            last: dict[Key, _Change] = {}
            for change in changes:
                key = change.key
                if is_taken(tokens.get(key), change.token) and not _is_other_spelling(last.get(key), change):
                    tokens[key] = change.token
                    last[key] = change
            write_rows(connection, table, {key: change.values for key, change in last.items()})


def _is_other_spelling(before: _Change | None, change: _Change) -> bool:
    """Whether a transaction's absence is of what its value replaces: 1.50 was updated to 1.5, one number here."""
    if before is None or before.values is None or change.values is not None:
        return False
    return before.token == change.token and before.spelled != change.spelled


def is_taken(kept: str | None, token: str) -> bool:
    """Whether the change of an event replaces a row with a token."""
    if not kept:
        return True
    try:
        return order(EventToken.parse(kept), EventToken.parse(token)) is not Order.NEWER
    except TokenError:  # not ours: somebody else has written it
        return True


def _tokens(connection: sa.Connection, table: CopyTable, keys: Iterable[Key]) -> dict[Key, str]:
    """Key → token of the rows that are there and have one."""
    columns = [table.table.c[name] for name in table.key]
    found: dict[Key, str] = {}
    left = list(keys)
    for at in range(0, len(left), _KEYS_MAX):
        part = left[at : at + _KEYS_MAX]
        wanted = sa.tuple_(*columns).in_(part) if len(columns) > 1 else columns[0].in_([key[0] for key in part])
        for row in connection.execute(sa.select(*columns, table.table.c[TOKEN]).where(wanted)):
            found[tuple(row[:-1])] = row[-1]
    return {key: token for key, token in found.items() if token}


def write_rows(connection: sa.Connection, table: CopyTable, rows: Mapping[Key, Mapping[str, Any] | None]) -> None:
    """Replaces rows by key; None: removes it."""
    if not rows:
        return
    own = [table.table.c[name] == sa.bindparam(_IS + name, type_=table.table.c[name].type) for name in table.key]
    names = [_IS + name for name in table.key]
    connection.execute(table.table.delete().where(*own), [dict(zip(names, key, strict=True)) for key in rows])
    left = [dict(values) for values in rows.values() if values is not None]
    left.sort(key=list)  # a description within a batch changes the columns, and an INSERT has those of its first row
    for _, alike in groupby(left, key=list):
        connection.execute(table.table.insert(), [*alike])


def write_page(connection: sa.Connection, table: CopyTable, page: Iterable[Mapping[str, Any]], number: int) -> None:
    """Replaces the rows that were read of a table, without tokens: what the stream tells later is taken."""
    rows = {
        table.key_of([row[name] for name in table.key]): {**table.values_of(row), TOKEN: None, COPY: number}
        for row in page
    }
    write_rows(connection, table, rows)


def remove_unread(connection: sa.Connection, table: CopyTable, number: int) -> None:
    """Removes the rows that the reading ``number`` of the whole table has not met."""
    copy = table.table.c[COPY]
    connection.execute(table.table.delete().where(sa.or_(copy != number, copy.is_(None))))
