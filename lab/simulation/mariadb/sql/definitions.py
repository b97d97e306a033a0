"""Definitions of tables and changes of them, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from lab.simulation.mariadb.sql.syntax import Expression, Name, Tokens

SCHEMA_CHANGES: Final = frozenset({"CREATE", "ALTER", "RENAME", "TRUNCATE", "DROP"})


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column as it is declared. ``generated``: its expression; ``stored``: computed when the row is written."""

    name: str
    type: str
    sizes: tuple[int, ...] = ()
    unsigned: bool = False
    charset: str = ""
    collation: str = ""
    nullable: bool = True
    default: Expression | None = None
    generated: Expression | None = None
    stored: bool = False


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key to the primary key of ``parent``. Rules: RESTRICT, CASCADE, SET NULL."""

    name: str
    columns: tuple[str, ...]
    parent: Name
    parent_columns: tuple[str, ...]
    on_delete: str = "RESTRICT"
    on_update: str = "RESTRICT"


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE. ``descending``: the columns of which the key's index has the greatest values first."""

    table: Name
    columns: tuple[ColumnDefinition, ...]
    primary_key: tuple[str, ...]
    foreign_keys: tuple[ForeignKey, ...]
    engine: str
    charset: str
    if_not_exists: bool
    descending: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Alteration:
    """One change of ALTER TABLE. ``kind``: ADD, DROP, MODIFY, RENAME or KEY.

    ``first``: the column becomes the first one. ``key``: the columns of the primary key from now on.
    """

    kind: str
    column: ColumnDefinition | None = None
    name: str = ""
    new_table: Name = ("", "")
    first: bool = False
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterTable:
    """ALTER TABLE."""

    table: Name
    changes: tuple[Alteration, ...]


@dataclass(frozen=True, slots=True)
class RenameTables:
    """RENAME TABLE of one or more tables, from left to right."""

    pairs: tuple[tuple[Name, Name], ...]


@dataclass(frozen=True, slots=True)
class TruncateTable:
    """TRUNCATE TABLE."""

    table: Name


@dataclass(frozen=True, slots=True)
class DropTables:
    """DROP TABLE."""

    tables: tuple[Name, ...]
    if_exists: bool


@dataclass(frozen=True, slots=True)
class ChangeDatabase:
    """CREATE or DROP DATABASE. ``careful``: IF EXISTS, IF NOT EXISTS."""

    name: str
    creates: bool
    careful: bool


SchemaChange: TypeAlias = CreateTable | AlterTable | RenameTables | TruncateTable | DropTables | ChangeDatabase


def schema_change(tokens: Tokens, word: str) -> SchemaChange:
    """The statement that begins with ``word``, one of `SCHEMA_CHANGES`, which is consumed already."""
    if word in ("CREATE", "DROP") and (tokens.skip("DATABASE") or tokens.skip("SCHEMA")):
        careful = tokens.skip("IF", "NOT", "EXISTS") or tokens.skip("IF", "EXISTS")
        return ChangeDatabase(tokens.identifier(), word == "CREATE", careful)
    if word == "TRUNCATE":
        tokens.skip("TABLE")
        return TruncateTable(tokens.table())
    tokens.expect("TABLE")
    if word == "CREATE":
        return _create(tokens)
    if word == "ALTER":
        table = tokens.table()
        changes = [_alteration(tokens)]
        while tokens.skip(","):
            changes.append(_alteration(tokens))
        return AlterTable(table, tuple(changes))
    if word == "DROP":
        careful = tokens.skip("IF", "EXISTS")
        tables = [tokens.table()]
        while tokens.skip(","):
            tables.append(tokens.table())
        return DropTables(tuple(tables), careful)
    pairs = [_renamed(tokens)]
    while tokens.skip(","):
        pairs.append(_renamed(tokens))
    return RenameTables(tuple(pairs))


def _renamed(tokens: Tokens) -> tuple[Name, Name]:
    old = tokens.table()
    tokens.expect("TO")
    return old, tokens.table()


