"""The simulated server answers, fails and logs as a real MariaDB does."""

from __future__ import annotations

from typing import Any, Final

import pymysql
import pytest

from freshet.local.mariadb import MariaDBAddress
from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.connection import ConnectionSettings, connect
from stream.wire.events import DescribeTable, VoidTable
from tests.lab.simulation.mariadb.conftest import SETTINGS, Installation
from tests.sources.mariadb.conftest import Source, settings_of

pytestmark = pytest.mark.integration

NOT_COMPARED: Final = ~(0x20 | 0x100)
"""Status flags: no index was used, a database was dropped."""
ONLY_IN_FILES: Final = {
    events.ROTATE,
    events.FORMAT_DESCRIPTION,
    events.GTID_LIST,
    events.BINLOG_CHECKPOINT,
    events.HEARTBEAT,
}

TABLES: Final = (
    "CREATE TABLE p (id BIGINT PRIMARY KEY, v INT NOT NULL, note VARCHAR(40) DEFAULT 'née', amount DECIMAL(12,2),"
    " at DATETIME(3), ts TIMESTAMP(6) NULL, d DATE, f DOUBLE, b VARBINARY(10), tx TEXT, u SMALLINT UNSIGNED, j JSON,"
    " twice INT AS (v * 2) VIRTUAL, more INT AS (v + 1) STORED) ENGINE=InnoDB",
    "CREATE TABLE c (id INT PRIMARY KEY, p BIGINT, CONSTRAINT fkp FOREIGN KEY (p) REFERENCES p (id)"
    " ON DELETE CASCADE ON UPDATE CASCADE) ENGINE=InnoDB",
    "CREATE TABLE s (id INT PRIMARY KEY, c INT, CONSTRAINT fks FOREIGN KEY (c) REFERENCES c (id) ON DELETE SET NULL)",
    "CREATE TABLE k (a INT, b VARCHAR(20) COLLATE utf8mb4_bin, v INT, PRIMARY KEY (a, b))",
    "CREATE TABLE t (id VARCHAR(20) CHARACTER SET latin1 PRIMARY KEY, v INT)",
    "CREATE TABLE x (id VARCHAR(20) COLLATE utf8mb4_nopad_bin PRIMARY KEY, v DECIMAL(20,10))",
    "CREATE TABLE n (v INT)",
    "CREATE TABLE o (a INT, b VARCHAR(20) COLLATE utf8mb4_bin, PRIMARY KEY (a, b DESC))",
)

