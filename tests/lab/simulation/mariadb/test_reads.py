"""The product's reads of the source of truth run over the simulated server, and meet its faults."""

from __future__ import annotations

import pytest

from lab.simulation.mariadb.server import Break, SimulatedServer
from lab.simulation.mariadb.sql.parsing import parsed
from lab.simulation.mariadb.sql.syntax import UnknownStatement
from stream.sources.mariadb.by_key import Found, SelectedRow
from stream.sources.mariadb.connection import (
    MariaDBError,
    MariaDBUnreachable,
    NotResumable,
    ServerSettingsError,
    SourceHistoryLost,
    connect,
    translated,
)
from stream.sources.mariadb.position import check_resumable, current_position
from stream.sources.mariadb.requirements import check_server
from stream.sources.mariadb.snapshot import NoSuchTable, SnapshotRead, SnapshotReader, SourceTimeout
from tests.lab.simulation.mariadb.conftest import SETTINGS, Installation


@pytest.fixture
def shop(installation: Installation) -> Installation:
    """A database with a few tables and rows."""
    installation.run(
        "CREATE DATABASE s",
        "CREATE TABLE s.a (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE s.t (id VARCHAR(20) PRIMARY KEY, v DECIMAL(10,2))",
        "INSERT INTO s.a VALUES (1, 10), (2, 20)",
        "INSERT INTO s.t VALUES ('Abc', 1.5)",
    )
    return installation


def read_one(reader: SnapshotReader, table: str, key: object) -> SnapshotRead[tuple[Found, ...]]:
    """One row by its key."""
    found = reader.read({table: [[key]]})[table]
    if isinstance(found, MariaDBError):
        raise found
    return found


@pytest.mark.usefixtures("shop")
def test_a_read_finds_rows_by_key_and_lies_between_two_positions() -> None:
    """Rows come with the position of the server, a collated key finds its row, and absence is an answer."""
    reader = SnapshotReader(SETTINGS)
    found = reader.read({"s.a": [[1], [2], [3]], "s.t": [["aBC "], ["x"]]})
    one, other = found["s.a"], found["s.t"]
    assert isinstance(one, SnapshotRead)
    assert isinstance(other, SnapshotRead)
    both = SelectedRow(b"s.a\0[1]", b'{"id":1,"v":10}'), SelectedRow(b"s.a\0[2]", b'{"id":2,"v":20}')
    assert one.rows == (*both, None)
    assert other.rows == (SelectedRow(b's.t\0["Abc"]', b'{"id":"Abc","v":"1.50"}'), None)
    assert one.position == one.hi == other.position == "MariaDB/0-1-5"


def test_what_is_in_the_binlog_but_not_in_the_engine_is_not_read(shop: Installation) -> None:
    """Between the binlog and the engine a commit is ahead of what reads see, and their position says so."""
    reader = SnapshotReader(SETTINGS)
    shop.server.behaviour.commit_s = lambda: 1.0
    with pytest.raises(shop.driver.err.OperationalError, match="2013"):
        shop.connect(read_timeout=0.1).query("UPDATE s.a SET v = 11 WHERE id = 1")
    found = read_one(reader, "s.a", 1)
    assert (found.rows[0], found.position) == (SelectedRow(b"s.a\0[1]", b'{"id":1,"v":10}'), "MariaDB/0-1-5")
    assert found.hi == "MariaDB/0-1-6"
    assert reader.wait_for_position("MariaDB/0-1-6", 3.0)
    assert read_one(reader, "s.a", 1).rows[0] == SelectedRow(b"s.a\0[1]", b'{"id":1,"v":11}')


def test_a_table_that_is_altered_dropped_or_swapped_is_read_as_it_is_now(shop: Installation) -> None:
    """Known columns are read again when the definition changed between two reads."""
    reader = SnapshotReader(SETTINGS)
    read_one(reader, "s.a", 1)
    shop.run("ALTER TABLE s.a ADD COLUMN w INT DEFAULT 4")
    assert read_one(reader, "s.a", 1).rows[0] == SelectedRow(b"s.a\0[1]", b'{"id":1,"v":10,"w":4}')
    shop.run("CREATE TABLE s.b (id INT PRIMARY KEY, z INT)", "RENAME TABLE s.a TO s.c, s.b TO s.a")
    assert read_one(reader, "s.a", 1).rows[0] is None
    shop.run("DROP TABLE s.a")
    with pytest.raises(NoSuchTable):
        read_one(reader, "s.a", 1)


