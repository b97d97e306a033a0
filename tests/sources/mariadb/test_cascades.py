"""Foreign keys of a live server: what they change is void row by row, and is published again by itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest

from freshet.local.mariadb import MariaDBAddress
from stream.sources.mariadb.cascades.children import Knowledge
from stream.sources.mariadb.cascades.family import columns_of
from stream.sources.mariadb.connection import connect, fetch_all
from stream.wire.events import VOID
from stream.wire.keys import row_key
from tests.patience import PATIENCE_S
from tests.servers.databases import own_database
from tests.serving.stack import eventually
from tests.sources.mariadb.backfilling import Backfilled, Killed
from tests.sources.mariadb.conftest import Source

CHILD = "FOREIGN KEY (p) REFERENCES parent (id)"
SCHEMA = (
    "CREATE TABLE parent (id INT PRIMARY KEY, code INT UNIQUE, v INT)",
    f"CREATE TABLE child (id INT PRIMARY KEY, p INT, v INT, {CHILD} ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE TABLE grandchild (id INT PRIMARY KEY, c INT, FOREIGN KEY (c) REFERENCES child (id) ON DELETE CASCADE)",
    f"CREATE TABLE orphan (id INT PRIMARY KEY, p INT, v INT, {CHILD} ON DELETE SET NULL ON UPDATE SET NULL)",
    "CREATE TABLE tree (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES tree (id) ON DELETE CASCADE)",
    "CREATE TABLE coded (id INT PRIMARY KEY, code INT, FOREIGN KEY (code) REFERENCES parent (code)"
    " ON DELETE CASCADE ON UPDATE CASCADE)",
)
ROWS = (
    "INSERT INTO parent SELECT seq, seq + 1000, 0 FROM seq_1_to_20",
    "INSERT INTO child SELECT seq, seq DIV 3 + 1, 0 FROM seq_1_to_50",
    "INSERT INTO grandchild SELECT seq, seq DIV 2 + 1 FROM seq_1_to_80",
    "INSERT INTO orphan SELECT seq, seq DIV 3 + 1, 0 FROM seq_1_to_50",
    "INSERT INTO tree VALUES (0, NULL)",
    "INSERT INTO tree SELECT seq, seq DIV 3 FROM seq_1_to_40",
    "INSERT INTO coded SELECT seq, 1001 + seq DIV 3 FROM seq_1_to_50",
)
CHILDREN = ("child", "grandchild", "orphan", "tree", "coded")
TABLES = ("parent", *CHILDREN)


def knows(backfilled: Backfilled) -> bool:
    """Whether the source knows what the rows of all children refer to."""
    family = backfilled.running._family if backfilled.running else None
    name = backfilled.source.database
    return family is not None and all(family.children.knowledge(f"{name}.{each}") is Knowledge.ALL for each in CHILDREN)


def await_known(backfilled: Backfilled) -> None:
    """Until the tables are whole, and the source knows what their rows refer to."""
    backfilled.await_whole(*TABLES)
    backfilled.until(lambda: knows(backfilled))


def begun(backfilled: Backfilled) -> int:
    """How often tables were read from their beginning."""
    return sum(map(backfilled.begun, TABLES))


def assert_same(backfilled: Backfilled) -> None:
    """Every table is whole, and has the server's rows."""

    def is_same(table: str) -> bool:
        return backfilled.images(table) == backfilled.source.selected(table)

    backfilled.await_whole(*TABLES)
    for table in TABLES:
        backfilled.until(partial(is_same, table))
        assert backfilled.is_whole(table)


def assert_refers(backfilled: Backfilled) -> None:
    """What the source knows of the rows is what they refer to."""
    source = backfilled.source
    assert backfilled.running is not None
    family = backfilled.running._family
    assert family is not None
    for table in CHILDREN:
        of = family.relative(f"{source.database}.{table}")
        assert of is not None
        found: dict[bytes, set[bytes]] = {}
        for key, image in source.selected(table).items():
            (value,) = of.refers_to(columns_of(of.info, key, image))
            if value is not None:
                found.setdefault(value, set()).add(key)
        for value in {*found, *(b"%d" % each for each in range(-1, 1030))}:
            known = family.children.referring(of.info.name, 0, value)
            assert known is not None
            assert known.keys() == found.get(value, set()), (table, value)


@pytest.fixture
def family(source: Source) -> Backfilled:
    """Tables with foreign keys, and rows."""
    source.run(*SCHEMA, *ROWS)
    return Backfilled(source)


