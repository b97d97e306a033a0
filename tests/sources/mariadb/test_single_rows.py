"""Runs of transactions of one row say what is said by who reads one event after the other, whatever the log has."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymysql.constants import FIELD_TYPE

from lab.simulation.rows.publishing import collect
from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.mysql import events as mysql_events
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.binlog.table_map import COLUMN_CHARSET, COLUMN_NAME, SIMPLE_PRIMARY_KEY
from stream.sources.mariadb.cascades.family import Family
from stream.sources.mariadb.cascades.foreign_keys import ForeignKey, cascades_of
from stream.sources.mariadb.charsets import Charsets
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.schema import NO_PRIMARY_KEY, ColumnInfo, TableFilter, TableInfo
from stream.wire.batch import Batch, BatchLimits, Framer
from stream.wire.events import ResumePoint, RowChange, SingleRows, SourceTransaction, Topology
from stream.wire.keys import Layout
from tests.sources.mariadb.test_log_reading import NOWHERE, event, gtid, query
from tokens.errors import FreshetError
from tokens.mysql import MysqlPosition

COLLATION = 45
UUID_OF = {0: "3e11fa47-71ca-11e1-9e33-c80aa9429562", 7: "aaaaaaaa-71ca-11e1-9e33-c80aa9429562"}
"""By what is a domain in MariaDB."""
COLUMNS = (ColumnInfo("id", "int", True), ColumnInfo("v", "text", False))
TABLES = {name: TableInfo("d", name, COLUMNS, ("id",)) for name in ("a", "b", "p", "c", "s", "u")}
TABLES["keyless"] = TableInfo("d", "keyless", COLUMNS, (), problem=NO_PRIMARY_KEY)
XID = event(events.XID, bytes(8))


@dataclass(frozen=True)
class Dialect:
    """How a server logs. ``kinds``: of inserts, updates and deletes."""

    name: str
    start: str
    kinds: tuple[int, int, int]

    @property
    def is_mysql(self) -> bool:
        return self.name == "MySQL"

    def begin(self, number: int, domain: int = 0, server: int = 1, flags: int = 0, rest: bytes = b"") -> list[bytes]:
        """The events that a transaction begins with."""
        if not self.is_mysql:
            return [gtid(number, domain=domain, server=server, flags=flags) + rest]
        body = bytes((flags,)) + UUID(UUID_OF[domain]).bytes + struct.pack("<Q", number) + rest
        return [event(mysql_events.GTID, body, server), query("BEGIN")]

    def rows(
        self, number: int, kind: int, found: Sequence[bytes], flags: int = events.STATEMENT_END, present: int = 3
    ) -> bytes:
        """A change of rows."""
        bitmaps = bytes((present,)) * (2 if kind in events.UPDATES else 1)
        extra = b"\2\0" if self.is_mysql else b""
        head = number.to_bytes(6, "little") + struct.pack("<H", flags) + extra + b"\2"
        return event(kind, head + bitmaps + b"".join(found))


MARIADB = Dialect("MariaDB", "MariaDB/0-1-4", (events.WRITE_ROWS_V1, events.UPDATE_ROWS_V1, events.DELETE_ROWS_V1))
MYSQL_KINDS = (events.WRITE_ROWS, events.UPDATE_ROWS, events.DELETE_ROWS)
MYSQL = Dialect("MySQL", f"MySQL56/{UUID_OF[0]}:1-4", MYSQL_KINDS)
DIALECTS = (
    MARIADB,
    MYSQL,
    replace(MYSQL, start=f"MySQL56/00000000-71ca-11e1-9e33-c80aa9429562:1-9,{UUID_OF[0]}:1-2:4,{UUID_OF[7]}:1-3:5-6"),
    replace(MYSQL, start=f"MySQL56/{UUID_OF[0]}:4-4:30"),
    replace(MYSQL, start=f"MySQL56/{UUID_OF[0]}:1-4:a:1-7:b:3,{UUID_OF[7]}:c:1-4"),
    replace(MYSQL, start=f"MySQL56/{UUID_OF[7]}:1-4"),
)
NAMES = (*TABLES, "unknown")
FOREIGN_KEYS = [
    ForeignKey("d.p", "d.c", ("id",), ("id",), "CASCADE", "CASCADE"),
    ForeignKey("d.s", "d.s", ("id",), ("v",), "CASCADE", "RESTRICT"),
    ForeignKey("d.u", "d.c", ("v",), ("v",), "RESTRICT", "CASCADE"),
]


class Schema(LiveSchema):
    """Tables that are always the same, some of them with foreign keys."""

    def __init__(self) -> None:
        super().__init__(NOWHERE, TableFilter(("d",)))
        self.charsets = Charsets({COLLATION: "utf8mb4"}, {}, frozenset())
        self.cascades = cascades_of(FOREIGN_KEYS)
        self.live = {info.name: info for info in TABLES.values()}
        self.catalog.resume(self.live, GtidPosition({}))
        self.catalog.settle(GtidPosition({}), frozenset)

    def reread(self, database: str, table: str) -> None:
        self.catalog.doubt(f"{database}.{table}", self.live.get(f"{database}.{table}"), GtidPosition({}))

    def reread_cascades(self, names: Any = None) -> None:
        pass

    def settle(self, position: GtidPosition) -> dict[str, bool]:
        return self.catalog.settle(position, frozenset)


class Log:
    """A dump of these events, of which so many arrive together. It ends with them."""

    has_more = False

    def __init__(self, found: Sequence[bytes], sizes: Callable[[], int]) -> None:
        self._left = list(found)
        self._sizes = sizes

    def read(self) -> bytes:
        if not self._left:
            raise EOFError
        return self._left.pop(0)

    def arrived(self) -> list[bytes]:
        size = self._sizes()
        found, self._left = self._left[:size], self._left[size:]
        return found


def table_map(number: int, name: str, column: str = "v") -> bytes:
    """A map of one of the tables, as MariaDB logs it with all metadata."""
    types = bytes((FIELD_TYPE.LONG, FIELD_TYPE.VARCHAR))
    body = b"\1\0\1d\0" + bytes((len(name),)) + name.encode() + b"\0\2" + types + b"\2" + struct.pack("<H", 400) + b"\2"
    names = b"\2id" + bytes((len(column),)) + column.encode()
    for kind, value in ((COLUMN_CHARSET, bytes((COLLATION,))), (COLUMN_NAME, names), (SIMPLE_PRIMARY_KEY, b"\0")):
        if kind != SIMPLE_PRIMARY_KEY or name != "keyless":
            body += bytes((kind, len(value))) + value
    return event(events.TABLE_MAP, number.to_bytes(6, "little") + body)


def row(key: int, text: bytes | None) -> bytes:
    if text is None:
        return b"\2" + struct.pack("<i", key)
    return b"\0" + struct.pack("<iH", key, len(text)) + text


some_keys = st.integers(-1, 3)
texts = st.sampled_from([b"x", b"", b'say "hi"', "ü".encode(), b"long" * 30]) | st.none()


ANOTHER = b"the GTID of another transaction"
ODD = {
    "sequence": (3, 25, 26, 27),
    "domain": (7,),
    "server": (2,),
    "flags": (1, 4, 12),
    "of group": (bytes(8),),
    "name": (*NAMES[2:], "keyless"),
    "column": ("w",),
    "maps": (0, 2),
    "number": (0, 2),
    "changes": (0, 2),
    "rows": (0, 2),
    "moved": (1, 2),
    "text": (b"\xff",),
    "statement": (0, 2, 3, 5),
    "present": (255, 1),
    "before": (event(events.HEARTBEAT, b"bin.000001"), query("INSERT INTO d.b VALUES (1)"), ANOTHER, XID),
    "begin": ([], [ANOTHER], [query("SAVEPOINT a")], [event(mysql_events.ROWS_QUERY)]),
    "between": (event(events.STOP), query("BEGIN"), query("ROLLBACK TO a")),
    "end": (query("COMMIT"), query("ROLLBACK"), query("ALTER TABLE a ADD c INT"), event(events.STOP)),
}
"""What may be odd about a transaction, and how."""


@st.composite
def transactions(draw: st.DrawFn, dialect: Dialect, sequence: int) -> list[bytes]:
    """One that is ordinary, or almost."""
    odd = draw(st.sets(st.sampled_from(sorted(ODD)), min_size=1, max_size=2)) if draw(st.integers(0, 2)) == 0 else ()

    def chosen(what: str, usual: Any) -> Any:
        return draw(st.sampled_from(ODD[what])) if what in odd else usual

    name, kind, key = (
        chosen("name", draw(st.sampled_from("aaabbcps"))),
        draw(st.sampled_from(dialect.kinds)),
        draw(some_keys),
    )
    number = NAMES.index(name) + 1
    text = chosen("text", draw(texts))
    found = [row(key + each, text) for each in range(chosen("rows", 1))]
    if kind in events.UPDATES:
        found = [each for after in found for each in (row(key + chosen("moved", 0), draw(texts)), after)]
    begin = dialect.begin(
        chosen("sequence", sequence),
        chosen("domain", 0),
        chosen("server", 1),
        chosen("flags", 0),
        chosen("of group", b""),
    )
    changed = dialect.rows(
        chosen("number", number), kind, found, chosen("statement", events.STATEMENT_END), chosen("present", 3)
    )
    all_of_it = [
        *([chosen("before", None)] if "before" in odd else []),
        begin[0],
        *chosen("begin", begin[1:]),
        *[table_map(number, name, chosen("column", "v"))] * chosen("maps", 1),
        *([chosen("between", None)] if "between" in odd else []),
        *[changed] * chosen("changes", 1),
        chosen("end", XID),
    ]
    return [dialect.begin(30)[0] if each is ANOTHER else each for each in all_of_it]


@st.composite
def logs(draw: st.DrawFn, dialect: Dialect) -> list[bytes]:
    """Some transactions, perhaps with an event that is damaged."""
    before = known(dialect)
    numbers = range(5 + KNOWN, 5 + KNOWN + draw(st.integers(1, 12)))
    found = [each for number in numbers for each in draw(transactions(dialect, number))]
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(found) - 1))
        place = draw(st.integers(events.HEADER_SIZE, len(found[at])))
        found[at] = found[at][:place] + draw(st.binary(max_size=2)) + found[at][place + draw(st.integers(0, 2)) :]
    return [*before, *found]


KNOWN = 3 * len(TABLES)


def known(dialect: Dialect) -> list[bytes]:
    """A transaction of each table and kind, so that what follows may be in runs."""
    found = []
    for number, (name, kind) in enumerate(product(TABLES, dialect.kinds), 5):
        changed = dialect.rows(NAMES.index(name) + 1, kind, [row(1, b"x")] * (2 if kind in events.UPDATES else 1))
        found += [*dialect.begin(number), table_map(NAMES.index(name) + 1, name), changed, XID]
    return found


class Read:
    """What a reader makes of a log, and how it ends."""

    def __init__(
        self,
        dialect: Dialect,
        found: Sequence[bytes],
        sizes: Callable[[], int],
        family: Family | None = None,
        **options: bool,
    ) -> None:
        log: Any = Log(found, sizes)
        reader = BinlogReader(log, Schema(), dialect.start, family=family, **options)
        self.given: list[SourceTransaction] = []
        self.error = ""
        try:
            self.given.extend(filter(None, reader.transactions()))
        except EOFError:
            pass
        except (FreshetError, ValueError, LookupError, struct.error) as error:
            self.error = repr(error)
        self.position = reader.position
        self.is_last = bool(self.given) and reader.is_last(self.given[-1].checksum)

    def each(self) -> Iterator[SourceTransaction]:
        """The transactions, one by one."""
        for found in self.given:
            for each in found.each() if isinstance(found, SingleRows) else (found,):
                yield replace(each, changes=list(each.changes))


@settings(max_examples=600)
@given(st.sampled_from(DIALECTS), st.data(), st.booleans(), st.booleans())
def test_a_run_is_its_transactions(dialect: Dialect, data: st.DataObject, is_told: bool, keyless: bool) -> None:
    """However many events come together: the same transactions, with the same checksums, errors and ends."""
    found, sizes = data.draw(logs(dialect)), st.just(1_000) | st.integers(0, 30)
    family, others = (Family(), Family()) if is_told else (None, None)
    alone = Read(dialect, found, lambda: 0, family, keeps_keyless=keyless)
    together = Read(dialect, found, lambda: data.draw(sizes), others, keeps_keyless=keyless, in_runs=True)
    assert list(together.each()) == list(alone.each())
    assert (together.error, together.position, together.is_last) == (alone.error, alone.position, alone.is_last)


def ordinary(dialect: Dialect, count: int, text: bytes = b"x", table: str = "a") -> list[bytes]:
    """So many transactions that each insert a row."""
    found = []
    for number in range(count):
        inserted = dialect.rows(1, dialect.kinds[0], [row(number, text)])
        found += [*dialect.begin(5 + number), table_map(1, table), inserted, XID]
    return found


def test_ordinary_transactions_are_one_run_but_for_the_first() -> None:
    """The first one is alone: it may be partly published, and how its table's rows begin is known only then."""
    read = Read(MARIADB, ordinary(MARIADB, 9), lambda: 1_000, in_runs=True)
    assert [(each.gtid, each.count) for each in read.given] == [("MariaDB/0-1-5", 1), ("MariaDB/0-1-13", 8)]
    assert (read.given[1].position, read.given[1].cursor) == ("MariaDB/0-1-13", "MariaDB/0-1-12")


