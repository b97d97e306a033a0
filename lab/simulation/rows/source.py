"""A model of a MariaDB server: commits, the binlog in the server's format, an engine and a replica that lag.

The real `BinlogReader` reads the binlog's bytes. Only its row decoder is replaced: a row is one byte of slot number and
four bytes of version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Set
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from consumers.store.index import Index
from lab.simulation.mariadb.log.events import GTID_BODY, HEADER, QUERY_BODY
from lab.simulation.models.truth import CommitHistory, Image
from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.catalog import Catalog
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.binlog.reading.table_maps import TableMaps, Unpublished
from stream.sources.mariadb.binlog.rows import TableDecoder
from stream.sources.mariadb.cascades.foreign_keys import ForeignKey, cascades_of
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.schema import ColumnInfo, TableFilter, TableInfo
from stream.wire.keys import row_key

PARENT, CHILD, TEXT = "s.a", "s.b", "s.t"
SLOTS_A_SHARD: Final = 4
"""Rows of a shard: two of the parent table, one child of the first, one with a text key."""


class RowSlot(NamedTuple):
    """A row that may exist: its table and its key in the store."""

    table: str
    key: bytes
    values: tuple[object, ...]
    alias: bytes
    """Another spelling of the key that a collation considers equal; empty if there is none."""
    alias_values: tuple[object, ...] = ()


def _slots(shard: int) -> list[RowSlot]:
    first = 1 + 2 * shard
    name = f"x{shard}"
    return [
        RowSlot(PARENT, row_key(PARENT, [first]), (first,), b""),
        RowSlot(PARENT, row_key(PARENT, [first + 1]), (first + 1,), b""),
        RowSlot(CHILD, row_key(CHILD, [first]), (first,), b""),
        RowSlot(TEXT, row_key(TEXT, [name]), (name,), row_key(TEXT, [name.upper()]), (name.upper(),)),
    ]


SLOTS: Final = [*_slots(0), *_slots(1)]
SLOT_OF: Final = {key: number for number, slot in enumerate(SLOTS) for key in (slot.key, slot.alias) if key}
"""Key, in any spelling → number of its slot."""


def _table(name: str) -> TableInfo:
    database, _, table = name.partition(".")
    key = ColumnInfo("id", "text" if name == TEXT else "int", name != TEXT)
    return TableInfo(database, table, (key, ColumnInfo("v", "int", True)), ("id",))


SCHEMAS: Final = {table: _table(table) for table in (PARENT, CHILD, TEXT)}
DESCRIBED: Final = {table: info.describe() for table, info in SCHEMAS.items()}
INDEXES: Final = tuple(Index(table, ("v",)) for table in SCHEMAS)
"""That owners keep, and fronts ask."""
_TABLE_NUMBER: Final = {PARENT: 1, CHILD: 2, TEXT: 3}
_ROW: Final = struct.Struct("<BI")


def image_of(version: int) -> bytes:
    """The image of a version. All versions in a world differ."""
    return b'{"v":%d}' % version


class RowDecoder(TableDecoder):
    """Decodes the model's rows. Everything around them is decoded by the real reader."""

    __slots__ = ()

    def __init__(self, table: str) -> None:
        self.info = SimpleNamespace(name=table)  # type: ignore[assignment]
        self.name, self.label = table, table.encode()
        self.bitmap_bytes = self.all_present = 0
        self.heads = {}

    def row(self, data: bytes, position: int) -> tuple[bytes, bytes, int]:
        slot, version = _ROW.unpack_from(data, position)
        return SLOTS[slot].key, image_of(version), position + _ROW.size


_DECODERS: Final = {_TABLE_NUMBER[table].to_bytes(1, "big"): RowDecoder(table) for table in _TABLE_NUMBER}


class _TableMaps(TableMaps):
    """Table maps that are a number of the model's."""

    def _map(self, body: bytes) -> Any:
        decoder = _DECODERS[body]
        return decoder if decoder.name in self._schema.include else Unpublished(decoder.name)


class SimulatedBinlogReader(BinlogReader):
    """The real reader with the model's table maps."""

    table_maps = _TableMaps


class SimulatedSchema:
    """The chosen tables, which are always the same, with the real knowledge of which schema is that of a position."""

    cascades = cascades_of([ForeignKey(PARENT, CHILD, ("id",), ("id",), "CASCADE", "CASCADE")])
    unread: frozenset[str] = frozenset()
    charsets = SimpleNamespace(by_collation={})
    lower_case_names = False

    def __init__(self, include: TableFilter) -> None:
        self.include = include
        self.described = {name: each for name, each in DESCRIBED.items() if name in include}
        self.catalog = Catalog()
        self.catalog.describe_as(self.described)
        self.catalog.resume({name: SCHEMAS[name] for name in self.described}, GtidPosition({}))

    def after_ddl(self, names: list[tuple[str, str]]) -> None:
        """Reads the tables again."""
        for name in map(".".join, names):
            self.catalog.doubt(name, SCHEMAS[name], GtidPosition({}))

    def reread_cascades(self, _: Set[str] | None = None) -> None:
        """They are always the same."""

    def has_cascades_of(self, _: GtidPosition) -> bool:
        """They never change."""
        return True

    def settle(self, position: GtidPosition) -> dict[str, bool]:
        """As the real one; there are no XA transactions."""
        return self.catalog.settle(position, frozenset)


