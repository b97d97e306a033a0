"""Which rows of a child table refer to a value of its parent, as of the position that is being read.

It is learnt from a table's backfill, and from every change in the binlog since that began. A source that was restarted
reads the tables again. It is in a temporary file of SQLite, of which a bounded part is in memory. If that can't be
written or read, as on a full disk, nothing is known: tables are void where their rows would have been, and each is
learnt again with its next backfill.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import structlog

log = structlog.get_logger(__name__)

Values: TypeAlias = tuple[bytes | None, ...]
"""What a row refers to by each foreign key of its table; None: nothing."""

Keys: TypeAlias = tuple[tuple[str, ...], ...]
"""The columns of each foreign key of a table."""

ROWS_MAX: Final = 10_000_000
"""Rows of one table. Of a larger one nothing is known."""
PENDING_MAX: Final = 200_000
"""Rows of one table in the open transaction, which are in memory. Of a table with more nothing is known."""
MEMORY_KIB: Final = 32 * 1024
"""Of the file that is in memory."""
_GONE: Final[Values] = ()
_SQL: Final = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    f"PRAGMA cache_size = -{MEMORY_KIB}",
    "BEGIN",
)
"""The transaction never ends: nobody else reads the file, and nothing of it outlives the process."""


class Knowledge(Enum):
    """What is known of a child table."""

    NOTHING = 0
    PART = 1
    """Rows are being read. Changes are noted."""
    ALL = 2


@dataclass(slots=True)
class _Table:
    number: int
    keys: Keys
    knowledge: Knowledge = Knowledge.NOTHING
    rows: int = 0
    """Those put, at least."""


class Children:
    """Rows of child tables by what they refer to. Changes of a transaction count at once, and stay with `commit`."""

    def __init__(self, rows_max: int = ROWS_MAX, pending_max: int = PENDING_MAX) -> None:
        self._rows_max, self._pending_max = rows_max, pending_max
        self._file: sqlite3.Connection | None = None
        self._tables: dict[str, _Table] = {}
        self._numbers = 0
        self.is_changed = False
        """Whether less is known than before, of some table. Whoever reads it clears it."""
        self._pending: defaultdict[str, dict[bytes, Values]] = defaultdict(dict)
        """Table → key → what the row refers to in the open transaction."""
        self._referring: defaultdict[tuple[str, int, bytes], set[bytes]] = defaultdict(set)
        """Table, foreign key and value → keys that referred to it at some time in the open transaction."""

    def follow(self, keys: Mapping[str, Keys]) -> None:
        """Follow these tables alone. Nothing is known of a new one, or of one with other foreign keys."""
        for table in [name for name, known in self._tables.items() if keys.get(name) != known.keys]:
            self.forget(table)
            del self._tables[table]
        for table in keys.keys() - self._tables.keys():
            self._numbers += 1
            self._tables[table] = _Table(self._numbers, keys[table])
            self.is_changed = True

    def knowledge(self, table: str) -> Knowledge:
        """What is known of a table."""
        found = self._tables.get(table)
        return Knowledge.NOTHING if found is None else found.knowledge

    def unknown(self, tables: Iterable[str]) -> Iterator[str]:
        """Those of ``tables`` that are followed, and not all known, in order."""
        return (name for name in sorted(tables) if name in self._tables and self._can_know(self._tables[name]))

    def _can_know(self, table: _Table) -> bool:
        return table.knowledge is not Knowledge.ALL and table.rows <= self._rows_max

    # -- what was there before -----------------------------------------------------------------------------------------

    def begin(self, table: str) -> None:
        """A table is read from its beginning, and what changes in it is told."""
        self.forget(table)
        known = self._tables.get(table)
        if known is None:
            return
        columns = "".join(f", v{each} BLOB" for each in range(len(known.keys)))
        with self._losing() as file:
            file.execute(f"CREATE TABLE t{known.number} (key BLOB PRIMARY KEY{columns}) WITHOUT ROWID")
            for each in range(len(known.keys)):
                file.execute(f"CREATE INDEX i{known.number}_{each} ON t{known.number} (v{each})")
            known.knowledge, known.rows = Knowledge.PART, 0

    def fill(self, table: str, rows: Sequence[tuple[bytes, Values]]) -> None:
        """Rows of a table as they are at the present position."""
        known = self._tables.get(table)
        if known is not None and known.knowledge is Knowledge.PART:
            self._store(table, known, rows)

    def complete(self, table: str) -> None:
        """Every row of a table that is being read has been told."""
        known = self._tables.get(table)
        if known is not None and known.knowledge is Knowledge.PART:
            known.knowledge = Knowledge.ALL

    def forget(self, table: str) -> None:
        """Rows of a table may be others now."""
        self._pending.pop(table, None)
        known = self._tables.get(table)
        if known is not None and known.knowledge is not Knowledge.NOTHING:
            known.knowledge, known.rows = Knowledge.NOTHING, 0
            self.is_changed = True
            with self._losing() as file:
                file.execute(f"DROP TABLE t{known.number}")

    def refuse(self, table: str) -> None:
        """A row of a table can't be decoded: nothing of it can be known until its next backfill."""
        self.forget(table)
        known = self._tables.get(table)
        if known is not None:
            known.rows = self._rows_max + 1

    def forget_all(self) -> None:
        """Nothing is known of any table."""
        for table in self._tables:
            self.forget(table)

    # -- changes -------------------------------------------------------------------------------------------------------

    def put(self, table: str, key: bytes, values: Values | None) -> None:
        """A row refers to this now; None: it is gone."""
        known = self._tables.get(table)
        if known is None or known.knowledge is Knowledge.NOTHING:
            return
        pending = self._pending[table]
        if len(pending) >= self._pending_max:
            self.forget(table)
            for each in [each for each in self._referring if each[0] == table]:
                del self._referring[each]
            return
        pending[key] = _GONE if values is None else values
        for number, value in enumerate(values or ()):
            if value is not None:
                self._referring[table, number, value].add(key)

    def correct(self, table: str, key: bytes, values: Values | None) -> None:
        """A row refers to this at the present position, whatever the open transaction makes of it; None: it is gone."""
        known = self._tables.get(table)
        if known is None or known.knowledge is Knowledge.NOTHING:
            return
        if values is None:
            self._delete(known, [(key,)])
        else:
            self._store(table, known, [(key, values)])

    def referring(self, table: str, number: int, value: bytes) -> dict[bytes, Values] | None:
        """Key → values of the rows that refer to ``value`` by a foreign key of a table of which all is known.

        None: the file can't be read, and nothing is known any more.
        """
        pending = self._pending.get(table, {})
        known = self._tables[table]
        found: dict[bytes, Values] = {}
        with self._losing() as file:
            for row in file.execute(f"SELECT * FROM t{known.number} WHERE v{number} = ?", (value,)):
                if row[0] not in pending:
                    found[row[0]] = tuple(row[1:])
        if known.knowledge is not Knowledge.ALL:
            return None
        for key in self._referring.get((table, number, value), ()):
            values = pending.get(key, _GONE)
            if values and values[number] == value:
                found[key] = values
        return found

    def commit(self) -> None:
        """The open transaction counts."""
        for table, rows in [*self._pending.items()]:  # a table that gets too large is taken out
            known = self._tables.get(table)
            if known is not None and known.knowledge is not Knowledge.NOTHING:
                gone = [(key,) for key, values in rows.items() if not values]
                if gone:
                    self._delete(known, gone)
                self._store(table, known, [(key, values) for key, values in rows.items() if values])
        self.discard()

    def discard(self) -> None:
        """The open transaction never happened."""
        if self._pending or self._referring:
            self._pending.clear()
            self._referring.clear()

    @property
    def changed(self) -> list[str]:
        """The tables that the open transaction changes."""
        return list(self._pending)

    def close(self) -> None:
        """Delete the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _delete(self, known: _Table, gone: Sequence[tuple[bytes]]) -> None:
        with self._losing() as file:
            file.executemany(f"DELETE FROM t{known.number} WHERE key = ?", gone)
            known.rows -= min(len(gone), known.rows)

    def _store(self, table: str, known: _Table, rows: Sequence[tuple[bytes, Values]]) -> None:
        if not rows or known.knowledge is Knowledge.NOTHING:
            return
        marks = ", ?" * len(known.keys)
        with self._losing() as file:
            file.executemany(
                f"INSERT OR REPLACE INTO t{known.number} VALUES (?{marks})", [(key, *values) for key, values in rows]
            )
            known.rows += len(rows)
            if known.rows > self._rows_max:
                self._count(table, known, file)

    def _count(self, table: str, known: _Table, file: sqlite3.Connection) -> None:
        """Count anew: a row that is put again was counted again. Near the bound this would be done all the time."""
        [[known.rows]] = file.execute(f"SELECT COUNT(*) FROM t{known.number}")
        if known.rows > self._rows_max - self._rows_max // 10:
            self.refuse(table)

    @contextmanager
    def _losing(self) -> Iterator[sqlite3.Connection]:
        """The file. If it fails, it is given up with all that is known: without a journal it may be damaged."""
        try:
            yield self._opened()
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.DatabaseError as error:
            log.warning(
                "the temporary file about foreign keys is lost",
                reason=str(error),
                hint="give SQLITE_TMPDIR, or /tmp, room. Foreign keys void tables until these are read again",
            )
            with suppress(sqlite3.DatabaseError):
                self.close()
            self._file = None
            self.discard()
            for known in self._tables.values():
                known.knowledge, known.rows = Knowledge.NOTHING, self._rows_max + 1

    def _opened(self) -> sqlite3.Connection:
        if self._file is None:
            # The source's thread alone uses it; it is made in another one at times.
            self._file = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            for statement in _SQL:
                self._file.execute(statement)
        return self._file