@pytest.mark.parametrize("table", ["p", "s", "u"])
def test_tables_whose_rows_others_follow_are_in_no_run(table: str) -> None:
    """Whether these are deleted with them, or changed with them: nobody is told of that by a run."""
    read = Read(MARIADB, ordinary(MARIADB, 9, table=table), lambda: 1_000, in_runs=True)
    assert [each.count for each in read.given] == [1] * 9


def test_the_first_transaction_is_alone_behind_one_that_a_crash_cut_off() -> None:
    """The unfinished one has told how rows begin, and is none: what follows may still be partly published."""
    unfinished = ordinary(MARIADB, 1)[:-1]
    found = [*unfinished, event(events.FORMAT_DESCRIPTION), *ordinary(MARIADB, 9)]
    read = Read(MARIADB, found, lambda: 1_000, in_runs=True)
    assert [(each.gtid, each.count) for each in read.given] == [("MariaDB/0-1-5", 1), ("MariaDB/0-1-13", 8)]


def test_transactions_of_mysql_are_in_runs_too() -> None:
    """Also where the set has other servers, gaps and tags. Not with a number that is missing before them."""
    for dialect in DIALECTS[1:]:
        read = Read(dialect, ordinary(dialect, 9), lambda: 1_000, in_runs=True)
        counts = [each.count for each in read.given]
        is_odd = ":30" in dialect.start
        assert counts == ([1] * 9 if is_odd else [1, 8]), dialect.start
        assert list(read.each()) == list(Read(dialect, ordinary(dialect, 9), lambda: 0).each())
    [_, run] = Read(MYSQL, ordinary(MYSQL, 9), lambda: 1_000, in_runs=True).given
    server = f"MySQL56/{UUID_OF[0]}"
    assert (run.gtid, run.position, run.cursor) == (f"{server}:13", f"{server}:1-13", f"{server}:1-12")


