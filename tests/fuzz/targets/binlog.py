"""The binlog: table maps, row images, other events, statements, and whole streams of them through the reader."""

from __future__ import annotations

import contextlib
import json
from base64 import b64decode
from collections.abc import Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any, get_args

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.catalog import Catalog as TablesAt
from stream.sources.mariadb.binlog.catalog import Xid
from stream.sources.mariadb.binlog.events import HEADER_SIZE
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.binlog.rows import TableDecoder
from stream.sources.mariadb.binlog.statements import Effect, classify
from stream.sources.mariadb.binlog.table_map import BinlogFormatError, parse_table_map, table_name_of
from stream.sources.mariadb.cascades.foreign_keys import Cascades
from stream.sources.mariadb.charsets import Charsets
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.schema import ColumnInfo, TableFilter, TableInfo
from stream.wire.events import RowChange, SourceTransaction
from stream.wire.values import UndecodableValue
from tests.fuzz.engine import Case, Misbehaved, Target, refused
from tests.fuzz.mutate import Rng, some_bytes, some_text
from tokens.errors import FreshetError

CORPUS = Path(__file__).parents[1] / "corpus" / "binlog.json"
LATIN = "".join(map(chr, range(256)))


class Catalog:
    """The recorded tables, in place of the server's catalog."""

    def __init__(self) -> None:
        recorded = json.loads(CORPUS.read_text())
        names = {int(number): name for number, name in recorded["collations"].items()}
        self.charsets = Charsets(names, dict.fromkeys(names.values(), LATIN))
        self.tables = {table.name: table for table in map(_table, recorded["tables"])}
        self.events = [b64decode(event) for event in recorded["events"]]
        self.include = TableFilter(("d",))
        self.cascades = Cascades({"d.parent": frozenset({"d.child"})}, {})
        self.unread = frozenset[str]()
        self.lower_case_names = False

        self.catalog = TablesAt()
        self.catalog.describe_as({name: info.describe() for name, info in self.tables.items()})
        self.catalog.resume(self.tables, GtidPosition({}))

    def get(self, name: str) -> TableInfo | None:
        return self.catalog.get(name)

    def reread(self, database: str, table: str) -> None:
        name = f"{database}.{table}"
        self.catalog.doubt(name, self.tables.get(name), GtidPosition({}))

    def after_ddl(self, names: list[tuple[str, str]]) -> None:
        for name in names:
            self.reread(*name)

    def reread_cascades(self, names: Set[str] | None = None) -> None:
        """The recorded foreign keys stay as they are."""

    def has_cascades_of(self, _: GtidPosition) -> bool:
        return True

    def is_visible(self, _: Xid) -> bool:
        return True

    def settle(self, position: GtidPosition) -> dict[str, bool]:
        return self.catalog.settle(position, frozenset)


def _table(fields: dict[str, Any]) -> TableInfo:
    columns = tuple(
        ColumnInfo(**{name: value for name, value in each.items() if name != "json_name"}) for each in fields["columns"]
    )
    return TableInfo(
        fields["database"], fields["table"], columns, tuple(fields["primary_key"]), fields["engine"], fields["problem"]
    )


@cache
def catalog() -> Catalog:
    """The recorded server."""
    return Catalog()


def of_kind(*kinds: int) -> list[bytes]:
    """Recorded events of these types."""
    return [event for event in catalog().events if event[4] in kinds]


def _table_map() -> Case:
    bodies = [event[HEADER_SIZE + 6 :] for event in of_kind(events.TABLE_MAP)]
    known = catalog()

    def run(body: bytes) -> None:
        refused(BinlogFormatError, table_name_of, body)
        found = refused(BinlogFormatError, parse_table_map, body)
        info = known.get(found.name) if found is not None else None
        if found is not None and info is not None:
            decoder = refused(UndecodableValue, TableDecoder, found, info, known.charsets)
            if decoder is not None:
                refused(UndecodableValue, decoder.row, b"\0" * 200, 0)

    return Case(lambda rng: some_bytes(rng, bodies), run)


def _rows() -> Case:
    known = catalog()
    images: dict[TableDecoder, list[bytes]] = {}
    decoder: TableDecoder | None = None
    for event in known.events:
        if event[4] == events.TABLE_MAP:
            mapped, decoder = parse_table_map(event[HEADER_SIZE + 6 :]), None
            info = known.get(mapped.name)
            with contextlib.suppress(UndecodableValue):
                decoder = TableDecoder(mapped, info, known.charsets) if info is not None else None
        elif event[4] in events.ROWS - events.COMPRESSED_ROWS and decoder is not None:
            start = HEADER_SIZE + 8 + 1 + (decoder.bitmap_bytes * (2 if event[4] in events.UPDATES else 1))
            images.setdefault(decoder, []).append(event[start:])
    widest = max(images, key=lambda each: each.bitmap_bytes)
    every = [*images, *[widest] * len(images)]

    def draw(rng: Rng) -> tuple[TableDecoder, bytes]:
        drawn = rng.choice(every)
        return drawn, some_bytes(rng, images[drawn])

    def run(drawn: tuple[TableDecoder, bytes]) -> None:
        decoder, data = drawn
        found = refused(UndecodableValue, decoder.row, data, 0)
        if found is None:
            return
        key, image, end = found
        if end > len(data) or not key.startswith(decoder.info.key_prefix):
            raise Misbehaved(f"{found} from {len(data)} bytes")
        json.loads(key[len(decoder.info.key_prefix) :])
        json.loads(image)

    return Case(draw, run)


