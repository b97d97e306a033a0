"""What `TrackedConnection` uses of PyMySQL beside its documented interface: its upper bound is why this stays true."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from pymysql.constants import SERVER_STATUS

from freshet.local.mariadb import MariaDBAddress
from serving.client import tracked
from serving.client.errors import WriteNotTracked


def test_pymysql_has_the_privates_that_tracking_reads(mariadb: MariaDBAddress) -> None:
    """PyMySQL has the private attributes that tell when to read a commit's GTID."""
    with mariadb.connect() as connection, connection.cursor() as cursor:
        assert connection.open is True
        socket = connection._sock
        assert socket is not None
        assert connection.server_status & tracked.IN_TRANSACTION == 0
        cursor.execute("START TRANSACTION")
        assert connection.server_status & tracked.IN_TRANSACTION
        cursor.execute("SELECT 1")
        assert (connection._result.has_next, connection._result.unbuffered_active) == (False, False)
        assert connection._sock is socket
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


def test_a_commit_is_owed_after_its_connection_was_opened_again(mariadb: MariaDBAddress) -> None:
    """Pools do `ping(reconnect=True)` after an error. It makes no lost answer known: the write may have been kept."""
    observed: list[str] = []
    inner = mariadb.connect()
    connection: Any = tracked.TrackedConnection(inner, observed.append)
    with connection.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE DATABASE reopened")
        cursor.execute("CREATE TABLE reopened.t (id INT PRIMARY KEY)")
        connection.begin()
        cursor.execute("INSERT INTO reopened.t VALUES (1)")
    read, before = inner._read_bytes, list(observed)

    def lose(size: int) -> bytes:
        read(size)  # the server has committed, and nobody hears it
        inner._force_close()
        raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")

    inner._read_bytes = lose
    with pytest.raises(pymysql.err.OperationalError):
        connection.commit()
    del inner._read_bytes
    with pytest.warns(DeprecationWarning, match="reconnect"):
        connection.ping(reconnect=True)
    with pytest.raises(WriteNotTracked):
        connection.require_settled()
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM reopened.t")
        assert cursor.fetchall() == ((1,),)
        cursor.execute("DROP DATABASE reopened")
    assert observed == before
    with pytest.raises(WriteNotTracked):
        connection.require_settled()


def test_the_transaction_flag_is_that_of_the_protocol() -> None:
    """The client's own constant equals PyMySQL's."""
    assert tracked.IN_TRANSACTION == SERVER_STATUS.SERVER_STATUS_IN_TRANS


def test_the_client_is_imported_without_pymysql() -> None:
    """The client does not import PyMySQL before a connection is wrapped."""
    code = "import sys; sys.modules['pymysql'] = None; import serving.client; serving.client.TrackedConnection"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class OneAtATime:
    """What tracking uses of a PyMySQL connection; it fails where two threads talk at once, as PyMySQL's would."""

    def __init__(self) -> None:
        self.open, self.server_status, self._sock = True, 0, self
        self._result: Any = None
        self.talks = threading.Lock()
        self.committing, self.may_end = threading.Event(), threading.Event()
        self.breaks = False
        self.gtid: str | bytes | None = "0-1-7"

    def commit(self) -> None:
        with self.talks:
            self.committing.set()
            assert self.may_end.wait(30)
            if self.breaks:
                raise ConnectionError("lost")

    def cursor(self, _: Any) -> OneAtATime:
        return self

    def __enter__(self) -> OneAtATime:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, _: str) -> None:
        assert self.talks.acquire(blocking=False), "two threads use the connection"
        self.talks.release()

    def fetchone(self) -> tuple[str | bytes | None]:
        return (self.gtid,)


def test_a_read_leaves_a_connection_alone_that_commits_in_another_thread() -> None:
    """A shared session's reads neither wait for a commit that has not returned, nor break into it."""
    inner, observed = OneAtATime(), list[str]()
    connection = tracked.TrackedConnection(inner, observed.append)
    writer = threading.Thread(target=connection.commit)
    writer.start()
    assert inner.committing.wait(30)
    connection.require_settled()
    assert observed == []
    inner.may_end.set()
    writer.join(30)
    assert observed == ["0-1-7"]


@pytest.mark.parametrize(
    ("gtid", "told"), [("0-1-7", ["0-1-7"]), (b"0-1-7", ["0-1-7"]), ("", []), (b"", []), (None, [])]
)
def test_a_commit_is_told_as_the_server_names_it(gtid: str | bytes | None, told: list[str]) -> None:
    """Text or bytes, as the connection's settings have it; a server that names none has written nothing to its log."""
    inner, observed = OneAtATime(), list[str]()
    inner.gtid = gtid
    inner.may_end.set()
    connection = tracked.TrackedConnection(inner, observed.append)
    connection.commit()
    connection.require_settled()
    assert observed == told


def test_a_commit_is_owed_until_the_connection_is_free_to_tell_of_it() -> None:
    """Other results of the same statement are still to be read, so nothing else can be asked."""
    inner, observed = OneAtATime(), list[str]()
    inner.may_end.set()
    connection = tracked.TrackedConnection(inner, observed.append)
    inner._result = SimpleNamespace(has_next=True, unbuffered_active=False)
    connection.commit()
    with pytest.raises(WriteNotTracked):
        connection.require_settled()
    inner._result.has_next = False
    connection.require_settled()
    assert observed == ["0-1-7"]


def test_a_commit_that_failed_is_owed_while_another_thread_uses_the_connection() -> None:
    """It may have been committed, so no read may pretend to include everything."""
    inner = OneAtATime()
    inner.breaks = True
    inner.may_end.set()
    connection = tracked.TrackedConnection(inner, lambda _: None)
    with pytest.raises(ConnectionError):
        connection.commit()
    inner.may_end.clear()
    inner.committing.clear()
    inner.breaks = False
    writer = threading.Thread(target=connection.commit)
    writer.start()
    assert inner.committing.wait(30)
    with pytest.raises(WriteNotTracked):
        connection.require_settled()
    inner.may_end.set()
    writer.join(30)
    connection.require_settled()


def test_a_connection_whose_commit_breaks_is_not_done_at_any_moment() -> None:
    """A session forgets connections that are done. The commit may break while another thread looks."""

    class Looked(tracked.TrackedConnection):
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name == "_pending" and threading.current_thread() is threading.main_thread():
                inner.may_end.set()
                writer.join(30)
            return value

    inner = OneAtATime()
    inner.breaks = True
    connection = Looked(inner, lambda _: None)

    def commit() -> None:
        with pytest.raises(ConnectionError):
            connection.commit()

    writer = threading.Thread(target=commit)
    writer.start()
    assert inner.committing.wait(30)
    inner.open = False
    assert not connection.is_done
    inner.may_end.set()
    writer.join(30)
    assert not connection.is_done
