"""Read some rows of a table in the order of its key, and between which positions they were read.

The snapshot is made under the table's lock (docs/decisions/0016). Nothing tells its exact position, and none is needed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import pymysql
from pymysql.constants import ER

from stream.sources.key_range import KeyRange
from stream.sources.mariadb.backfill.packets import RowPackets, Values
from stream.sources.mariadb.backfill.plan import After, Chunk
from stream.sources.mariadb.by_key import TIMED_OUT, SelectedRow, code_of, rows_by_key, timed
from stream.sources.mariadb.by_range import bounded, select_range
from stream.sources.mariadb.charsets import Charsets, read_charsets
from stream.sources.mariadb.connection import (
    RESOURCE_ERRORS,
    Connection,
    ConnectionSettings,
    MariaDBError,
    MariaDBUnreachable,
    connect,
    fetch_all,
    translated,
)
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.information_schema.tables import read_table
from stream.sources.mariadb.position import PLACES_MAX, bounds_since, committed_place
from stream.sources.mariadb.schema import TableInfo
from stream.sources.mariadb.selected_rows import canonical_key, canonical_row, canonical_rows
from stream.sources.mariadb.snapshot import definition_of, lock_sql
from stream.wire.events import ABSENT, VALUE, VOID, DescribeTable, RowChange, RowImages
from stream.wire.keys import split_row_key
from stream.wire.values import UndecodableValue

ROWS_MIN: Final = 16
ROWS_MAX: Final = 4_096
BYTES_MAX: Final = 1024 * 1024
"""Bytes of keys and images after which a chunk ends, but for what was taken apart together with them."""
LIMIT_BYTES: Final = BYTES_MAX * 7 // 8
"""What a chunk is meant to have: to break a statement off costs the session."""
STATEMENT_S: Final = 20.0


class TableDiffers(MariaDBError):
    """The table is not, or not any more, as it is described in the topic."""


class TableBusy(MariaDBError):
    """The table is locked, or a statement on it took too long, or more than the server has."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A table's columns, and the definition that they belong to."""

    info: TableInfo
    definition: str