ONE_SESSION: Final = (
    *(f"SHOW CREATE TABLE {name}" for name in "pcsktxno"),
    "INSERT INTO p (id,v,amount,at,ts,d,f,b,tx,u,j) VALUES (1, 5, -12.345, '2026-01-02 03:04:05.678',"
    " '2026-01-02 03:04:05.678901', '2026-01-02', 1.5, X'0001ff', 'hällo ☕', 65535, '{\"a\":1}'),"
    " (2, -7, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "SELECT * FROM p ORDER BY id",
    "INSERT INTO c VALUES (1, 1), (2, 2)",
    "INSERT INTO s VALUES (1, 1), (2, 2)",
    "UPDATE p SET v = v + 1 WHERE id = 1",
    "UPDATE p SET v = 6 WHERE id = 1",
    "UPDATE p SET id = 10 WHERE id = 1",
    "SELECT * FROM c ORDER BY id",
    "SELECT id FROM c FORCE INDEX (PRIMARY) ORDER BY id DESC LIMIT 1",
    "SELECT id FROM c WHERE ((id > 1)) ORDER BY id LIMIT 2",
    "SELECT COUNT(*) FROM c FORCE INDEX (PRIMARY) WHERE id > 1",
    "SELECT COUNT(*) FROM (SELECT 1 FROM c FORCE INDEX (PRIMARY) LIMIT 1) AS some",
    "DELETE FROM p WHERE id = 2",
    "DELETE FROM p WHERE id = 2",
    "SELECT * FROM s ORDER BY id",
    "REPLACE INTO p (id, v) VALUES (10, 3)",
    "SELECT * FROM c ORDER BY id",
    "REPLACE INTO k VALUES (1, 'Ab', 2)",
    "REPLACE INTO k VALUES (1, 'Ab', 3)",
    "REPLACE INTO k VALUES (1, 'Ab', 3)",
    "INSERT INTO k VALUES (1, 'Ab', 2)",
    "INSERT INTO k VALUES (1, 'ab', 2)",
    "INSERT INTO k (a, b, v) VALUES (1, 'Ab', 9) ON DUPLICATE KEY UPDATE v = VALUES(v)",
    "INSERT INTO k (a, b, v) VALUES (1, 'Ab', 9) ON DUPLICATE KEY UPDATE v = VALUES(v)",
    "SELECT * FROM k WHERE b = 'ab' AND a = 1",
    "SELECT a, b FROM k WHERE a IN (1, 2) AND NOT b = 'ab'",
    "INSERT INTO o VALUES (1, 'x'), (2, 'x'), (1, 'y'), (2, 'y')",
    "SELECT * FROM o FORCE INDEX (PRIMARY) WHERE ((a > 1) OR (a = 1 AND b < 'y')) ORDER BY a, b DESC LIMIT 2",
    "SELECT a, b FROM (SELECT a, b FROM o FORCE INDEX (PRIMARY) LIMIT 4) AS some ORDER BY a DESC, b LIMIT 1",
    "INSERT INTO t VALUES ('abc', 1)",
    "SELECT * FROM t WHERE id = 'ABC '",
    "SELECT * FROM t WHERE id = 'ab☕'",
    "INSERT INTO t VALUES ('ABC ', 1)",
    "(SELECT 0, `id`, `v` FROM `t` WHERE (`id` = 'x')) UNION ALL (SELECT 1, `id`, `v` FROM `t` WHERE (`id` = 'ABC'))",
    "INSERT INTO x VALUES ('a', 1.5), ('a ', -0.0000000001), ('A', 1234567890.0123456789)",
    "SELECT * FROM x WHERE id = 'a '",
    "INSERT INTO n VALUES (1), (1), (2)",
    "DELETE FROM n WHERE v = 2",
    "UPDATE n SET v = 3 WHERE v = 1",
    "SELECT * FROM n",
    "INSERT INTO c VALUES (9, 77)",
    "INSERT INTO p (id) VALUES (3)",
    "SET SESSION sql_mode = 'STRICT_TRANS_TABLES'",
    "INSERT INTO p (id) VALUES (4)",
    "INSERT INTO p (id, v, u) VALUES (4, 1, 65536)",
    "INSERT INTO p (id, v, u) VALUES (4, 1, -1)",
    "INSERT INTO t VALUES ('toolongtoolongtoolongtoolong', 1)",
    "SET SESSION sql_mode = ''",
    "INSERT INTO p (id, v, u) VALUES (5, 99999999999, -1)",
    "INSERT INTO p (id, v) VALUES (3, NULL)",
    "INSERT INTO t VALUES ('toolongtoolongtoolongtoolong', 1)",
    "INSERT INTO k VALUES (1)",
    "INSERT INTO k (nope) VALUES (1)",
    "UPDATE k SET nope = 1",
    "SELECT nope FROM k",
    "SELECT * FROM nope",
    "SELECT * FROM nope.k",
    "SELECT 1 FROM k WHERE FALSE",
    "START TRANSACTION",
    "INSERT INTO t VALUES ('z', 1)",
    "ROLLBACK",
    "BEGIN",
    "SELECT * FROM t",
    "COMMIT",
    "BEGIN",
    "INSERT INTO t VALUES ('q', 1)",
    "INSERT INTO t VALUES ('r', 1), ('q', 1)",
    "INSERT INTO k VALUES (5, 'x', 1)",
    "UPDATE k SET v = 2 WHERE a = 5 AND b = 'x'",
    "COMMIT",
    "SELECT * FROM t ORDER BY id",
    "START TRANSACTION READ ONLY",
    "INSERT INTO t VALUES ('q2', 1)",
    "ROLLBACK",
    "SET autocommit = 0",
    "INSERT INTO t VALUES ('auto', 1)",
    "SET autocommit = 1",
    "SELECT @@autocommit, @@global.binlog_checksum, @@tx_isolation, @@lower_case_table_names",
    "SET SESSION time_zone = '+02:00'",
    "UPDATE p SET ts = '2026-01-02 03:04:05' WHERE id = 10",
    "SELECT ts FROM p",
    "SET SESSION time_zone = '+00:00'",
    "SELECT ts FROM p",
    "ALTER TABLE t ADD COLUMN w INT DEFAULT 4",
    "SELECT * FROM t WHERE id = 'abc'",
    "INSERT INTO t (id, v) VALUES ('new', 2)",
    "ALTER TABLE t MODIFY COLUMN w VARCHAR(30)",
    "UPDATE t SET v = 7 WHERE id = 'new'",
    "ALTER TABLE t DROP COLUMN w",
    "ALTER TABLE t DROP COLUMN w",
    "ALTER TABLE t ADD COLUMN v INT",
    "CREATE TABLE r (id INT PRIMARY KEY, code INT, v INT)",
    "INSERT INTO r VALUES (1, 2, 10), (2, 1, 20), (3, 3, 30)",
    "ALTER TABLE r DROP PRIMARY KEY, ADD PRIMARY KEY (code)",
    "REPLACE INTO r VALUES (9, 1, 21)",
    "SELECT * FROM r WHERE code = 1",
    "SHOW CREATE TABLE r",
    "INSERT INTO r VALUES (3, 4, 40)",
    "ALTER TABLE r DROP PRIMARY KEY, ADD PRIMARY KEY (id)",
    "ALTER TABLE r DROP PRIMARY KEY, ADD PRIMARY KEY (nothing)",
    "SELECT * FROM r WHERE code = 4",
    "DROP TABLE r",
    "CREATE TABLE t2 (id VARCHAR(20) PRIMARY KEY, v INT) ENGINE=InnoDB",
    "RENAME TABLE t TO t3, t2 TO t, t3 TO t2",
    "SELECT * FROM t",
    "RENAME TABLE t TO t2",
    "RENAME TABLE nope TO t9",
    "SHOW CREATE TABLE t2",
    "TRUNCATE TABLE t2",
    "SELECT * FROM t2",
    "DROP TABLE t2",
    "DROP TABLE IF EXISTS t2",
    "DROP TABLE t2",
    "CREATE TABLE IF NOT EXISTS k (a INT)",
    "CREATE TABLE k (a INT)",
    "ALTER TABLE t2 ADD COLUMN x INT",
    "DELETE FROM p",
    "XA START 'a'",
    "INSERT INTO k VALUES (7, 'x', 1)",
    "XA END 'a'",
    "XA PREPARE 'a'",
    "XA RECOVER",
    "XA COMMIT 'a'",
    "XA RECOVER",
    "SET SESSION binlog_format = 'STATEMENT'",
    "UPDATE k SET v = 3 WHERE a = 5",
    "SET SESSION binlog_format = 'ROW'",
    "SHOW MASTER STATUS",
    "SHOW VARIABLES LIKE 'tx_isolation'",
    "SHOW VARIABLES LIKE 'of_no_server'",
    "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE_NAME ORDER BY TABLE_NAME",
    "SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME,"
    " CHARACTER_OCTET_LENGTH, EXTRA, GENERATION_EXPRESSION FROM information_schema.COLUMNS"
    " WHERE TABLE_SCHEMA = DATABASE_NAME ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION",
    "SELECT TABLE_NAME, COLUMN_NAME, SUB_PART, COLLATION FROM information_schema.STATISTICS"
    " WHERE TABLE_SCHEMA = DATABASE_NAME AND INDEX_NAME = 'PRIMARY' ORDER BY TABLE_SCHEMA, TABLE_NAME, SEQ_IN_INDEX",
    "SELECT TABLE_NAME, CONSTRAINT_NAME, CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS"
    " WHERE CONSTRAINT_SCHEMA = DATABASE_NAME",
    "SELECT REFERENCED_TABLE_NAME, TABLE_NAME, DELETE_RULE, UPDATE_RULE"
    " FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = DATABASE_NAME ORDER BY TABLE_NAME",
)
SHOWS_A_PLACE: Final = "SHOW MASTER STATUS"
"""Its answer depends on what was logged before; only its columns are compared."""


