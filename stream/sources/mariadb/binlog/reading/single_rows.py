"""Transactions of one row, which most are: a run of them is read at once.

What is not of exactly that form, or says more than its row, is left to who reads one event after the other. A run says
what that would have said (docs/decisions/0190).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.checksum import TransactionChecksum
from stream.sources.mariadb.binlog.events import HEADER_SIZE
from stream.sources.mariadb.binlog.mysql import events as mysql_events
from stream.sources.mariadb.binlog.reading.foreign_keys import ForeignKeys
from stream.sources.mariadb.binlog.reading.logged_statements import LoggedStatements
from stream.sources.mariadb.binlog.reading.table_maps import Keyless, TableMaps
from stream.sources.mariadb.binlog.rows import TableDecoder
from stream.sources.mariadb.binlog.table_map import BinlogFormatError, table_name_of
from stream.sources.mariadb.gtid import Gtid, GtidPosition, MysqlGtidSet
from stream.sources.mariadb.live_schema import LiveSchema
from stream.wire.events import ABSENT, VALUE, Rows, SingleRows
from stream.wire.values import UndecodableValue

_UUID, _NUMBER = slice(HEADER_SIZE + 1, HEADER_SIZE + 17), slice(HEADER_SIZE + 17, HEADER_SIZE + 25)
"""Where MySQL's GTID event has them."""
_NUMBER_END = HEADER_SIZE + 6
"""Where the number of the table ends, in its map and in its rows."""
_KINDS = events.ROWS - events.COMPRESSED_ROWS
_BEGINS_MAX = 1_000


class _Domain:
    """The transactions of one server in MariaDB's only domain: GTID, table map, rows, XID."""

    EVENTS = 4
    GTID = events.GTID

    def __init__(self, position: GtidPosition, event: bytes) -> None:
        self._position = position
        [(self._domain, (_, self._last))] = position.domains.items()
        self._server = event[5:9]
        self._prefix = f"{position.flavor}{self._domain}-{int.from_bytes(self._server, 'little')}-"

    def next(self, begin: Sequence[bytes]) -> int:
        """The number of the transaction that begins so; 0: it is not the next one."""
        [event] = begin
        number, domain, _ = events.GTID_BODY.unpack_from(event, HEADER_SIZE)
        if event[4] != self.GTID or domain != self._domain or event[5:9] != self._server or number <= self._last:
            return 0
        self._last = int(number)
        return self._last

    def texts(self, numbers: list[int], before: str) -> tuple[list[str], list[str]]:  # noqa: ARG002 - see `_Uuid.texts`
        """The GTIDs of these transactions, and the positions behind them. ``before``: the position, as text."""
        gtids = [f"{self._prefix}{number}" for number in numbers]
        return gtids, gtids

    def pass_over(self, numbers: list[int]) -> None:
        """Move the position behind these transactions."""
        self._position.add(Gtid(self._domain, int.from_bytes(self._server, "little"), numbers[-1], 0))

    @staticmethod
    def begin(checksum: TransactionChecksum, begin: Sequence[bytes]) -> None:
        """Begin the checksum of the transaction that begins so."""
        checksum.begin(begin[0])


class _Uuid:
    """The transactions of one server of MySQL, without gaps: GTID, BEGIN, table map, rows, XID."""

    EVENTS = 5
    GTID = mysql_events.GTID

    def __init__(self, position: MysqlGtidSet, event: bytes, is_begin: Callable[[bytes], bool]) -> None:
        """Raises `BinlogFormatError`; ``LookupError`` if the server has no numbers without a tag yet.

        ``is_begin``: whether a QUERY event is a BEGIN.
        """
        gtid = mysql_events.parse_gtid(event)
        self._position, self._source = position, (gtid.uuid, gtid.tag)
        self._uuid, self._last = event[_UUID], position.intervals(self._source)[-1][1]
        self._is_begin = is_begin

    def next(self, begin: Sequence[bytes]) -> int:
        """As `_Domain.next`."""
        event, query = begin
        number = int.from_bytes(event[_NUMBER], "little")
        if event[4] != self.GTID or event[_UUID] != self._uuid or number != self._last + 1 or len(event) < _NUMBER.stop:
            return 0
        if query[4] != events.QUERY or not self._is_begin(query):
            return 0
        self._last = number
        return number

    def texts(self, numbers: list[int], before: str) -> tuple[list[str], list[str]]:
        """As `_Domain.texts`."""
        uuid, position = self._source[0], self._position
        *others, (first, last) = position.intervals(self._source)
        own = ":".join((uuid, *(str(low) if low == high else f"{low}-{high}" for low, high in others), f"{first}"))
        head, _, tail = before.partition(own)  # numbers without a tag come first
        head, tail, prefix = f"{head}{own}-", tail.removeprefix(f"-{last}"), f"{position.flavor}{uuid}:"
        return [f"{prefix}{number}" for number in numbers], [f"{head}{number}{tail}" for number in numbers]

    def pass_over(self, numbers: list[int]) -> None:
        """As `_Domain.pass_over`."""
        self._position.extend(self._source, numbers[-1])

    @staticmethod
    def begin(checksum: TransactionChecksum, begin: Sequence[bytes]) -> None:
        """As `_Domain.begin`."""
        checksum.begin_with(mysql_events.parse_gtid(begin[0]).bare)
        checksum.statement(events.parse_query(begin[1]))


