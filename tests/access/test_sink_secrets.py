"""What a sink tells of the database of its copy, when it fails: neither its password nor rows."""

from __future__ import annotations

import sqlite3
import traceback
from pathlib import Path

import psycopg
import pymysql
import pytest
import sqlalchemy as sa

from freshet.commands.sink import _engine, _failure, _said
from serving.sink.errors import SinkError
from serving.sink.tables import CopyTable

PLANTED = "planted-1f2e3d"


@pytest.mark.parametrize(
    "url", [f"nonsense:{PLANTED}", f"nothing+none://copy:{PLANTED}@db-2/copy", f"mysql://copy:{PLANTED}@db:port/copy"]
)
def test_a_password_in_a_sinks_url_is_in_no_error(url: str) -> None:
    """A URL that can't be used is not repeated: whoever reads the log would have it."""
    with pytest.raises(SinkError, match="the URL of the copy can't be used") as refused:
        _engine(url, None)
    shown = "".join(traceback.format_exception(refused.value)) + refused.value.hint
    assert PLANTED not in shown


def test_a_sinks_password_comes_from_a_file(tmp_path: Path) -> None:
    """So it stands in no list of processes; a file that is not there is told."""
    (tmp_path / "password").write_text(f"{PLANTED}\n")
    assert _engine("mysql+pymysql://copy@db-2/copy", tmp_path / "password").url.password == PLANTED
    with pytest.raises(SinkError, match="cannot be read: No such file"):
        _engine("mysql+pymysql://copy@db-2/copy", tmp_path / "none")


def test_a_sinks_errors_show_no_rows(tmp_path: Path) -> None:
    """Neither what the database says of a statement, nor what is said of a value that does not fit."""
    engine = _engine(f"sqlite:///{tmp_path}/copy.db", None)
    table = sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("v", sa.Date))
    with pytest.raises(sa.exc.SQLAlchemyError) as failed, engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO gone VALUES (:v)"), {"v": PLANTED})
    assert PLANTED not in str(failed.value)
    with pytest.raises(SinkError) as refused:
        CopyTable("shop.t", table, ("id",), {"id": "int", "v": "date"}).values_of({"id": 1, "v": PLANTED})
    assert PLANTED not in str(refused.value)
    assert "shop.t.v has a value that the copy's column, DATE, does not take: a text of 14" in str(refused.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (pymysql.err.IntegrityError(1062, f"Duplicate entry '{PLANTED}' for key 'email'"), "IntegrityError 1062"),
        (psycopg.errors.UniqueViolation(f"DETAIL: Key (email)=({PLANTED}) already exists."), "UniqueViolation 23505"),
        (sqlite3.IntegrityError(f"UNIQUE constraint failed: {PLANTED}"), "IntegrityError"),
    ],
)
def test_what_a_driver_says_of_a_row_is_not_told(error: Exception, told: str) -> None:
    """A driver's own words hold values, whatever SQLAlchemy hides: its name and number say enough."""
    failed = sa.exc.DBAPIError("INSERT INTO t (v)\n VALUES (?)", {"v": PLANTED}, error, hide_parameters=True)
    said = _said(failed)
    assert said.startswith(told)
    assert said.endswith("at INSERT INTO t (v) VALUES (?)")
    assert PLANTED not in said


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (pymysql.err.DataError(1406, "Data too long for column 'id' at row 1"), "sink_value"),
        (pymysql.err.DataError(1264, "Out of range value for column 'v' at row 1"), "sink_value"),
        (pymysql.err.DataError(1366, f"Incorrect string value: '{PLANTED}' for column 'v' at row 1"), "sink_value"),
        (psycopg.errors.StringDataRightTruncation("value too long for type character varying(3)"), "sink_value"),
        (pymysql.err.IntegrityError(1062, f"Duplicate entry '{PLANTED}' for key 'email'"), "sink_failed"),
        (psycopg.errors.UniqueViolation(f"DETAIL: Key (email)=({PLANTED}) already exists."), "sink_failed"),
        (sqlite3.OperationalError("database is locked"), "sink_failed"),
    ],
)
def test_a_value_that_the_database_refuses_is_a_sinks_value(error: Exception, code: str) -> None:
    """Nobody mends it at the server: the column of the copy is too small, and the statement names its table."""
    failure = _failure(sa.exc.DBAPIError("INSERT INTO t (v) VALUES (?)", {}, error, hide_parameters=True))
    assert failure.code == code
    assert "INSERT INTO t" in str(failure)
    assert PLANTED not in f"{failure} {failure.hint}"