def test_a_locked_table_times_out_and_leaves_the_others_readable(shop: Installation) -> None:
    """A read of a table that somebody changes ends in time, with an error for this table only."""
    reader = SnapshotReader(SETTINGS)
    read_one(reader, "s.a", 1)
    shop.server.locks.hold_table("admin", ("s", "a"))
    found = reader.read({"s.a": [[1]], "s.t": [["abc"]]}, timeout_s=2.0)
    assert isinstance(found["s.a"], SourceTimeout)
    assert isinstance(found["s.t"], SnapshotRead)
    shop.server.locks.release("admin")
    assert read_one(reader, "s.a", 1).rows[0] is not None


def test_a_restart_of_the_server_fails_no_read(shop: Installation) -> None:
    """A dead session is replaced by a new one, and what was committed is there after the restart."""
    reader = SnapshotReader(SETTINGS)
    read_one(reader, "s.a", 1)
    shop.server.kill()
    with pytest.raises(MariaDBUnreachable):
        read_one(reader, "s.a", 1)
    shop.server.start()
    assert read_one(reader, "s.a", 2).rows[0] is not None


def test_a_process_that_is_cut_off_waits_for_its_timeout(shop: Installation) -> None:
    """Packets of a process that is cut off are lost; it gives up after its own timeout, not before."""
    reader = SnapshotReader(SETTINGS)
    read_one(reader, "s.a", 1)
    shop.server.cut.add("app")
    before = shop.waits.now
    with pytest.raises(MariaDBUnreachable):
        reader.read({"s.a": [[1]]}, timeout_s=2.0)
    assert shop.waits.now >= before + 2.0
    shop.server.cut.clear()
    assert read_one(reader, "s.a", 1).rows[0] is not None


def test_logins_are_refused_as_the_server_refuses_them(shop: Installation) -> None:
    """A wrong password, and a connection too many, are the errors that the product knows."""
    with pytest.raises(shop.driver.err.OperationalError, match="Access denied"):
        shop.connect(password="wrong")
    shop.server.behaviour.connections_max = 0
    with pytest.raises(MariaDBUnreachable, match="Too many connections"):
        connect(SETTINGS)
    with pytest.raises(shop.driver.err.OperationalError, match="2003"):
        shop.connect(port=1)


@pytest.mark.parametrize("place", ["before", "after", "middle"])
def test_a_lost_connection_leaves_open_whether_the_commit_was_executed(shop: Installation, place: str) -> None:
    """The driver's error is 2013 at every place; the commit was executed unless the connection was lost before."""
    made = shop.connect(autocommit=False)
    shop.server.breaks.append(Break("app", "COMMIT", place))
    with made.cursor() as cursor:
        cursor.execute("UPDATE s.a SET v = 11 WHERE id = 1")
    with pytest.raises(shop.driver.err.OperationalError, match="2013"):
        made.commit()
    assert shop.run("SELECT v FROM s.a WHERE id = 1") == [(10 if place == "before" else 11,)]


def test_settings_that_hide_changes_are_refused_at_the_simulated_server_too(shop: Installation) -> None:
    """The requirement checks read the simulated server's variables."""
    session = connect(SETTINGS)
    check_server(session)
    wrong = {
        "binlog_row_image": "MINIMAL",
        "gtid_strict_mode": "OFF",
        "sync_binlog": "0",
        "innodb_flush_log_at_trx_commit": "2",
        "log_bin": "OFF",
    }
    for name, value in wrong.items():
        right = shop.server.variables[name]
        shop.server.variables[name] = value
        with pytest.raises(ServerSettingsError):
            check_server(session)
        shop.server.variables[name] = right
    shop.server.binlog_do_db = "s"
    with pytest.raises(ServerSettingsError, match="binlog_do_db"):
        check_server(session)


def test_a_replica_lags_and_a_promotion_loses_what_it_did_not_have(shop: Installation) -> None:
    """A replica shows commits after its lag; promoted, it goes on with its own GTIDs, and the rest is lost history."""
    replica = SimulatedServer(shop.waits, id=2, password="secret")
    replica.follow(shop.server)
    replica.behaviour.lag_s = 5.0
    shop.waits.now += 10
    shop.run("UPDATE s.a SET v = 11 WHERE id = 1")
    shop.servers["db", 3306] = replica
    reader = SnapshotReader(SETTINGS)
    assert read_one(reader, "s.a", 1).rows[0] == SelectedRow(b"s.a\0[1]", b'{"id":1,"v":10}')
    assert not reader.wait_for_position("MariaDB/0-1-6", 1.0)
    with pytest.raises(shop.driver.err.OperationalError, match="read-only"):
        shop.run("UPDATE s.a SET v = 12 WHERE id = 1")
    replica.follow(None)
    shop.run("UPDATE s.a SET v = 12 WHERE id = 1")
    assert replica.log.position == "0-2-6"
    with translated(SETTINGS), pytest.raises(SourceHistoryLost):
        check_resumable(connect(SETTINGS), "MariaDB/0-1-6")


