"""Which MySQL servers a source refuses, from where it can resume, and that it notices a history that is replaced."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from freshet.local.mariadb import MariaDBAddress
from freshet.local.mysql import MySQLServer
from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.binlog.events import HEARTBEAT, LogPlace, parse_heartbeat
from stream.sources.mariadb.binlog.last_read import check_same
from stream.sources.mariadb.connection import (
    ConnectionSettings,
    MariaDBError,
    NotResumable,
    ServerSettingsError,
    SourceHistoryLost,
    connect,
)
from stream.sources.mariadb.gtid import GtidPosition, MysqlGtidSet
from stream.sources.mariadb.mysql import position as mysql_position
from stream.sources.mariadb.mysql import requirements as mysql_requirements
from stream.sources.mariadb.mysql.requirements import binlog_status
from stream.sources.mariadb.position import bounds_since, check_resumable, current_position
from stream.sources.mariadb.requirements import check_server, check_writer
from stream.sources.mariadb.watch import DumpWatch
from tests.patience import PATIENCE_S
from tests.sources.mariadb.conftest import SERVER_IDS, Source, settings_of
from tests.sources.mariadb.test_watch import read_to_the_end

U = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
V = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ""),
        (f"{U}:5#12", f"{U}:5"),
        (f"{U}:5#12:7#13", f"{U}:5:7"),
        (f"{V}:77#13{U}:1002#14:1000#10{U}:my_tag:77#11", f"{U}:1000:1002:my_tag:77,{V}:77"),
    ],
)
def test_the_gtids_that_sessions_own_are_read(text: str, wanted: str) -> None:
    """The text has no separator between one thread's number and the next UUID."""
    assert str(mysql_position._owned(text)) == f"MySQL56/{wanted}"


def test_what_sessions_own_belongs_to_the_upper_bound_of_a_read(source: Source) -> None:
    """A transaction that is not in gtid_executed yet may be visible already: reads of that time may have seen it."""
    other = f"22222222-2222-3333-4444-{source.database.removeprefix('db_')}"
    others = [f"{other}:5", f"{other}:7", f"{other}:some_tag:3"]
    sessions = [connect(source.settings) for _ in others]
    for session, gtid in zip(sessions, others, strict=True):
        session.query(f"SET gtid_next = '{gtid}'")
        session.query("BEGIN")
    found = mysql_position.logged(source.session)
    assert found.covers(MysqlGtidSet.of(",".join(others)))
    assert not mysql_position.executed(source.session).covers(MysqlGtidSet.of(f"{other}:5"))
    for session in sessions:
        session.query("ROLLBACK")
        session.close()
    assert not mysql_position.logged(source.session).covers(MysqlGtidSet.of(f"{other}:5"))


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        ("binlog_format", "STATEMENT", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "MINIMAL", "FULL"),
        ("binlog_row_value_options", "PARTIAL_JSON", "''"),
        ("binlog_error_action", "IGNORE_ERROR", "ABORT_SERVER"),
        ("sync_binlog", "0", "1"),
        ("innodb_flush_log_at_trx_commit", "2", "1"),
        ("gtid_mode", "ON_PERMISSIVE", "ON"),
    ],
)
def test_settings_that_hide_changes_are_refused_with_the_fix(
    source: Source, setting: str, value: str, wanted: str
) -> None:
    """The hint says what mends the setting."""
    check_server(source.session)
    with source.with_setting(setting, value), pytest.raises(ServerSettingsError, match=setting) as caught:
        check_server(source.session)
    assert f"{setting} = {wanted}" in caught.value.hint


@pytest.mark.parametrize(
    ("setting", "value", "is_refused"),
    [
        ("binlog_format", "STATEMENT", True),
        ("gtid_mode", "ON_PERMISSIVE", True),
        ("sync_binlog", "0", True),
        ("innodb_flush_log_at_trx_commit", "0", True),
        ("binlog_format", "MIXED", False),
        ("binlog_row_value_options", "PARTIAL_JSON", False),
    ],
)
def test_a_server_whose_replicas_are_read_must_keep_its_history_and_need_not_log_rows_whole(
    source: Source, setting: str, value: str, is_refused: bool
) -> None:
    """As of MariaDB."""
    assert check_writer(source.session)
    with source.with_setting(setting, value):
        if is_refused:
            with pytest.raises(ServerSettingsError, match=setting):
                check_writer(source.session)
        else:
            assert not check_writer(source.session), "it can't be read itself"


