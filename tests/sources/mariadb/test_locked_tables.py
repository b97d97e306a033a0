"""Tables that a session has locked: the source goes on without them, and takes none for dropped."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pymysql
import pytest

from stream.sources.mariadb import live_schema
from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.cascades import foreign_keys
from stream.sources.mariadb.charsets import Charsets
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.information_schema import locked_tables, tables
from stream.sources.mariadb.live_schema import AGAIN_S, LiveSchema
from stream.sources.mariadb.schema import TableFilter, TableInfo
from stream.wire.events import DescribeTable, RowChange, SourceTransaction
from stream.wire.keys import row_key
from tests.sources.mariadb.test_log_reading import NOWHERE, described, statement, voided
from tests.sources.mariadb.test_log_reading import Log as DumpOf
from tests.sources.mariadb.test_single_rows import MARIADB, XID, Schema, row, table_map

START = GtidPosition.parse("MariaDB/0-1-4")


class Server:
    """Tells of the tables of database ``d``, unless one of them is locked. Each ``child`` refers to its ``parent``."""

    def __init__(self, *names: str, children: tuple[tuple[str, str], ...] = ()) -> None:
        self.names, self.children = [*names], children
        self.locked: set[str] = set()
        self.moved: set[str] = set()
        """Those of which there is no file while the directory is read."""
        self.asked: list[str] = []
        self.now = 100.0

    def get_server_info(self) -> str:
        """What it is."""
        return "11.4.5-MariaDB"

    def tell(self, _: object, sql: str, arguments: Sequence[str] = ()) -> list[tuple[Any, ...]]:
        """Rows of information_schema. ``arguments``: the database, and the tables that are meant; else all."""
        self.asked.append(sql)
        if "lower_case" in sql:
            return [("0",)]
        _, *meant = arguments
        names = [name for name in self.names if not meant or name in meant]
        if len(meant) != 1:
            names = [name for name in names if name not in self.moved]
        if "SELECT TABLE_SCHEMA, TABLE_NAME FROM" in sql:
            return [("d", name) for name in names]
        if self.locked & {*names}:
            raise pymysql.err.OperationalError(1205, "Lock wait timeout exceeded")
        children = [pair for pair in self.children if pair[0] in names]
        if ".TABLES" in sql:
            return [("d", name, "BASE TABLE", "InnoDB") for name in names]
        if ".COLUMNS" in sql:
            return [("d", name, "id", "int", "int(11)", None, None, None, "", None) for name in names]
        if ".STATISTICS" in sql:
            return [("d", name, "PRIMARY", "id", None, "BTREE", "A") for name in names]
        if ".KEY_COLUMN" in sql:
            return [("d", child, "fk", "id", "id") for child, _ in children]
        if ".REFERENTIAL" in sql:
            return [("d", parent, "d", child, "fk", "CASCADE", "RESTRICT") for child, parent in children]
        return []


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """Three tables, and one that is being made."""
    made = Server("a", "b", "c", "x", children=(("b", "a"), ("x", "a")))
    for module in (tables, foreign_keys):
        monkeypatch.setattr(module, "fetch_whole", made.tell)
    for module in (live_schema, locked_tables):
        monkeypatch.setattr(module, "fetch_all", made.tell)
    monkeypatch.setattr(live_schema, "read_charsets", lambda _: Charsets({}, {}))
    monkeypatch.setattr(live_schema, "end_of_log", lambda _: START)
    monkeypatch.setattr("stream.sources.mariadb.live_schema.time.monotonic", lambda: made.now)
    monkeypatch.setattr(LiveSchema, "_connect", lambda _: made)
    return made


def loaded(include: TableFilter | None = None, said: Sequence[TableInfo] = ()) -> LiveSchema:
    """The tables of the server, as a source takes them up whose topic describes these ones."""
    schema = LiveSchema(NOWHERE, include or TableFilter(("d",)))
    schema.catalog.describe_as({info.name: info.describe() for info in said})
    schema.load()
    return schema


def known(name: str) -> TableInfo:
    """A table as it was before it was locked."""
    [info] = [info for info in loaded().live.values() if info.table == name]
    return info


def test_a_table_that_is_locked_is_left_out_and_read_once_it_is_free(server: Server) -> None:
    """A start and a reconnect waited for it, for as long as a CREATE TABLE … SELECT took."""
    server.locked = {"x"}
    schema = loaded()
    assert schema.settle(START) == dict.fromkeys(("d.a", "d.b", "d.c"), True)
    assert (schema.catalog.locked, schema.catalog.is_waiting("d.x")) == (["d.x"], True)
    server.locked = set()
    assert schema.settle(START) == {}, "it is not asked for all the time"
    server.now += AGAIN_S
    assert schema.settle(START) == {"d.x": True}
    assert schema.catalog.is_settled


def test_a_table_that_was_locked_and_never_made_is_told_to_nobody(server: Server) -> None:
    """Its statement failed: the log has nothing of it either."""
    server.locked = {"x"}
    schema = loaded()
    schema.settle(START)
    server.locked, server.now = set(), server.now + AGAIN_S
    server.names.remove("x")
    assert (schema.settle(START), schema.catalog.is_settled) == ({}, True)
    assert schema.catalog.names == {"d.a", "d.b", "d.c"}


def test_a_locked_table_is_what_the_topic_says_of_it(server: Server) -> None:
    """A log that is behind has rows of before the lock: they are those of the table that is described."""
    said = known("x")
    server.locked = {"x"}
    schema = loaded(said=[said])
    schema.settle(START)
    found = schema.get("d.x")
    assert found is not None
    assert found.describe() == schema.catalog.description("d.x") == said.describe()
    server.locked, server.now = set(), server.now + AGAIN_S
    assert (schema.settle(START), schema.catalog.is_settled) == ({}, True), "it is as it was"


def test_a_table_that_is_in_no_list_is_not_gone_where_locks_are_waited_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a source of a connector does."""
    said = [known("a"), known("x")]
    monkeypatch.setattr(LiveSchema, "waits_for_locks", True)
    server.moved = {"x"}
    assert "d.x" in loaded(said=said).live


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_table_that_is_in_no_list_is_not_gone(server: Server, *, is_locked: bool) -> None:
    """At an ALTER's end its file has another name for a moment. It would stay gone if that ALTER changes no image."""
    said = [known("a"), known("x")]
    server.moved = {"x"}
    server.locked = {"x"} if is_locked else set()
    schema = loaded(said=said)
    assert schema.settle(START) == {"d.b": True, "d.c": True}
    assert schema.catalog.description("d.x") == said[1].describe()
    assert (schema.catalog.locked == ["d.x"], "d.x" not in schema.live) == (is_locked, is_locked)
    server.names.remove("x")
    server.locked = set()
    schema.load()
    assert schema.settle(START) == {"d.x": True}


