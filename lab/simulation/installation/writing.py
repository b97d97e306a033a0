"""The table of the installation, and what a commit of the simulated server has written to it."""

from __future__ import annotations

import json
from typing import Final

from lab.simulation.installation.committed import Image, RowName
from lab.simulation.mariadb.server import Commit
from lab.simulation.mariadb.sql.definitions import RenameTables, TruncateTable

TABLE: Final = "shop.accounts"
ROWS: Final = 4
SESSIONS: Final = 2
CREATE_TABLE: Final = f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, version INT NOT NULL)"
PUT: Final = f"REPLACE INTO {TABLE} (id, version) VALUES (%s, %s)"
DELETE: Final = f"DELETE FROM {TABLE} WHERE id = %s"


JOURNAL: Final = 1_000
"""Each transaction also writes the row of this id plus its session's number, with its attempt as the version."""


def image_of(columns: dict[str, object] | None) -> Image:
    """A row, as an answer has it, as canonical text."""
    return None if columns is None else json.dumps(columns, sort_keys=True)


def writes_of(commit: Commit) -> dict[RowName, Image]:
    """The rows that a commit leaves. Where the table was emptied, or another one took its name, they are all gone."""
    match commit.change:
        case (TruncateTable() | RenameTables(), _):
            return {(TABLE, (row,)): None for row in (*range(ROWS), *range(JOURNAL, JOURNAL + SESSIONS + 1))}
    return {
        (".".join(name), tuple(key)): image_of(None if row is None else {"id": row[0], "version": row[1]})
        for name, key, row in commit.changes
    }


def writer_of(commit: Commit) -> str:
    """The attempt that a commit is; "" for one that no session made."""
    attempts = [row[1] for _, key, row in commit.changes if row is not None and int(str(key[0])) >= JOURNAL]
    return str(attempts[0]) if attempts else ""