def test_a_replica_that_has_caught_up_shows_what_its_source_shows(shop: Installation) -> None:
    """Rows, DDL and positions arrive at the replica in order."""
    replica = SimulatedServer(shop.waits, id=2, password="secret")
    replica.follow(shop.server)
    shop.run("ALTER TABLE s.a ADD COLUMN w INT DEFAULT 1", "INSERT INTO s.a VALUES (3, 30, 2)")
    shop.servers["db", 3306] = replica
    assert shop.run("SELECT * FROM s.a") == [(1, 10, 1), (2, 20, 1), (3, 30, 2)]
    session = connect(SETTINGS)
    check_server(session)
    assert current_position(session).position == "MariaDB/0-1-7"


def test_a_restore_takes_commits_back_and_gives_their_gtids_again(shop: Installation) -> None:
    """After a restore the rows are the older ones, and the sequence goes on from there."""
    shop.run("UPDATE s.a SET v = 11 WHERE id = 1", "DROP TABLE s.t")
    shop.server.restore(5)
    assert shop.run("SELECT v FROM s.a WHERE id = 1") == [(10,)]
    assert shop.run("SELECT * FROM s.t")
    with pytest.raises(SourceHistoryLost):
        check_resumable(connect(SETTINGS), "MariaDB/0-1-7")
    shop.run("INSERT INTO s.a VALUES (7, 1)")
    assert shop.server.log.position == "0-1-6"


def test_purged_and_reset_logs_cannot_be_resumed_from(shop: Installation) -> None:
    """A position before the oldest file is purged; after RESET MASTER it is not in the server's history."""
    shop.run("FLUSH BINARY LOGS", "INSERT INTO s.a VALUES (3, 1)")
    shop.server.log.purge(1)
    session = connect(SETTINGS)
    check_resumable(session, "MariaDB/0-1-5")
    with pytest.raises(NotResumable):
        check_resumable(session, "MariaDB/0-1-4")
    assert current_position(session).position == "MariaDB/0-1-6"
    shop.run("RESET MASTER")
    with pytest.raises(SourceHistoryLost):
        check_resumable(session, "MariaDB/0-1-6")


def test_an_answer_that_is_slow_takes_its_time(shop: Installation) -> None:
    """The latency of the network is seen by who waits for the answer."""
    shop.server.behaviour.latency_s = lambda: 0.25
    before = shop.waits.now
    made = shop.connect()
    logged_in = shop.waits.now
    made.query("SELECT 1")
    assert shop.waits.now == pytest.approx(logged_in + 0.5)
    assert logged_in > before


def test_a_process_that_died_holds_no_locks(shop: Installation) -> None:
    """The transaction of a dead process is rolled back, and its rows are free."""
    made = shop.connect()
    made.begin()
    made.query("UPDATE s.a SET v = 99 WHERE id = 1")
    shop.server.forget("app")
    assert shop.run("UPDATE s.a SET v = 12 WHERE id = 1", "SELECT v FROM s.a WHERE id = 1") == [(12,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT MAX(a) FROM s.a",
        "CREATE VIEW v AS SELECT 1",
        "SET nonsense = 1",
        "SELECT @@nonsense",
        "SELECT * FROM information_schema.VIEWS",
        "SHOW PROCESSLIST",
        "KILL 5",
    ],
)
def test_a_statement_that_nobody_taught_is_noticed(shop: Installation, sql: str) -> None:
    """An unknown statement is no error of MariaDB that somebody might handle; it names itself."""
    with pytest.raises(UnknownStatement, match=r"\w"):
        shop.run(sql)


def test_texts_and_numbers_are_read_as_they_are_written() -> None:
    """Quotes, escapes and hexadecimal literals of the driver are understood."""
    found = parsed(r"""INSERT INTO `a``b` VALUES ('it''s \'x\' \\', X'00ff', -1.50, 1e3, NULL)""")
    assert repr(found).count("it's 'x' \\\\") == 1
    assert "b'\\x00\\xff'" in repr(found)


def test_a_commit_whose_sender_died_frees_its_rows_when_it_becomes_visible(shop: Installation) -> None:
    """Nobody waits for its answer any more, and yet the next writer of the row goes on then, not at its timeout."""
    shop.server.behaviour.commit_s = lambda: 1.0
    with pytest.raises(shop.driver.err.OperationalError, match="2013"):
        shop.connect(read_timeout=0.1).query("UPDATE s.a SET v = 11 WHERE id = 1")
    shop.server.behaviour.commit_s = lambda: 0.0
    assert shop.run("UPDATE s.a SET v = v + 1 WHERE id = 1", "SELECT v FROM s.a WHERE id = 1") == [(12,)]
    assert shop.waits.now < 3.0