def test_ddl_of_a_locked_table_is_waited_for_once_and_for_a_second(server: Server) -> None:
    """After a DROP TABLE before the CREATE TABLE … SELECT. What it is like is not known; that it is gone, neither."""
    schema = loaded()
    schema.settle(START)
    before = schema.catalog.description("d.x")
    server.locked = {"x"}
    server.asked.clear()
    for _ in range(2):
        schema.after_ddl([("d", "x")])
    waits = [sql.partition(" FOR ")[0] for sql in server.asked if ".TABLES" in sql]
    assert waits == [f"SET STATEMENT lock_wait_timeout={wait_s}" for wait_s in (1, 0)]
    said = schema.catalog.description("d.x")
    assert (said.columns, said.cacheable, said.reason) == (
        before.columns,
        False,
        "its schema at this position is not known",
    )
    assert schema.settle(START) == {}
    server.locked, server.now = set(), server.now + AGAIN_S
    assert schema.settle(START) == {"d.x": True}
    assert schema.catalog.description("d.x") == before


def test_foreign_keys_of_tables_beside_a_locked_one_are_known(server: Server) -> None:
    """Else every UPDATE would void its table until the lock is gone."""
    server.locked = {"x"}
    schema = loaded()
    assert schema.unread == {"d.x"}
    assert {key.child for key in schema.cascades.keys} == {"d.b"}
    assert not schema.has_cascades_of(START), "by its own keys rows of a locked table may change"
    server.locked, server.now = set(), server.now + AGAIN_S
    schema.reread_unread()
    assert (schema.unread, {key.child for key in schema.cascades.keys}) == (frozenset(), {"d.b", "d.x"})
    assert schema.has_cascades_of(START)


def test_a_locked_table_that_is_not_chosen_is_not_looked_at(server: Server) -> None:
    """A report that is left out may be made for hours."""
    server.locked = {"x"}
    schema = loaded(TableFilter(("d",), exclude=("d.x",)))
    schema.settle(START)
    assert (schema.catalog.is_settled, sorted(schema.live)) == (True, ["d.a", "d.b", "d.c"])


