"""Tables: columns, keys, and every row as the versions that commits made."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from lab.simulation.mariadb.sql.definitions import CreateTable, ForeignKey
from lab.simulation.mariadb.sql.syntax import Call, Name, printed
from lab.simulation.mariadb.storage.collations import CHARSETS
from lab.simulation.mariadb.storage.columns import Column, Stored, column_of

Row: TypeAlias = tuple[Stored, ...]
"""Values in the order of the table's columns, virtual ones included."""
Key: TypeAlias = tuple[object, ...]
"""What rows have in common that have equal primary keys; a number of its own in a table without one."""

SYSTEM_DATABASES: Final = ("information_schema", "mysql", "performance_schema", "sys")


@dataclass(eq=False)
class Table:
    """A table. ``since``: the commit that made its columns what they are; an older snapshot can't read it."""

    name: Name
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    foreign_keys: tuple[ForeignKey, ...] = ()
    engine: str = "InnoDB"
    charset: str = "utf8mb4"
    since: int = 0
    id: int = 0
    versions: dict[Key, list[tuple[int, Row | None]]] = field(default_factory=dict)
    """Key → (commit, row from that commit on)."""
    row_ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    descending: frozenset[str] = frozenset()
    """Columns of which the primary key's index has the greatest values first."""

    @property
    def key_indexes(self) -> tuple[int, ...]:
        """The places of the primary key's columns, in key order."""
        return tuple(self.index(name) for name in self.primary_key)

    def index(self, name: str) -> int:
        """The place of a column; -1 if there is none."""
        return next((at for at, column in enumerate(self.columns) if column.name.lower() == name.lower()), -1)

    def key_of(self, row: Row) -> Key:
        """The key of a row; a new one in a table without primary key."""
        if not self.primary_key:
            return (next(each for each in self.row_ids if (each,) not in self.versions),)
        return tuple(self.columns[at].equal(row[at]) for at in self.key_indexes)

    def row(self, key: Key, commit: int) -> Row | None:
        """The row as of a commit."""
        for at, row in reversed(self.versions.get(key, ())):
            if at <= commit:
                return row
        return None

    def put(self, key: Key, commit: int, row: Row | None) -> None:
        """Record that the row is ``row`` from ``commit`` on."""
        versions = self.versions.setdefault(key, [])
        if versions and versions[-1][0] == commit:
            versions.pop()
        versions.append((commit, row))

    def show_create(self) -> str:
        """The text of SHOW CREATE TABLE."""
        lines = [_column_line(column, self.charset) for column in self.columns]
        if self.primary_key:
            parts = (_quoted((name,)) + " DESC" * (name in self.descending) for name in self.primary_key)
            lines.append(f"PRIMARY KEY ({','.join(parts)})")
        lines += [f"KEY `{key.name}` ({_quoted(key.columns)})" for key in self.foreign_keys]
        lines += map(self.constraint, self.foreign_keys)
        body = ",\n  ".join(lines)
        collation = CHARSETS[self.charset][0]
        return (
            f"CREATE TABLE `{self.name[1]}` (\n  {body}\n)"
            f" ENGINE={self.engine} DEFAULT CHARSET={self.charset} COLLATE={collation}"
        )

    def constraint(self, key: ForeignKey) -> str:
        """A foreign key as the server prints it."""
        rules = "".join(
            f" ON {event} {rule}"
            for event, rule in (("DELETE", key.on_delete), ("UPDATE", key.on_update))
            if rule not in ("RESTRICT", "NO ACTION")
        )
        parent = f"`{key.parent[1]}`" if key.parent[0] == self.name[0] else f"`{key.parent[0]}`.`{key.parent[1]}`"
        return (
            f"CONSTRAINT `{key.name}` FOREIGN KEY ({_quoted(key.columns)})"
            f" REFERENCES {parent} ({_quoted(key.parent_columns)}){rules}"
        )


def _quoted(names: tuple[str, ...]) -> str:
    return ",".join(f"`{name}`" for name in names)


def _column_line(column: Column, table_charset: str) -> str:
    definition = column.definition
    parts = [f"`{column.name}` {column.column_type}"]
    default_collation = CHARSETS[table_charset][0]
    if column.collation and (column.collation != default_collation or definition.charset):
        parts.append(f"CHARACTER SET {column.charset} COLLATE {column.collation}")
    if definition.generated is not None:
        parts.append(
            f"GENERATED ALWAYS AS ({printed(definition.generated)}) {'STORED' if definition.stored else 'VIRTUAL'}"
        )
    elif not definition.nullable:
        parts.append("NOT NULL")
    elif column.kind == "timestamp":
        parts.append("NULL")
    if definition.default is not None:
        parts.append(f"DEFAULT {_default_text(column)}")
    elif definition.nullable and definition.generated is None:
        parts.append("DEFAULT NULL")
    if column.is_json:
        parts.append(f"CHECK (json_valid(`{column.name}`))")
    return " ".join(parts)


def _default_text(column: Column) -> str:
    default = column.definition.default
    if isinstance(default, Call) and default.name == "now":
        return f"current_timestamp({column.size})" if column.size else "current_timestamp()"
    return printed(default) if default is not None else "NULL"


def table_of(wanted: CreateTable, name: Name, since: int) -> Table:
    """The table that a statement creates."""
    charset = wanted.charset or "utf8mb4"
    columns = tuple(column_of(each, charset) for each in wanted.columns)
    made = Table(name, columns, wanted.primary_key, (), wanted.engine, charset, since, descending=wanted.descending)
    keys = set(wanted.primary_key)
    for column in columns:
        if column.name in keys:  # a key's column is never NULL
            object.__setattr__(column.definition, "nullable", False)
    made.foreign_keys = wanted.foreign_keys
    return made


class Databases:
    """All databases and their tables. ``ids``: numbers of tables in the binlog."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Table]] = {}
        self.ids = itertools.count(18)

    def find(self, name: Name) -> Table | None:
        """A table by its name."""
        return self.tables.get(name[0], {}).get(name[1])

    def __iter__(self) -> Iterator[Table]:
        for database in sorted(self.tables):
            for table in sorted(self.tables[database]):
                yield self.tables[database][table]

    def put(self, table: Table) -> None:
        """Add a table, under a new number."""
        table.id = next(self.ids)
        self.tables[table.name[0]][table.name[1]] = table

    def children(self, parent: Name) -> list[tuple[Table, ForeignKey]]:
        """The foreign keys that lead to ``parent``, with their tables."""
        return [(table, key) for table in self for key in table.foreign_keys if key.parent == parent]
