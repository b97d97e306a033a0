"""Values that a copy's database would take in another meaning than the source's."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from serving.sink.applying import Batch
from serving.sink.errors import SinkError
from serving.sink.tables import CopyTable
from tests.serving.test_sink import in_memory, opened, token


def test_a_document_is_one_in_a_copy_too() -> None:
    """Not a text within a document; and no document is NULL, which is another thing than a document of nothing."""
    engine = in_memory("id INT PRIMARY KEY, v JSON")
    table = opened(engine)
    with engine.begin() as connection:
        batch = Batch()
        for number, value in enumerate(['{"a":1}', "null", None], 1):
            batch.add(table, [number], token(1), {"id": number, "v": value}, 1)
        batch.write(connection)
        kinds = connection.execute(sa.text("SELECT json_type(v) FROM items ORDER BY id")).scalars().all()
    assert kinds == ["object", "null", None]


def test_a_moment_is_written_in_utc() -> None:
    """A column of moments would take a text without a zone as the database's own local time."""
    columns = sa.Column("at", sa.DateTime(timezone=True)), sa.Column("seen", sa.DateTime())
    kinds = dict.fromkeys(("at", "seen"), "timestamp")
    table = CopyTable("shop.items", sa.Table("items", sa.MetaData(), *columns), (), kinds)
    text, noon = "2026-07-01 12:00:00.5", dt.datetime(2026, 7, 1, 12, 0, 0, 500_000, dt.UTC)
    assert table.values_of({"at": text, "seen": text}) == {"at": noon, "seen": noon.replace(tzinfo=None)}


@pytest.mark.parametrize(
    ("kind", "value", "is_taken"),
    [
        (mysql.DATETIME(), "2026-07-01 10:00:00.654321", False),
        (mysql.DATETIME(), "2026-07-01 10:00:00.000000", True),
        (mysql.DATETIME(fsp=3), "2026-07-01 10:00:00.654000", True),
        (mysql.DATETIME(fsp=3), "2026-07-01 10:00:00.6543", False),
        (mysql.TIMESTAMP(), "2026-07-01 10:00:00.9", False),
        (mysql.TIME(), "-838:59:59.5", False),
        (mysql.TIME(fsp=6), "-838:59:58.999999", True),
        (postgresql.TIMESTAMP(precision=0), "2026-07-01 10:00:00.5", False),
        (postgresql.TIMESTAMP(), "2026-07-01 10:00:00.654321", True),
        (postgresql.TIME(precision=2), "10:00:00.123", False),
        (mysql.FLOAT(), "1234567.891", False),
        (mysql.DATETIME(), 1_700_000_000, False),
        (mysql.TIME(), 5, False),
        (sa.REAL(), "1234567.891", False),
        (mysql.REAL(), "1234567.891", True),
        (mysql.FLOAT(), 0.1 + 0.2, False),
        (mysql.FLOAT(), float("inf"), True),
        (mysql.FLOAT(), "1.10", True),
        (mysql.FLOAT(), 16_777_217, False),
        (mysql.FLOAT(), 1.1, True),
        (mysql.DOUBLE(), "1234567.891", True),
    ],
)
def test_a_value_is_not_cut_by_a_column_of_ones_own(
    kind: sa.types.TypeEngine[Any], value: object, is_taken: bool
) -> None:
    """A database would, and say nothing; in a key two rows would become one."""
    table = CopyTable("shop.items", sa.Table("items", sa.MetaData(), sa.Column("v", kind)), (), {"v": "?"})
    if is_taken:
        assert table.values_of({"v": value}).keys() == {"v"}
    else:
        with pytest.raises(SinkError) as refused:
            table.values_of({"v": value})
        assert refused.value.code == "sink_value"


@pytest.mark.parametrize("is_value_first", [True, False])
def test_a_key_that_only_changes_its_digits_keeps_its_row(is_value_first: bool) -> None:
    """1.50 becomes 1.5: two keys of the stream are one number in the copy."""
    engine = in_memory("id DECIMAL(9, 3) PRIMARY KEY, v TEXT")
    table = opened(engine)
    told: list[tuple[str, dict[str, Any] | None]] = [("1.5", {"id": "1.5", "v": "a"}), ("1.50", None)]
    with engine.begin() as connection:
        batch = Batch()
        batch.add(table, ["1.50"], token(1), {"id": "1.50", "v": "a"}, 1)
        for key, row in told if is_value_first else reversed(told):
            batch.add(table, [key], token(2), row, 1)
        batch.write(connection)
        assert connection.execute(sa.text("SELECT v FROM items")).scalars().all() == ["a"]
        batch = Batch()
        batch.add(table, ["1.5"], token(3), None, 1)
        batch.write(connection)
        assert connection.execute(sa.text("SELECT v FROM items")).scalars().all() == []