def test_a_few_locked_tables_of_many_cost_a_few_questions(server: Server) -> None:
    """Each of the others alone would take minutes."""
    server.names = [f"t{number:04}" for number in range(1_000)]
    server.locked = {"t0007", "t0700"}
    found, locked = tables.read_unlocked_tables(server, Charsets({}, {}), TableFilter(("d",)))
    assert (len(found), sorted(locked)) == (998, ["d.t0007", "d.t0700"])
    assert len(server.asked) < 150
    assert all(sql.startswith("SET STATEMENT lock_wait_timeout=0 FOR ") for sql in server.asked if " IN (%s, " in sql)


def test_an_error_that_is_no_lock_is_raised(server: Server) -> None:
    """A lost session is an outage, and no table is taken for locked by it."""

    def read(_: object) -> None:
        raise pymysql.err.OperationalError(2013, "Lost connection")

    with pytest.raises(pymysql.err.OperationalError, match="Lost connection"):
        locked_tables.read_unlocked(server, read, list)


# -- the log -----------------------------------------------------------------------------------------------------------


class Locked(Schema):
    """Tables of a server where some are locked."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[str] = set()

    def lock(self, table: str, *, is_described: bool) -> None:
        """Begin anew while a table is locked."""
        if not is_described:
            said = {name: self.catalog.description(name) for name in self.catalog.names - {f"d.{table}"}}
            self.catalog.describe_as(said)
        self.held.add(table)
        free = {name: info for name, info in self.live.items() if info.table != table}
        self.catalog.resume(free, START, {f"d.{table}"})
        self.catalog.settle(START, frozenset)

    reread = LiveSchema.reread
    settle = LiveSchema.settle

    def _read_soon(self, database: str, table: str, _: int) -> tuple[TableInfo | None, GtidPosition] | None:
        return None if table in self.held else (self.live.get(f"{database}.{table}"), START)


def insert(number: int, key: int) -> list[bytes]:
    """A transaction that inserts a row into ``d.a``."""
    rows = MARIADB.rows(1, events.WRITE_ROWS_V1, [row(key, b"x")])
    return [*MARIADB.begin(number), table_map(1, "a"), rows, XID]


def read(schema: LiveSchema, *found: bytes, start: str = "MariaDB/0-1-4") -> list[SourceTransaction]:
    """The transactions of a log."""
    log: Any = DumpOf(found)
    made: list[SourceTransaction] = []
    with contextlib.suppress(EOFError):
        made.extend(filter(None, BinlogReader(log, schema, start).transactions()))
    return made


def keys(transaction: SourceTransaction) -> list[bytes]:
    """Of the rows that are published."""
    return [change.key for change in transaction.changes if isinstance(change, RowChange)]


def test_rows_of_a_described_table_are_published_while_it_is_locked() -> None:
    """They were logged before the lock, and nobody would publish them later."""
    schema = Locked()
    schema.lock("a", is_described=True)
    [found] = read(schema, *insert(5, 1))
    assert (keys(found), voided(found)) == ([row_key("d.a", [1])], set())


def test_rows_of_a_locked_table_that_nobody_described_wait_for_its_description() -> None:
    """How they are read is not known. From its description on it is void, and read."""
    schema = Locked()
    schema.lock("a", is_described=False)
    [found] = read(schema, *insert(5, 1))
    assert [*found.changes] == []
    schema.held.clear()
    schema._locked_until = 0.0
    first, second = read(schema, *insert(6, 2), *insert(7, 3), start=found.position)
    assert (keys(first), voided(first), described(first)) == ([], {"d.a"}, {"d.a": True})
    assert (keys(second), voided(second)) == ([row_key("d.a", [3])], set())


def test_ddl_of_a_locked_table_voids_it_until_it_is_known_again() -> None:
    """What follows in the log may have other columns: none of it is published, and nothing waits."""
    schema = Locked()
    schema.lock("a", is_described=True)
    ddl, rows = read(schema, *statement(5, "ALTER TABLE a ADD w INT"), *insert(6, 1))
    assert (voided(ddl), described(ddl), [*rows.changes]) == ({"d.a"}, {"d.a": False}, [])
    [said] = [each for each in ddl.changes if isinstance(each, DescribeTable)]
    assert said.columns, "it is not told to be gone"
    schema.held.clear()
    schema._locked_until = 0.0
    [free] = read(schema, *insert(7, 2), start=rows.position)
    assert (voided(free), described(free)) == ({"d.a"}, {"d.a": True})
