"""The tables of the installation: what sessions write to them, and what a commit of the simulated server has written.

Two of them are in *wide* histories only: one whose key is composite and of a padded collation, with a moment and a
virtual column, and one of another keyspace, whose server is in another time zone. One without a key is in *keyless*
histories only, and nobody reads it but with the change stream. One is in *rekeyed* histories only: two of its columns
number its rows, each in its own way, and its primary key is now the one and now the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

from lab.simulation.installation.committed import Image, Note, RowName
from lab.simulation.mariadb.server import Commit
from lab.simulation.mariadb.sql.definitions import AlterTable, RenameTables, TruncateTable
from lab.simulation.mariadb.storage.columns import Stored

ROWS: Final = 4
"""Rows that sessions write to in every history."""
SESSIONS: Final = 2
JOURNAL: Final = 1_000
"""Each transaction also writes the row of this id plus its session's number, with its attempt as the version."""
KEYSPACE: Final = "shop"
OTHER_KEYSPACE: Final = "depot"


class SimulatedTable(NamedTuple):
    """A table. ``first``: the values of each key before the row's own number; ``aliases``: another spelling of them.

    ``is_coded``: rows have a second number, by which another row may be meant.
    """

    keyspace: str
    name: str
    create: str
    put: str
    delete: str
    first: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    is_coded: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the key."""
        return ("customer", "number") if self.first else ("id",)

    def key(self, row: int, *, aliased: bool = False) -> tuple[object, ...]:
        """The primary key of a row."""
        return (*(self.aliases if aliased else self.first), row)

    def values(self, row: int, version: int) -> tuple[object, ...]:
        """What a row is written with."""
        return (*self.key(row), *((code_of(row),) if self.is_coded else ()), version)

    def image(self, row: tuple[Stored, ...]) -> Image:
        """A stored row as an answer must have it."""
        if self.is_coded:
            return image_of({"id": row[0], "code": row[1], "version": row[2]})
        if not self.first:
            return image_of({"id": row[0], "version": row[1]})
        customer, number, version, placed, twice = row
        moment = placed.isoformat(" ") if isinstance(placed, datetime) else placed
        return image_of({"customer": customer, "number": number, "version": version, "placed": moment, "twice": twice})


def _numbered(keyspace: str, name: str) -> SimulatedTable:
    return SimulatedTable(
        keyspace,
        name,
        f"CREATE TABLE {name} (id INT PRIMARY KEY, version INT NOT NULL)",
        f"REPLACE INTO {name} (id, version) VALUES (%s, %s)",
        f"DELETE FROM {name} WHERE id = %s",
    )


ACCOUNTS: Final = _numbered(KEYSPACE, "shop.accounts")
STOCK: Final = _numbered(OTHER_KEYSPACE, "depot.stock")
ORDERS: Final = SimulatedTable(
    KEYSPACE,
    "shop.orders",
    "CREATE TABLE shop.orders (customer VARCHAR(12) COLLATE utf8mb4_bin, number INT, version INT NOT NULL,"
    " placed TIMESTAMP NULL, twice BIGINT AS (version * 2) VIRTUAL, PRIMARY KEY (customer, number DESC))",
    "REPLACE INTO shop.orders (customer, number, version, placed) VALUES (%s, %s, %s, '2026-03-29 02:30:00')",
    "DELETE FROM shop.orders WHERE customer = %s AND number = %s",
    ("Zoë",),
    ("Zoë ",),
)
CODED: Final = 3
"""Rows that sessions write to in a table whose rows have two numbers."""
PARTS: Final = SimulatedTable(
    KEYSPACE,
    "shop.parts",
    "CREATE TABLE shop.parts (id INT NOT NULL, code INT NOT NULL, version INT NOT NULL, PRIMARY KEY (id))",
    "REPLACE INTO shop.parts (id, code, version) VALUES (%s, %s, %s)",
    "DELETE FROM shop.parts WHERE id = %s",
    is_coded=True,
)
PARTS_KEYS: Final = ("code", "id")
"""Columns that are its primary key in turns."""
NOTES: Final = "shop.notes"
CREATE_NOTES: Final = f"CREATE TABLE {NOTES} (word INT, writer INT NOT NULL)"
TABLE: Final = ACCOUNTS.name
_BY_NAME: Final = {table.name: table for table in (ACCOUNTS, STOCK, ORDERS, PARTS)}


class Slot(NamedTuple):
    """A row that sessions write and read."""

    table: SimulatedTable
    row: int

    @property
    def name(self) -> RowName:
        """The row's name for the judge."""
        return self.table.name, (self.row,)

    @property
    def text(self) -> str:
        """The row in words."""
        return f"row {self.row}" if self.table is ACCOUNTS else f"row {self.row} of {self.table.name}"


