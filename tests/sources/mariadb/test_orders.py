"""Rows in an order: which index has them, what is counted before they are sorted, and where the next page begins."""

from __future__ import annotations

import pytest

from stream.sources.key_range import KeyRange
from stream.sources.learnt_indexes import SourceIndex
from stream.sources.mariadb.by_range import SORTED_MAX, SortTooLarge, has_index_for, require_few
from stream.sources.mariadb.schema import ColumnInfo, TableInfo

COLUMNS = (ColumnInfo("id", "int", True), ColumnInfo("a", "int", True))


def table(*indexes: SourceIndex) -> TableInfo:
    """One with a number and a key."""
    return TableInfo("d", "t", COLUMNS, ("id",), indexes=indexes)


@pytest.mark.parametrize("problem", ["", "it has only how values begin"])
def test_an_index_that_lacks_values_has_no_rows_in_their_order(problem: str) -> None:
    """The server would sort a whole table for each page, since nobody has counted its rows before."""
    info = table(SourceIndex("i", ("a",), problem))
    assert has_index_for(info, KeyRange(limit=1, order=("a",))) is not bool(problem)


@pytest.mark.parametrize(
    ("value", "descending", "behind"),
    [
        (5, False, "((a > 5) OR (a = 5 AND id > 7))"),
        (5, True, "(((a < 5 OR a IS NULL)) OR (a = 5 AND id < 7))"),
        (None, False, "((a IS NOT NULL) OR (a IS NULL AND id > 7))"),
        (None, True, "((a IS NULL AND id < 7))"),
    ],
)
def test_the_next_page_begins_behind_the_last_row(value: object, descending: bool, behind: str) -> None:
    """NULL is before all values, so last the other way round: rows would come twice for ever, or never."""
    wanted = KeyRange(after=[7], descending=descending, limit=10, order=("a",), after_values=[value])
    assert wanted.behind(("id",), str, lambda _, each: str(each)) == behind


@pytest.mark.parametrize(("rows", "is_refused"), [(SORTED_MAX, False), (SORTED_MAX + 1, True), (10**9, True)])
def test_no_more_rows_are_sorted_than_a_server_sorts_soon(rows: int, is_refused: bool) -> None:
    """They are counted no further than need be, and all of them: a page's place among them is no bound."""

    def count(wanted: KeyRange) -> int:
        assert (wanted.limit, wanted.after) == (0, None)
        assert SORTED_MAX < wanted.count_max < 2 * SORTED_MAX
        return min(rows, wanted.count_max)

    wanted = KeyRange(limit=10, after=[3], order=("a",), after_values=[1])
    if is_refused:
        with pytest.raises(SortTooLarge):
            require_few(table(), wanted, count)
    else:
        require_few(table(), wanted, count)
