"""From the topics of a connector that does not tell where transactions end: which rows have changed, and no more.

A position is proved once all of a transaction is there, and nothing says so here. So the published position stays where
the epoch began, and rows have no images: what the cache has of a row is void when its event arrives, and the next read
fills it from the server. Such an answer is proved by the position of its own read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from stream.sources.debezium.messages import RowMessage, Statement
from stream.sources.debezium.reader import DebeziumReader
from stream.sources.debezium.transactions import Place
from stream.sources.mariadb.binlog.reading.transaction import OpenTransaction
from stream.sources.mariadb.connection import SourceHistoryLost
from stream.sources.mariadb.gtid import GtidPosition
from stream.wire.events import SourceTransaction


class InvalidatingReader(DebeziumReader):
    """As `DebeziumReader`. What it yields is at the position at which it began."""

    tells_ends = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._open = OpenTransaction.of_nobody(self._bytes_max)
        """What the messages void that were read since it yielded."""

    def has_reached(self, _position: GtidPosition) -> bool:
        """Nothing tells."""
        return False

    def transactions(self) -> Iterator[SourceTransaction | None]:
        """Yield what is void, and None whenever nothing is.

        All of what was read at once is one transaction: the places that are kept with it are those of all of it.
        """
        try:
            while not self._stopping:
                if time.monotonic() >= self._look_at:
                    self._look()  # not between the two others: it notes how far what is yielded was read
                    self._check_history()
                count = self._feed()
                yield self._invalidation() if count or not self._schema.catalog.is_settled else None
        finally:
            self._topics.close()

    def _invalidation(self) -> SourceTransaction | None:
        transaction, self._open = self._open, OpenTransaction.of_nobody(self._bytes_max)
        transaction.announce(self._maps.announced)
        if not self._schema.catalog.is_settled:
            found = self._schema.settle(self._schema.reached())  # of this position there will never be another schema
            transaction.settle(found)
            self._decoders.clear()
        changes = transaction.changes(self._schema.catalog)
        return (
            SourceTransaction(str(self._position), str(self._position), self._timestamp, changes) if changes else None
        )

    def _add(self, row: RowMessage, _place: Place) -> None:
        self._timestamp = max(row.timestamp, self._timestamp)
        for found in self._decoded(row, self._open):
            if found is not None:
                self._open.rows.void(found[0])

    def _see(self, statement: Statement, _place: Place) -> None:
        seen = self._applied(statement)
        self._open.voids |= seen.voids
        self._open.described |= seen.described

    def _check_history(self) -> None:
        """Raises `SourceHistoryLost`: published positions don't tell, since there are none but the first."""
        now = self._schema.reached()
        if self._places.server and not now.covers(GtidPosition.parse(self._places.server)):
            raise SourceHistoryLost(
                f"the server is at {now}, and was at {self._places.server}", hint="it was restored: a new epoch starts"
            )
        self._places.server = str(now)