@pytest.mark.parametrize("name", ["a", "p", "keyless"])
def test_a_set_is_not_written_or_parsed_more_often_for_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be long: that is most of what a transaction costs then, and what is no run must not cost it twice."""
    calls: list[str] = []

    def count(method: str, real: Any) -> Any:
        def counted(*given: Any) -> Any:
            calls.append(method)
            return real(*given)

        return counted

    monkeypatch.setattr(MysqlPosition, "set_text", count("written", MysqlPosition.set_text))
    monkeypatch.setattr(MysqlPosition, "parse_set", count("parsed", MysqlPosition.parse_set))
    changed = [MYSQL.rows(NAMES.index(name) + 1, events.WRITE_ROWS, [row(1, b"x")] * each) for each in (1, 1, 2)]
    found = []
    for number in range(5, 35):
        found += [*MYSQL.begin(number), table_map(NAMES.index(name) + 1, name), changed[number % 3], XID]
    Read(MYSQL, found, lambda: 0)
    alone = len(calls)
    Read(MYSQL, found, lambda: 1_000, in_runs=True)
    assert len(calls) - alone <= alone


def test_a_gtid_that_is_cut_off_is_not_taken() -> None:
    """MySQL's number has zeros at its end: without them it would still be the next one."""
    found = ordinary(MYSQL, 9)
    found[5 * 6] = found[5 * 6][:-6]
    alone, together = (Read(MYSQL, found, lambda: 1_000, in_runs=in_runs) for in_runs in (False, True))
    assert [each.count for each in together.given] == [1, 5]
    assert together.error == alone.error
    assert "too short" in alone.error