def test_a_server_with_a_filter_or_without_a_log_is_refused(new_mysql: Callable[..., MySQLServer]) -> None:
    """Both hide changes, and so does a replica that logs nothing of what it replicates."""
    server = new_mysql(options={"binlog-do-db": "shop", "log-replica-updates": "OFF"})
    session = connect(settings_of(server.address, "MySQL"))
    with pytest.raises(ServerSettingsError, match="binlog_do_db"):
        check_server(session)
    session.close()
    server.options = {"log-replica-updates": "OFF"}
    session = connect(settings_of(server.restart().address, "MySQL"))
    assert not check_server(session)
    session.query("CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1")
    with pytest.raises(ServerSettingsError, match="does not log what it replicates"):
        check_server(session)
    with pytest.raises(MariaDBError, match="no position") as caught:
        current_position(session)
    assert caught.value.code == "no_snapshot_position"
    session.close()


def test_the_other_kind_of_server_is_refused(mysql: MariaDBAddress, mariadb: MariaDBAddress) -> None:
    """A MySQL where a MariaDB is declared, and the other way round, is an error that names the setting."""
    for settings, kind in ((settings_of(mysql), "mysql"), (settings_of(mariadb, "MySQL"), "mariadb")):
        with pytest.raises(ServerSettingsError, match=f"no {settings.product}") as caught:
            connect(settings)
        assert f'kind = "{kind}"' in caught.value.hint


def test_a_user_with_the_documented_grants_is_enough(source: Source) -> None:
    """SELECT, REPLICATION SLAVE and REPLICATION CLIENT suffice to check the server, read rows and the binlog."""
    name = f"u_{source.database[-8:]}"
    source.run(
        f"CREATE USER {name}@'%' IDENTIFIED BY 'secret'",
        f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {name}@'%'",
        "CREATE TABLE t (id INT PRIMARY KEY)",
    )
    mine = Source(replace(source.settings, user=name, password="secret"), source.database)
    check_server(mine.session)
    source.run("INSERT INTO t VALUES (1)")
    assert len(mine.transactions()) == 1
    assert len(mine.selected("t")) == 1
    mine.close()
    source.run(f"REVOKE REPLICATION CLIENT ON *.* FROM {name}@'%'")
    with pytest.raises(MariaDBError) as caught:
        check_server(connect(mine.settings))
    assert caught.value.code == "mariadb_access_denied"
    assert "REPLICATION CLIENT" in caught.value.hint
    source.run(f"DROP USER {name}@'%'")


def test_a_wrong_password_and_a_dead_server_are_told_apart(mysql: MariaDBAddress) -> None:
    """The first needs a person, the second time; both name the product."""
    with pytest.raises(MariaDBError, match="refused the login") as caught:
        connect(replace(settings_of(mysql, "MySQL"), password="wrong"))
    assert caught.value.code == "mariadb_access_denied"
    with pytest.raises(MariaDBError, match="MySQL at root@127\\.0\\.0\\.1:1 cannot be reached") as caught:
        connect(ConnectionSettings(port=1, product="MySQL"))
    assert caught.value.code == "mariadb_unreachable"


def test_a_purged_log_names_where_the_server_could_start(
    new_mysql: Callable[..., MySQLServer], source_of: Callable[[Any, str], Source]
) -> None:
    """A position before the oldest log is refused with the earliest one, and one after it is taken."""
    source = source_of(new_mysql().address, "d")
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    old = source.position()
    source.run("INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS")
    check_resumable(source.session, old)
    file, *_ = binlog_status(source.session)
    source.run(f"PURGE BINARY LOGS TO '{file}'")
    with pytest.raises(NotResumable, match=re.escape(source.position())) as caught:
        check_resumable(source.session, old)
    assert caught.value.code == "binlog_purged"
    check_resumable(source.session, source.position())
    with pytest.raises(MariaDBError, match="purged"):
        [*itertools.islice(source.transactions(old), 1)]