def settings_and_source(address: ConnectionSettings, database: str) -> Source:
    """A source over the script's database, with its tables."""
    session = connect(address)
    with session.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {database}")
    session.close()
    source = Source(address, database)
    source.run(*TABLES)
    source.begin()
    return source


def outcome(session: Any, statement: str) -> tuple[object, ...]:
    """What one statement does: its error, or its rows, the number of affected rows, and the session's state."""
    try:
        with session.cursor() as cursor:
            affected = cursor.execute(statement)
            rows = cursor.fetchall()
            names = [column[0] for column in cursor.description or ()]
    except pymysql.MySQLError as error:
        return type(error).__name__, *error.args, session.server_status & NOT_COMPARED
    shown = () if statement == SHOWS_A_PLACE else rows
    if statement.startswith(("ALTER", "CREATE", "DROP")):
        affected = 0  # MariaDB counts the rows that it copied
    return affected, tuple(names), shown, session.server_status & NOT_COMPARED


def run_script(source: Source, database: str) -> list[tuple[object, ...]]:
    """The outcomes of all statements."""
    quoted = f"'{database}'"
    return [(line, *outcome(source.session, line.replace("DATABASE_NAME", quoted))) for line in ONE_SESSION]


def logged(source: Source, server_id: int) -> list[tuple[int, int, int]]:
    """Each event after the source's start: type, flags, and the length of all that has a fixed form."""
    dump = BinlogDump(source.settings, source.start.removeprefix("MariaDB/"), server_id)
    found = []
    while (event := dump.read())[4] != events.HEARTBEAT:
        if event[4] not in ONLY_IN_FILES:
            size = 0 if event[4] == events.QUERY else len(event)
            flags = 0 if event[4] in (events.QUERY,) else int.from_bytes(event[17:19], "little")
            found.append((event[4], flags, size))
    dump.close()
    return found


