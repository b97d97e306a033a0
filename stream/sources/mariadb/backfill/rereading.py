"""Rows that a foreign key changed are read again, and published: until then each read of them goes to the source.
So are rows of a void table that owners ask for, since they are read most.

As a chunk (docs/decisions/0017): what was read lies between two positions. Where the source has read past the later
one, a key that the binlog has not changed meanwhile is as it was read. The source's state names the first keys that
wait, so that a source which is killed goes on with them. To read a key once more is always right.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final, Protocol, cast

import structlog

from stream.sources.mariadb.backfill.plan import Chunk, in_pieces, rows_and_tables
from stream.sources.mariadb.backfill.reading import Wanted
from stream.sources.mariadb.binlog.catalog import Catalog
from stream.sources.mariadb.connection import MariaDBError
from stream.sources.mariadb.gtid import GtidPosition
from stream.wire.events import EVERY_TABLE, Change, DescribeTable, ResumePoint, RowChange, SourceTransaction
from stream.wire.keys import KeyFormatError, row_key, split_row_key

log = structlog.get_logger(__name__)

KEYS_MAX: Final = 20_000
"""Keys that wait. What is above is left to readers."""
KEYS_A_READ: Final = 256
WORDS_CHARS_MAX: Final = 4_000
"""Of the keys that the source's state names. A restart leaves those above to readers."""
REREADS: Final = "rereads"
"""Name of the annotation in the source's state."""


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
        self._asked: dict[bytes, str] = {}
        """Those of the keys that are being read which have not changed since."""
        self._epoch = 0
        self._words = ""
        """What the source's state says of them."""

    def resume(self, point: ResumePoint) -> None:
        """Take up the keys that the source's state names. Of another epoch they don't count: all is void there."""
        self._epoch = point.epoch
        self._words = point.annotations.get(REREADS, "")
        epoch, tables, *_ = json.loads(self._words or "[0, {}]")
        if epoch == point.epoch:
            for table, keys in tables.items():
                self.add({table: [f"{table}\0{key}".encode() for key in keys]})

    def new_words(self) -> Mapping[str, str]:
        """The annotation that `resume` takes up, if it is another one by now; else nothing."""
        tables: defaultdict[str, list[str]] = defaultdict(list)
        left = WORDS_CHARS_MAX
        for key in chain(self._asked, self._waiting):
            table, _, text = key.decode().partition("\0")
            left -= len(json.dumps(text, ensure_ascii=False)) + 2 + (0 if table in tables else len(table) + 6)
            if left < 0:
                break
            tables[table].append(text)
        words = json.dumps([self._epoch, tables], ensure_ascii=False) if tables else ""
        if words == self._words:
            return {}
        self._words = words
        return {REREADS: words}

    def notice(self, changes: Sequence[Change]) -> None:
        """What changes is published by that; of a void table nothing is read."""
        if not self._waiting and not self._asked:
            return
        count, void = rows_and_tables(changes)
        for row in islice(cast("Sequence[RowChange]", changes), count):
            self._waiting.pop(row.key, None)
            self._asked.pop(row.key, None)
        for table in void:
            self._drop(table)

    def add(self, voided: Mapping[str, Iterable[bytes]]) -> None:
        """Rows that the transaction voided: table → keys."""
        for table, keys in voided.items():
            self._waiting.update(dict.fromkeys(islice(keys, max(KEYS_MAX - len(self._waiting), 0)), table))

    def begin_epoch(self, point: ResumePoint) -> None:
        """Read nothing of what was asked for: all of it is void."""
        self._drop(EVERY_TABLE)
        self._reading.want(None)
        self.resume(point)

    def again(self) -> None:
        """The binlog is read with a new connection, perhaps of another server: what was read does not count."""
        self._waiting = {**self._asked, **self._waiting}
        self._leave()

    def _leave(self) -> None:
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
                self._leave()
                yield from (SourceTransaction(position, position, timestamp, piece) for piece in in_pieces(rows))
            elif self._reading.failed is not None:
                log.info("rows are left to readers", reason=str(self._reading.failed), rows=len(self._asked))
                self._leave()
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
            self._asked = dict.fromkeys(keys, table)
            since = GtidPosition.parse(position)
            self._reading.want(Wanted(self._catalog.description(table), None, since, keys))

    def _drop(self, table: str) -> None:
        prefix = b"" if table == EVERY_TABLE else table.encode() + b"\0"
        self._waiting = {key: each for key, each in self._waiting.items() if not key.startswith(prefix)}
        self._asked = {key: each for key, each in self._asked.items() if not key.startswith(prefix)}

    def close(self) -> None:
        """End the reading."""
        self._reading.close()


def row_keys(described: DescribeTable, texts: Iterable[str]) -> list[bytes]:
    """The row keys of the JSON arrays of a table's primary keys. What is none is left out."""
    found = []
    for text in texts:
        try:
            _, values = split_row_key(f"{described.table}\0{text}".encode())
            key = row_key(described.table, values)
        except KeyFormatError:
            continue
        if len(values) == len(described.primary_key) > 0:
            found.append(key)
    return found
