"""Which indexes of a source a cache keeps: those whose columns have one spelling for each value."""

from __future__ import annotations

import pytest

from stream.sources.learnt_indexes import SourceIndex, learnt_indexes
from stream.wire.events import Column, DescribeTable

COLUMNS = (
    Column("a", "int", True),
    Column("b", "int", True),
    Column("name", "text", False),
    Column("code", "text", True),
    Column("price", "decimal", False),
)


def learnt(*indexes: SourceIndex, problem: str = "") -> dict[tuple[str, ...], str]:
    """Columns → why there is no index on them."""
    table = DescribeTable("shop.items", COLUMNS, ("a", "b"), not problem, problem)
    return {index.columns: index.refused for index in learnt_indexes(table, indexes)}


def test_an_index_of_exact_columns_is_kept_and_others_say_why_not() -> None:
    """Equality of canonical values is equality at the source, or the source must be asked."""
    found = learnt(
        SourceIndex("x", ("code", "b")),
        SourceIndex("n", ("name",)),
        SourceIndex("p", ("b", "price")),
        SourceIndex("k", ("a",)),
        SourceIndex("g", ("gone",)),
        SourceIndex("h", ("code",), "it has only the first 5 characters of column code"),
    )
    assert found[("code", "b")] == ""
    assert "collation" in found[("name",)]
    assert "price (decimal) have several spellings" in found[("b", "price")]
    assert "primary key" in found[("a",)]
    assert "not published" in found[("gone",)]
    assert "first 5" in found[("code",)]


def test_each_set_of_columns_is_one_index() -> None:
    """Whole values are compared, so the order of columns does not matter. One that can be kept goes first."""
    prefix = SourceIndex("h", ("code", "b"), "it is a FULLTEXT index")
    assert learnt(prefix, SourceIndex("x", ("b", "code")), SourceIndex("y", ("code", "b"))) == {("b", "code"): ""}


@pytest.mark.parametrize("name", ['5" pipes', "a, b", "(c)", "back\\slash", "bell\a"])
def test_a_column_whose_name_would_be_taken_for_others_has_none(name: str) -> None:
    """An index's columns are written together, and the reader of images refuses some names."""
    table = DescribeTable("shop.items", (*COLUMNS, Column(name, "int", True)), ("a",))
    [found] = learnt_indexes(table, [SourceIndex("x", (name,))])
    assert "has a name with" in found.refused


def test_a_table_that_is_never_cached_has_none() -> None:
    """The reason is the table's."""
    assert learnt(SourceIndex("x", ("code",)), problem="it has a blob") == {("code",): "it has a blob"}
