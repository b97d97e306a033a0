"""The binlog connection uses three private parts of PyMySQL. An update without them must be noticed."""

from __future__ import annotations

import inspect
import time

import pymysql
import pytest

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.dump import BinlogDump
from tests.patience import PATIENCE_S
from tests.sources.mariadb.conftest import SERVER_IDS, Source


@pytest.mark.parametrize(
    ("name", "what_breaks"),
    [
        ("_execute_command", "the binlog cannot be asked for (COM_BINLOG_DUMP)"),
        ("_force_close", "a dump cannot be ended without waiting for the server"),
        ("_sock", "raw events cannot be read"),
    ],
)
def test_pymysql_has_the_private_parts_that_a_dump_uses(name: str, what_breaks: str) -> None:
    """PyMySQL still has the private attributes that the binlog connection uses."""
    assert hasattr(pymysql.connections.Connection(defer_connect=True), name), f"PyMySQL has no {name}: {what_breaks}"


def test_pymysql_sends_a_command_with_a_body_of_bytes() -> None:
    """`_execute_command` still takes a command and its body, as the request for a dump needs it."""
    parameters = inspect.signature(pymysql.connections.Connection._execute_command).parameters
    assert list(parameters) == ["self", "command", "sql"]


def test_a_dump_knows_without_waiting_whether_more_was_sent(source: Source) -> None:
    """A backfill gives way to changes that wait, and a look for them must not end the connection."""
    dump = BinlogDump(source.settings, source.position().removeprefix("MariaDB/"), next(SERVER_IDS), heartbeat_s=1)
    try:
        kind = 0
        while kind != events.HEARTBEAT or dump.has_more:
            kind = dump.read()[4]
        source.run("CREATE TABLE t (id INT PRIMARY KEY)")
        deadline = time.monotonic() + PATIENCE_S
        while not dump.has_more:
            assert time.monotonic() < deadline
        while kind == events.HEARTBEAT:
            kind = dump.read()[4]
        assert kind == events.GTID
    finally:
        dump.close()
