"""Which errors of MariaDB are retried and which are not."""

from __future__ import annotations

import dataclasses

import pymysql
import pytest

from stream.sources.mariadb.connection import ConnectionSettings, MariaDBUnreachable, connect, translate
from tests.sources.mariadb.conftest import Source


def test_too_many_connections_are_an_outage(source: Source) -> None:
    """A login refused for too many connections counts as an outage, so that a source retries it."""
    source.run("CREATE OR REPLACE USER crowded@'%' IDENTIFIED BY 'c' WITH MAX_USER_CONNECTIONS 1")
    crowded = dataclasses.replace(source.settings, user="crowded", password="c")
    first = connect(crowded)
    try:
        with pytest.raises(MariaDBUnreachable, match=r"crowded@.* cannot answer now: .*max_user_connections"):
            connect(crowded)
    finally:
        first.close()
        source.run("DROP USER crowded@'%'")


@pytest.mark.parametrize("code", [6, 28, 1021, 1037, 1040, 1041, 1203, 1205, 1213, 1226])
def test_a_temporary_lack_of_resources_is_an_outage(code: int) -> None:
    """Errors about disk, memory, connections and locks count as outages with a hint."""
    error = translate(pymysql.err.OperationalError(code, "why"), ConnectionSettings())
    assert error.code == "mariadb_unreachable"
    assert f"why ({code})" in str(error)
    assert error.hint


@pytest.mark.parametrize("code", [1045, 1064, 1142, 1146, 1227, 1236, 1290])
def test_permanent_errors_are_not_outages(code: int) -> None:
    """A wrong login, a missing privilege or table, and a purged binlog are not retried."""
    assert not isinstance(
        translate(pymysql.err.OperationalError(code, "why"), ConnectionSettings()), MariaDBUnreachable
    )
