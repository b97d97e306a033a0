"""A MariaDB where a session holds a table's lock: what a source publishes meanwhile, and afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from stream.sources.mariadb.connection import connect, fetch_all
from stream.sources.mariadb.information_schema import locked_tables, tables
from stream.sources.mariadb.live_schema import LiveSchema
from stream.wire.events import DescribeTable, SourceTransaction
from stream.wire.keys import row_key
from tests.patience import PATIENCE_S
from tests.serving.stack import eventually
from tests.sources.mariadb.backfilling import Backfilled
from tests.sources.mariadb.conftest import Source, voids
from tests.sources.mariadb.test_cascades import made_slowly
from tests.sources.mariadb.test_log_reading import described


def until_free(source: Source) -> list[SourceTransaction]:
    """What a source publishes until it waits for no table any more."""
    found: list[SourceTransaction] = []
    deadline = time.monotonic() + PATIENCE_S
    start = source.start
    while not source.schema.catalog.is_settled or not found:
        assert time.monotonic() < deadline
        source.run("INSERT INTO beside VALUES ()")
        found += source.transactions(start)
        start = found[-1].position
    return found


def restarted(source: Source) -> None:
    """As the next source of a topic that has what is described now."""
    before, source.schema = source.schema, LiveSchema(source.settings, source.schema.include)
    source.schema.catalog.describe_as({name: before.catalog.description(name) for name in before.catalog.names})
    before.close()
    source.schema.load()


@pytest.fixture
def beside(source: Source) -> Source:
    """A source of a table beside the one that is locked."""
    source.run("CREATE TABLE beside (id INT AUTO_INCREMENT PRIMARY KEY)")
    return source


def test_a_source_starts_while_a_table_is_made(beside: Source) -> None:
    """It publishes the others. The statement fails in the end, so nothing is told of the table."""
    name = f"{beside.database}.n"
    with made_slowly(beside, name):
        beside.begin()
        assert (beside.schema.catalog.locked, [*beside.schema.unread]) == ([name], [name])
        beside.run("INSERT INTO beside VALUES (7)")
        assert row_key(f"{beside.database}.beside", [7]) in beside.folded(beside.transactions())
        beside.start = beside.position()
    found = until_free(beside)
    assert name not in {table for each in found for table in voids(each)}
    assert beside.schema.catalog.names == {f"{beside.database}.beside"}


def test_rows_of_before_are_published_while_a_table_is_replaced(beside: Source) -> None:
    """They are those of the table that is described, which the server can't tell any more."""
    name = f"{beside.database}.n"
    beside.run("CREATE TABLE n (id INT PRIMARY KEY, b BINARY(4), u UUID)")
    beside.begin()
    beside.run("INSERT INTO n VALUES (1, 'ab', UUID())")
    rows = beside.selected("n")
    with made_slowly(beside, name, "CREATE OR REPLACE"):
        restarted(beside)
        assert beside.schema.catalog.locked == [name]
        found = beside.folded(beside.transactions())
        assert {key: change.image for key, change in found.items()} == rows
        assert beside.schema.catalog.description(name).cacheable
        beside.start = beside.position()
    found_then = until_free(beside)
    [last] = [each for transaction in found_then for each in transaction.changes if isinstance(each, DescribeTable)][
        -1:
    ]
    assert (last.table, last.cacheable, beside.schema.get(name)) == (name, False, None)


def begin_beside(source: Source, table: str) -> None:
    """Begin once the table is locked."""

    def is_locked() -> bool:
        source.begin()
        return f"{source.database}.{table}" in source.schema.catalog.locked

    eventually(is_locked)


@contextmanager
def being_made(source: Source) -> Iterator[None]:
    """While a session makes the table ``n``, which is locked until then. In the end it is there."""
    source.run("CREATE TABLE busy (id INT PRIMARY KEY)", "INSERT INTO busy VALUES (1), (2)")
    other, holder = connect(source.settings), connect(source.settings, autocommit=False)
    for session in (other, holder):
        session.select_db(source.database)
    fetch_all(holder, "SELECT * FROM busy WHERE id = 2 FOR UPDATE")
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(fetch_all, other, "CREATE TABLE n (id INT PRIMARY KEY) SELECT id FROM busy FOR UPDATE")
        try:
            begin_beside(source, "n")
            yield
            assert not made.done()
        finally:
            holder.rollback()
            made.result()
            for session in (other, holder):
                session.close()