def test_a_history_that_was_replaced_is_noticed(
    new_mysql: Callable[..., MySQLServer], source_of: Callable[[Any, str], Source]
) -> None:
    """After a reset a published transaction is missing, or is another one under the same GTID."""
    source = source_of(new_mysql().address, "d")
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    source.begin()
    source.run("INSERT INTO t VALUES (1)")
    (published,) = source.transactions()
    same = (source.settings, next(SERVER_IDS), published.cursor, published.position, published.checksum)
    check_same(*same)
    for position in ("MariaDB/0-1-5", published.position.replace(":1-", ":1-9")):
        with pytest.raises(SourceHistoryLost):
            check_resumable(source.session, position)
    watch = DumpWatch(source.settings, 1)
    watch.check(published.position)
    source.run("RESET BINARY LOGS AND GTIDS", "DROP TABLE t")
    with pytest.raises(SourceHistoryLost):
        watch.check(published.position)
    while not GtidPosition.parse(source.position()).covers(GtidPosition.parse(published.position)):
        source.run("CREATE DATABASE IF NOT EXISTS e", "DROP DATABASE e")
    check_resumable(source.session, published.position)
    with pytest.raises(SourceHistoryLost, match="another transaction now"):
        check_same(*same)
    watch.close()


def test_a_heartbeat_names_the_end_of_the_log(source: Source) -> None:
    """The watch compares where the connection waits with the end of the server's log: at rest both are the same."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    dump = BinlogDump(source.settings, GtidPosition.parse(source.position()).bare, next(SERVER_IDS), 0.05)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        event = dump.read()
        file, offset, *_ = binlog_status(source.session)
        if event[4] == HEARTBEAT and parse_heartbeat(event) == LogPlace.of(dump.server, file, offset):
            break
        assert time.monotonic() < deadline, "no heartbeat at the end of the log"
    dump.close()


def test_two_replicas_of_one_server_id_are_told_what_to_change(source: Source) -> None:
    """The disconnected replica gets an error with a hint, because a retry would disconnect the other one."""
    at, number = GtidPosition.parse(source.position()).bare, next(SERVER_IDS)
    dump = BinlogDump(source.settings, at, number)
    other = BinlogDump(source.settings, at, number)
    with pytest.raises(MariaDBError, match="another replica of the same server_id") as caught:
        read_to_the_end(dump)
    assert caught.value.code == "server_id_in_use"
    dump.close()
    other.close()


def test_a_transaction_that_is_committed_between_two_questions_is_in_one_of_the_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session gives it up once it is executed: asked in the other order, it would be in neither."""
    answers = {"gtid_owned": f"{U}:5#12", "gtid_executed": f"{U}:1-4"}

    def fetch_all(_: object, sql: str) -> list[tuple[str]]:
        answer = answers[sql.rpartition(".")[2]]
        answers.update(gtid_owned="", gtid_executed=f"{U}:1-5")
        return [(answer,)]

    monkeypatch.setattr(mysql_position, "fetch_all", fetch_all)
    connection: Any = None
    assert str(mysql_position.logged(connection)) == f"MySQL56/{U}:1-5"


@pytest.mark.parametrize(("read_only", "own"), [("ON", {U, "source"}), ("0", {U})])
def test_the_histories_of_a_shard_are_those_of_its_servers(
    monkeypatch: pytest.MonkeyPatch, read_only: str, own: set[str]
) -> None:
    """A server that takes no writes now may have taken some, and tells of where it replicates from, too."""
    replications = [{"Source_UUID": b"source"}, {"Source_UUID": b""}]  # the second one has never been connected
    cursor = SimpleNamespace(execute=lambda _: None, fetchall=lambda: replications)
    connection: Any = SimpleNamespace(cursor=lambda _: nullcontext(cursor))
    monkeypatch.setattr(mysql_requirements, "fetch_all", lambda *_: [(read_only, U)])
    assert mysql_requirements.own_histories(connection) == own


@pytest.mark.parametrize(
    ("read_only", "replicates", "is_primary"), [("0", False, True), ("1", False, False), ("OFF", True, False)]
)
def test_a_server_that_replicates_is_no_primary(
    monkeypatch: pytest.MonkeyPatch, read_only: str, replicates: bool, is_primary: bool
) -> None:
    """It may take writes, and lacks what its source has: a read there proves nothing of that."""
    monkeypatch.setattr(mysql_position, "logged", lambda _: MysqlGtidSet.of(f"{U}:1-5"))
    monkeypatch.setattr(mysql_position, "is_replica", lambda _: replicates)
    monkeypatch.setattr("stream.sources.mariadb.position.fetch_all", lambda *_: [("7", "1", read_only)])
    connection: Any = None
    bounds = bounds_since(connection, MysqlGtidSet.of(f"{U}:1-4"))
    assert bounds is not None
    assert (bounds.lo, bounds.hi, bounds.is_primary) == (f"MySQL56/{U}:1-4", f"MySQL56/{U}:1-5", is_primary)