class ChunkReader:
    """Reads chunks with a session of its own. Only `stop` may be called by another thread. Raises `MariaDBError`."""

    behind_s = 0.005
    """How long to wait if the engine does not show yet what the source has read of the binlog."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._session: Connection | None = None
        self._server = ""
        """The id of the session's server."""
        self._stopped = False
        self._charsets: Charsets | None = None
        self._known: _Known | None = None
        self._limit = ROWS_MAX

    def read(self, described: DescribeTable, after: After | None, keys: Sequence[bytes] = ()) -> Chunk:
        """The rows after the key ``after``, or the first ones; or those of ``keys``, or none.

        Raises `TableDiffers` if the columns are not those of ``described``, `TableBusy`.
        """
        with translated(self._settings):
            for _ in range(PLACES_MAX):
                try:
                    found = self._read(described, after, keys)
                except pymysql.err.MySQLError as error:
                    self.close()
                    if code_of(error) in TIMED_OUT | RESOURCE_ERRORS:  # the server answers, others may be read
                        why = f"is locked, too slow, or cannot be read now: {error.args[-1]}"
                        raise TableBusy(f"{described.table} {why}") from error
                    raise
                except BaseException:
                    self.close()  # its transaction locks the table against DDL
                    raise
                if found is not None:
                    return found
        why = "its binlogs were rotated or purged, or its address leads to several servers"
        raise MariaDBUnreachable(f"no read of the server has a place in its log: {why}")

    def estimated_rows(self, table: str) -> int:
        """About how many rows a table has; 0 if the server does not say."""
        sql = "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
        with translated(self._settings):
            try:
                found = fetch_all(self._connect(), sql, table.split(".", 1))
            except BaseException:
                self.close()  # a session that is lost would be asked again for ever
                raise
        return int(found[0][0] or 0) if found else 0

    def close(self) -> None:
        """End the session. The next request opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            session._force_close()

    def stop(self) -> None:
        """Refuse every further request. One that waits for the server in another thread is given up."""
        self._stopped = True
        session = self._session
        if session is not None:
            with suppress(OSError, AttributeError):  # it has no socket any more
                session._sock.shutdown(socket.SHUT_RDWR)  # closing alone would not wake the thread that reads

    def _connect(self) -> Connection:
        if self._session is None:
            self._session = connect(self._settings)
            [[self._server]] = fetch_all(self._session, "SELECT @@server_id")
        if self._stopped:
            raise MariaDBUnreachable("the reading of chunks has ended")
        return self._session

    def _read(self, described: DescribeTable, after: After | None, keys: Sequence[bytes]) -> Chunk | None:
        session = self._connect()
        place, server = committed_place(session), self._server
        session.query("START TRANSACTION READ ONLY")
        info = self._locked(session, described)
        rows: Sequence[RowChange]
        rows, last = (self._rows_of(session, info, keys), None) if keys else self._rows(session, info, after)
        session = self._connect()  # another one, if the statement was broken off
        session.rollback()
        if self._server != server:  # to which a place in the log of the first one says nothing
            return None
        bounds = bounds_since(session, place)
        if bounds is None:
            return None
        return Chunk(described, rows, GtidPosition.parse(bounds.lo), GtidPosition.parse(bounds.hi), last)

    def _locked(self, session: Connection, described: DescribeTable) -> TableInfo:
        """Lock the table against DDL, and return its columns as they are under the lock."""
        name = described.table
        database, _, table = name.partition(".")
        try:
            fetch_all(session, timed(session, lock_sql(name), time.monotonic() + STATEMENT_S))
        except pymysql.err.MySQLError as error:
            if code_of(error) == ER.NO_SUCH_TABLE:
                raise TableDiffers(f"{name} is gone") from error
            raise
        known, definition = self._known, definition_of(session, database, table)
        if known is None or known.info.name != name or known.definition != definition:
            if self._charsets is None:
                self._charsets = read_charsets(session)
            info = read_table(session, self._charsets, database, table)
            if info is None:
                raise TableDiffers(f"{name} is gone")
            known = self._known = _Known(info, definition)
        if replace(known.info.describe(), prefix=described.prefix) != described:
            raise TableDiffers(f"{name} has other columns than at the position that is published")
        return known.info

    def _rows_of(self, session: Connection, info: TableInfo, keys: Sequence[bytes]) -> list[RowChange]:
        """The rows of keys as they are. A key is left out if it is not clear whether it has a row."""
        values = [split_row_key(key)[1] for key in keys]
        selected = rows_by_key(session, self._settings, info, values, time.monotonic() + STATEMENT_S)
        rows = []
        for key, found in zip(keys, selected, strict=True):
            if found is None:
                rows.append(RowChange(key, ABSENT))
            elif isinstance(found, SelectedRow) and found.key == key:
                rows.append(RowChange(key, VALUE, found.image))
        return rows

    def _rows(
        self, session: Connection, info: TableInfo, after: After | None
    ) -> tuple[Sequence[RowChange], After | None]:
        """The rows, and the last one's key; None if no row is left. Under the lock the columns are known."""
        keys: list[bytes] = []
        images: list[bytes] = []
        size, limit = 0, self._limit
        key, turned = after or (None, info.key_index.descending)
        try:
            wanted = bounded(session, info, KeyRange(after=key, turned=turned), limit, time.monotonic() + STATEMENT_S)
        except UndecodableValue as error:
            raise _bad_key(info, error) from error
        statement = select_range(session, info, wanted, limit)
        packets = RowPackets(session, timed(session, statement, time.monotonic() + STATEMENT_S))
        try:
            while size < BYTES_MAX and (columns := packets.read()):
                some = _keys_and_images(info, columns)
                keys += some[0]
                images += some[1]
                size += sum(map(len, chain(*some)))
        finally:
            if not packets.is_over:
                packets.give_up()  # reading what is left of it could take long
                self.close()
        if size >= BYTES_MAX:
            self._limit = max(len(keys) * LIMIT_BYTES // size, ROWS_MIN)
        elif size < BYTES_MAX // 2:
            self._limit = min(limit * 2, ROWS_MAX)
        is_end = packets.is_over and len(keys) < limit
        return _changes(info, keys, images), None if is_end else After(split_row_key(keys[-1])[1], turned)


def _changes(info: TableInfo, keys: list[bytes], images: list[bytes]) -> Sequence[RowChange]:
    if all(images):
        return RowImages(info.name, keys, images)
    return [RowChange(key, VALUE if image else VOID, image) for key, image in zip(keys, images, strict=True)]


def _keys_and_images(info: TableInfo, columns: Sequence[Values]) -> tuple[list[bytes], list[bytes]]:
    """Keys and images of rows; no image, if it can't be decoded. Raises `MariaDBError` if a key can't."""
    try:
        return canonical_rows(info, columns)
    except UndecodableValue:
        pairs = [_key_and_image(info, values) for values in zip(*columns, strict=True)]
        return [key for key, _ in pairs], [image for _, image in pairs]


def _key_and_image(info: TableInfo, values: Sequence[bytes | None]) -> tuple[bytes, bytes]:
    try:
        key = canonical_key(info, values)
    except UndecodableValue as error:
        raise _bad_key(info, error) from error
    try:
        return key, canonical_row(info, values)
    except UndecodableValue:
        return key, b""


def _bad_key(info: TableInfo, error: UndecodableValue) -> TableDiffers:
    return TableDiffers(f"a key of {info.name} cannot be decoded: {error}")
