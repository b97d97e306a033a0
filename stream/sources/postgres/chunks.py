"""Read some rows of a table of PostgreSQL in the order of its key, and between which positions they were read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeVar

from stream.sources.mariadb.backfill.chunks import (
    BYTES_MAX,
    ROWS_MAX,
    STATEMENT_S,
    TableBusy,
    TableDiffers,
)
from stream.sources.mariadb.backfill.plan import After, Chunk
from stream.sources.mariadb.by_key import SelectedRow
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError, MariaDBUnreachable
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.snapshot import NoSuchTable, SnapshotRead, SourceTimeout
from stream.sources.postgres.connection import fetch_all, session
from stream.sources.postgres.snapshot import PostgresSnapshotReader
from stream.wire.events import ABSENT, VALUE, VOID, DescribeTable, RowChange
from stream.wire.keys import split_row_key
from stream.wire.values import UndecodableValue

Rows = TypeVar("Rows")

HELD_SINCE_S: Final = 5.0
"""How long a transaction is prepared before its table is put aside for it: what commits in two phases is sooner done.

A table on which some are prepared at every moment would be put aside each time, and begin to wait anew."""
_ROWS: Final = """SELECT c.reltuples::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s"""


class PostgresChunkReader:
    """As `stream.sources.mariadb.backfill.chunks.ChunkReader`."""

    behind_s = 0.2
    """How long to wait until writers of the table, because of whom a read proves too little, may have left."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._reader = PostgresSnapshotReader(settings, 1)
        self._stopped = False

    def read(self, described: DescribeTable, after: After | None, keys: Sequence[bytes] = ()) -> Chunk:
        """The rows after the key ``after``, or the first ones; or those of ``keys``, or none.

        Raises `TableDiffers` if the columns are not those of ``described``, `TableBusy`.
        """
        if self._stopped:
            raise MariaDBUnreachable("the reading of chunks has ended")
        name, rows = described.table, list[RowChange]()
        held = self._reader.held(name, HELD_SINCE_S)
        if keys:
            by_key = self._reader.read({name: [split_row_key(key)[1] for key in keys]}, STATEMENT_S)[name]
            found = _checked(described, by_key)
            for key, row in zip(keys, found.rows, strict=True):
                if row is None:
                    rows.append(RowChange(key, ABSENT))
                elif isinstance(row, SelectedRow) and row.key == key:
                    rows.append(RowChange(key, VALUE, row.image))
            return _chunk(described, found, rows, None, held)
        try:
            read = self._reader.read_in_order(name, after and after.key, ROWS_MAX, BYTES_MAX, STATEMENT_S)
        except UndecodableValue as error:
            raise TableDiffers(f"a key of {name} cannot be decoded: {error}") from error
        in_order = _checked(described, read)
        rows += [RowChange(key, VALUE if image else VOID, image) for key, image in in_order.rows.rows]
        last = None if in_order.rows.is_end else After(split_row_key(rows[-1].key)[1])
        return _chunk(described, in_order, rows, last, held)

    def estimated_rows(self, table: str) -> int:
        """About how many rows a table has; 0 if the server does not know. Raises `MariaDBError`."""
        with session(self._settings) as asked:
            found = fetch_all(asked, _ROWS, table.split(".", 1))
        return max(int(found[0][0]), 0) if found else 0

    def close(self) -> None:
        """End the session. The next request opens a new one, of a server of which nothing is known."""
        self._reader.close()
        self._reader = PostgresSnapshotReader(self._settings, 1)

    def stop(self) -> None:
        """Refuse every further request."""
        self._stopped = True


def _checked(described: DescribeTable, found: SnapshotRead[Rows] | MariaDBError) -> SnapshotRead[Rows]:
    if isinstance(found, NoSuchTable):
        raise TableDiffers(f"{described.table} is gone")
    if isinstance(found, SourceTimeout):
        raise TableBusy(str(found))
    if isinstance(found, MariaDBError):
        raise found
    if replace(found.table.describe(), prefix=described.prefix) != described:
        raise TableDiffers(f"{described.table} has other columns than at the position that is published")
    return found


def _chunk(
    described: DescribeTable,
    found: SnapshotRead[Rows],
    rows: Sequence[RowChange],
    last: After | None,
    held: str,
) -> Chunk:
    return Chunk(described, rows, GtidPosition.parse(found.position), GtidPosition.parse(found.hi), last, held)
