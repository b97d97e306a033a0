"""Which errors of MariaDB are retried and which are not, and what a session is set to."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from stream.sources.mariadb import connection
from stream.sources.mariadb.charsets import is_exact_collation
from stream.sources.mariadb.connection import (
    ConnectionSettings,
    MariaDBUnreachable,
    ServerSettingsError,
    SourceHistoryLost,
    connect,
    fetch_whole,
    translate,
    translated,
)
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


@pytest.mark.parametrize("password", ["pöss", "p€ss", "密码"])
def test_a_password_may_have_any_letters(source: Source, password: str) -> None:
    """PyMySQL sends a text as Latin-1: the right password was refused, or could not be sent."""
    source.run(f"CREATE OR REPLACE USER lettered@'%' IDENTIFIED BY '{password}'")
    try:
        connect(dataclasses.replace(source.settings, user="lettered", password=password)).close()
    finally:
        source.run("DROP USER lettered@'%'")


@pytest.mark.parametrize("code", [6, 28, 1021, 1037, 1040, 1041, 1203, 1205, 1213, 1226, 1317, 3032, 3168])
def test_a_temporary_lack_of_resources_is_an_outage(code: int) -> None:
    """Errors about disk, memory, connections and locks count as outages with a hint, and so does what an operator does.

    Else KILL QUERY at the wrong moment, or MySQL's offline_mode, would end a source.
    """
    error = translate(pymysql.err.OperationalError(code, "why"), ConnectionSettings())
    assert error.code == "mariadb_unreachable"
    assert f"why ({code})" in str(error)
    assert error.hint


def test_a_log_without_what_was_published_is_a_lost_history() -> None:
    """A new epoch begins by itself, as where the server's position tells it. It ended the source at each start."""
    text = "The binlog on the master is missing the GTID 0-1-9 requested by the slave (even though both a prior …)"
    error = translate(pymysql.err.OperationalError(1236, text), ConnectionSettings())
    assert isinstance(error, SourceHistoryLost)
    assert "0-1-9" in str(error)


@pytest.mark.parametrize("code", [1045, 1064, 1142, 1146, 1227, 1236, 1290])
def test_permanent_errors_are_not_outages(code: int) -> None:
    """A wrong login, a missing privilege or table, and a purged binlog are not retried."""
    assert not isinstance(
        translate(pymysql.err.OperationalError(code, "why"), ConnectionSettings()), MariaDBUnreachable
    )


@pytest.mark.parametrize(
    ("variable", "depends"),
    [
        ("time_zone='+00:00'", "the text of a TIMESTAMP, which the binlog has in UTC"),
        ("sql_mode=''", "the padding of CHAR, and the quotes of SHOW CREATE TABLE"),
        ("sql_select_limit=18446744073709551615", "how many rows there are"),
        ("completion_type=0", "whether a snapshot ends with its transaction"),
        ("system_versioning_asof=DEFAULT", "whether rows of the past are shown"),
        ("query_cache_type=0", "whether an answer is from before the snapshot"),
        ("NAMES utf8mb4", "the bytes of every text"),
        ("ISOLATION LEVEL REPEATABLE READ", "whether two statements read one state"),
    ],
)
def test_a_session_answers_alike_on_every_server(monkeypatch: pytest.MonkeyPatch, variable: str, depends: str) -> None:
    """Two servers whose globals differ, such as the time zone, must give a row the same canonical image."""
    sent: list[str] = []

    def connected(*, init_command: str, **_: Any) -> Any:
        sent.append(init_command)
        return SimpleNamespace(query=sent.append, get_server_info=lambda: "11.4.5-MariaDB")

    monkeypatch.setattr(pymysql, "connect", connected)
    connect(ConnectionSettings())
    assert any(variable in statement for statement in sent), depends


@pytest.mark.parametrize(
    ("collation", "exact"),
    [
        ("utf8mb4_nopad_bin", True),
        ("latin1_nopad_bin", True),
        ("utf8mb4_bin", False),
        ("latin1_bin", False),
        ("utf8mb4_general_nopad_ci", False),
        ("utf8mb4_uca1400_nopad_as_cs", False),
        ("utf8mb4_general_ci", False),
    ],
)
def test_only_a_collation_that_compares_every_character_is_exact(collation: str, exact: bool) -> None:
    """Any other finds a row by a second spelling, if only with a blank at its end, so absence can't be kept by key."""
    assert is_exact_collation(collation) is exact


@pytest.mark.parametrize("error", [OSError("reset"), EOFError("inside an event"), ConnectionResetError()])
def test_whatever_ends_a_connection_is_an_outage(error: Exception) -> None:
    """Who reads straight from it meets its end in more than one way."""
    with pytest.raises(MariaDBUnreachable), translated(ConnectionSettings()):
        raise error


def test_a_log_that_was_reset_under_its_reader_is_an_outage() -> None:
    """MySQL says so. Whoever connects again finds out what has become of the history."""
    error = pymysql.err.OperationalError(1236, "could not find next log; the first event 'x' at 4")
    assert isinstance(translate(error, ConnectionSettings(product="MySQL")), MariaDBUnreachable)


@pytest.mark.parametrize(("product", "version"), [("MariaDB", "8.4.0"), ("MySQL", "11.4.5-MariaDB")])
def test_a_server_of_the_other_product_is_left_at_once(
    monkeypatch: pytest.MonkeyPatch, product: Any, version: str
) -> None:
    """It is refused again and again while somebody mends the settings: each time would leave a session there."""
    told: list[str] = []
    session = SimpleNamespace(get_server_info=lambda: version, _force_close=lambda: told.append("closed"))
    monkeypatch.setattr(pymysql, "connect", lambda **_: session)
    with pytest.raises(ServerSettingsError, match=version):
        connect(ConnectionSettings(product=product))
    assert told == ["closed"]


@pytest.mark.parametrize(("code", "is_whole"), [("1205", False), ("1356", True)])
def test_what_a_locked_table_leaves_out_is_not_taken_for_all(
    monkeypatch: pytest.MonkeyPatch, code: str, is_whole: bool
) -> None:
    """MariaDB's information_schema only warns of a table that it could not open in time, and has no row of it."""
    answers = {"SELECT": [("a",)], "SHOW WARNINGS": [("Warning", code, "said")]}
    monkeypatch.setattr(connection, "fetch_all", lambda _, sql, __=(): answers[sql])
    server: Any = SimpleNamespace(get_server_info=lambda: "11.4.5-MariaDB")
    with nullcontext() if is_whole else pytest.raises(pymysql.err.OperationalError, match="said"):
        assert fetch_whole(server, "SELECT") == [("a",)]
