"""The binlog connection rests on three private parts of PyMySQL: an update that takes one away must be noticed."""

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
    """A PyMySQL without them fails here, by name, and not in a source that was just updated."""
    assert hasattr(pymysql.connections.Connection(defer_connect=True), name), f"PyMySQL has no {name}: {what_breaks}"


def test_pymysql_sends_a_command_with_a_body_of_bytes() -> None:
    """`_execute_command(command, body)` is how the dump is requested."""
    parameters = inspect.signature(pymysql.connections.Connection._execute_command).parameters
    assert list(parameters) == ["self", "command", "sql"]
