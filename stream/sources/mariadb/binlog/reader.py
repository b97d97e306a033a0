"""From a binlog to source transactions: read each transaction to its end, coalesce it, and void what is unknown.

A row is decoded with the binlog's own table map. The schema of the position adds the kinds that the binlog doesn't have
(UUID, INET). If the two disagree, the table is void for that transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import structlog

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.catalog import Xid
from stream.sources.mariadb.binlog.checksum import TransactionChecksum
from stream.sources.mariadb.binlog.coalesce import SPILL_BYTES, TransactionRows
from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.binlog.events import HEADER_SIZE
from stream.sources.mariadb.binlog.mysql import events as mysql_events
from stream.sources.mariadb.binlog.rows import SchemaDiffers, TableDecoder
from stream.sources.mariadb.binlog.statements import Statement, classify
from stream.sources.mariadb.binlog.table_map import BinlogFormatError, parse_table_map, table_name_of
from stream.sources.mariadb.binlog.unlogged import StatementTables
from stream.sources.mariadb.cascades.family import Family, Relative
from stream.sources.mariadb.cascades.foreign_keys import Cascades
from stream.sources.mariadb.connection import SourceHistoryLost
from stream.sources.mariadb.gtid import MYSQL_FLAVOR, Gtid, GtidPosition, MysqlGtid
from stream.sources.mariadb.live_schema import LiveSchema
from stream.wire.events import EVERY_TABLE, Change, SourceTransaction, VoidTable
from stream.wire.values import UndecodableValue

log = structlog.get_logger(__name__)

_NOW_KNOWN = "its schema is known from here on"
_NO_TABLES: frozenset[bytes] = frozenset()
_NOT_IN_A_PAYLOAD = mysql_events.GTIDS | {mysql_events.TRANSACTION_PAYLOAD, events.HEARTBEAT, events.FORMAT_DESCRIPTION}


class _Unpublished:
    """Takes the place of a decoder for a table that is not published. ``name`` as in the table map."""

    __slots__ = ("label", "name")

    def __init__(self, name: str) -> None:
        self.name, self.label = name, name.encode()


class _Undecodable:
    """Takes the place of a decoder for a published table that can't be decoded, and says why."""

    __slots__ = ("label", "name", "reason")

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.label, self.reason = name, name.encode(), reason


_Mapped = TableDecoder | _Undecodable | _Unpublished


class _Transaction:
    """The transaction that is being read, as far as it was read. ``described``: the tables to describe after it."""

    __slots__ = ("described", "gtid", "is_standalone", "rows", "touched", "voids")

    def __init__(self, gtid: Gtid | MysqlGtid, spill_bytes: int) -> None:
        self.gtid = gtid
        self.is_standalone = isinstance(gtid, MysqlGtid) or bool(gtid.flags & events.STANDALONE)
        """Whether one statement is all of it. MySQL's is no longer so when it begins with BEGIN."""
        self.rows = TransactionRows(spill_bytes)
        self.voids: dict[str, str] = {}
        self.described: set[str] = set()
        self.touched: set[str] = set()


