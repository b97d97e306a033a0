"""What a server has committed, replayed beside it: rows before and after each commit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from lab.simulation.mariadb.server import Commit
from lab.simulation.mariadb.storage.columns import Column, Stored
from lab.simulation.mariadb.storage.schema_changes import apply
from lab.simulation.mariadb.storage.tables import Databases, Row, Table
from lab.simulation.mariadb.transactions import Change
from lab.simulation.mariadb.writing import LATEST

Image = dict[str, Any] | None
"""A row as an answer must have it: column → value. None: there is none."""
Slot = tuple[str, str]
"""A row: its table as ``db.table``, and the JSON of its key."""


class Changed(NamedTuple):
    """A row of a commit."""

    table: Table
    before: Row | None
    after: Row | None


class Replay:
    """The tables of a server as of its first ``count`` commits."""

    def __init__(self, history: Sequence[Commit] = ()) -> None:
        self.databases = Databases()
        self.count = 0
        for commit in history:
            self.take(commit)

    def take(self, commit: Commit) -> list[Changed]:
        """Go on by one commit. Returns the rows that it tells: those of XA are told when they are prepared."""
        self.count += 1
        if commit.change is not None:
            apply(*commit.change, self.databases, self.count)
        changed = self._changed(commit.prepared or commit.changes)
        for name, key, row in commit.changes:
            table = self.databases.find(name)
            if table is not None:
                table.put(key, self.count, row)
        return changed

    def _changed(self, changes: Sequence[Change]) -> list[Changed]:
        found = ((self.databases.find(name), key, row) for name, key, row in changes)
        rows = [Changed(table, table.row(key, LATEST), row) for table, key, row in found if table is not None]
        return [each for each in rows if each.before != each.after]


class Truth:
    """Every row as each commit left it, by the number of the commit."""

    def __init__(self) -> None:
        self._replay = Replay()
        self._now: dict[Slot, dict[str, Any]] = {}
        self._versions: dict[Slot, list[tuple[int, Image]]] = {}
        self.changed: list[list[Slot]] = [[]]
        """Commit → the rows that differ after it."""

    def record(self, history: Sequence[Commit]) -> None:
        """Take what was committed since the last time."""
        for commit in history[self._replay.count :]:
            self._replay.take(commit)
            state = {
                slot_of(table, row): image_of(table, row) for table in self._replay.databases for row in rows_of(table)
            }
            changed = [slot for slot in {**self._now, **state} if self._now.get(slot) != state.get(slot)]
            for slot in changed:
                self._versions.setdefault(slot, []).append((self._replay.count, state.get(slot)))
            self._now = state
            self.changed.append(changed)

    def image(self, slot: Slot, commit: int) -> Image:
        """A row as a commit left it."""
        return next((image for at, image in reversed(self._versions.get(slot, [])) if at <= commit), None)

    def rows(self, table: str, commit: int) -> list[Slot]:
        """The rows that a table had."""
        return [slot for slot in self._versions if slot[0] == table and self.image(slot, commit) is not None]


def rows_of(table: Table) -> list[Row]:
    """The rows that it has now."""
    return [row for key in table.versions if (row := table.row(key, LATEST)) is not None]


def slot_of(table: Table, row: Row) -> Slot:
    """Which row it is."""
    key = [_shown(table.columns[at], row[at]) for at in table.key_indexes]
    return ".".join(table.name), json.dumps(key)


def image_of(table: Table, row: Row) -> dict[str, Any]:
    """The row as docs/concepts/rows.md has it."""
    return {column.name: _shown(column, value) for column, value in zip(table.columns, row, strict=True)}


def _shown(column: Column, value: Stored) -> Any:
    match value:
        case Decimal():
            return f"{value:.{column.scale}f}"
        case datetime():
            text = value.strftime("%Y-%m-%d %H:%M:%S.%f")
            return text[: 20 + column.size] if column.size else text[:19]
        case date():
            return value.isoformat()
    return value
