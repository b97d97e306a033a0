"""A backfill of PostgreSQL: the rows that were there before, beside those that change meanwhile."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from stream.kafka.topics import describe_topic, events_topic
from stream.publish.resume import read_point
from stream.sources.mariadb.backfill.progress import TableProgress, table_progress
from stream.sources.mariadb.backfill.run import BackfillOptions
from stream.sources.mariadb.schema import TableFilter
from stream.sources.postgres import chunks
from tests.sources.debezium.conftest import cached_images
from tests.sources.mariadb.test_source import of_kind, until
from tests.sources.postgres.conftest import Database, RunningPostgres

ROWS = 3_000
EVERYTHING = BackfillOptions(TableFilter(include=("public.*",)))


def complete(database: Database, keyspace: str) -> set[str]:
    """The tables that are whole by now."""
    return {each["table"] for each in of_kind(database.kafka, keyspace, "TableBackfill") if each["complete"]}


def told(database: Database, keyspace: str) -> list[TableProgress]:
    """What `freshet backfill status` shows."""
    point = read_point(
        database.kafka, describe_topic(database.kafka, events_topic(database.kafka, keyspace)), f"{keyspace}/0"
    )
    assert point is not None
    return table_progress(point)


def shown(database: Database, table: str) -> dict[bytes, bytes]:
    """Key → image of the rows of a table with the columns ``id`` and ``v``, a number."""
    rows = database.sql.execute(f"SELECT id::text, v FROM {table}".encode()).fetchall()
    return {f"public.{table}\0[{key}]".encode(): b'{"id":%s,"v":%d}' % (key.encode(), v) for key, v in rows}


def test_rows_that_were_there_before_are_published_beside_changes(
    database: Database, keyspace_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunk by chunk, while others write; what was told last of each row is what it is."""
    monkeypatch.setattr(chunks, "ROWS_MAX", 200)
    database.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO t SELECT n, 0 FROM generate_series(1, {ROWS}) n",
        "CREATE TABLE named (id NUMERIC(10,2), v INT, word TEXT, PRIMARY KEY (word, id))",
        "INSERT INTO named SELECT n, n, 'w' || n % 7 FROM generate_series(1, 500) n",
        "CREATE TABLE odd (id INT PRIMARY KEY, v FLOAT8)",
        "INSERT INTO odd VALUES (1, 1), (2, 'NaN'), (3, 3)",
    )
    database.create()
    over = threading.Event()

    def write() -> None:
        with database.another() as own:
            for turn in range(10_000):
                own.execute("UPDATE t SET v = v + 1 WHERE id %% 97 = %s", (turn % 97,))
                own.execute("DELETE FROM t WHERE id = %s", (1 + turn * 31 % ROWS,))
                if over.wait(0.02):
                    return

    writer = threading.Thread(target=write)
    with RunningPostgres(database, keyspace_name, backfill=EVERYTHING) as running:
        writer.start()
        try:
            until(
                lambda: {"public.t", "public.named", "public.odd"} <= complete(database, keyspace_name), "whole tables"
            )
        finally:
            over.set()
            writer.join()
        running.until_published(database.position())
    cached = cached_images(database.kafka, keyspace_name)
    of_t = {key: image for key, image in cached.items() if key.startswith(b"public.t\0") and image}
    assert of_t == shown(database, "t")
    assert len([key for key in cached if key.startswith(b"public.named\0")]) == 500
    assert cached[b"public.odd\0[1]"] == b'{"id":1,"v":1}'
    assert cached[b"public.odd\0[2]"] == b"", "no image has a NaN"


def test_a_backfill_waits_for_who_writes_into_its_table(database: Database, keyspace_name: str) -> None:
    """Nobody can say what a snapshot has while a transaction writes; what it wrote is published then."""
    database.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    database.create()
    with database.another() as own, own.transaction():
        own.execute("UPDATE t SET v = 10 WHERE id = 1")
        with RunningPostgres(database, keyspace_name, backfill=EVERYTHING) as running:
            running.until_published(database.position())
            database.run("CREATE TABLE elsewhere (id INT)")
            running.until_published(database.position())
            assert complete(database, keyspace_name) == set()
    with RunningPostgres(database, keyspace_name, backfill=EVERYTHING):
        until(lambda: complete(database, keyspace_name) == {"public.t"}, "the table")
    assert cached_images(database.kafka, keyspace_name) == shown(database, "t")


def test_a_prepared_transaction_holds_up_the_tables_that_it_writes_into_alone(
    database: Database, keyspace_name: str
) -> None:
    """Nobody knows when it ends, if ever. It is named meanwhile, and its own tables follow once it is over."""
    names = ("a", "b", "y", "z")
    for name in names:
        database.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {name} VALUES (1, 1), (2, 2)")
    database.create()
    gid = f"orphan of {database.prefix}"
    with database.another() as own:
        own.execute("BEGIN")
        own.execute("UPDATE a SET v = 10 WHERE id = 1")
        own.execute("DELETE FROM y WHERE id = 2")
        own.execute(f"PREPARE TRANSACTION '{gid}'".encode())
    try:
        with RunningPostgres(database, keyspace_name, backfill=EVERYTHING) as running:
            status = running.source.status
            until(
                lambda: complete(database, keyspace_name) == {"public.b", "public.z"}, "the tables that it left alone"
            )
            until(lambda: status.tables_held.keys() == {"public.a", "public.y"}, "the others are named")
            assert all(gid in why for why in status.tables_held.values())
            waiting = told(database, keyspace_name)
            assert {each.table: each.state for each in waiting if gid in each.reason} == {
                "public.a": "waiting",
                "public.y": "waiting",
            }
            database.run(f"COMMIT PREPARED '{gid}'")
            until(lambda: complete(database, keyspace_name) == {f"public.{name}" for name in names}, "all of them")
            until(lambda: not status.tables_held, "nobody is named any more")
            running.until_published(database.position())
    finally:
        if database.sql.execute("SELECT FROM pg_prepared_xacts WHERE gid = %s", (gid,)).fetchone() is not None:
            database.run(f"ROLLBACK PREPARED '{gid}'")
    wanted = {row: image for name in names for row, image in shown(database, name).items()}
    assert {row: image for row, image in cached_images(database.kafka, keyspace_name).items() if image} == wanted


def test_commits_in_two_phases_that_never_cease_hold_up_nothing(database: Database, keyspace_name: str) -> None:
    """At every moment some transaction is prepared, but none for long: the table is not put aside for any of them."""
    rows, writers = 2_000, 4
    database.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)", f"INSERT INTO t SELECT n, 0 FROM generate_series(1, {rows}) n"
    )
    database.create()
    over = threading.Event()

    def write(number: int) -> None:
        gid = f"{number} of {database.prefix}"
        with database.another() as own:
            for turn in count():
                own.execute("BEGIN")
                own.execute("UPDATE t SET v = v + 1 WHERE id = %s", (1 + number + writers * (turn % 100),))
                own.execute(f"PREPARE TRANSACTION '{gid}'".encode())
                is_over = over.wait(0.05)
                own.execute(f"COMMIT PREPARED '{gid}'".encode())
                if is_over:
                    return

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for each in threads:
        each.start()
    try:
        with RunningPostgres(database, keyspace_name, backfill=EVERYTHING) as running:
            until(lambda: complete(database, keyspace_name) == {"public.t"}, "the table")
            assert not running.source.status.tables_held
            over.set()
            for each in threads:
                each.join()
            running.until_published(database.position())
    finally:
        over.set()
        for each in threads:
            each.join()
    assert cached_images(database.kafka, keyspace_name) == shown(database, "t")
