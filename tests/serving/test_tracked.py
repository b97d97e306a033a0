"""What `TrackedConnection` uses of PyMySQL beside its documented interface: its upper bound is why this stays true."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from pymysql.constants import SERVER_STATUS

from freshet.local.mariadb import MariaDBAddress
from serving.client import tracked


def test_pymysql_has_the_privates_that_tracking_reads(mariadb: MariaDBAddress) -> None:
    """PyMySQL has the private attributes that tell when to read a commit's GTID."""
    with mariadb.connect() as connection, connection.cursor() as cursor:
        assert connection.open is True
        assert connection.server_status & tracked._IN_TRANSACTION == 0
        cursor.execute("START TRANSACTION")
        assert connection.server_status & tracked._IN_TRANSACTION
        cursor.execute("SELECT 1")
        assert (connection._result.has_next, connection._result.unbuffered_active) == (False, False)
        connection._result = None  # is put back after a query of tracking's own
        assert cursor.fetchone() == (1,)


def test_pymysql_cursors_query_through_their_connection(mariadb: MariaDBAddress) -> None:
    """Cursors run statements through `cursor.connection`, which tracking replaces."""
    queries: list[str] = []

    class Listening(tracked.TrackedConnection):
        def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
            queries.append(str(sql))
            return super().query(sql, unbuffered)

    observed: list[str] = []
    connection: Any = Listening(mariadb.connect(), observed.append)
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
    assert (queries, observed) == (["SELECT 1"], [])


def test_the_transaction_flag_is_that_of_the_protocol() -> None:
    """The client's own constant equals PyMySQL's."""
    assert tracked._IN_TRANSACTION == SERVER_STATUS.SERVER_STATUS_IN_TRANS


def test_the_client_is_imported_without_pymysql() -> None:
    """The client does not import PyMySQL before a connection is wrapped."""
    code = "import sys; sys.modules['pymysql'] = None; import serving.client; serving.client.TrackedConnection"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