def framed(given: Sequence[SourceTransaction], framer: Framer) -> list[Any]:
    """The batches of transactions, as a publisher makes them that takes none before it is full."""
    batches: list[Batch] = []
    for each in given:
        collect(framer, each, lambda: batches.append(framer.take()))
    return [*batches, framer.take()]


@settings(max_examples=200)
@given(st.sampled_from(DIALECTS), st.data())
def test_a_run_has_the_messages_of_its_transactions(dialect: Dialect, data: st.DataObject) -> None:
    """Frames, markers and states are the same, with the same bounds of frames and batches."""
    found, start = data.draw(logs(dialect)), dialect.start
    limits = BatchLimits(
        rows_max=data.draw(st.sampled_from([1, 3, 500])),
        bytes_max=data.draw(st.sampled_from([1, 150, 256 * 1024])),
        batch_bytes=data.draw(st.sampled_from([1, 400, 1_000, 4 << 20])),
        image_bytes_max=data.draw(st.sampled_from([60, 900_000])),
        key_bytes_max=data.draw(st.sampled_from([6, 64 * 1024])),
    )
    is_shard, prefix = data.draw(st.booleans()), data.draw(st.integers(0, 1))
    invalidated = data.draw(st.sampled_from([(), ("d.a",)]))

    def framer() -> Framer:
        made = Framer("s/0", Layout(3), ResumePoint("s/0", 1, 1, start, 0, start), limits, invalidated=invalidated)
        ranges = (("s/0", "-80"), ("s/1", "80-")) if is_shard else ()
        made.announce(Topology(("s/0", "s/1"), ranges=ranges))
        described = replace(TABLES["a"].describe(), prefix=prefix)
        made.add(SourceTransaction(start, start, 0, [described]), 0, 1)
        return made

    alone = Read(dialect, found, lambda: 0)
    together = Read(dialect, found, lambda: 1_000, in_runs=True)
    assert framed(together.given, framer()) == framed(alone.given, framer())


