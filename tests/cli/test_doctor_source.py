"""The doctor at a server that shall be a source: all that is wrong at once, each with its fix."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from freshet import cli
from freshet.local.mariadb import MariaDBAddress
from stream.sources.mariadb.connection import connect, fetch_all
from tests.servers.databases import own_database
from tests.sources.mariadb.conftest import Source, settings_of
from tests.sources.mariadb.test_cascades import made_slowly

pytestmark = pytest.mark.integration

TABLES = (
    "CREATE TABLE orders (id INT PRIMARY KEY, item VARCHAR(40))",
    "INSERT INTO orders SELECT seq, 'lamp' FROM seq_1_to_20000",
    "CREATE TABLE `lines` (id INT PRIMARY KEY, o INT, FOREIGN KEY (o) REFERENCES orders (id) ON DELETE CASCADE)",
    "CREATE TABLE keyless (v INT)",
    "CREATE TABLE plain (id INT PRIMARY KEY) ENGINE=MyISAM",
    "CREATE TABLE shapes (id INT PRIMARY KEY, at POINT)",
    "ANALYZE TABLE orders",
)


@pytest.fixture
def shop(mariadb: MariaDBAddress) -> Iterator[str]:
    """A database with tables of every kind."""
    with own_database(mariadb, *TABLES) as name:
        yield name


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs `freshet doctor --source shop` with these settings of the source; exit code and checks."""
    monkeypatch.chdir(tmp_path)

    def ask(server: Any, **source: Any) -> tuple[int, list[dict[str, str]]]:
        login = {name: getattr(server, name) for name in ("host", "port", "user", "password")}
        found = {"kind": "mariadb", "server_id": 4381, **login, **source}
        Path("freshet.toml").write_text(tomli_w.dumps({"keyspaces": {"shop": {"partitions": 2, "source": found}}}))
        code = cli.run(["doctor", "--source", "shop", "--json"])
        return code, json.loads(capsys.readouterr().out)["checks"]

    return ask


def named(checks: list[dict[str, str]], name: str) -> list[dict[str, str]]:
    """The checks of a name."""
    return [check for check in checks if check["name"] == name]


def test_a_database_that_is_not_there_is_missing(mariadb: MariaDBAddress, shop: str, asked: Callable[..., Any]) -> None:
    """A source refuses it beside others, too; it begins without tables of a pattern, which is a warning."""
    code, checks = asked(mariadb, databases=[shop, "absent"], include=[f"{shop}.*", f"{shop}.later_*"])
    assert [(check["status"], check["found"].split(":")[0]) for check in named(checks, "choice")] == [
        ("missing", "database absent"),
        ("warning", f"tables {shop}.later_*"),
        ("ok", "5 tables of the settings' choice are there"),
    ]
    assert code == 1


def test_a_good_server_is_told_what_is_cached_and_what_is_not(
    mariadb: MariaDBAddress, shop: str, asked: Callable[..., Any]
) -> None:
    """Each table that can't be cached is named, with its reason; the size and time of a backfill come from a sample."""
    code, checks = asked(mariadb, databases=[shop])
    assert code == 0, checks
    assert [check["status"] for check in checks if check["name"] in ("login", "binlog", "grants")] == ["ok"] * 4
    found = {check["found"].split(":")[0]: check for check in named(checks, "not cached")}
    assert set(found) == {f"{shop}.{table}" for table in ("keyless", "plain", "shapes")}
    assert "no primary key; requests" in found[f"{shop}.keyless"]["found"]
    assert "ENGINE = InnoDB" in found[f"{shop}.plain"]["fix"]
    assert "type point" in found[f"{shop}.shapes"]["found"]
    assert named(checks, "cached")[0]["found"] == "2 tables"
    assert f"{shop}.orders voids what refers to them in {shop}.lines" in named(checks, "cascades")[0]["found"]
    [backfill] = named(checks, "backfill")
    rows = int(backfill["found"].split()[1].replace(",", ""))
    assert 15_000 < rows < 25_000
    assert "rows a second" in backfill["found"]
    assert 'backfill = ["*"]' in backfill["fix"]


def test_tables_that_are_locked_are_named_and_the_others_examined(
    mariadb: MariaDBAddress, shop: str, asked: Callable[..., Any]
) -> None:
    """One that is being made can't be described, nor its foreign keys; one that is written alone can't be read."""
    making, holder = Source(settings_of(mariadb), shop), connect(settings_of(mariadb))
    try:
        with made_slowly(making, f"{shop}.made"):
            fetch_all(holder, f"LOCK TABLES {shop}.orders WRITE")
            code, checks = asked(mariadb, databases=[shop], include=[f"{shop}.*"])
    finally:
        holder.close()
        making.close()
    assert code == 0, checks
    [locked] = named(checks, "locked")
    assert (locked["status"], locked["found"].split(":")[0]) == ("warning", f"{shop}.made, {shop}.orders")
    assert named(checks, "choice")[0]["found"].startswith("6 tables")
    assert named(checks, "cached")[0]["found"] == "2 tables"
    assert f"{shop}.orders voids what refers to them in {shop}.lines" in named(checks, "cascades")[0]["found"]
    assert [check["status"] for check in named(checks, "grants")] == ["ok", "ok"]


