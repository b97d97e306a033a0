"""What a MariaDB's refusals become: who may try again, and who may not."""

from __future__ import annotations

import dataclasses

import pymysql
import pytest

from stream.sources.mariadb.connection import ConnectionSettings, MariaDBUnreachable, connect, translate
from tests.sources.mariadb.conftest import Source


def test_a_server_without_a_place_for_us_is_tried_again(source: Source) -> None:
    """A user with all its connections in use is an outage that ends by itself: a source that ended there would lag."""
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
def test_what_the_server_lacks_for_a_while_is_no_reason_to_end(code: int) -> None:
    """Disk, memory, connections, locks: each comes back without us."""
    error = translate(pymysql.err.OperationalError(code, "why"), ConnectionSettings())
    assert error.code == "mariadb_unreachable"
    assert f"why ({code})" in str(error)
    assert error.hint


@pytest.mark.parametrize("code", [1045, 1064, 1142, 1146, 1227, 1236, 1290])
def test_what_stays_wrong_until_somebody_acts_is_no_outage(code: int) -> None:
    """A wrong login, a missing privilege, a missing table, a purged binlog: waiting helps nobody."""
    assert not isinstance(
        translate(pymysql.err.OperationalError(code, "why"), ConnectionSettings()), MariaDBUnreachable
    )