@pytest.mark.parametrize("dialect", [MARIADB, MYSQL], ids=lambda dialect: dialect.name)
def test_a_long_run_fills_frames_as_its_transactions_do(dialect: Dialect) -> None:
    """Also where a frame or a batch is full in the middle of it."""
    found, start = ordinary(dialect, 6_000, b"x" * 700), dialect.start
    resume = ResumePoint("s/0", 1, 1, start, 0, start)
    alone = framed(Read(dialect, found, lambda: 0).given, Framer("s/0", Layout(2), resume))
    together = framed(Read(dialect, found, lambda: 10_000, in_runs=True).given, Framer("s/0", Layout(2), resume))
    assert together == alone
    assert (len(together), sum(each.rows for each in together)) == (2, 6_000)


def test_rows_of_a_table_are_told_again_once_its_schema_is_known() -> None:
    """Its map is the same as while nothing was known of it, when its rows were passed over."""
    schema = Schema()
    schema.catalog.doubt("d.a", schema.live["d.a"], GtidPosition.parse("MariaDB/0-1-6"))
    log: Any = Log(ordinary(MARIADB, 4), lambda: 0)
    given: list[SourceTransaction] = []
    with suppress(EOFError):
        given.extend(filter(None, BinlogReader(log, schema, MARIADB.start).transactions()))
    assert [sum(type(change) is RowChange for change in each.changes) for each in given] == [0, 0, 1, 1]
