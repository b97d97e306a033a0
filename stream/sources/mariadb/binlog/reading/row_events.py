"""The rows events of a transaction: their rows, or why the table is void.

A row is decoded with the binlog's own table map. The schema of the position adds the kinds that the binlog doesn't have
(UUID, INET). If the two disagree, the table is void for that transaction.
"""

from __future__ import annotations

import structlog

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.checksum import TransactionChecksum
from stream.sources.mariadb.binlog.coalesce import TransactionRows
from stream.sources.mariadb.binlog.events import HEADER_SIZE
from stream.sources.mariadb.binlog.reading.foreign_keys import ForeignKeys
from stream.sources.mariadb.binlog.reading.table_maps import Keyless, Mapped, TableMaps, Undecodable, Unpublished
from stream.sources.mariadb.binlog.reading.transaction import OpenTransaction
from stream.sources.mariadb.binlog.rows import TableDecoder
from stream.sources.mariadb.binlog.table_map import BinlogFormatError
from stream.sources.mariadb.cascades.family import Family, Relative
from stream.sources.mariadb.gtid import Gtid, GtidPosition
from stream.wire.events import EVERY_TABLE, NO_ROW, KeylessRow
from stream.wire.values import UndecodableValue

log = structlog.get_logger(__name__)


class RowEvents:
    """Adds the rows of events to their transaction."""

    def __init__(self, maps: TableMaps, keys: ForeignKeys, checksum: TransactionChecksum) -> None:
        self._maps = maps
        self._keys = keys
        self._checksum = checksum

    def take(self, event: bytes, kind: int, transaction: OpenTransaction, position: GtidPosition) -> None:
        """Take a rows event. ``position``: before the transaction."""
        if len(event) < HEADER_SIZE + 8:
            transaction.voids[EVERY_TABLE] = "a rows event is shorter than its header"
            return
        table_id = int.from_bytes(event[HEADER_SIZE : HEADER_SIZE + 6], "little")
        flags = event[HEADER_SIZE + 6]
        self._keys.statement.checked(flags)
        mapped = self._maps.by_id.get(table_id)
        if mapped is None:
            transaction.voids[EVERY_TABLE] = "rows without a table map before them"
        else:
            self._rows_of(mapped, event, kind, transaction)
        if flags & events.STATEMENT_END:
            self._keys.end_statement(transaction, position, flags)

    def _rows_of(self, mapped: Mapped, event: bytes, kind: int, transaction: OpenTransaction) -> None:
        name, family = mapped.name, self._keys.family
        is_decoded = isinstance(mapped, TableDecoder)
        # MariaDB names what foreign keys changed. For MySQL the kind says what they may have changed.
        is_unclear = isinstance(mapped, Undecodable) and type(transaction.gtid) is Gtid
        self._keys.statement.logged(name, 0 if is_unclear else kind)
        try:
            at, size = events.bitmaps_of(event, kind)
            end = at + 2 * size if kind in events.UPDATES else at + size
            head, data = event[HEADER_SIZE + 6 : end], event
            if kind in events.COMPRESSED_ROWS:
                data, end = events.uncompress(event[end:]), 0
            self._checksum.rows(mapped.label, kind, data, end)
            if isinstance(mapped, TableDecoder):
                transaction.touched.add(name)
                if head != mapped.heads.get(kind):
                    _check_full_image(mapped, head[at - HEADER_SIZE - 6 :], size)
                    mapped.heads[kind] = head
                relative = None if family is None else family.relative(name)
                if isinstance(mapped, Keyless):
                    _decode_keyless(mapped, data, end, kind, transaction)
                elif family is None or relative is None:
                    decode_rows(mapped, data, end, kind, transaction.rows)
                else:
                    _decode_relative(family, relative, mapped, data, end, kind, transaction.rows)
        except (UndecodableValue, BinlogFormatError, IndexError) as error:
            if is_decoded:
                log.warning("rows cannot be decoded", table=name, reason=str(error))
                transaction.voids.setdefault(name, str(error))
            is_decoded = False
        except OSError as error:
            transaction.lose_rows(error)
            is_decoded = False
        if family is not None and (not is_decoded or isinstance(mapped, Keyless)):
            family.miss(name)
        if isinstance(mapped, Undecodable):
            transaction.voids.setdefault(name, mapped.reason)

    def take_partial(self, event: bytes, transaction: OpenTransaction, position: GtidPosition) -> None:
        """Void the table whose JSON values a session logs in parts, which only that session can choose."""
        mapped = self._maps.by_id.get(int.from_bytes(event[HEADER_SIZE : HEADER_SIZE + 6], "little"))
        name = EVERY_TABLE if mapped is None else mapped.name
        self._checksum.rows(name.encode(), events.UPDATE_ROWS, event, HEADER_SIZE + 6)
        self._keys.statement.logged(name, events.UPDATE_ROWS)
        if not isinstance(mapped, Unpublished):
            reason = "parts of JSON values are logged in place of rows (binlog_row_value_options = PARTIAL_JSON)"
            log.warning("rows cannot be decoded", table=name, reason=reason)
            transaction.voids.setdefault(name, reason)
        if event[HEADER_SIZE + 6] & events.STATEMENT_END:
            self._keys.end_statement(transaction, position, event[HEADER_SIZE + 6])