def test_a_table_that_is_made_slowly_is_published_once_it_is_there(beside: Source) -> None:
    """From then on as any other."""
    name = f"{beside.database}.n"
    with being_made(beside):
        pass
    until_free(beside)
    assert beside.schema.catalog.description(name).cacheable
    beside.start = beside.position()
    beside.run("INSERT INTO n VALUES (3)")
    assert beside.folded(beside.transactions()).keys() == {row_key(name, [3])}


def test_all_other_tables_are_whole_while_one_is_made_slowly(beside: Source) -> None:
    """At the first start, after DDL and at the next start. Then that one is whole, with the rows it was made with."""
    backfilled = Backfilled(beside)
    with being_made(beside):
        with backfilled:
            backfilled.await_whole("beside", "busy")
            beside.run("CREATE TABLE later (id INT PRIMARY KEY)", "INSERT INTO later VALUES (1)")
            backfilled.await_whole("beside", "busy", "later")
        backfilled.start()
        beside.run("INSERT INTO later VALUES (2)")
        backfilled.until(lambda: backfilled.images("later") == beside.selected("later"))
    backfilled.await_whole("beside", "busy", "later", "n")
    assert backfilled.images("n") == beside.selected("n")
    backfilled.stop()


def test_ddl_of_a_table_before_it_is_made_slowly_holds_nothing_up(beside: Source) -> None:
    """As each night DROP TABLE report, and then CREATE TABLE report SELECT …"""
    name = f"{beside.database}.n"
    beside.run("CREATE TABLE n (id INT PRIMARY KEY)")
    beside.begin()
    beside.run("DROP TABLE n")
    with made_slowly(beside, name):
        (dropped,) = beside.transactions()
        assert (voids(dropped), described(dropped)) == ({name}, {name: False})
        assert beside.schema.catalog.locked == [name]
        beside.start = beside.position()
    until_free(beside)
    assert beside.schema.catalog.description(name).columns == ()


def test_locks_that_let_a_table_be_described_are_none(beside: Source) -> None:
    """LOCK TABLES … WRITE keeps readers away, and no descriptions."""
    other = connect(beside.settings)
    other.select_db(beside.database)
    fetch_all(other, "LOCK TABLES beside WRITE")
    restarted(beside)
    assert beside.schema.catalog.locked == []
    assert f"{beside.database}.beside" in beside.schema.live
    other.close()


def test_tables_that_wait_to_be_renamed_with_one_in_use_hold_nothing_up(beside: Source) -> None:
    """They are locked until a transaction ends that has read another one. Then they have other names."""
    beside.run("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
    reader, other = connect(beside.settings, autocommit=False), connect(beside.settings)
    for session in (reader, other):
        session.select_db(beside.database)
    fetch_all(reader, "SELECT * FROM b")
    with ThreadPoolExecutor(1) as pool:
        renamed = pool.submit(fetch_all, other, "RENAME TABLE a TO c, b TO d")
        try:
            begin_beside(beside, "a")
            assert f"{beside.database}.beside" in beside.schema.live
        finally:
            reader.rollback()
            renamed.result()
            for session in (reader, other):
                session.close()
    until_free(beside)
    assert beside.schema.get(f"{beside.database}.a") is None
    assert {each for each in "cd" if beside.schema.get(f"{beside.database}.{each}")} == {"c", "d"}


def test_names_are_told_without_opening_a_table(beside: Source) -> None:
    """Else they could not be asked for while one is locked. Conditions on names are looked at before one is opened."""
    names, arguments = locked_tables.names_sql([(beside.database, "beside"), (beside.database, "n"), ("other", "n")])
    [[*_, extra]] = fetch_all(
        beside.session,
        f"EXPLAIN SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE {names}",
        arguments,
    )
    assert "Skip_open_table" in extra
    with made_slowly(beside, f"{beside.database}.n"):
        assert locked_tables.table_names(beside.session, [beside.database]) == [
            (beside.database, each) for each in ("beside", "n")
        ]
        free = tables.read_tables(
            beside.session, beside.schema.charsets, beside.schema.include, [(beside.database, "beside")], wait_s=0
        )
        assert [*free] == [f"{beside.database}.beside"]
