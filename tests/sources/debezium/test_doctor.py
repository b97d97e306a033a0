"""The doctor looks whether the server is the one that the connector reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from freshet.checks.source import examine_source
from freshet.sections.sources import MariaDBSourceSettings
from stream.sources.mariadb.schema import TableFilter
from tests.sources.debezium.conftest import Captured
from tests.sources.mariadb.test_source import until

CHECK = "connector's server"


@pytest.mark.nightly
def test_a_server_that_the_connector_does_not_read_is_told(captured: Captured) -> None:
    """A session of the connector's user must read its binlog; who may not see sessions is told that."""
    source, at = captured.source, captured.source.settings
    source.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    reading, looking = (f"{source.database[:20]}_{letter}" for letter in "rl")
    source.run(f"CREATE USER {reading} IDENTIFIED BY 'x'", f"GRANT ALL ON *.* TO {reading}")
    source.run(f"CREATE USER {looking}", f"GRANT SELECT, REPLICATION CLIENT ON *.* TO {looking}")
    captured.create(database__user=reading, database__password="x")

    def found(user: str = "") -> tuple[str, str]:
        settings = MariaDBSourceSettings(
            kind="debezium",
            server="mysql" if at.product == "MySQL" else "mariadb",
            databases=[source.database],
            topic_prefix=captured.prefix,
            connect_url=captured.connect.url,
        )
        login = replace(at, user=user, password="") if user else at
        [check] = [
            each for each in examine_source(login, TableFilter((source.database,)), settings) if each.name == CHECK
        ]
        return check.status, check.found

    until(lambda: found()[0] == "ok", "the connector reads the binlog")
    status, words = found(looking)
    assert status == "warning"
    assert "can't be seen" in words
    captured.connect.halt(captured.prefix)
    until(lambda: found() == ("warning", f"no session of {reading} reads the binlog of {at.name}"), "it has left")
    source.run(f"DROP USER {reading}", f"DROP USER {looking}")