def published(source: Source) -> list[list[object]]:
    """The changes of each transaction, as the product reads them."""
    return [
        [change.table if isinstance(change, VoidTable | DescribeTable) else change for change in each.changes]
        for each in source.transactions()
    ]


@pytest.fixture
def both(installation: Installation, mariadb: MariaDBAddress, database: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs work on a source over the real server, then over the simulated one, and returns what both gave."""

    def run(work: Any) -> tuple[Any, Any]:
        simulated = settings_and_source(SETTINGS, database)
        found = work(simulated)
        simulated.close()
        assert len(installation.server.history) > len(TABLES)
        monkeypatch.undo()
        real = settings_and_source(settings_of(mariadb), database)
        expected = work(real)
        real.close()
        return found, expected

    return run


def test_answers_errors_events_and_decoded_rows_are_those_of_a_real_server(both: Any, database: str) -> None:
    """Rows, affected rows, errors, transaction state, binlog events and what the source reads of them are the same."""

    def work(source: Source) -> tuple[Any, Any, Any]:
        return run_script(source, database), logged(source, 61_001), published(source)

    (answers, log, changes), (real_answers, real_log, real_changes) = both(work)
    assert [pair for pair in zip(answers, real_answers, strict=True) if pair[0] != pair[1]] == []
    assert log == real_log
    assert changes == real_changes


TWO_SESSIONS: Final = (
    ("a", "INSERT INTO k VALUES (1, 'x', 1), (2, 'y', 1)"),
    ("a", "START TRANSACTION READ ONLY"),
    ("a", "SELECT 1 FROM k WHERE FALSE"),
    ("b", "UPDATE k SET v = 2 WHERE a = 1"),
    ("a", "SELECT * FROM k"),
    ("b", "UPDATE k SET v = 3 WHERE a = 1"),
    ("a", "SELECT * FROM k"),
    ("b", "SET STATEMENT max_statement_time=0.2 FOR ALTER TABLE k ADD COLUMN w INT"),
    ("b", "SET STATEMENT lock_wait_timeout=0 FOR TRUNCATE TABLE k"),
    ("a", "ROLLBACK"),
    ("a", "START TRANSACTION WITH CONSISTENT SNAPSHOT"),
    ("b", "ALTER TABLE k ADD COLUMN w INT DEFAULT 5"),
    ("a", "SELECT * FROM k"),
    ("a", "ROLLBACK"),
    ("a", "START TRANSACTION WITH CONSISTENT SNAPSHOT"),
    ("b", "ALTER TABLE k MODIFY COLUMN w BIGINT"),
    ("a", "SELECT * FROM k"),
    ("a", "ROLLBACK"),
    ("a", "START TRANSACTION WITH CONSISTENT SNAPSHOT"),
    ("b", "TRUNCATE TABLE x"),
    ("b", "INSERT INTO x VALUES ('new', 1)"),
    ("a", "SELECT * FROM x"),
    ("a", "ROLLBACK"),
    ("a", "BEGIN"),
    ("a", "UPDATE k SET v = 9 WHERE a = 1 AND b = 'x'"),
    ("b", "SELECT * FROM k WHERE a = 1 AND b = 'x'"),
    ("b", "SET SESSION innodb_lock_wait_timeout = 1"),
    ("b", "UPDATE k SET v = 8 WHERE a = 1 AND b = 'x'"),
    ("b", "SET STATEMENT max_statement_time=0.2 FOR DELETE FROM k WHERE a = 1 AND b = 'x'"),
    ("b", "SELECT * FROM k WHERE a = 2 AND b = 'y' FOR UPDATE"),
    ("b", "SET STATEMENT max_statement_time=0.2 FOR SELECT * FROM k WHERE a = 1 AND b = 'x' FOR UPDATE"),
    ("a", "COMMIT"),
    ("b", "SELECT v FROM k WHERE a = 1 AND b = 'x' FOR UPDATE"),
    ("b", "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"),
    ("b", "BEGIN"),
    ("b", "SELECT v FROM k"),
    ("a", "UPDATE k SET v = 10"),
    ("b", "SELECT v FROM k"),
    ("b", "COMMIT"),
)


def test_locks_and_snapshots_of_two_sessions_are_those_of_a_real_server(both: Any, database: str) -> None:
    """What a transaction sees, and where one session waits for another, is the same, with the errors' numbers."""

    def work(source: Source) -> list[tuple[object, ...]]:
        sessions = {"a": source.session, "b": connect(source.settings)}
        sessions["b"].select_db(database)
        found = [(name, line, *outcome(sessions[name], line)) for name, line in TWO_SESSIONS]
        sessions["b"].close()
        return found

    found, expected = both(work)
    assert [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]] == []