CHOICES: Final[Any] = [SimulatedSchema(TableFilter(exclude=names)) for names in ((), (PARENT,), (CHILD,), (TEXT,))]
"""What a source may be told to publish: every table, or all but one."""


def _event(timestamp: int, kind: int, server: int, body: bytes) -> bytes:
    return HEADER.pack(timestamp, kind, server, 0, 0, 0) + body


class RowSnapshot(NamedTuple):
    """What a consistent snapshot of a server shows of one row."""

    history: int
    commit: int
    position: str
    image: Image
    timestamp: int


class SimulatedSource:
    """One shard's server. ``engine`` and ``replica``: the last commit that each shows; the binlog has all commits."""

    def __init__(self, shard: int, domains: int) -> None:
        self.shard = shard
        self.name = f"s/{shard}"
        self.first_slot = shard * SLOTS_A_SHARD
        self.server = 1
        self.domains = domains
        self.sequences = {0: 1}
        start = "MariaDB/0-1-1"
        self.history = CommitHistory(0, start)
        """The current history, the last of `histories`."""
        self.histories = [self.history]
        self.binlog: list[tuple[bytes, ...]] = [()]
        """Events of each commit, by index."""
        self.gtids = [""]
        self.state = {(0, 1): 1}
        """(domain, server) → last sequence, as in ``@@gtid_binlog_state``."""
        self.engine = self.replica = 0
        self.clock = 1_700_000_000
        self.versions = 100 * shard
        self.timestamps = [self.clock]
        for slot in range(self.first_slot, self.first_slot + 3):
            self.history.put(slot, 0, self._new_image())

    def _new_image(self) -> bytes:
        self.versions += 1
        return image_of(self.versions)

    def commit(self, seed: int, *, visible: bool) -> tuple[int, list[str]]:
        """Commits a transaction derived from ``seed``. Returns its index, and its changes in words."""
        statements = 1 + seed % 3
        domain = (seed >> 2) % self.domains
        bits = seed >> 4
        rows: dict[int, Image] = {}
        log: list[bytes] = []
        said: list[str] = []
        for _ in range(statements):
            self._statement(bits & 15, rows, log, said)
            bits >>= 4
        return self._end(domain, rows, log, visible), said

    def write_foreign_row(self, slot: int) -> int:
        """Writes a row of another shard, as after a resharding without a journal. Returns the commit's index."""
        rows: dict[int, Image] = {slot: self._new_image()}
        log: list[bytes] = []
        self._log_rows(SLOTS[slot].table, events.WRITE_ROWS_V1, _ROW.pack(slot, self.versions), log, False)
        return self._end(0, rows, log, True)

    def alter(self, table: str, *, visible: bool) -> int:
        """Runs DDL that changes every row of a table without row events. Returns the commit's index."""
        rows: dict[int, Image] = {
            slot: self._new_image()
            for slot in range(self.first_slot, self.first_slot + SLOTS_A_SHARD)
            if SLOTS[slot].table == table and self.history.state(slot, self.history.end) is not None
        }
        sql = f"ALTER TABLE {table} ADD COLUMN c INT".encode()
        query = QUERY_BODY.pack(1, 0, 1, 0, 0) + b"s\0" + sql
        return self._end(0, rows, [_event(self.clock, events.QUERY, self.server, query)], visible, ddl=True)

    def _end(self, domain: int, rows: dict[int, Image], log: list[bytes], visible: bool, ddl: bool = False) -> int:
        history = self.history
        sequence = self.sequences[domain] = self.sequences.get(domain, 0) + 1
        reached = GtidPosition.parse(history.positions[-1]).domains
        text = str(GtidPosition(reached | {domain: (self.server, sequence)}))
        history.positions.append(text)
        index = history.end
        history.index_of[text] = index
        for slot, image in rows.items():
            history.put(slot, index, image)
        begin = _event(self.clock, events.GTID, self.server, GTID_BODY.pack(sequence, domain, int(ddl)))
        end = [] if ddl else [_event(self.clock, events.XID, self.server, b"")]
        self.binlog.append((begin, *log, *end))
        self.gtids.append(f"MariaDB/{domain}-{self.server}-{sequence}")
        self.state[domain, self.server] = sequence
        self.timestamps.append(self.clock)
        self.clock += 1
        if visible:
            self.engine = index
        return index

    def _statement(self, bits: int, rows: dict[int, Image], log: list[bytes], said: list[str]) -> None:
        first, what = self.first_slot, bits >> 2
        slot = first + (bits & 3)
        now = self._now(slot, rows)
        if what < 2:
            self._write(slot, now is None, rows, log)
            said.append(f"{'inserts' if now is None else 'updates'} {SLOTS[slot].key.decode()!r}")
        elif what == 2 and now is not None:
            rows[slot] = None
            self._log_rows(SLOTS[slot].table, events.DELETE_ROWS_V1, _ROW.pack(slot, 0), log, slot == first)
            said.append(f"deletes {SLOTS[slot].key.decode()!r}")
            if slot == first and self._now(first + 2, rows) is not None:
                rows[first + 2] = None
                said.append(f"(by a foreign key) deletes {SLOTS[first + 2].key.decode()!r}")
        elif what == 3 and slot in (first, first + 1):
            self._move(slot, 2 * first + 1 - slot, rows, log, said)

    def _now(self, slot: int, rows: dict[int, Image]) -> Image:
        return rows[slot] if slot in rows else self.history.state(slot, self.history.end)

    def _write(self, slot: int, new: bool, rows: dict[int, Image], log: list[bytes]) -> None:
        rows[slot] = self._new_image()
        after = _ROW.pack(slot, self.versions)
        kind = events.WRITE_ROWS_V1 if new else events.UPDATE_ROWS_V1
        self._log_rows(SLOTS[slot].table, kind, after if new else _ROW.pack(slot, 0) + after, log, False)

    def _move(self, old: int, new: int, rows: dict[int, Image], log: list[bytes], said: list[str]) -> None:
        if self._now(old, rows) is None or self._now(new, rows) is not None:
            return
        rows[old] = None
        rows[new] = self._new_image()
        child = self.first_slot + 2
        changes = _ROW.pack(old, 0) + _ROW.pack(new, self.versions)
        said.append(f"moves {SLOTS[old].key.decode()!r} to {SLOTS[new].key.decode()!r}")
        if self._now(child, rows) is not None:
            rows[child] = self._new_image()
            said.append(f"(by a foreign key) updates {SLOTS[child].key.decode()!r}")
        self._log_rows(PARENT, events.UPDATE_ROWS_V1, changes, log, True)

    def _log_rows(self, table: str, kind: int, rows: bytes, log: list[bytes], cascades: bool) -> None:
        for named in (table, CHILD) if cascades else (table,):
            number = _TABLE_NUMBER[named]
            body = number.to_bytes(6, "little") + number.to_bytes(1, "big")
            log.append(_event(self.clock, events.TABLE_MAP, self.server, body))
        head = _TABLE_NUMBER[table].to_bytes(6, "little") + struct.pack("<HB", events.STATEMENT_END, 2)
        head += b"\3" * (2 if kind in events.UPDATES else 1)
        log.append(_event(self.clock, kind, self.server, head + rows))

    def read(self, slot: int, *, from_replica: bool) -> RowSnapshot:
        """Reads a row in a snapshot that has a position."""
        index = self.replica if from_replica else self.engine
        history = self.history
        return RowSnapshot(
            history.number,
            index,
            history.positions[index],
            history.state(slot, index),
            self.timestamps[index],
        )

    def restore(self, index: int, *, another: bool) -> None:
        """Restores the server to commit ``index``; later commits are lost. ``another``: a new server id takes over."""
        history = self.history = self.history.fork(index)
        self.histories.append(history)
        del self.binlog[index + 1 :], self.timestamps[index + 1 :], self.gtids[index + 1 :]
        reached = GtidPosition.parse(history.positions[-1]).domains
        self.state = {}
        for text in history.positions:
            for domain, (server, sequence) in GtidPosition.parse(text).domains.items():
                self.state[domain, server] = sequence
        self.sequences = {domain: sequence for domain, (_, sequence) in reached.items()}
        self.server += another
        self.engine = index
        self.replica = min(self.replica, index)

    def go_back(self, seed: int) -> tuple[int, list[str]]:
        """Another server writes the first domain, and counts from below: `commit`, in a history of its own."""
        self.history = self.history.fork(self.history.end)
        self.histories.append(self.history)
        self.server += 10
        self.sequences[0] = max(0, self.sequences[0] - 2)
        made = self.commit(seed & ~(3 << 2), visible=True)
        self.replica = self.engine  # what it showed before has positions that say nothing in the new epoch
        return made

    def events_after(self, at: int) -> Iterator[bytes]:
        """The events of the binlog after commit ``at``."""
        at += 1
        while at < len(self.binlog):
            yield from self.binlog[at]
            at += 1