def test_a_limit_of_the_settings_is_in_the_time_of_a_backfill(
    mariadb: MariaDBAddress, shop: str, asked: Callable[..., Any]
) -> None:
    """About 20,000 rows at 40 a second take minutes, however fast the server reads."""
    _, checks = asked(mariadb, databases=[shop], backfill=["*"], backfill_rows_per_s=40)
    [backfill] = named(checks, "backfill")
    assert " min at 40 rows a second" in backfill["found"]
    assert "backfill_rows_per_s = 40 bounds" in backfill["found"]
    assert backfill["fix"] == ""


def test_everything_that_is_wrong_with_a_server_is_said_at_once(
    new_mariadb: Callable[..., Any], asked: Callable[..., Any]
) -> None:
    """Not only the first: each with the statement that mends it, and after those the server is accepted."""
    server = new_mariadb(
        durable=False,
        options={
            "binlog-row-image": "MINIMAL",
            "gtid-strict-mode": "OFF",
            "sync-binlog": "0",
            "binlog-expire-logs-seconds": "3600",
        },
    )
    code, checks = asked(server, databases=["absent"])
    assert code == 1
    wrong = [check for check in named(checks, "binlog") if check["status"] == "missing"]
    assert {check["found"].split()[0] for check in wrong} == {"binlog_row_image", "gtid_strict_mode", "sync_binlog"}
    assert "60 min" in named(checks, "binlog kept")[0]["found"]
    assert "database absent" in named(checks, "choice")[0]["found"]
    with server.connect() as connection, connection.cursor() as cursor:
        for check in [*wrong, *named(checks, "binlog kept")]:
            cursor.execute(check["fix"].split(";")[0])
        cursor.execute("CREATE DATABASE absent")
    code, checks = asked(server, databases=["absent"])
    assert code == 0, checks


def test_missing_grants_are_named(mariadb: MariaDBAddress, shop: str, asked: Callable[..., Any]) -> None:
    """A user that may see a table and not read it, and not the binlog; and with the grants of the fixes all is well."""
    with mariadb.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE USER doctored IDENTIFIED BY 'x'")
        try:
            cursor.execute(f"GRANT INSERT ON {shop}.* TO doctored")
            login = {"databases": [shop], "user": "doctored", "password": "x"}
            code, checks = asked(mariadb, **login)
            assert code == 1
            missing = [check for check in checks if check["status"] == "missing"]
            assert any("REPLICATION SLAVE" in check["found"] for check in missing)
            assert any("BINLOG MONITOR" in check["fix"] for check in named(missing, "binlog"))
            assert any(f"may not read {shop}.lines" in check["found"] for check in missing)
            cursor.execute("GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR, REPLICA MONITOR ON *.* TO doctored")
            code, checks = asked(mariadb, **login)
            assert code == 0, checks
        finally:
            cursor.execute("DROP USER doctored")


@pytest.mark.parametrize(("source", "word"), [({"port": 1}, "cannot be reached"), ({"password": "wrong"}, "refused")])
def test_a_server_that_lets_nobody_in_is_a_finding(
    mariadb: MariaDBAddress, asked: Callable[..., Any], source: dict[str, Any], word: str
) -> None:
    """No traceback, and no other check."""
    code, [check] = asked(mariadb, databases=["shop"], **source)
    assert (code, check["name"], check["status"]) == (1, "login", "missing")
    assert word in check["found"]


def test_mysql_is_examined_by_its_own_rules(
    mysql: MariaDBAddress, mysql_database: str, asked: Callable[..., Any]
) -> None:
    """The same checks, and MySQL's fixes."""
    with mysql.connect(autocommit=True, database=mysql_database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE docs (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO docs VALUES (1)")
        cursor.execute("SELECT @@GLOBAL.binlog_row_image")
        cursor.execute("SET GLOBAL sync_binlog = 7")
        try:
            code, checks = asked(mysql, kind="mysql", databases=[mysql_database])
            assert code == 1
            assert "SET PERSIST sync_binlog = 1" in [check["fix"] for check in named(checks, "binlog")][-1]
        finally:
            cursor.execute("SET GLOBAL sync_binlog = 1")
        cursor.execute("LOCK TABLES docs WRITE")
        [locked] = named(asked(mysql, kind="mysql", databases=[mysql_database])[1], "locked")
        assert locked["found"].startswith(f"{mysql_database}.docs: ")
    code, checks = asked(mysql, kind="mysql", databases=[mysql_database])
    assert code == 0, checks
    assert named(checks, "cached")[0]["found"] == "1 table"
    assert not named(checks, "locked")


def test_other_sources_are_not_examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A metastore is told so, and an unknown keyspace too."""
    monkeypatch.chdir(tmp_path)
    source = {"kind": "hive"}
    Path("freshet.toml").write_text(tomli_w.dumps({"keyspaces": {"hive": {"kind": "catalog", "source": source}}}))
    assert cli.run(["doctor", "--source", "hive"]) == 1
    assert "no source that reads a database's log" in capsys.readouterr().err
    assert cli.run(["doctor", "--source", "shop"]) == 1
    assert "unknown_keyspace" in capsys.readouterr().err