def decode_rows(decoder: TableDecoder, data: bytes, at: int, kind: int, rows: TransactionRows) -> None:
    """Add to ``rows`` what ``data`` has from ``at`` on. An UPDATE that moves a primary key is two keys."""
    end = len(data)
    row, put = decoder.row, rows.put
    if kind in events.WRITES:
        while at < end:
            key, image, at = row(data, at)
            put(key, image, NO_ROW)
    elif kind in events.DELETES:
        while at < end:
            key, before, at = row(data, at)
            put(key, None, before)
    else:
        while at < end:
            old, before, at = row(data, at)
            key, image, at = row(data, at)
            if old != key:
                put(old, None, before)
                before = NO_ROW
            put(key, image, before)


def _decode_keyless(decoder: TableDecoder, data: bytes, at: int, kind: int, transaction: OpenTransaction) -> None:
    """Add each row to the transaction as what happened to it."""
    end, row = len(data), decoder.row
    while at < end:
        before = after = NO_ROW
        if kind not in events.WRITES:
            _, before, at = row(data, at)
        if kind not in events.DELETES:
            _, after, at = row(data, at)
        operation = "deleted" if not after else "updated" if before else "inserted"
        transaction.add_keyless(KeylessRow(decoder.name, operation, before, after))


def _decode_relative(
    family: Family, relative: Relative, decoder: TableDecoder, data: bytes, at: int, kind: int, rows: TransactionRows
) -> None:
    """As `decode_rows`, of a table with foreign keys, whose rows are told to the family."""
    end = len(data)
    while at < end:
        old = new = None
        if kind not in events.WRITES:
            key, image, at = decoder.row(data, at)
            old = key, image
        if kind not in events.DELETES:
            key, image, at = decoder.row(data, at)
            new = key, image
        if old is not None and (new is None or old[0] != new[0]):
            rows.put(old[0], None, old[1])
        if new is not None:
            rows.put(*new, old[1] if old is not None and old[0] == new[0] else NO_ROW)
        family.changed(relative, old, new)


def _check_full_image(decoder: TableDecoder, bitmaps: bytes, size: int) -> None:
    """Raises `UndecodableValue` unless all columns are present in each bitmap of ``size`` bytes."""
    wanted = decoder.all_present
    is_full = int.from_bytes(bitmaps[:size], "little") & wanted == wanted
    if not is_full or (len(bitmaps) > size and int.from_bytes(bitmaps[size:], "little") & wanted != wanted):
        raise UndecodableValue(
            f"a partial row image of {decoder.name}",
            hint="SET GLOBAL binlog_row_image = FULL, and in all sessions",
        )