STATEMENTS = (
    "DELETE FROM parent WHERE id = 3",
    "DELETE FROM parent WHERE id < 6 AND id > 3",
    "UPDATE parent SET id = 99 WHERE id = 6",
    "UPDATE parent SET code = 5000 WHERE id = 7",
    "UPDATE parent SET code = NULL WHERE id = 8",
    "UPDATE parent SET v = v + 1",
    "DELETE FROM tree WHERE id = 1",
    "DELETE FROM tree WHERE id IN (2, 7, 22)",
    "REPLACE INTO parent VALUES (9, 1009, 9)",
    "INSERT INTO parent VALUES (10, 1010, 9) ON DUPLICATE KEY UPDATE v = 9",
    "DELETE parent FROM parent JOIN orphan ON orphan.p = parent.id WHERE orphan.id = 33",
    "DELETE FROM parent WHERE id IN (7, 8, 9, 99)",
    "DELETE FROM tree WHERE id = 0",
)


def test_a_foreign_key_voids_the_rows_that_it_changes(family: Backfilled) -> None:
    """The tables stay whole, and hold what the server holds, deletions through several levels included."""
    with family:
        await_known(family)
        before = begun(family)
        for statement in STATEMENTS:
            family.source.run(statement)
            assert_same(family)
            assert begun(family) == before, statement
            assert knows(family), statement
            assert_refers(family)


def test_what_a_transaction_itself_wrote_is_cascaded_too(family: Backfilled) -> None:
    """Rows that refer to a parent for a part of a transaction only are found, and those that refer no more are not."""
    source = family.source
    with family:
        await_known(family)
        before = begun(family)
        source.run(
            "BEGIN", "INSERT INTO parent VALUES (50, 50, 0)", "INSERT INTO child VALUES (500, 50, 0), (501, 50, 0)"
        )
        source.run("UPDATE child SET p = 1 WHERE id = 501", "INSERT INTO grandchild VALUES (900, 500), (901, 501)")
        source.run("DELETE FROM parent WHERE id = 50", "INSERT INTO child VALUES (500, 2, 7)", "COMMIT")
        assert_same(family)
        assert_refers(family)
        source.run("DELETE FROM parent WHERE id = 2")
        assert_same(family)
        assert_refers(family)
        assert begun(family) == before


def test_a_row_that_a_statement_cascades_and_puts_again_takes_along_what_referred_to_it(family: Backfilled) -> None:
    """The log has the row as new, and nothing of those below it, which are gone."""
    with family:
        await_known(family)
        family.source.run("REPLACE INTO tree VALUES (1, 0), (4, 0)")
        assert_same(family)


def test_a_cascade_without_foreign_key_checks_changes_nothing(family: Backfilled) -> None:
    """A session that has switched foreign keys off leaves rows without their parent; later cascades find them still."""
    source = family.source
    with family:
        await_known(family)
        source.run("SET foreign_key_checks = 0", "DELETE FROM parent WHERE id = 3", "SET foreign_key_checks = 1")
        assert_same(family)
        assert_refers(family)
        source.run("INSERT INTO parent VALUES (3, 3, 3)", "DELETE FROM parent WHERE id = 3")
        assert_same(family)
        assert_refers(family)


def test_a_trigger_that_switches_foreign_key_checks_within_a_statement_leaves_nothing_stale(family: Backfilled) -> None:
    """InnoDB cascades nothing for the rest of the statement, though the log says that the session has them on again."""
    source = family.source
    source.run(
        "CREATE TABLE switch (id INT PRIMARY KEY)",
        "CREATE TRIGGER off AFTER DELETE ON parent FOR EACH ROW"
        " BEGIN SET foreign_key_checks = 0; DELETE FROM switch WHERE id = OLD.id; SET foreign_key_checks = 1; END",
    )
    with family:
        await_known(family)
        for logged in ("", "INSERT INTO switch VALUES (3)"):
            if logged:
                source.run(logged)
            source.run("DELETE FROM parent WHERE id IN (3, 4, 5)")
            assert source.selected("child").keys() & {row_key(f"{source.database}.child", [9])}
            assert_same(family)
            family.until(lambda: knows(family))
            assert_refers(family)
            source.run("INSERT INTO parent VALUES (3, 3, 3), (4, 4, 4), (5, 5, 5)")


def test_foreign_keys_that_ddl_changes_are_taken_up(family: Backfilled) -> None:
    """After DDL the rows are found by the foreign keys of then, and before the tables are known again they are void."""
    source = family.source
    with family:
        await_known(family)
        source.run("ALTER TABLE child DROP FOREIGN KEY child_ibfk_1", "DELETE FROM parent WHERE id = 1")
        source.run("UPDATE child SET v = 2, p = 2")
        source.run(f"ALTER TABLE child ADD FOREIGN KEY (v) {CHILD[len('FOREIGN KEY (p) ') :]} ON DELETE CASCADE")
        source.run("UPDATE child SET v = 5 WHERE id < 10", "DELETE FROM parent WHERE id = 5")
        assert_same(family)
        family.until(lambda: knows(family))
        source.run("DELETE FROM parent WHERE id = 2")
        assert_same(family)
        assert family.images("child") == {}


