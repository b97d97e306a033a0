"""What is selected of a PostgreSQL, with answers that the test sets."""

from __future__ import annotations

from typing import Any

import pytest

from stream.sources.key_range import KeyRange
from stream.sources.mariadb.schema import ColumnInfo, TableInfo
from stream.sources.postgres import selecting

INFO = TableInfo("public", "t", (ColumnInfo("day", "date", True), ColumnInfo("id", "int", True)), ("id",))


def test_rows_that_may_not_be_there_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key is looked at, without its row; one that may not be there is told in place of a number."""
    asked: list[str] = []

    def answer(_: object, sql: str, __: object) -> list[list[bytes]]:
        asked.append(sql)
        return [[b"1"], [b"2"]]

    monkeypatch.setattr(selecting, "raw_rows", answer)
    nobody: Any = None
    of_all, of_some = (
        KeyRange(count_max=9, owns=lambda _: True),
        KeyRange(count_max=9, owns=lambda key: b"2" not in key),
    )
    assert selecting.rows_in_range(nobody, INFO, of_all).number == 2
    assert [row.key for row in selecting.rows_in_range(nobody, INFO, of_some).rows] == [b"public.t\0[2]"]
    assert asked == ['SELECT "id" FROM ONLY "public"."t" LIMIT 9'] * 2
