"""Transactions of one row, which most are: a run of them is read at once.

What is not of exactly that form, or says more than its row, is left to who reads one event after the other. A run says
what that would have said (docs/decisions/0190).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.checksum import TransactionChecksum
from stream.sources.mariadb.binlog.events import HEADER_SIZE
from stream.sources.mariadb.binlog.reading.foreign_keys import ForeignKeys
from stream.sources.mariadb.binlog.reading.table_maps import Keyless, TableMaps
from stream.sources.mariadb.binlog.rows import TableDecoder
from stream.sources.mariadb.binlog.table_map import table_name_of
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.live_schema import LiveSchema
from stream.wire.events import ABSENT, VALUE, Rows, SingleRows
from stream.wire.values import UndecodableValue

EVENTS = 4
"""Of such a transaction: GTID, table map, rows, XID."""
_NUMBER_END = HEADER_SIZE + 6
"""Where the number of the table ends, in its map and in its rows."""
_KINDS = frozenset({events.WRITE_ROWS_V1, events.UPDATE_ROWS_V1, events.DELETE_ROWS_V1})


class SingleRowReading:
    """Reads runs of such transactions."""

    def __init__(self, schema: LiveSchema, maps: TableMaps, keys: ForeignKeys) -> None:
        self._schema = schema
        self._maps = maps
        self._keys = keys

    def read(self, found: Sequence[bytes], at: int, position: GtidPosition) -> SingleRows | None:
        """The transactions from ``found[at]`` on, up to one of another form; None: there are no two of them.

        ``position``: before them. The first one of a table and kind of change is of another form: how its rows begin is
        not known yet.
        """
        domains = position.domains
        if len(domains) != 1 or not self._schema.catalog.is_settled or self._maps.announced:
            return None
        [(domain, (_, sequence))] = domains.items()
        first, server = at, found[at][5:9]
        prefix = f"{position.flavor}{domain}-{int.from_bytes(server, 'little')}-"
        rows, gtids, timestamps = Rows([], bytearray(), []), list[str](), list[int]()
        try:
            while at + EVENTS <= len(found):
                begin, table_map, event, xid = found[at : at + EVENTS]
                number, of, _ = events.GTID_BODY.unpack_from(begin, HEADER_SIZE)
                if begin[4] != events.GTID or of != domain or begin[5:9] != server or number <= sequence:
                    break
                if table_map[4] != events.TABLE_MAP or xid[4] != events.XID or not self._take(table_map, event, rows):
                    break
                gtids.append(f"{prefix}{number}")
                timestamps.append(int.from_bytes(xid[:4], "little"))
                sequence = number
                at += EVENTS
        except (UndecodableValue, IndexError, struct.error):
            pass  # who reads it alone says so
        if len(gtids) < 2:
            return None

        def checksum_of(index: int) -> int:
            checksum = TransactionChecksum()
            add_to(checksum, found, first + EVENTS * index)
            return checksum.value

        return SingleRows(
            gtids[-1],
            gtids[-1],
            timestamps[-1],
            rows,
            checksum=checksum_of(len(gtids) - 1),
            cursor=gtids[-2],
            before=str(position),
            gtids=gtids,
            timestamps=timestamps,
            checksum_of=checksum_of,
        )

    def _take(self, table_map: bytes, event: bytes, rows: Rows) -> bool:
        """Add the row of an event; False: it has more, or less, or means more. Raises as `TableDecoder.row`."""
        kind, table = event[4], self._maps.by_body.get(table_map[_NUMBER_END:])
        if kind not in _KINDS or not isinstance(table, TableDecoder) or not self._is_alone(table):
            return False
        head = table.heads.get(kind)
        if head is None or not head[0] & events.STATEMENT_END:
            return False
        head = table_map[HEADER_SIZE:_NUMBER_END] + head
        if not event.startswith(head, HEADER_SIZE):
            return False
        key, image, end = table.row(event, HEADER_SIZE + len(head))
        if kind == events.UPDATE_ROWS_V1:
            old = key
            key, image, end = table.row(event, end)
            if key != old:
                return False
        if end != len(event):
            return False
        is_gone = kind == events.DELETE_ROWS_V1
        rows.keys.append(key)
        rows.operations.append(ABSENT if is_gone else VALUE)
        rows.images.append(b"" if is_gone else image)
        return True

    def _is_alone(self, table: TableDecoder) -> bool:
        """Whether a change of a row of the table is no more than that, and nobody else is to be told of it."""
        cascades, family, name = self._schema.cascades, self._keys.family, table.name
        if name in cascades.on_delete or name in cascades.on_update or isinstance(table, Keyless):
            return False
        return family is None or family.relative(name) is None


def add_to(checksum: TransactionChecksum, found: Sequence[bytes], at: int) -> None:
    """Begin ``checksum`` with the transaction at ``found[at]``, which a run has."""
    begin, table_map, event, _ = found[at : at + EVENTS]
    place, size = events.bitmaps_of(event, event[4])
    database, table = table_name_of(table_map[_NUMBER_END:])
    checksum.begin(begin)
    checksum.rows(f"{database}.{table}".encode(), event[4], event, place + size * (1 + (event[4] in events.UPDATES)))