def test_a_restarted_source_learns_the_tables_again(family: Backfilled) -> None:
    """It reads them once, publishes nothing of them, and then voids rows again instead of tables."""
    with family:
        family.await_whole(*TABLES)
    family.source.run("DELETE FROM parent WHERE id = 2")  # nobody knows its rows
    with family:
        assert_same(family)
        family.until(lambda: knows(family))
        before = begun(family)
        family.source.run("DELETE FROM parent WHERE id = 3")
        assert_same(family)
        assert begun(family) == before
    with family:
        family.until(lambda: knows(family))
        assert begun(family) == before


def test_a_killed_source_reads_again_what_it_was_about_to(family: Backfilled) -> None:
    """Rows that a foreign key voided come back by themselves, though nobody reads them."""
    source = family.source

    def kill(_: int) -> None:
        if VOID in family.kinds("child").values():
            raise Killed("killed")

    family.start()
    await_known(family)
    family.on_commit = kill
    source.run("UPDATE parent SET id = 99 WHERE id = 6")
    with pytest.raises(Killed):
        family.join()
    family.on_commit = lambda _: None
    void = [key for key, kind in family.kinds("child").items() if kind == VOID]
    assert len(void) == 3
    before = begun(family)
    with family:
        assert_same(family)
        assert begun(family) == before


def change(rng: random.Random) -> str:
    """A statement that some of the tables can't take at times."""
    row, other = rng.randrange(1, 60), rng.randrange(1, 22)
    return rng.choice(
        (
            f"DELETE FROM parent WHERE id = {other}",
            f"INSERT IGNORE INTO parent VALUES ({other}, {other + 1000}, 1)",
            f"UPDATE IGNORE parent SET id = {rng.randrange(1, 22)} WHERE id = {other}",
            f"UPDATE IGNORE parent SET code = {rng.randrange(1001, 1022)} WHERE id = {other}",
            f"UPDATE parent SET v = v + 1 WHERE id = {other}",
            f"INSERT IGNORE INTO child VALUES ({row}, {other}, 1)",
            f"UPDATE IGNORE child SET p = {other} WHERE id = {row}",
            f"DELETE FROM child WHERE id = {row}",
            f"INSERT IGNORE INTO grandchild VALUES ({row}, {rng.randrange(1, 60)})",
            f"INSERT IGNORE INTO orphan VALUES ({row}, {other}, 1)",
            f"UPDATE IGNORE orphan SET p = {other} WHERE id = {row}",
            f"INSERT IGNORE INTO coded VALUES ({row}, {other + 1000})",
            f"INSERT IGNORE INTO tree VALUES ({row}, {rng.randrange(0, 60)})",
            f"DELETE FROM tree WHERE id = {row}",
            "COMMIT",
            "BEGIN",
            "ROLLBACK",
        )
    )


def test_random_changes_and_kills_end_as_the_server_is(family: Backfilled) -> None:
    """Whatever foreign keys do, and whenever the source is killed, no row in the cache is another than the server's."""
    rng = random.Random(1)
    source = family.source

    def kill(commits: int) -> None:
        if commits and rng.random() < 0.03:
            raise Killed("killed")

    for _ in range(4):
        family.start()
        family.until(lambda: knows(family))
        family.on_commit = kill
        for _ in range(60):
            source.run(change(rng))
        source.run("COMMIT")
        family.on_commit = lambda _: None
        try:
            family.stop()
        except Killed:
            continue
    with family:
        assert_same(family)
        family.until(lambda: knows(family))
        assert_refers(family)


@contextmanager
def made_slowly(source: Source, table: str, create: str = "CREATE") -> Iterator[None]:
    """While a session makes a table, which is locked until then. ``create``: or CREATE OR REPLACE."""
    other = connect(source.settings)
    ending = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = %s"
    making = f"{ending} AND STATE = 'User sleep'"
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(fetch_all, other, f"{create} TABLE {table} SELECT SLEEP(%s) AS s", (PATIENCE_S,))
        try:
            eventually(lambda: fetch_all(source.session, making, (other.thread_id(),)) == [("1",)])
            yield
            assert not made.done()
        finally:
            source.run(f"KILL {other.thread_id()}")
            assert made.exception() is not None
            # it holds its locks until then
            eventually(lambda: fetch_all(source.session, ending, (other.thread_id(),)) == [("0",)])


def test_a_table_that_is_locked_in_another_database_holds_nothing_up(mariadb: MariaDBAddress, source: Source) -> None:
    """A long CREATE TABLE … SELECT there would end the source at the next DDL, and each attempt to go on."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    with own_database(mariadb) as name, made_slowly(source, f"{name}.n"):
        source.schema.after_ddl([(source.database, "t")])
        source.schema.load()
        assert not source.schema.unread


def test_a_table_that_is_locked_beside_the_others_holds_no_ddl_up(source: Source) -> None:
    """The foreign keys are read once it is free."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    with made_slowly(source, f"{source.database}.n"):
        source.schema.after_ddl([(source.database, "t")])
        assert source.schema.unread == {f"{source.database}.t"}
    source.schema.reread_cascades()
    assert not source.schema.unread
