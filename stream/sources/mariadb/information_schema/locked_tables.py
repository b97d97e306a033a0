"""Reads of information_schema that leave out the tables which somebody has locked against it.

MariaDB opens each table that it describes, and waits while a session holds its exclusive lock: for as long as CREATE
TABLE … SELECT takes, and RENAME or DROP of several tables while one of them is in use. Their names it tells at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

import pymysql
from pymysql.constants import ER

from stream.sources.mariadb.connection import Connection, fetch_all, is_mysql

T = TypeVar("T")

Name: TypeAlias = tuple[str, str]
"""Database and table."""
LOCKED_S: Final = 1
"""How long a table may be locked that is read after DDL. Nothing else of the log is read meanwhile."""


def limit_sql(connection: Connection, wait_s: int | None) -> str:
    """What stands before a SELECT that waits for a locked table for so long; None: as long as the session does."""
    return "" if wait_s is None or is_mysql(connection) else f"SET STATEMENT lock_wait_timeout={wait_s} FOR "


def is_locked(connection: Connection, error: pymysql.err.OperationalError) -> bool:
    """Whether a table is locked that MariaDB was to describe. MySQL's dictionary waits for nobody."""
    return not is_mysql(connection) and bool(error.args) and error.args[0] == ER.LOCK_WAIT_TIMEOUT


def names_sql(names: Iterable[Name]) -> tuple[str, list[str]]:
    """A condition that holds for these tables, which is looked at before one is opened; and its arguments."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for database, table in names:
        found[database].append(table)
    parts = [f"TABLE_SCHEMA = %s AND TABLE_NAME IN ({', '.join(['%s'] * len(tables))})" for tables in found.values()]
    return f"({' OR '.join(parts)})", [each for database, tables in found.items() for each in (database, *tables)]


def databases_sql(databases: Sequence[str]) -> str:
    """A condition that holds for tables of these databases; of no database: of all but the server's own."""
    if databases:
        return f"TABLE_SCHEMA IN ({', '.join(['%s'] * len(databases))})"
    return "TABLE_SCHEMA NOT IN ('mysql','information_schema','performance_schema','sys')"


def table_names(connection: Connection, databases: Sequence[str]) -> list[Name]:
    """The tables and views of these databases, or of all. None is opened."""
    sql = f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE {databases_sql(databases)}"
    return sorted((database, table) for database, table in fetch_all(connection, sql, databases))


def read_unlocked(
    connection: Connection, read: Callable[[Sequence[Name]], T], names: Callable[[], Sequence[Name]]
) -> tuple[list[T], frozenset[str]]:
    """What ``read`` finds, in parts that are whole in themselves; and the tables that are left out (``db.table``).

    ``read``: of these tables, of no table for all of them; it raises if one is locked. ``names``: all of them. Halves
    are read apart until each has no locked table, or is one: so a few locks cost a few questions more.
    """
    found: list[T] = []
    locked: set[str] = set()
    groups: list[Sequence[Name]] = [()]
    while groups:
        group = groups.pop()
        try:
            found.append(read(group))
        except pymysql.err.OperationalError as error:
            if not is_locked(connection, error):
                raise
            half = len(group) // 2
            if half:
                groups += [group[:half], group[half:]]
            elif group:
                locked.add(".".join(group[0]))
            elif every := names():
                groups.append(every)
    return found, frozenset(locked)
