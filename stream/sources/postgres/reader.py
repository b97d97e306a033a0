"""From a connector's topics to source transactions of PostgreSQL, in the order of their commits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stream.sources.debezium.invalidating import InvalidatingReader
from stream.sources.debezium.messages import RowMessage
from stream.sources.debezium.reader import DebeziumReader
from stream.sources.mariadb.binlog.reading.transaction import OpenTransaction
from stream.sources.mariadb.gtid import PostgresCommit, PostgresPlace, ServerGtid
from stream.sources.mariadb.schema import TableInfo
from stream.sources.postgres.schema import PostgresSchema
from stream.sources.postgres.tables import has_whole_rows
from stream.sources.postgres.values import PostgresRowDecoder
from stream.wire.events import SourceTransaction

NOBODY: int = 0
"""In place of the number of a transaction."""


class PostgresReader(DebeziumReader):
    """As `DebeziumReader`. The position also moves while nothing is committed, up to where the connector confirms."""

    _schema: PostgresSchema
    _position: PostgresPlace

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._told = self._places.told
        """Where the last commit ends that was read in order."""
        self._confirmed: PostgresPlace | None = None

    def _is_row_published(self, gtid: ServerGtid) -> bool:
        """By the last commit before the row's: the connector writes one transaction after another."""
        assert isinstance(gtid, PostgresCommit)
        return gtid.lsn <= self._told

    def _passed(self, gtid: ServerGtid) -> None:
        assert isinstance(gtid, PostgresCommit)
        self._told = max(self._told, gtid.lsn)

    def note_places(self) -> None:
        """Bring ``places`` up to date with what is published."""
        super().note_places()
        self._places.told = self._told

    def note_storage(self) -> None:
        """As in `DebeziumReader`."""
        if self.would_void:
            self._places.storage = self._schema.storage

    @property
    def would_void(self) -> bool:
        """Also as in `DebeziumReader`: not before it is void, since who begins again must find what was rewritten."""
        has_said = not (self._maps.announced or self._schema.has_unsaid)
        return has_said and self._places.storage != self._schema.storage

    def _look(self) -> None:
        # First: what is confirmed by then is in topics that are there now. Without ends `told` says it.
        confirmed = self._schema.confirmed() if self.tells_ends else None
        super()._look()
        self._note_changes()
        self._confirmed = confirmed

    def _note_changes(self) -> None:
        """Void what somebody has altered. Before the position moves: the log does not tell who altered what."""
        changed = self._schema.changed(self._position)
        if changed:
            self._maps.announced.update(changed)
            self._decoders.clear()

    def _idle(self) -> Iterator[SourceTransaction | None]:
        confirmed, self._confirmed = self._confirmed, None
        if confirmed is None or self._position.covers(confirmed):
            yield self._settled_alone()
            return
        ends = self._topics.ends()
        while not self._topics.has_reached(ends) and not self._stopping:
            if not self._feed():
                yield None
        if self._assembler.has_news or self._stopping:
            return
        self._note_changes()
        yield self._finished(OpenTransaction(PostgresCommit(NOBODY, confirmed.lsn), self._bytes_max), self._timestamp)

    def _new_decoder(self, schema: bytes, info: TableInfo) -> PostgresRowDecoder:
        return PostgresRowDecoder(schema, info)

    def _put(self, row: RowMessage, transaction: OpenTransaction) -> None:
        if row.operation == "t":
            if row.table in self._schema.include:
                transaction.voids.setdefault(row.table, "TRUNCATE")
            return
        super()._put(row, transaction)

    def _keeps_image_of_before(self, info: TableInfo) -> bool:
        """Whether messages have all of a row of before: by default they have its key."""
        return has_whole_rows(info)


class InvalidatingPostgresReader(InvalidatingReader, PostgresReader):
    """As `InvalidatingReader`, of PostgreSQL's rows and catalog."""
