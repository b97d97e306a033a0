"""The doctor at a PostgreSQL that shall be a source: what is wrong, and what is not cached, each with its reason."""

from __future__ import annotations

from dataclasses import replace

from freshet.checks.finding import Check
from freshet.checks.postgres import examine_postgres
from freshet.sections.sources import MariaDBSourceSettings
from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.mariadb.schema import TableFilter
from tests.sources.mariadb.test_source import until
from tests.sources.postgres.conftest import Database


def test_a_server_and_its_connector_are_examined(database: Database) -> None:
    """Before anything starts: the login, the log, the connector, its slot, the rights and the tables."""
    at = database.settings
    source = MariaDBSourceSettings(kind="debezium", **database.source_settings)
    chosen = TableFilter(("public", "nowhere"))

    def found(login: ConnectionSettings = at) -> dict[str, list[Check]]:
        named: dict[str, list[Check]] = {}
        for check in examine_postgres(login, chosen, source):
            named.setdefault(check.name, []).append(check)
        return named

    database.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    database.run("CREATE TABLE listed (id INT PRIMARY KEY, words TEXT[])", "CREATE TABLE keyless (v INT)")
    database.run("INSERT INTO listed VALUES (1, '{a}')", "INSERT INTO keyless VALUES (1)")
    [connector] = found()["connector"]
    assert connector.status == "missing"
    database.create()
    until(lambda: found()["slot"][0].status == "ok", "the connector reads its slot")
    checks = found()
    assert {name: each[0].status for name, each in checks.items()} == {
        "login": "ok",
        "log": "ok",
        "connector": "ok",
        "slot": "ok",
        "choice": "missing",
        "grants": "ok",
        "not cached": "warning",
        "cached": "ok",
    }
    assert [check.found for check in checks["choice"]] == [
        "schema nowhere: not there",
        "3 tables of the settings' choice are there",
    ]
    assert [check.found.partition(";")[0] for check in checks["not cached"]] == [
        "public.keyless: it has no primary key",
        "public.listed: column words has type text[], whose values a connector does not tell exactly",
    ]
    user = f"{at.database}_front"
    database.run(f"CREATE USER {user}", "GRANT SELECT ON t TO PUBLIC", "ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    try:
        hidden, policed = found(replace(at, user=user))["grants"]
        assert "may not read public.keyless, public.listed" in hidden.found
        assert "hides rows of public.t" in policed.found
    finally:
        database.run(f"DROP USER {user}")
    [login] = found(replace(at, port=1))["login"]
    assert login.status == "missing"
    with database.another() as own:
        own.execute("BEGIN")
        own.execute("DELETE FROM t")
        own.execute(f"PREPARE TRANSACTION '{at.database}'".encode())
    try:
        [prepared] = found()["prepared"]
        assert f"public.t: the prepared transaction '{at.database}'" in prepared.found
    finally:
        database.run(f"ROLLBACK PREPARED '{at.database}'")
    database.connect.halt(database.connector)
    until(lambda: "nobody reads it" in found()["slot"][0].found, "the connector has left")
