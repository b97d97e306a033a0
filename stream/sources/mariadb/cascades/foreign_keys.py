"""The foreign keys by which a server changes rows of other tables, as information_schema describes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stream.sources.mariadb.connection import Connection, fetch_whole
from stream.sources.mariadb.information_schema.locked_tables import (
    Name,
    limit_sql,
    names_sql,
    read_unlocked,
    table_names,
)

NOTHING: Final = frozenset({"RESTRICT", "NO ACTION"})
"""Rules by which no row of the child changes."""


@dataclass(frozen=True, slots=True, order=True)
class ForeignKey:
    """``columns`` of ``child`` hold what ``referenced`` columns of ``parent`` have, in this order, or NULL.

    Rules as SQL writes them: CASCADE, SET NULL, SET DEFAULT, RESTRICT, NO ACTION.
    """

    parent: str
    child: str
    referenced: tuple[str, ...]
    columns: tuple[str, ...]
    on_delete: str
    on_update: str


@dataclass(frozen=True, slots=True)
class Cascades:
    """Parent table → all tables below it that foreign keys may change when a row of the parent is deleted or updated.

    Those changes are not in the binlog. At best its table maps name the changed tables. ``keys``: the foreign keys that
    change rows.
    """

    on_delete: Mapping[str, frozenset[str]]
    on_update: Mapping[str, frozenset[str]]
    keys: tuple[ForeignKey, ...] = ()

    @property
    def tables(self) -> set[str]:
        """Every table that has such a foreign key, or that one refers to."""
        return {name for key in self.keys for name in (key.parent, key.child)}

    def below(self, table: str) -> frozenset[str]:
        """Every table that a change of ``table`` may change."""
        none: frozenset[str] = frozenset()
        return self.on_delete.get(table, none) | self.on_update.get(table, none)


def cascades_of(keys: Iterable[ForeignKey]) -> Cascades:
    """What foreign keys may change, followed through all levels."""
    changing = tuple(key for key in keys if key.on_delete not in NOTHING or key.on_update not in NOTHING)
    on_delete: defaultdict[str, set[str]] = defaultdict(set)
    on_update: defaultdict[str, set[str]] = defaultdict(set)
    below: defaultdict[str, set[str]] = defaultdict(set)
    for key in changing:
        below[key.parent].add(key.child)
        for rule, children in ((key.on_delete, on_delete), (key.on_update, on_update)):
            if rule not in NOTHING:
                children[key.parent].add(key.child)
    return Cascades(
        {parent: _closure(children, below) for parent, children in on_delete.items()},
        {parent: _closure(children, below) for parent, children in on_update.items()},
        changing,
    )


def read_cascades(connection: Connection, databases: Iterable[str] = (), wait_s: int | None = None) -> Cascades:
    """The server's cascading foreign keys (CASCADE, SET NULL, SET DEFAULT).

    ``databases``: only those that may change their tables, by whatever tables between; empty: all. MariaDB opens each
    table whose foreign keys it tells, and waits while one is locked: for ``wait_s``, or as long as the session does.
    """
    return _followed(lambda chosen: _foreign_keys(connection, chosen, wait_s=wait_s), databases)


def read_unlocked_cascades(connection: Connection, databases: Iterable[str] = ()) -> tuple[Cascades, frozenset[str]]:
    """As `read_cascades`, without the foreign keys of tables that are locked now; and the names of these."""
    locked: set[str] = set()

    def read(chosen: Sequence[str]) -> list[ForeignKey]:
        parts, left_out = read_unlocked(
            connection,
            lambda names: _foreign_keys(connection, chosen, names, wait_s=0),
            lambda: table_names(connection, chosen),
        )
        locked.update(left_out)
        return [key for part in parts for key in part]

    return _followed(read, databases), frozenset(locked)


def _followed(read: Callable[[Sequence[str]], list[ForeignKey]], databases: Iterable[str]) -> Cascades:
    """The foreign keys of tables in ``databases``, and in those of their parents, and so on; empty: in all."""
    found, known, wanted = list[ForeignKey](), set[str](), {*databases}
    if not wanted:
        return cascades_of(read(()))
    while wanted - known:
        keys = read(sorted(wanted - known))
        found += keys
        known |= wanted
        wanted |= {key.parent.partition(".")[0] for key in keys}
    return cascades_of(dict.fromkeys(found))


def _foreign_keys(
    connection: Connection, databases: Sequence[str], only: Sequence[Name] = (), *, wait_s: int | None
) -> list[ForeignKey]:
    """Those of tables in ``databases``, of no database for all; with ``only`` of these tables alone."""
    limit, arguments = limit_sql(connection, wait_s), databases
    chosen = "TABLE_SCHEMA" + (f" IN ({', '.join(['%s'] * len(databases))})" if databases else " IS NOT NULL")
    if only:
        chosen, arguments = names_sql(only)
    columns: defaultdict[tuple[str, str, str], list[tuple[str, str]]] = defaultdict(list)
    for database, table, name, column, referenced in fetch_whole(
        connection,
        f"{limit}SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, COLUMN_NAME, REFERENCED_COLUMN_NAME"
        f" FROM information_schema.KEY_COLUMN_USAGE WHERE {chosen} AND REFERENCED_TABLE_NAME IS NOT NULL"
        " ORDER BY CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME, ORDINAL_POSITION",
        arguments,
    ):
        columns[database, table, name].append((column, referenced))
    found = []
    for parent_db, parent, child_db, child, name, on_delete, on_update in fetch_whole(
        connection,
        f"{limit}SELECT UNIQUE_CONSTRAINT_SCHEMA, REFERENCED_TABLE_NAME, CONSTRAINT_SCHEMA, TABLE_NAME,"
        " CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE FROM information_schema.REFERENTIAL_CONSTRAINTS"
        f" WHERE {chosen.replace('TABLE_SCHEMA', 'CONSTRAINT_SCHEMA')}",
        arguments,
    ):
        pairs = columns[child_db, child, name]  # none if it was made between the two statements
        found.append(
            ForeignKey(
                f"{parent_db}.{parent}",
                f"{child_db}.{child}",
                tuple(referenced for _, referenced in pairs),
                tuple(column for column, _ in pairs),
                on_delete,
                on_update,
            )
        )
    return found


def _closure(children: Iterable[str], below: Mapping[str, Iterable[str]]) -> frozenset[str]:
    found: set[str] = set()
    waiting = list(children)
    while waiting:
        child = waiting.pop()
        if child not in found:
            found.add(child)
            waiting.extend(below.get(child, ()))
    return frozenset(found)