class SingleRowReading:
    """Reads runs of such transactions."""

    def __init__(
        self, schema: LiveSchema, maps: TableMaps, keys: ForeignKeys, statements: LoggedStatements, *, is_mysql: bool
    ) -> None:
        self._schema = schema
        self._maps = maps
        self._keys = keys
        self._statements = statements
        self._line: type[_Domain | _Uuid] = _Uuid if is_mysql else _Domain
        self._begins: dict[bytes, bool] = {}
        """The body of a QUERY event → whether it is a BEGIN."""

    @property
    def events(self) -> int:
        """Of each such transaction."""
        return self._line.EVENTS

    @property
    def gtid(self) -> int:
        """The type of the event that each begins with."""
        return self._line.GTID

    def read(
        self, found: Sequence[bytes], at: int, position: GtidPosition, checksum: TransactionChecksum
    ) -> SingleRows | None:
        """The transactions from ``found[at]`` on, up to one of another form; None: there are no two of them.

        ``position``: before them, and afterwards behind them. ``checksum``: afterwards that of the last one. The first
        one of a table and kind of change is of another form: how its rows begin is not known yet. Whether two tables
        may be in a run is looked at first: a long position is not written for nothing.
        """
        if not self._schema.catalog.is_settled or self._maps.announced:
            return None
        size = self.events
        second = at + size
        if self._table_of(*found[second - 3 : second - 1]) is None:
            return None
        if self._table_of(*found[second + size - 3 : second + size - 1]) is None:
            return None
        first, rows, numbers, timestamps = at, Rows([], bytearray(), []), list[int](), list[int]()
        try:
            line = self._line_of(position, found[at])
            while at + size <= len(found):
                *begin, table_map, event, xid = found[at : at + size]
                table = self._table_of(table_map, event)
                if table is None or xid[4] != events.XID:
                    break
                number = line.next(begin)
                if not number or not _take(table, table_map, event, rows):
                    break
                numbers.append(number)
                timestamps.append(int.from_bytes(xid[:4], "little"))
                at += size
        except (UndecodableValue, BinlogFormatError, LookupError, ValueError, struct.error):
            pass  # who reads it alone says so
        if len(numbers) < 2:
            return None
        before = str(position)
        gtids, positions = line.texts(numbers, before)
        line.pass_over(numbers)
        self._add_to(checksum, found, at - size)

        def checksum_of(index: int) -> int:
            its_own = TransactionChecksum()
            self._add_to(its_own, found, first + size * index)
            return its_own.value

        return SingleRows(
            gtids[-1],
            positions[-1],
            timestamps[-1],
            rows,
            checksum=checksum.value,
            cursor=positions[-2],
            before=before,
            gtids=gtids,
            positions=positions,
            timestamps=timestamps,
            checksum_of=checksum_of,
        )

    def _line_of(self, position: GtidPosition, event: bytes) -> _Domain | _Uuid:
        """What follows ``position``, beginning with ``event``. Raises as `_Uuid`, and ``ValueError``."""
        if isinstance(position, MysqlGtidSet):
            return _Uuid(position, event, self._is_begin)
        return _Domain(position, event)

    def _is_begin(self, query: bytes) -> bool:
        body = query[HEADER_SIZE:]
        found = self._begins.get(body)
        if found is None:
            if len(self._begins) >= _BEGINS_MAX:
                self._begins.clear()
            found = self._statements.classified(events.parse_query(query)).effect == "begin"
            self._begins[body] = found
        return found

    def _table_of(self, table_map: bytes, event: bytes) -> TableDecoder | None:
        """The table of a rows event, if the log may say no more of it; its map stands before it."""
        kind, table = event[4], self._maps.by_body.get(table_map[_NUMBER_END:])
        if kind not in _KINDS or table_map[4] != events.TABLE_MAP or not isinstance(table, TableDecoder):
            return None
        head = table.heads.get(kind)
        if head is None or not head[0] & events.STATEMENT_END or not self._is_alone(table):
            return None
        return table

    def _is_alone(self, table: TableDecoder) -> bool:
        """Whether a change of a row of the table is no more than that, and nobody else is to be told of it."""
        cascades, family, name = self._schema.cascades, self._keys.family, table.name
        if name in cascades.on_delete or name in cascades.on_update or isinstance(table, Keyless):
            return False
        return family is None or family.relative(name) is None

    def _add_to(self, checksum: TransactionChecksum, found: Sequence[bytes], at: int) -> None:
        """Begin ``checksum`` with the transaction at ``found[at]``, which a run has."""
        *begin, table_map, event, _ = found[at : at + self.events]
        place, size = events.bitmaps_of(event, event[4])
        database, table = table_name_of(table_map[_NUMBER_END:])
        self._line.begin(checksum, begin)
        checksum.rows(
            f"{database}.{table}".encode(), event[4], event, place + size * (1 + (event[4] in events.UPDATES))
        )


def _take(table: TableDecoder, table_map: bytes, event: bytes, rows: Rows) -> bool:
    """Add the row of an event; False: it has more, or less. Raises as `TableDecoder.row`."""
    kind = event[4]
    head = table_map[HEADER_SIZE:_NUMBER_END] + table.heads[kind]
    if not event.startswith(head, HEADER_SIZE):
        return False
    key, image, end = table.row(event, HEADER_SIZE + len(head))
    if kind in events.UPDATES:
        old = key
        key, image, end = table.row(event, end)
        if key != old:
            return False
    if end != len(event):
        return False
    is_gone = kind in events.DELETES
    rows.keys.append(key)
    rows.operations.append(ABSENT if is_gone else VALUE)
    rows.images.append(b"" if is_gone else image)
    return True