class BinlogReader:
    """Yields the transactions after ``position`` (``MariaDB/0-1-5``, ``MySQL56/…``), in binlog order.

    Check the position first (`position.check_resumable`): for a domain that it doesn't have, MariaDB sends all events
    that it still has. Raises `SourceHistoryLost` where a sequence is not above the last one of its domain.
    `stop` ends the iteration. After a `MariaDBError` a new reader can continue from `position`.
    """

    def __init__(
        self,
        dump: BinlogDump,
        schema: LiveSchema,
        position: str,
        spill_bytes: int = SPILL_BYTES,
        family: Family | None = None,
    ) -> None:
        """``family``: what is known of rows that foreign keys change; None: their tables are void."""
        self._dump = dump
        self._family = family
        self._looked_at: Cascades | None = None
        """The foreign keys that ``family`` has taken up."""
        self._schema = schema
        self._spill_bytes = spill_bytes
        self._position = GtidPosition.parse(position)
        self._position_text = str(self._position)
        self._timestamp = 0
        self._stopping = False
        self.last_heartbeat = events.LogPlace(0, 0, 0)
        self._by_id: dict[int, _Mapped] = {}
        self._by_body: dict[bytes, _Mapped] = {}
        self._reread: set[bytes] = set()
        self._transaction: _Transaction | None = None
        self._statement = StatementTables()
        self._checksum = TransactionChecksum()
        self._announced: dict[str, str] = {}
        self._prepared: dict[tuple[int, bytes, bytes], frozenset[str]] = {}
        if family is not None:
            self._begin_family(family)

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
        return self._dump.has_more

    def stop(self) -> None:
        """End the iteration soon. Safe to call from a signal handler or another thread."""
        self._stopping = True
        self._dump.close()

    def transactions(self) -> Iterator[SourceTransaction | None]:
        """Yield source transactions, and None at each heartbeat (the server has nothing new)."""
        read, rows, table_map = self._dump.read, events.ROWS, events.TABLE_MAP
        while not self._stopping:
            try:
                event = read()
            except Exception:
                if self._stopping:
                    return
                raise
            kind = event[4]
            if kind in rows:
                self._rows(event, kind)
            elif kind == table_map:
                self._table_map(event)
            elif kind == events.XID:
                yield self._commit(event)
            elif kind == events.HEARTBEAT:
                self.last_heartbeat = events.parse_heartbeat(event)
                yield self._settled_alone()
            else:
                done = self._taken(event, kind)
                if done is not None:
                    yield done

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
            self._new_file()
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
            self._statement.clear()
        return done or self._commit(event)

    def _begin(self, event: bytes, kind: int) -> None:
        self._by_id.clear()
        self._statement.clear()
        self._transaction = None
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
        self._transaction = _Transaction(gtid, self._spill_bytes)
        if self._family is not None:
            self._begin_family(self._family)

    def _begin_family(self, family: Family) -> None:
        family.discard()
        if self._looked_at is not self._schema.cascades:
            self._look_at_family(family)

    def _look_at_family(self, family: Family) -> None:
        self._looked_at = self._schema.cascades
        family.look_at(self._looked_at, self._schema.catalog.get)

    def _new_file(self) -> None:
        """Forget the current transaction: one left unfinished at a file's end by a server's crash never happened."""
        self._by_id.clear()
        self._statement.clear()
        self._transaction = None

    def _current(self) -> _Transaction:
        if self._transaction is None:
            raise BinlogFormatError(
                "the binlog has a change outside of a GTID group",
                hint="check that the server has GTIDs: MariaDB 10.0.2 or later, or MySQL with gtid_mode = ON",
            )
        return self._transaction

    # -- rows ------------------------------------------------------------------------------------------------------

    def _table_map(self, event: bytes) -> None:
        table_id = int.from_bytes(event[HEADER_SIZE : HEADER_SIZE + 6], "little")
        body = event[HEADER_SIZE + 6 :]
        mapped = self._by_body.get(body)
        if mapped is None:
            try:
                mapped = self._by_body[body] = self._map(body)
            except BinlogFormatError as error:
                log.warning("everything is void", reason=str(error))
                self._by_id.pop(table_id, None)
                self._current().voids[EVERY_TABLE] = str(error)
                return
        self._by_id[table_id] = mapped
        if isinstance(mapped, _Unpublished):
            self._statement.named_unpublished(mapped.name)
        else:
            self._statement.named(mapped.name)

    def _map(self, body: bytes) -> _Mapped:
        database, table = table_name_of(body)
        name = f"{database}.{table}"
        if not self._schema.include(database, table) or self._schema.catalog.is_waiting(name):
            return _Unpublished(name)
        try:
            return self._decoder(name, body)
        except (SchemaDiffers, BinlogFormatError) as error:
            reason = str(error)
        if body not in self._reread:
            self._reread.add(body)
            self._schema.reread(database, table)
            # Said with the next published transaction: the current one may never be committed.
            self._announced[name] = "its schema changed without a DDL in the binlog"
            self._looked_at = None
        log.warning("table cannot be decoded", table=name, reason=reason)
        return _Undecodable(name, reason)

    def _decoder(self, name: str, body: bytes) -> TableDecoder | _Unpublished:
        info = self._schema.get(name)
        if info is None:
            raise SchemaDiffers(f"the server has no table {name}")
        if not info.cacheable:
            return _Unpublished(name)
        return TableDecoder(parse_table_map(body), info, self._schema.charsets)

    def _rows(self, event: bytes, kind: int) -> None:
        table_id = int.from_bytes(event[HEADER_SIZE : HEADER_SIZE + 6], "little")
        transaction = self._transaction or self._current()
        if len(event) < HEADER_SIZE + 8:
            transaction.voids[EVERY_TABLE] = "a rows event is shorter than its header"
            return
        flags = event[HEADER_SIZE + 6]
        mapped = self._by_id.get(table_id)
        if mapped is None:
            transaction.voids[EVERY_TABLE] = "rows without a table map before them"
        else:
            self._rows_of(mapped, event, kind, transaction)
        if flags & events.STATEMENT_END:
            self._end_statement(transaction, flags)

    def _end_statement(self, transaction: _Transaction, flags: int) -> None:
        """Void what the statement may have changed by foreign keys without logging it. ``flags``: of its last rows."""
        statement, voids = self._statement, transaction.voids if self._family is None else {}
        if type(transaction.gtid) is Gtid:
            statement.end(self._schema.cascades, voids)
        elif not flags & mysql_events.SQL_FOREIGN_KEYS:  # else their rows are logged
            statement.end_unnamed(self._schema.cascades, self._schema.catalog.names, voids)
        if self._family is not None:
            if voids:
                self._void_rows(self._family, transaction, voids, flags)
            self._family.clear()
        statement.clear()

    def _void_rows(self, family: Family, transaction: _Transaction, voids: dict[str, str], flags: int) -> None:
        """Void the rows that foreign keys changed in the tables of ``voids``, or the table if they are not known."""
        found: dict[str, set[bytes]] = {}
        if flags & events.STATEMENT_END and self._schema.has_cascades_of(self._position):
            is_enforced = not flags & events.NO_FOREIGN_KEYS
            changed = self._statement.changed
            found = family.narrow(voids, changed, transaction.voids, is_enforced=is_enforced)
        for table, reason in voids.items():
            if table not in found:
                transaction.voids.setdefault(table, reason)
        for table, keys in found.items():
            transaction.touched.add(table)
            for key in keys:
                transaction.rows.void(key)

    def _rows_of(self, mapped: _Mapped, event: bytes, kind: int, transaction: _Transaction) -> None:
        name = mapped.name
        is_decoded = isinstance(mapped, TableDecoder)
        # MariaDB names what foreign keys changed. For MySQL the kind says what they may have changed.
        is_unclear = isinstance(mapped, _Undecodable) and type(transaction.gtid) is Gtid
        self._statement.logged(name, 0 if is_unclear else kind)
        try:
            at, size = events.bitmaps_of(event, kind)
            end = at + 2 * size if kind in events.UPDATES else at + size
            bitmaps, data = event[at:end], event
            if kind in events.COMPRESSED_ROWS:
                data, end = events.uncompress(event[end:]), 0
            self._checksum.rows(mapped.label, kind, data, end)
            if isinstance(mapped, TableDecoder):
                transaction.touched.add(name)
                if bitmaps != mapped.seen_bitmaps:
                    _check_full_image(mapped, bitmaps, size)
                    mapped.seen_bitmaps = bitmaps
                relative = None if self._family is None else self._family.relative(name)
                if relative is None:
                    self._decode(mapped, data, end, kind, transaction.rows)
                else:
                    self._decode_relative(relative, mapped, data, end, kind, transaction.rows)
        except (UndecodableValue, BinlogFormatError, IndexError) as error:
            if is_decoded:
                log.warning("rows cannot be decoded", table=name, reason=str(error))
                transaction.voids.setdefault(name, str(error))
            is_decoded = False
        if self._family is not None and not is_decoded:
            self._family.miss(name)
        if isinstance(mapped, _Undecodable):
            transaction.voids.setdefault(name, mapped.reason)

    def _decode(self, decoder: TableDecoder, data: bytes, at: int, kind: int, rows: TransactionRows) -> None:
        end = len(data)
        row, put = decoder.row, rows.put
        if kind in events.WRITES:
            while at < end:
                key, image, at = row(data, at)
                put(key, image)
        elif kind in events.DELETES:
            while at < end:
                key, at = decoder.key(data, at)
                put(key, None)
        else:
            while at < end:
                old, at = decoder.key(data, at)
                key, image, at = row(data, at)
                if old != key:
                    put(old, None)
                put(key, image)

    def _decode_relative(
        self, relative: Relative, decoder: TableDecoder, data: bytes, at: int, kind: int, rows: TransactionRows
    ) -> None:
        """As `_decode`, of a table with foreign keys, whose rows are told to the family."""
        assert self._family is not None
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
                rows.put(old[0], None)
            if new is not None:
                rows.put(*new)
            self._family.changed(relative, old, new)

    # -- ends of transactions ----------------------------------------------------------------------------------------

    def _commit(self, event: bytes, published: bool = True) -> SourceTransaction:
        transaction = self._transaction or self._current()
        self._transaction = None
        if self._statement:
            self._end_statement(transaction, 0)
        if not published:
            transaction = _Transaction(transaction.gtid, self._spill_bytes)
            self._discard()
        if self._announced:
            for name, reason in self._announced.items():
                transaction.voids.setdefault(name, reason)
                transaction.described.add(name)
            self._announced.clear()
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
            self._changes(transaction),
            checksum=self._checksum.value,
            cursor=cursor,
        )

    def _settle(self, transaction: _Transaction) -> None:
        """Void and describe, after the transaction, the tables whose schema is known now."""
        for name in self._schema.settle(self._position):
            transaction.voids.setdefault(name, _NOW_KNOWN)
            transaction.described.add(name)
            self._by_body.clear()
            self._reread.clear()
        if self._family is not None:
            self._look_at_family(self._family)

    def _discard(self) -> None:
        """What the transaction's rows said of foreign keys does not count."""
        if self._family is not None:
            self._family.discard()

    def _settled_alone(self) -> SourceTransaction | None:
        """What `_settle` finds while nothing is logged, at the present position; else None."""
        if self._transaction is not None or self._schema.catalog.is_settled:
            return None
        if self._position.flavor == MYSQL_FLAVOR:
            self._schema.forget_rolled_back()
        nothing = _Transaction(Gtid(0, 0, 0, 0), self._spill_bytes)
        self._settle(nothing)
        at = str(self._position)
        return SourceTransaction(at, at, self._timestamp, list(self._changes(nothing))) if nothing.described else None

    def _changes(self, transaction: _Transaction) -> Sequence[Change]:
        if not transaction.voids and not transaction.described:  # as nearly always
            return transaction.rows.changes(_NO_TABLES)
        tail: list[Change] = [VoidTable(name, transaction.voids[name]) for name in sorted(transaction.voids)]
        tail += [self._schema.catalog.description(name) for name in sorted(transaction.described)]
        voided = frozenset(name.encode() + b"\0" for name in transaction.voids)
        return transaction.rows.changes(voided, tail)

    def _other(self, event: bytes, kind: int) -> SourceTransaction | None:
        if kind in (events.QUERY, events.QUERY_COMPRESSED):
            return self._query(event)
        if kind == events.XA_PREPARE:
            return self._xa_prepare(event)
        transaction = self._current()
        if kind == mysql_events.PARTIAL_UPDATE_ROWS:
            self._partial_rows(event, transaction)
            return None
        if event[events.FLAGS_AT] & events.IGNORABLE_EVENT:
            return None
        reason = {
            events.INCIDENT: "the server says that it lost events (INCIDENT)",
            events.BEGIN_LOAD_QUERY: "a LOAD DATA logged as a statement",
            events.EXECUTE_LOAD_QUERY: "a LOAD DATA logged as a statement",
        }.get(kind, f"a binlog event of unknown type {kind}")
        log.warning("everything is void", reason=reason, gtid=transaction.gtid.bare)
        transaction.voids.setdefault(EVERY_TABLE, reason)
        return self._commit(event) if transaction.is_standalone or kind == events.INCIDENT else None

    def _partial_rows(self, event: bytes, transaction: _Transaction) -> None:
        """Void the table whose JSON values a session logs in parts, which only that session can choose."""
        mapped = self._by_id.get(int.from_bytes(event[HEADER_SIZE : HEADER_SIZE + 6], "little"))
        name = EVERY_TABLE if mapped is None else mapped.name
        self._checksum.rows(name.encode(), events.UPDATE_ROWS, event, HEADER_SIZE + 6)
        self._statement.logged(name, events.UPDATE_ROWS)
        if not isinstance(mapped, _Unpublished):
            reason = "parts of JSON values are logged in place of rows (binlog_row_value_options = PARTIAL_JSON)"
            log.warning("rows cannot be decoded", table=name, reason=reason)
            transaction.voids.setdefault(name, reason)
        if event[HEADER_SIZE + 6] & events.STATEMENT_END:
            self._end_statement(transaction, event[HEADER_SIZE + 6])

    def _query(self, event: bytes) -> SourceTransaction | None:
        transaction = self._current()
        try:
            query = events.parse_query(event)
            self._checksum.statement(query)
            statement = self._classified(query)
        except BinlogFormatError as error:
            statement = Statement("all", reason=str(error))
        effect = statement.effect
        if effect == "begin":
            transaction.is_standalone = False
            return None
        if effect == "commit":
            return self._commit(event)
        if effect == "rollback":
            self._rolled_back(transaction, "the transaction was rolled back, but not all of it could be")
            self._discard()
            return self._commit(event)
        if effect == "rollback_to":
            self._rolled_back(transaction, "part of the transaction was rolled back to a savepoint")
            if self._family is not None:
                self._family.rolled_back()
        elif effect in ("xa_commit", "xa_rollback"):
            self._xa_end(transaction, statement)
        elif effect == "tables":
            self._ddl(transaction, statement)
        elif effect == "none":
            recomputed = tuple(filter(self._is_recomputed, statement.tables))
            if recomputed:
                self._ddl(transaction, replace(statement, tables=recomputed))
        elif effect == "database":
            if self._schema.include.may_include(statement.tables[0][0]):
                transaction.voids.setdefault(EVERY_TABLE, statement.reason)
                self._schema.reread_cascades()
        elif effect == "all":
            log.warning("everything is void", reason=statement.reason, gtid=transaction.gtid.bare)
            transaction.voids.setdefault(EVERY_TABLE, statement.reason)
            self._schema.reread_cascades()
        return self._commit(event) if transaction.is_standalone else None

    def _classified(self, query: events.Query) -> Statement:
        charset = self._schema.charsets.by_collation.get(query.collation, "")
        if not query.sql.isascii() and not charset.startswith("utf8"):
            return Statement("all", reason=f"a statement in character set {charset or 'unknown'}")
        try:
            return classify(query.sql.decode(), query.database)
        except UnicodeDecodeError:
            return Statement("all", reason="a statement whose text cannot be decoded")

    def _rolled_back(self, transaction: _Transaction, reason: str) -> None:
        """Void the touched tables: the binlog has rows that were then rolled back."""
        for name in transaction.touched:
            transaction.voids.setdefault(name, reason)

    def _is_recomputed(self, name: tuple[str, str]) -> bool:
        """Whether a copy of the table may change its rows."""
        full_name = ".".join(name)
        info = self._schema.catalog.get(full_name.lower() if self._schema.lower_case_names else full_name)
        return info is not None and info.is_recomputed

    def _ddl(self, transaction: _Transaction, statement: Statement) -> None:
        names = list(statement.tables)
        if self._schema.lower_case_names:
            names = [(database.lower(), table.lower()) for database, table in names]
        others, names = names, [name for name in names if self._schema.include(*name)]
        if not names:
            self._reread_cascades(transaction, {".".join(name) for name in others})
            return
        self._by_body.clear()
        self._reread.clear()
        self._schema.after_ddl(names)
        for database, table in names:
            transaction.voids.setdefault(f"{database}.{table}", statement.reason)
            transaction.described.add(f"{database}.{table}")

    def _reread_cascades(self, transaction: _Transaction, others: set[str]) -> None:
        """After DDL of other tables: their foreign keys may lead to these. MariaDB's log names those, MySQL's not.

        One between two of these may have another name now, and what is below it is known by its name.
        """
        if isinstance(transaction.gtid, MysqlGtid) or self._schema.cascades.tables & others:
            self._schema.reread_cascades()

    def _xa_prepare(self, event: bytes) -> SourceTransaction:
        form, gtrid, bqual, one_phase = events.parse_xa_prepare(event)
        if one_phase:
            return self._commit(event)
        transaction = self._current()
        names = transaction.touched | transaction.voids.keys() | self._statement.names
        if self._statement:
            self._end_statement(transaction, 0)
        self._prepared[form, gtrid, bqual] = frozenset(names | transaction.voids.keys())
        return self._commit(event, published=False)

    def _xa_end(self, transaction: _Transaction, statement: Statement) -> None:
        names = self._prepared.pop(statement.xid, None)
        if statement.effect == "xa_rollback":
            return
        if names is None:
            log.warning("everything is void", reason="XA COMMIT of a transaction prepared before the source started")
            transaction.voids[EVERY_TABLE] = "XA COMMIT of a transaction that was prepared before this source started"
        for name in names or ():
            transaction.voids.setdefault(name, "XA COMMIT: its rows were logged at XA PREPARE")
        self._hold(transaction, names, statement.xid)

    def _hold(self, transaction: _Transaction, names: frozenset[str] | None, xid: Xid) -> None:
        """Have tables read through until reads see the transaction. The log has it first, so positions prove nothing.

        The void that follows then is newer than any read that did not see it. ``names``: None for all.
        """
        catalog = self._schema.catalog
        if self._schema.is_visible(xid):
            return
        held = sorted(catalog.names if names is None or EVERY_TABLE in names else catalog.names & names)
        catalog.hold(held, xid)
        self._looked_at = None
        self._by_body.clear()
        transaction.described.update(held)


def _check_full_image(decoder: TableDecoder, bitmaps: bytes, size: int) -> None:
    """Raises `UndecodableValue` unless all columns are present in each bitmap of ``size`` bytes."""
    wanted = decoder.all_present
    is_full = int.from_bytes(bitmaps[:size], "little") & wanted == wanted
    if not is_full or (len(bitmaps) > size and int.from_bytes(bitmaps[size:], "little") & wanted != wanted):
        raise UndecodableValue(
            f"a partial row image of {decoder.name}",
            hint="SET GLOBAL binlog_row_image = FULL, and in all sessions",
        )