_WIDE: Final = (Slot(ORDERS, 0), Slot(ORDERS, 1), Slot(STOCK, 0), Slot(STOCK, 1))
SLOTS: Final = (*(Slot(ACCOUNTS, row) for row in range(ROWS)), *_WIDE)
"""Rows by number. A history that is not wide has the first `ROWS` only."""
CODED_SLOTS: Final = tuple(Slot(PARTS, row) for row in range(CODED))
"""Those that a rekeyed history has besides."""
OLD_ROWS: Final = 7
"""Rows of each table that are there before any source is, in wide histories, numbered from `FIRST_OLD_ROW`."""
FIRST_OLD_ROW: Final = 10


def image_of(columns: dict[str, object] | None) -> Image:
    """A row, as an answer has it, as canonical text."""
    return None if columns is None else json.dumps(columns, sort_keys=True)


def code_of(row: int) -> int:
    """The second number of a row of `PARTS`, which is another row's first one."""
    return (row + 1) % CODED if row < CODED else row


def writes_of(commit: Commit, before: Mapping[RowName, Image]) -> dict[RowName, Image]:
    """The rows that a commit leaves. Where the table was emptied, or another one took its name, they are all gone.

    ``before``: the rows until then. Where they got another primary key, all of them have other names.
    """
    match commit.change:
        case (AlterTable(_, changes), _) if columns := next((each.key for each in changes if each.key), ()):
            parts = {name: image for name, image in before.items() if name[0] == PARTS.name}
            left: dict[RowName, Image] = dict.fromkeys(parts)
            for image in parts.values():
                if image is not None:
                    left[PARTS.name, (json.loads(image)[columns[0]],)] = image
            return left
        case (TruncateTable() | RenameTables(), _):
            written = (
                *range(ROWS),
                *range(FIRST_OLD_ROW, FIRST_OLD_ROW + OLD_ROWS),
                *range(JOURNAL, JOURNAL + SESSIONS + 1),
            )
            return {(TABLE, (row,)): None for row in written}
    found: dict[RowName, Image] = {}
    for name, key, row in commit.changes:
        if (full := ".".join(name)) != NOTES:
            table = _BY_NAME[full]
            found[table.name, (key[-1],)] = None if row is None else table.image(row)
    return found


def noted(attempt: int) -> tuple[str, ...]:
    """What a transaction does to the table without a key: it has few words, so rows of a writer may be equal."""
    word, odd = attempt % 3, attempt % 2
    kept = f"INSERT INTO {NOTES} (word, writer) VALUES ({word}, {odd})" + f", (NULL, {attempt})" * odd
    if word == 0:
        return (f"DELETE FROM {NOTES} WHERE writer = {attempt - 2}", kept)
    return (f"UPDATE {NOTES} SET word = {attempt} WHERE word = {attempt % 4}", kept)


def notes_of(commit: Commit) -> list[Note]:
    """The rows without a key that a commit leaves."""
    return [
        (key, None if row is None else image_of({"word": row[0], "writer": row[1]}))
        for name, key, row in commit.changes
        if ".".join(name) == NOTES
    ]


def writer_of(commit: Commit) -> str:
    """The attempt that a commit is; "" for one that no session made."""
    attempts = [row[1] for _, key, row in commit.changes if row is not None and int(str(key[-1])) >= JOURNAL]
    return str(attempts[0]) if attempts else ""
