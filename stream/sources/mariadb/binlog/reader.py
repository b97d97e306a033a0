"""From a binlog to source transactions: read each transaction to its end, coalesce it, and void what is unknown.

What the events of a transaction say is worked out in `stream.sources.mariadb.binlog.reading`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import structlog

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.checksum import TransactionChecksum
from stream.sources.mariadb.binlog.coalesce import SPILL_BYTES
from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.binlog.mysql import events as mysql_events
from stream.sources.mariadb.binlog.reading.foreign_keys import ForeignKeys
from stream.sources.mariadb.binlog.reading.logged_statements import LoggedStatements
from stream.sources.mariadb.binlog.reading.row_events import RowEvents
from stream.sources.mariadb.binlog.reading.single_rows import SingleRowReading
from stream.sources.mariadb.binlog.reading.table_maps import TableMaps
from stream.sources.mariadb.binlog.reading.transaction import OpenTransaction
from stream.sources.mariadb.binlog.statements import Statement
from stream.sources.mariadb.binlog.table_map import BinlogFormatError
from stream.sources.mariadb.cascades.family import Family
from stream.sources.mariadb.connection import SourceHistoryLost
from stream.sources.mariadb.gtid import MYSQL_FLAVOR, GtidPosition
from stream.sources.mariadb.live_schema import LiveSchema
from stream.wire.events import EVERY_TABLE, SingleRows, SourceTransaction

log = structlog.get_logger(__name__)

_NOT_IN_A_PAYLOAD = mysql_events.GTIDS | {mysql_events.TRANSACTION_PAYLOAD, events.HEARTBEAT, events.FORMAT_DESCRIPTION}
_LOST_EVENTS = "the server says that it lost events (INCIDENT)"


class BinlogReader:
    """Yields the transactions after ``position`` (``MariaDB/0-1-5``, ``MySQL56/…``), in binlog order.

    Check the position first (`position.check_resumable`): for a domain that it doesn't have, MariaDB sends all events
    that it still has. Raises `SourceHistoryLost` where a sequence is not above the last one of its domain.
    `stop` ends the iteration. After a `MariaDBError` a new reader can continue from `position`.
    """

    table_maps = TableMaps
    """What makes decoders of table maps."""

    def __init__(
        self,
        dump: BinlogDump,
        schema: LiveSchema,
        position: str,
        spill_bytes: int = SPILL_BYTES,
        family: Family | None = None,
        *,
        timestamp: int = 0,
        keeps_before: bool = False,
        keeps_keyless: bool = False,
        in_runs: bool = False,
    ) -> None:
        """``family``: what is known of rows that foreign keys change; None: their tables are void.

        ``timestamp``: of ``position``.
        ``keeps_before``: transactions have images of before, too; ``keeps_keyless``: and rows without a primary key.
        ``in_runs``: several transactions may be given as `SingleRows`, never the first one.
        """
        self._dump = dump
        self._schema = schema
        self._spill_bytes, self._keeps_before = spill_bytes, keeps_before
        self._position = GtidPosition.parse(position)
        self._position_text = str(self._position)
        self._timestamp = timestamp
        self._stopping = False
        self._left = 0
        """Events that were received and not looked at."""
        self.last_heartbeat = events.LogPlace(0, 0, 0)
        self._transaction: OpenTransaction | None = None
        self._checksum = TransactionChecksum()
        self._keys = ForeignKeys(schema, family)
        self._maps = self.table_maps(schema, self._keys)
        self._maps.keeps_keyless = keeps_keyless
        self._row_events = RowEvents(self._maps, self._keys, self._checksum)
        self._statements = LoggedStatements(schema, self._maps, self._keys)
        self._single_rows: SingleRowReading | None = None
        self._has_given = False
        """Whether a transaction was yielded: the first may be partly published."""
        if in_runs and not keeps_before:
            is_mysql = self._position.flavor == MYSQL_FLAVOR
            self._single_rows = SingleRowReading(schema, self._maps, self._keys, self._statements, is_mysql=is_mysql)
        self._keys.begin_transaction()

    @property
    def position(self) -> str:
        """The set after the last transaction that was yielded, with its flavor."""
        return str(self._position)

    def has_reached(self, position: GtidPosition) -> bool:
        """Whether everything up to ``position`` was yielded, which some server named since the reading began."""
        return self._position.has_passed(position)

    @property
    def has_more(self) -> bool:
        """Whether the server has sent more than was yielded."""
        return self._left > 0 or self._dump.has_more

    def is_last(self, checksum: int) -> bool:
        """Whether the transaction that was yielded last is the one that was published with ``checksum``."""
        return self._checksum.is_same(checksum)

    def stop(self) -> None:
        """End the iteration soon. Safe to call from a signal handler or another thread."""
        self._stopping = True
        self._dump.close()

    def transactions(self) -> Iterator[SourceTransaction | None]:
        """Yield source transactions, and None at each heartbeat (the server has nothing new)."""
        while not self._stopping:
            try:
                found = [self._dump.read(), *self._dump.arrived()]
            except Exception:
                if self._stopping:
                    return
                raise
            yield from self._transactions_of(found)

    def _transactions_of(self, found: Sequence[bytes]) -> Iterator[SourceTransaction | None]:
        """What ends with these events, until `stop`."""
        rows, table_map, count, at = events.ROWS, events.TABLE_MAP, len(found), 0
        single_rows = self._single_rows
        run_begins, size = (-1, 0) if single_rows is None else (single_rows.gtid, single_rows.events)
        while at < count and not self._stopping:
            event = found[at]
            kind = event[4]
            at += 1
            self._left = count - at
            if kind in rows:
                self._rows(event, kind)
            elif kind == table_map:
                self._table_map(event)
            elif kind == events.XID:
                yield self._commit(event)
            elif kind == events.HEARTBEAT:
                self.last_heartbeat = events.parse_heartbeat(event)
                yield self._settled_alone()
            elif kind == run_begins and (run := self._run(found, at - 1)) is not None:
                at += size * run.count - 1
                self._left = count - at
                yield run
            else:
                done = self._taken(event, kind)
                if done is not None:
                    yield done

    def _run(self, found: Sequence[bytes], at: int) -> SingleRows | None:
        """Take the run of transactions that begins with ``found[at]``, if there is one."""
        single_rows = self._single_rows
        assert single_rows is not None
        size = single_rows.events
        if not self._has_given or len(found) < at + 2 * size or found[at + size][4] != single_rows.gtid:
            return None
        self._keys.begin_transaction()
        if self._schema.unread:
            return None
        run = single_rows.read(found, at, self._position, self._checksum)
        if run is not None:
            self._forget()
            self._position_text, self._timestamp = run.position, run.timestamp
        return run

    def _taken(self, event: bytes, kind: int) -> SourceTransaction | None:
        """Take an event of any kind but a heartbeat. Returns the transaction if it is its end."""
        if kind in events.ROWS:
            self._rows(event, kind)
        elif kind == events.TABLE_MAP:
            self._table_map(event)
        elif kind == events.GTID or kind in mysql_events.GTIDS:
            self._begin(event, kind)
        elif kind == events.XID:
            return self._commit(event)
        elif kind == events.FORMAT_DESCRIPTION:
            self._forget()
        elif kind == mysql_events.TRANSACTION_PAYLOAD:
            return self._payload(event)
        elif kind not in events.IGNORED:
            return self._other(event, kind)
        return None

    def _payload(self, event: bytes) -> SourceTransaction | None:
        """Take a compressed transaction, which is all of what its GTID names."""
        transaction = self._current()
        done: SourceTransaction | None = None
        try:
            for inner in mysql_events.payload_events(event):
                if done is not None or inner[4] in _NOT_IN_A_PAYLOAD:
                    raise BinlogFormatError(f"a compressed transaction has an event of type {inner[4]} in it")
                done = self._taken(inner, inner[4])
        except BinlogFormatError as error:
            if self._transaction is None:
                raise
            log.warning("everything is void", reason=str(error), gtid=transaction.gtid.bare)
            transaction.voids[EVERY_TABLE] = str(error)
            self._keys.statement.clear()
        return done or self._commit(event)

    def _begin(self, event: bytes, kind: int) -> None:
        self._forget()
        gtid = events.parse_gtid(event) if kind == events.GTID else mysql_events.parse_gtid(event)
        if not self._position.precedes(gtid):
            raise SourceHistoryLost(
                f"the binlog has {gtid.bare} after {self._position}: the sequence of its domain went back",
                hint="SET GLOBAL gtid_strict_mode = ON, and let one server write each GTID domain: a new epoch starts",
            )
        if kind == events.GTID:
            self._checksum.begin(event)
        else:
            self._checksum.begin_with(gtid.bare)
        self._transaction = OpenTransaction(gtid, self._spill_bytes, keeps_before=self._keeps_before)
        self._keys.begin_transaction()

    def _forget(self) -> None:
        """Forget the current transaction: one left unfinished at a file's end by a server's crash never happened."""
        self._maps.by_id.clear()
        self._keys.statement.clear()
        self._transaction = None

    def _current(self) -> OpenTransaction:
        if self._transaction is None:
            raise BinlogFormatError(
                "the binlog has a change outside of a GTID group",
                hint="check that the server has GTIDs: MariaDB 10.0.2 or later, or MySQL with gtid_mode = ON",
            )
        return self._transaction

    def _table_map(self, event: bytes) -> None:
        try:
            self._maps.take(event)
        except BinlogFormatError as error:
            log.warning("everything is void", reason=str(error))
            self._current().voids[EVERY_TABLE] = str(error)

    def _rows(self, event: bytes, kind: int) -> None:
        self._row_events.take(event, kind, self._transaction or self._current(), self._position)

    # -- ends of transactions ----------------------------------------------------------------------------------------

    def _commit(self, event: bytes, published: bool = True) -> SourceTransaction:
        transaction = self._transaction or self._current()
        self._transaction, self._has_given = None, True
        if self._keys.statement:
            self._keys.end_statement(transaction, self._position, 0)
        if not published:
            transaction = OpenTransaction(transaction.gtid, self._spill_bytes)
            self._keys.discard()
        if self._maps.announced:
            transaction.announce(self._maps.announced)
        cursor = self._position_text
        self._position.add(transaction.gtid)
        flavor = self._position.flavor
        self._position_text = flavor + self._position.bare
        if not self._schema.catalog.is_settled:
            self._settle(transaction)
        self._timestamp = int.from_bytes(event[:4], "little")
        return SourceTransaction(
            flavor + transaction.gtid.bare,
            self._position_text,
            self._timestamp,
            transaction.changes(self._schema.catalog),
            checksum=self._checksum.value,
            cursor=cursor,
        )

    def _settle(self, transaction: OpenTransaction) -> None:
        """Void and describe, after the transaction, the tables whose schema is known now."""
        waited_for = self._schema.catalog.waited_for
        found = self._schema.settle(self._position)
        transaction.settle(found)
        if found:
            self._maps.forget_all()
        if self._schema.catalog.waited_for < waited_for:
            self._keys.look()

    def _settled_alone(self) -> SourceTransaction | None:
        """What `_settle` finds while nothing is logged, at the present position; else None."""
        if self._transaction is not None or self._schema.catalog.is_settled:
            return None
        if self._position.flavor == MYSQL_FLAVOR:
            self._schema.forget_rolled_back()
        nothing = OpenTransaction.of_nobody(self._spill_bytes)
        self._settle(nothing)
        return nothing.alone(str(self._position), self._timestamp, self._schema.catalog)

    def _lost_alone(self) -> SourceTransaction | None:
        """What is void once MariaDB has lost events: it says so behind a transaction, or without any."""
        log.warning("everything is void", reason=_LOST_EVENTS, gtid=self._position.bare)
        nothing = OpenTransaction.of_nobody(self._spill_bytes)
        nothing.voids[EVERY_TABLE] = _LOST_EVENTS
        return nothing.alone(str(self._position), self._timestamp, self._schema.catalog)

    def _other(self, event: bytes, kind: int) -> SourceTransaction | None:
        if kind in (events.QUERY, events.QUERY_COMPRESSED):
            return self._query(event)
        if kind == events.XA_PREPARE:
            return self._xa_prepare(event)
        if kind == events.INCIDENT and self._transaction is None:
            return self._lost_alone()
        transaction = self._current()
        if kind == mysql_events.PARTIAL_UPDATE_ROWS:
            self._row_events.take_partial(event, transaction, self._position)
            return None
        if event[events.FLAGS_AT] & events.IGNORABLE_EVENT:
            return None
        reason = {
            events.INCIDENT: _LOST_EVENTS,
            events.BEGIN_LOAD_QUERY: "a LOAD DATA logged as a statement",
            events.EXECUTE_LOAD_QUERY: "a LOAD DATA logged as a statement",
        }.get(kind, f"a binlog event of unknown type {kind}")
        log.warning("everything is void", reason=reason, gtid=transaction.gtid.bare)
        transaction.voids.setdefault(EVERY_TABLE, reason)
        return self._commit(event) if transaction.is_standalone or kind == events.INCIDENT else None

    def _query(self, event: bytes) -> SourceTransaction | None:
        transaction = self._current()
        try:
            query = events.parse_query(event)
            self._checksum.statement(query)
            statement = self._statements.classified(query)
        except BinlogFormatError as error:
            statement = Statement("all", reason=str(error))
        effect = statement.effect
        if effect == "begin":
            transaction.is_standalone = False
            return None
        if effect == "commit":
            return self._commit(event)
        if effect == "rollback":
            transaction.void_touched("the transaction was rolled back, but not all of it could be")
            self._keys.discard()
            return self._commit(event)
        if effect == "rollback_to":
            transaction.void_touched("part of the transaction was rolled back to a savepoint")
            if self._keys.family is not None:
                self._keys.family.rolled_back()
        else:
            self._keys.before_ddl(statement, transaction, self._position)
            self._statements.apply(statement, transaction)
        return self._commit(event) if transaction.is_standalone else None

    def _xa_prepare(self, event: bytes) -> SourceTransaction:
        form, gtrid, bqual, one_phase = events.parse_xa_prepare(event)
        if one_phase:
            return self._commit(event)
        transaction = self._current()
        names = transaction.touched | transaction.voids.keys() | self._keys.statement.names
        if self._keys.statement:
            self._keys.end_statement(transaction, self._position, 0)
        self._statements.prepared((form, gtrid, bqual), frozenset(names | transaction.voids.keys()))
        return self._commit(event, published=False)
