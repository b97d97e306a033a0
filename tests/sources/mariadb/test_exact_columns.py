"""Which columns are described as exact: those whose canonical text alone decides what is the same key."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from stream.sources.mariadb import charsets
from stream.sources.mariadb.charsets import Charsets, read_charsets
from stream.sources.mariadb.information_schema.tables import _column
from stream.wire.events import Column
from stream.wire.values import request_key_value


@pytest.mark.parametrize(
    ("data_type", "collation", "exact"),
    [
        ("int", None, True),
        ("bigint", None, True),
        ("bit", None, True),
        ("date", None, True),
        ("uuid", None, True),
        ("varbinary", None, True),
        ("binary", None, False),
        ("year", None, False),
        ("decimal", None, False),
        ("double", None, False),
        ("datetime", None, False),
        ("inet6", None, False),
        ("varchar", "utf8mb4_general_ci", False),
        ("varchar", "utf8mb4_bin", False),
        ("varchar", "utf8mb4_nopad_bin", True),
    ],
)
def test_a_column_is_exact_only_if_no_other_spelling_finds_its_rows(
    data_type: str, collation: str | None, exact: bool
) -> None:
    """Padding, scale, collations and two-digit years let other texts find a row, so its absence is not cached."""
    row = ("k", data_type, data_type, "utf8mb4" if collation else None, collation, 8)
    assert _column(row, Charsets({}, {}), False).exact is exact


@pytest.mark.parametrize("text", ["24", "0024", "2024"])
def test_a_year_of_the_source_is_never_exact(text: str) -> None:
    """MariaDB finds 2024 by 24, so no text of a YEAR key is its only spelling."""
    found = _column(("y", "year", "year(4)", None, None, None), Charsets({}, {}), False)
    assert request_key_value(Column(found.name, found.kind, found.exact), text) == (int(text), False)


def test_a_mariadb_before_its_collations_had_several_sets_tells_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 10.9 the numbers are in another table: without them no table's columns could be read there."""
    server: Any = SimpleNamespace(get_server_info=lambda: "5.5.5-10.5.29-MariaDB-log")

    def fetch_all(_: object, sql: str) -> list[tuple[str, ...]]:
        if "COLLATION_CHARACTER_SET_APPLICABILITY" in sql:
            raise pymysql.err.OperationalError(1054, "Unknown column 'ID' in 'field list'")
        return [("46", "utf8mb4", "utf8mb4_bin")] if ".COLLATIONS" in sql else [("binary",)]

    monkeypatch.setattr(charsets, "fetch_all", fetch_all)
    assert read_charsets(server).by_collation == {46: "utf8mb4"}
