"""Tables and their columns as a source knows them, and which tables it publishes. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from stream.sources.key_range import KeyIndex
from stream.sources.learnt_indexes import SourceIndex
from stream.wire.events import Column, DescribeTable

SYSTEM_DATABASES = frozenset({"mysql", "information_schema", "performance_schema", "sys"})

NO_PRIMARY_KEY = "it has no primary key"
"""Why the rows of a table can't be cached, though they can be told."""


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column and its canonical kind. ``length``: bytes, BINARY and INET only, 0 where it is not known.

    ``problem``: why it can't be cached. ``sql_type``: as the server has it, for people and connectors.

    ``exact``: two values are the same key iff their canonical texts are equal. It is False if scale, fraction or
    padding matter: `1.5` finds DECIMAL `1.50`, and even utf8mb4_bin ignores trailing blanks.

    Of a text's collation readers of the topic need no more than this. A key that is not exact proves nothing by its
    spelling: its absence is not cached, and a row is cached under its own spelling, by which every collation finds it.
    So a change between two collations that are not exact changes no meaning of a key in the cache; it voids the rows.
    """

    name: str
    kind: str
    exact: bool
    length: int = 0
    problem: str = ""
    sql_type: str = field(default="", compare=False)
    json_name: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "json_name", msgspec.json.encode(self.name) + b":")


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table. ``primary_key``: in key order. ``problem``: why it can't be cached, else empty.

    ``prefix``: how many leading key columns choose a row's partition; 0: the whole key. ``indexes``, and ``key_index``
    of the primary key: they mean nothing for its rows, so two tables that differ in them are equal. ``is_recomputed``:
    a stored column may get another value when the server copies the table, as for an index: it depends on the session,
    or on a default. ``generated``: the columns that have an expression.
    """

    database: str
    table: str
    columns: tuple[ColumnInfo, ...]
    primary_key: tuple[str, ...]
    engine: str = "InnoDB"
    problem: str = ""
    prefix: int = 0
    indexes: tuple[SourceIndex, ...] = field(default=(), compare=False)
    key_index: KeyIndex = field(default=KeyIndex(), compare=False)
    is_recomputed: bool = field(default=False, compare=False)
    generated: frozenset[str] = field(default=frozenset(), compare=False)
    name: str = field(init=False)
    key_prefix: bytes = field(init=False)
    key_indexes: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        object.__setattr__(self, "name", f"{self.database}.{self.table}")
        object.__setattr__(self, "key_prefix", self.name.encode() + b"\0")
        object.__setattr__(self, "key_indexes", tuple(names.index(name) for name in self.primary_key))

    @property
    def cacheable(self) -> bool:
        """Whether rows of this table are published and may be cached."""
        return not self.problem

    @property
    def is_keyless(self) -> bool:
        """Whether nothing but a primary key is missing for its rows to be published."""
        return self.problem == NO_PRIMARY_KEY

    def describe(self) -> DescribeTable:
        """The event that describes the table to readers of the topic."""
        columns = tuple(Column(column.name, column.kind, column.exact, column.sql_type) for column in self.columns)
        return DescribeTable(self.name, columns, self.primary_key, self.cacheable, self.problem, self.prefix)


def missing_table(name: str) -> DescribeTable:
    """The description of a table that no longer exists."""
    return DescribeTable(name, (), (), False, "no such table at the source")


def is_missing(described: DescribeTable) -> bool:
    """Whether the table was not there where it was described. One whose schema is not known yet may be."""
    return described == missing_table(described.table)


@dataclass(frozen=True, slots=True)
class TableFilter:
    """Which tables a source publishes, and so which a front may read through. Default: all but the system's tables.

    ``include`` and ``exclude`` are shell patterns over ``db.table``. ``prefixes``: table → how many leading key columns
    choose a row's partition. ``key_range``: the keyspace ids whose rows are the shard's; "": all.
    """

    databases: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    prefixes: tuple[tuple[str, int], ...] = ()
    key_range: str = field(default="", repr=False)

    def prefix_of(self, name: str, key_columns: int) -> int:
        """The key columns of ``db.table``, out of ``key_columns``, that choose a row's partition; 0: the whole key."""
        return min(dict(self.prefixes).get(name, 0), key_columns)

    @property
    def words(self) -> tuple[str, ...]:
        """The choice in a few words, for people."""
        return (*self.databases, *self.include, *(f"not {pattern}" for pattern in self.exclude))

    def without_tables(self, names: Iterable[str]) -> list[str]:
        """The patterns of ``include`` that match none of ``names``."""
        found = list(names)
        return [pattern for pattern in self.include if not fnmatch.filter(found, pattern)]

    def may_include(self, database: str) -> bool:
        """Whether tables of a database can be included."""
        return database.lower() not in SYSTEM_DATABASES and (not self.databases or database in self.databases)

    def __call__(self, database: str, table: str) -> bool:
        if not self.may_include(database):
            return False
        name = f"{database}.{table}"
        if self.include and not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.include):
            return False
        return not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.exclude)

    def __contains__(self, name: object) -> bool:
        """Whether ``db.table`` is included; False for a text that names no table, or is ambiguous."""
        database, dot, table = str(name).partition(".")
        if not dot or not table or "." in table or "\0" in str(name):
            return False
        return self(database, table)
