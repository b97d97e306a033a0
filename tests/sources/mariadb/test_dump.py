"""The binlog connection uses three private parts of PyMySQL. An update without them must be noticed."""

from __future__ import annotations

import inspect

import pymysql
import pytest


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
