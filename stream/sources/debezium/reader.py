"""From a connector's topics to source transactions, as `stream.sources.mariadb.binlog.reader` has them of a binlog."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import structlog
from confluent_kafka import Message

from stream.sources.debezium.messages import (
    Malformed,
    RowMessage,
    Snapshot,
    Statement,
    check_version,
    read_end,
    read_row,
    read_statement,
    xa_transaction,
)
from stream.sources.debezium.places import Places
from stream.sources.debezium.schema import DebeziumSchema, Sample
from stream.sources.debezium.topics import ConnectorTopics
from stream.sources.debezium.transactions import Assembler, Place, Transaction
from stream.sources.debezium.values import RowDecoder, SchemaDiffers
from stream.sources.mariadb.binlog import statements as logged
from stream.sources.mariadb.binlog.reading.foreign_keys import ForeignKeys
from stream.sources.mariadb.binlog.reading.logged_statements import LoggedStatements
from stream.sources.mariadb.binlog.reading.table_maps import TableMaps
from stream.sources.mariadb.binlog.reading.transaction import OpenTransaction
from stream.sources.mariadb.connection import SourceHistoryLost
from stream.sources.mariadb.gtid import GtidPosition, MysqlGtidSet, ServerGtid
from stream.sources.mariadb.schema import TableInfo
from stream.wire.events import NO_ROW, SourceTransaction
from stream.wire.values import UndecodableValue

log = structlog.get_logger(__name__)

POLL_S: Final = 0.05
LOOK_EVERY_S: Final = 1.0
"""Between two looks for new topics, and for what the server has executed."""
_ANY: Final = "\0"
"""In place of the database of a bare name."""


@dataclass(slots=True)
class _Pending:
    """A statement that was seen, and what each transaction voids until everything before it is published."""

    statement: Statement
    voids: dict[str, str]


class DebeziumReader:
    """Yields the transactions after ``position``, in the order in which the connector ended them.

    ``places``: where its topics are read from; it is kept up to date for the source's state. Raises `SourceHistoryLost`
    where messages are missing, or can't be read.
    """

    last_heartbeat: None = None
    tells_ends = True
    """Whether the connector says where transactions end."""

    def __init__(
        self,
        topics: ConnectorTopics,
        schema: DebeziumSchema,
        position: str,
        places: Places,
        server: str,
        bytes_max: int,
        *,
        timestamp: int = 0,
        keeps_before: bool = False,
    ) -> None:
        """``server``: MySQL or MariaDB. ``bytes_max``: of one transaction's rows, which are in memory.

        ``timestamp``: of ``position``. ``keeps_before``: transactions have the images of before, too.
        """
        self._topics, self._schema, self._places = topics, schema, places
        self._server = server
        self._bytes_max, self._keeps_before = bytes_max, keeps_before
        self._position = GtidPosition.parse(position)
        self._timestamp = timestamp
        self._stopping = False
        self._keys = ForeignKeys(schema, None)
        self._maps = TableMaps(schema, self._keys)
        self._statements = LoggedStatements(schema, self._maps, self._keys)
        self._assembler = Assembler(self._is_row_published, self._is_read, bytes_max)
        self._pending: list[_Pending] = []
        self._described: set[str] = set()
        """Tables to describe with the next transaction."""
        self._decoders: dict[tuple[bytes, str], RowDecoder | str] = {}
        self._reread: set[tuple[bytes, str]] = set()
        """The schemas of messages for which a table was read again that does not fit."""
        self._sample: Sample | None = None
        self._look_at = 0.0

    @property
    def has_more(self) -> bool:
        """Whether there is more than was yielded."""
        return self._assembler.has_news

    def has_reached(self, position: GtidPosition) -> bool:
        """Whether everything up to ``position`` was yielded, which some server named since the reading began."""
        return self._position.has_passed(position)

    def stop(self) -> None:
        """End the iteration soon. Safe to call from a signal handler or another thread."""
        self._stopping = True

    def transactions(self) -> Iterator[SourceTransaction | None]:
        """Yield source transactions, and None whenever there is nothing new."""
        try:
            while not self._stopping:
                self._feed()
                if time.monotonic() >= self._look_at:
                    self._look()
                if not self._assembler.has_news:
                    yield from self._idle()
                    continue
                if self._topics.transactions not in self._topics.read:
                    self._look()  # what a statement is behind ends in there
                self._assembler.begin_round()
                ends = self._topics.ends()
                while not self._topics.has_reached(ends):
                    if self._stopping:
                        return
                    if not self._feed():
                        yield None
                yield from self._round()
        finally:
            self._topics.close()

    # -- reading -----------------------------------------------------------------------------------------------------

    def _feed(self) -> int:
        """Take the messages that have arrived. Returns how many."""
        count = 0
        for message in self._topics.poll(POLL_S):
            count += 1
            try:
                self._take(message)
            except Malformed as error:
                raise SourceHistoryLost(
                    f"a message at {message.topic()}/{message.partition()}/{message.offset()} is unreadable: {error}",
                    hint="nothing else may write into the connector's topics: a new epoch starts behind it",
                ) from error
        return count

    def _take(self, message: Message) -> None:
        value = message.value()
        if value is None:
            return  # a tombstone for Kafka's compaction
        topic = message.topic() or ""
        place = Place(topic, message.partition() or 0, message.offset() or 0)
        found: RowMessage | Statement | Snapshot | None
        if topic == self._topics.transactions:
            end = read_end(value, self._server)
            if end is not None:
                self._assembler.end(end, place)
            return
        if topic == self._topics.statements:
            found = read_statement(value, self._server)
        else:
            found = read_row(value, self._server, tells_ends=self.tells_ends)
        if isinstance(found, RowMessage | Statement) and not self._is_passed_over(found):
            check_version(found.version)
        if isinstance(found, RowMessage):
            self._add(found, place)
        elif isinstance(found, Snapshot):
            if not self._topics.is_told_elsewhere(place):
                self._check_snapshot(found)
        elif found is not None:
            self._see(found, place)

    def _is_passed_over(self, found: RowMessage | Statement) -> bool:
        """Whether it is published: a topic that is read from its beginning has what older connectors wrote, too."""
        if isinstance(found, Statement):
            return self._is_published(found.gtid)
        return self.tells_ends and self._is_row_published(found.transaction)  # else whatever is read is void

    def _check_snapshot(self, snapshot: Snapshot) -> None:
        """A connector that begins anew may pass over what was logged while it was away."""
        if snapshot.place != self._places.snapshot:
            self._places.snapshot = snapshot.place
            raise SourceHistoryLost(
                f"the connector began anew with a snapshot at {snapshot.place}, and may have passed over changes",
                hint="a new epoch starts",
            )

    def _add(self, row: RowMessage, place: Place) -> None:
        self._assembler.row(row, place)

    def _applied(self, statement: Statement) -> OpenTransaction:
        """What a statement voids. Its tables are read through from then on."""
        seen = OpenTransaction(statement.gtid, self._bytes_max)
        self._statements.apply(self._classified(statement), seen)
        self._decoders.clear()
        self._reread.clear()
        self._described |= seen.described
        return seen

    def _see(self, statement: Statement, place: Place) -> None:
        """Void, from the next transaction on, what a statement changes."""
        seen = self._applied(statement)
        self._pending.append(_Pending(statement, seen.voids))
        self._assembler.statement(statement, place)

    def _classified(self, statement: Statement) -> logged.Statement:
        """What a statement does. A bare name in it is that of a table in any database.

        The connector says the database of what a statement makes, and not that of the session which ran it.
        """
        found = logged.classify(statement.sql, _ANY)
        if found.effect not in ("tables", "none"):
            return logged.classify(statement.sql, statement.database)
        names = {name for name in found.tables if name[0] != _ANY}
        bare = {table for database, table in found.tables if database == _ANY}
        if found.effect == "tables":
            bare |= set(statement.tables)
        names |= {(statement.database, table) for table in bare}
        for name in self._schema.catalog.names:
            database, _, table = name.partition(".")
            if table in bare or (self._schema.lower_case_names and table in map(str.lower, bare)):
                names.add((database, table))
        return replace(found, tables=tuple(sorted(names)))

    def _look(self) -> None:
        """Look for new topics, and for what the server has executed."""
        self._look_at = time.monotonic() + LOOK_EVERY_S
        found = self._topics.look_for(self._schema.catalog.names)
        self.note_places()
        if found:
            self._schema.check_prepared()  # what is prepared may have told its rows in there
        for table in found:
            self._schema.reread(*table.split(".", 1))
        if self._sample is None:
            self._sample = self._schema.sample()

    # -- publishing --------------------------------------------------------------------------------------------------

    def _is_published(self, gtid: ServerGtid) -> bool:
        return not self._position.precedes(gtid)

    _is_row_published = _is_published

    def _passed(self, gtid: ServerGtid) -> None:
        """A transaction is given, or was published."""

    def _idle(self) -> Iterator[SourceTransaction | None]:
        """What to yield while nothing has ended."""
        yield self._settled_alone()

    def _note_changes(self) -> None:
        """Notice what the connector does not tell, before the position moves past it."""

    def _is_read(self, table: str) -> bool:
        return self._topics.topic_of(table) in self._topics.read

    def _round(self) -> Iterator[SourceTransaction]:
        self._note_changes()
        for each in self._assembler.transactions():
            found = None if self._is_published(each.gtid) else self._transaction(each)
            self._check_ended(each.gtid)
            if found is not None:
                yield found
            self._assembler.drop(each.gtid)
            self._passed(each.gtid)
        for statement in self._assembler.end_round():
            if not self._is_published(statement.gtid):
                found = self._finished(OpenTransaction(statement.gtid, self._bytes_max), statement.timestamp)
                self._check_ended(statement.gtid)
                yield found
            self._assembler.forget(statement)
            self._pending = [each for each in self._pending if each.statement is not statement]

    def _check_ended(self, gtid: ServerGtid) -> None:
        """Raises `DebeziumError` if the position has passed rows of an XA transaction, by that of ``gtid``."""
        if unended := self._assembler.unended_beside(gtid):
            raise xa_transaction(", ".join(unended))

    def _transaction(self, each: Transaction) -> SourceTransaction:
        transaction = OpenTransaction(each.gtid, self._bytes_max, keeps_before=self._keeps_before)
        transaction.voids |= {table: why for table, why in each.voids.items() if table in self._schema.include}
        for row in each.rows:
            self._put(row, transaction)
        sample = self._sample
        if sample is not None and sample.logged.precedes(each.gtid):
            # It was logged after everything that had been executed. What of that no message told, changed no row.
            assert isinstance(self._position, MysqlGtidSet)
            self._position = self._position.joined(sample.executed)
            self._sample = None
        return self._finished(transaction, each.timestamp)

    def _finished(self, transaction: OpenTransaction, timestamp: int) -> SourceTransaction:
        for pending in self._pending:
            for table, why in pending.voids.items():
                transaction.voids.setdefault(table, why)
        transaction.described |= self._described
        self._described.clear()
        transaction.announce(self._maps.announced)
        self._position.add(transaction.gtid)
        if not self._schema.catalog.is_settled:
            self._settle(transaction)
        self._timestamp = max(timestamp, self._timestamp)
        position = str(self._position)
        gtid = self._position.text_of(transaction.gtid)
        return SourceTransaction(gtid, position, self._timestamp, transaction.changes(self._schema.catalog))

    def _put(self, row: RowMessage, transaction: OpenTransaction) -> None:
        """Add a row, or void what it may have changed."""
        name = row.table
        if name not in self._schema.include:
            return
        info = self._schema.get(name)
        if info is None and not self._schema.catalog.is_waiting(name):
            self._reread_changed(name)
        if info is None or not info.cacheable:
            return
        transaction.touched.add(name)
        decoder = self._decoder(row.schema, name)
        if isinstance(decoder, str):
            transaction.voids.setdefault(name, decoder)
            return
        try:
            old = decoder.row(row.before) if row.before else None
            new = decoder.row(row.after) if row.after else None
        except UndecodableValue as error:
            transaction.voids.setdefault(name, str(error))
            return
        if old is not None and not self._keeps_image_of_before(info):
            old = old[0], b""
        if old is None and new is None:
            transaction.voids.setdefault(name, "an event has no row")
        if old is not None and (new is None or new[0] != old[0]):
            transaction.rows.put(old[0], None, old[1] or None)
        if new is not None and new[1]:
            if old is not None and old[0] == new[0]:
                before = old[1] or None
            else:
                before = None if old is None and row.operation == "u" else NO_ROW
            transaction.rows.put(*new, before)
        elif new is not None:
            transaction.rows.void(new[0])

    def _decoder(self, schema: bytes, name: str) -> RowDecoder | str:
        """What decodes a table's rows, or why nothing does."""
        found = self._decoders.get((schema, name))
        if found is None:
            info = self._schema.get(name)
            assert info is not None
            try:
                found = self._new_decoder(schema, info)
            except SchemaDiffers as error:
                log.warning("table cannot be decoded", table=name, reason=str(error))
                found = str(error)
                if (schema, name) not in self._reread:
                    self._reread.add((schema, name))
                    self._reread_changed(name)
            self._decoders[schema, name] = found
        return found

    def _new_decoder(self, schema: bytes, info: TableInfo) -> RowDecoder:
        return RowDecoder(schema, info, is_mysql=self._server == "MySQL")

    def _keeps_image_of_before(self, _info: TableInfo) -> bool:
        """Whether messages have all of a row of before."""
        return True

    def _reread_changed(self, name: str) -> None:
        """Read a table that is not as its messages have it, and void it with the next transaction."""
        self._schema.reread(*name.split(".", 1))
        self._maps.announced[name] = "its schema changed without DDL in the connector's topic"

    def _settle(self, transaction: OpenTransaction) -> None:
        """Void and describe, after the transaction, the tables whose schema is known now."""
        found = self._schema.settle(self._position)
        transaction.settle(found)
        if found:
            self._decoders.clear()

    def _settled_alone(self) -> SourceTransaction | None:
        """What `_settle` finds while there is nothing new, at the present position; else None."""
        if self._schema.catalog.is_settled:
            return None
        if isinstance(self._position, MysqlGtidSet):
            self._schema.forget_rolled_back()
        nothing = OpenTransaction.of_nobody(self._bytes_max)
        self._settle(nothing)
        return nothing.alone(str(self._position), self._timestamp, self._schema.catalog)

    @property
    def would_void(self) -> bool:
        """Whether who begins again at ``places`` voids what is void by now, and all else with it."""
        return False

    def note_storage(self) -> None:
        """Let ``places`` say what `would_void` is about. Tell it then: nobody would ask for that again."""

    def note_places(self) -> None:
        """Bring ``places`` up to date with what is published."""
        self._places.offsets = self._starts()

    def _starts(self) -> dict[tuple[str, int], int]:
        """Where to read again what is not published."""
        return self._assembler.starts(self._topics.reached)
