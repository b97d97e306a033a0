"""What is read of a table that a metastore shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stream.sources.hive.messages import is_listable, parse_table


@pytest.mark.parametrize(
    ("name", "listable"),
    [("d.t", True), ("d.a.t", False), ("d.a:t", False), ("d.t:", False), ("d-e.t_1", True)],
)
def test_a_name_that_hive_would_cut_has_no_list(name: str, listable: bool) -> None:
    """It would answer with the list of another table, by which what is not committed may seem so."""
    assert is_listable(name) is listable


def columns_of(*keys: tuple[str, str]) -> int:
    """The checksum of a table with one column and these partition keys: name and type."""
    fields = [{"1": {"str": name}, "2": {"str": kind}} for name, kind in keys]
    struct: dict[str, Any] = {"1": {"str": "t"}, "2": {"str": "d"}, "25": {"i64": 7}}
    struct["7"] = {"rec": {"1": {"lst": ["rec", 1, {"1": {"str": "x"}, "2": {"str": "int"}}]}}}
    struct["8"] = {"lst": ["rec", len(fields), *fields]}
    return parse_table({"shown": json.dumps(struct)}, "shown").columns


def test_partition_keys_count_among_the_columns() -> None:
    """An alter of their types alone changes what constraints and statistics are of."""
    assert columns_of(("p", "int")) == columns_of(("p", "int")) != 0
    assert len({columns_of(), columns_of(("p", "int")), columns_of(("p", "string")), columns_of(("q", "int"))}) == 4


@pytest.mark.parametrize(
    ("parameters", "kinds"),
    [
        ({}, (False, False)),
        ({"transactional": "false"}, (False, False)),
        ({"transactional": "true"}, (True, True)),
        ({"transactional": "TRUE", "transactional_properties": "default"}, (True, True)),
        ({"transactional": "True", "transactional_properties": "INSERT_ONLY"}, (True, False)),
    ],
)
def test_words_of_a_table_count_in_any_case(parameters: dict[str, str], kinds: tuple[bool, bool]) -> None:
    """Hive takes them so. A transactional table that passed for an external one would be answered without a list."""
    struct: dict[str, Any] = {"1": {"str": "T"}, "2": {"str": "D"}, "25": {"i64": 7}}
    struct["9"] = {"map": ["str", "str", len(parameters), parameters]}
    table = parse_table({"shown": json.dumps(struct)}, "shown")
    assert (table.name, table.transactional, table.full_acid) == ("d.t", *kinds)


@pytest.mark.parametrize(
    ("table_type", "is_materialized"), [("MATERIALIZED_VIEW", True), ("VIRTUAL_VIEW", False), ("", False)]
)
def test_a_materialized_view_is_told_by_its_type(table_type: str, is_materialized: bool) -> None:
    """A plain view changes with an event like any table."""
    struct: dict[str, Any] = {"1": {"str": "v"}, "2": {"str": "s"}, "25": {"i64": 1}}
    struct |= {"12": {"str": table_type}} if table_type else {}
    assert parse_table({"shown": json.dumps(struct)}, "shown").is_materialized is is_materialized