def _alteration(tokens: Tokens) -> Alteration:
    if tokens.skip("DROP", "PRIMARY", "KEY"):
        return Alteration("KEY")
    if tokens.skip("ADD", "PRIMARY", "KEY"):
        return Alteration("KEY", key=tuple(_ordered_names(tokens)))
    if tokens.skip("ADD") or tokens.is_next("MODIFY"):
        kind = "MODIFY" if tokens.skip("MODIFY") else "ADD"
        tokens.skip("COLUMN")
        column, _ = _column(tokens)
        return Alteration(kind, column, column.name, first=tokens.skip("FIRST"))
    if tokens.skip("DROP"):
        tokens.skip("COLUMN")
        return Alteration("DROP", name=tokens.identifier())
    tokens.expect("RENAME")
    tokens.skip("TO")
    return Alteration("RENAME", new_table=tokens.table())


def _create(tokens: Tokens) -> CreateTable:
    careful = tokens.skip("IF", "NOT", "EXISTS")
    table = tokens.table()
    columns: list[ColumnDefinition] = []
    keys: list[ForeignKey] = []
    primary: tuple[str, ...] = ()
    descending: frozenset[str] = frozenset()
    tokens.expect("(")
    while True:
        if tokens.skip("PRIMARY", "KEY"):
            directions = _ordered_names(tokens)
            primary, descending = tuple(directions), frozenset(name for name, down in directions.items() if down)
        elif tokens.is_next("CONSTRAINT") or tokens.is_next("FOREIGN"):
            keys.append(_foreign_key(tokens, f"{table[1]}_ibfk_{len(keys) + 1}"))
        else:
            column, is_key = _column(tokens)
            columns.append(column)
            primary = (column.name,) if is_key else primary
        if not tokens.skip(","):
            break
    tokens.expect(")")
    engine, charset = "InnoDB", ""
    while tokens.next.kind == "word":
        if tokens.skip("ENGINE"):
            tokens.skip("=")
            engine = tokens.identifier()
        else:
            tokens.skip("DEFAULT")
            if not tokens.skip("CHARSET"):
                tokens.expect("CHARACTER", "SET")
            tokens.skip("=")
            charset = tokens.identifier()
    return CreateTable(table, tuple(columns), primary, tuple(keys), engine, charset, careful, descending)


def _ordered_names(tokens: Tokens) -> dict[str, bool]:
    """The columns of a key in parentheses, and whether their greatest values come first."""
    tokens.expect("(")
    found: dict[str, bool] = {}
    while not found or tokens.skip(","):
        name = tokens.identifier()
        found[name] = tokens.skip("DESC")
    tokens.expect(")")
    return found


def _foreign_key(tokens: Tokens, name: str) -> ForeignKey:
    if tokens.skip("CONSTRAINT"):
        name = tokens.identifier()
    tokens.expect("FOREIGN", "KEY")
    columns = tokens.names()
    tokens.expect("REFERENCES")
    parent, parent_columns = tokens.table(), tokens.names()
    rules = {"DELETE": "RESTRICT", "UPDATE": "RESTRICT"}
    while tokens.skip("ON"):
        event = tokens.take().text.upper()
        rule = tokens.take().text.upper()
        rules[event] = f"SET {tokens.take().text.upper()}" if rule == "SET" else rule
    return ForeignKey(name, columns, parent, parent_columns, rules["DELETE"], rules["UPDATE"])


def _column(tokens: Tokens) -> tuple[ColumnDefinition, bool]:
    """A column, and whether it is the primary key."""
    name, kind = tokens.identifier(), tokens.identifier().lower()
    sizes = tuple(int(each) for each in tokens.skip_parentheses().split(",")) if tokens.is_next("(") else ()
    unsigned, is_key, nullable, stored = tokens.skip("UNSIGNED"), False, True, False
    charset = collation = ""
    default = generated = None
    while True:
        if tokens.skip("CHARACTER", "SET"):
            charset = tokens.identifier().lower()
        elif tokens.skip("COLLATE"):
            collation = tokens.identifier().lower()
        elif tokens.skip("NOT", "NULL"):
            nullable = False
        elif tokens.skip("NULL"):
            nullable = True
        elif tokens.skip("DEFAULT"):
            default = tokens.expression()
        elif tokens.skip("PRIMARY", "KEY"):
            is_key, nullable = True, False
        elif tokens.skip("GENERATED", "ALWAYS", "AS") or tokens.skip("AS"):
            generated = tokens.expression()
        elif tokens.skip("STORED") or tokens.skip("PERSISTENT"):
            stored = True
        elif not tokens.skip("VIRTUAL"):
            break
    made = ColumnDefinition(name, kind, sizes, unsigned, charset, collation, nullable, default, generated, stored)
    return made, is_key