def _events() -> Case:
    seeds = [event for event in catalog().events if event[4] not in events.ROWS | {events.TABLE_MAP}]
    seeds += [b"\x81\x05" + b"x\x9cKLJ\x06\x00\x02M\x01'", b"\x84\xff\xff\xff\xff" + b"x\x9cKLJ\x06\x00\x02M\x01'"]

    def run(event: bytes) -> None:
        for parse in (events.parse_gtid, events.parse_query, events.parse_xa_prepare, events.uncompress):
            refused(BinlogFormatError, parse, event)

    return Case(lambda rng: some_bytes(rng, seeds), run)


STATEMENTS = (
    "CREATE TABLE IF NOT EXISTS d.a (id INT PRIMARY KEY, v VARCHAR(4) DEFAULT 'it''s' COMMENT \"x\")",
    "CREATE OR REPLACE TEMPORARY TABLE a LIKE b",
    "CREATE UNIQUE INDEX i ON d.a (v)",
    "ALTER TABLE a ADD COLUMN w INT, RENAME TO `d`.`b`, ALGORITHM=INPLACE",
    "ALTER ONLINE TABLE a EXCHANGE PARTITION p WITH TABLE c",
    "DROP TABLE IF EXISTS a, d.`b``c` /* generated by server */",
    "DROP DATABASE d",
    "RENAME TABLE a TO b, b NOWAIT TO c",
    "TRUNCATE TABLE a",
    "SET STATEMENT max_statement_time=1 FOR ALTER TABLE a FORCE",
    "XA COMMIT X'78',X'79',3",
    "XA PREPARE X'78',X'79',3",
    "ROLLBACK TO `s`",
    "INSERT INTO a VALUES ('x\\'y', 1) -- z",
    "/*!50100 ALTER */ /*M!100100 TABLE a */ FORCE",
    "BEGIN",
    "COMMIT",
)
PIECES = (
    *("`", "'", '"', "''", "\\'", "/*", "*/", "/*!", "/*M!", "--", "-- ", "#", "(", ")", ",", ".", "=", "\n"),
    *("TABLE ", "RENAME ", "TO ", "IF EXISTS ", "SET STATEMENT a=1 FOR ", "X'", "X'7", "XA COMMIT ", "INDEX ", "ON "),
)


def _statements() -> Case:
    def run(sql: str) -> None:
        statement = classify(sql, "d")
        if statement.effect not in get_args(Effect):
            raise Misbehaved(f"{statement} has an invalid effect")

    return Case(lambda rng: some_text(rng, STATEMENTS, PIECES), run)


class Recorded:
    """Recorded events in place of a server's, followed by an error at their end."""

    def __init__(self, given: Sequence[bytes]) -> None:
        self.left = list(reversed(given))

    def read(self) -> bytes:
        if not self.left:
            raise FreshetError("the end", code="the_end")
        return self.left.pop()

    def arrived(self) -> list[bytes]:
        return []

    def close(self) -> None:
        self.left.clear()


def _stream() -> Case:
    known = catalog()

    def draw(rng: Rng) -> list[bytes]:
        start = rng.randrange(len(known.events))
        given = known.events[start : start + rng.choice((5, 15, 40))]
        found = []
        for event in given:
            if rng.random() < 0.15:
                mutated = some_bytes(rng, [event, event, event, *known.events])
                found.append(event[:HEADER_SIZE] + mutated[HEADER_SIZE:] if rng.random() < 0.8 else mutated)
            else:
                found.append(event)
            if rng.random() < 0.02:
                found.append(rng.choice(known.events))
        return [event for event in found if len(event) >= HEADER_SIZE]  # the connection refuses shorter ones

    def run(given: list[bytes]) -> None:
        reader = BinlogReader(Recorded(given), known, "MariaDB/0-1-1")  # type: ignore[arg-type]
        refused(FreshetError, _read_all, reader)

    return Case(draw, run)


def _read_all(reader: BinlogReader) -> None:
    for transaction in reader.transactions():
        if transaction is not None:
            _sound(transaction)


def _sound(transaction: SourceTransaction) -> None:
    for change in transaction.changes:
        if isinstance(change, RowChange) and change.image:
            json.loads(change.image)


TARGETS = (
    Target("table_map", "table maps of the binlog, and decoders made from them", _table_map),
    Target("rows", "row images of every column type", _rows),
    Target("events", "GTID, query, XA and compressed events", _events),
    Target("statements", "statements in the binlog", _statements),
    Target("binlog", "streams with mutated events through the reader", _stream, 0.3),
)
