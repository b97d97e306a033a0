"""Rows that a foreign key changed are read again, and published: until then each read of them goes to the source.

As a chunk (docs/decisions/0017): what was read lies between two positions. Where the source has read past the later
one, a key that the binlog has not changed meanwhile is as it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol, cast

import structlog

from stream.sources.mariadb.backfill.plan import Chunk, in_pieces, rows_and_tables
from stream.sources.mariadb.backfill.reading import Wanted
from stream.sources.mariadb.binlog.catalog import Catalog
from stream.sources.mariadb.connection import MariaDBError
from stream.sources.mariadb.gtid import GtidPosition
from stream.wire.events import EVERY_TABLE, Change, RowChange, SourceTransaction

log = structlog.get_logger(__name__)

KEYS_MAX: Final = 20_000
"""Keys that wait. What is above is left to readers."""
KEYS_A_READ: Final = 256


class KeysReading(Protocol):
    """What this needs of `stream.sources.mariadb.backfill.reading.ChunkReading`."""

    failed: MariaDBError | None

    @property
    def first(self) -> Chunk | None: ...

    def want(self, wanted: Wanted | None) -> None: ...

    def close(self) -> None: ...


class Rereading:
    """The keys to read again. Call `notice` and `add` for each transaction that is published, `step` after it."""

    def __init__(self, reading: KeysReading, catalog: Catalog) -> None:
        self._reading = reading
        self._catalog = catalog
        self._waiting: dict[bytes, str] = {}
        """Key → table, in order."""
        self._asked: set[bytes] = set()
        """Those of the keys that are being read which have not changed since."""

    def notice(self, changes: Sequence[Change]) -> None:
        """What changes is published by that; of a void table nothing is read."""
        if not self._waiting and not self._asked:
            return
        count, void = rows_and_tables(changes)
        for row in islice(cast("Sequence[RowChange]", changes), count):
            self._waiting.pop(row.key, None)
            self._asked.discard(row.key)
        for table in void:
            self._drop(table)

    def add(self, voided: Mapping[str, Iterable[bytes]]) -> None:
        """Rows that the transaction voided: table → keys."""
        for table, keys in voided.items():
            self._waiting.update(dict.fromkeys(islice(keys, max(KEYS_MAX - len(self._waiting), 0)), table))

    def forget(self) -> None:
        """Read nothing of what was asked for."""
        self._drop(EVERY_TABLE)
        self._reading.want(None)

    def again(self) -> None:
        """The binlog is read with a new connection, perhaps of another server: what was read does not count."""
        self._asked.clear()
        self._reading.want(None)

    def step(
        self, position: str, timestamp: int, has_reached: Callable[[GtidPosition], bool]
    ) -> Iterator[SourceTransaction]:
        """The transactions that publish at ``position`` what was read. ``has_reached``: whether the binlog was read so
        far.
        """
        if self._asked:
            chunk = self._reading.first
            if chunk is not None and has_reached(chunk.hi):
                rows = [row for row in chunk.rows if row.key in self._asked]
                self._asked.clear()
                self._reading.want(None)
                yield from (SourceTransaction(position, position, timestamp, piece) for piece in in_pieces(rows))
            elif self._reading.failed is not None:
                log.info("rows are left to readers", reason=str(self._reading.failed), rows=len(self._asked))
                self.again()
            else:
                return
        if self._waiting:
            self._ask(position)

    def _ask(self, position: str) -> None:
        table = next(iter(self._waiting.values()))
        keys = tuple(islice((key for key, each in self._waiting.items() if each == table), KEYS_A_READ))
        for key in keys:
            del self._waiting[key]
        if table in self._catalog.names:
            self._asked = set(keys)
            since = GtidPosition.parse(position)
            self._reading.want(Wanted(self._catalog.description(table), None, since, keys))

    def _drop(self, table: str) -> None:
        prefix = b"" if table == EVERY_TABLE else table.encode() + b"\0"
        self._waiting = {key: each for key, each in self._waiting.items() if not key.startswith(prefix)}
        self._asked = {key for key in self._asked if not key.startswith(prefix)}

    def close(self) -> None:
        """End the reading."""
        self._reading.close()
