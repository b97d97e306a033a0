"""The indexes of a source's tables by which a cache can find rows, and why not by the others. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from stream.wire.events import DescribeTable

_NOT_IN_NAMES: Final = frozenset('"\\,()')
"""Characters by which names of columns are told apart in an index's name, or that the reader of images refuses."""


class SourceIndex(NamedTuple):
    """An index of a source's table besides the primary key. ``problem``: why it finds no rows by whole values."""

    name: str
    columns: tuple[str, ...]
    problem: str = ""


class LearntIndex(NamedTuple):
    """An index of a table, ``db.table``. ``refused``: why a cache keeps none like it; empty: it can."""

    table: str
    name: str
    columns: tuple[str, ...]
    refused: str = ""


def learnt_indexes(table: DescribeTable, indexes: Sequence[SourceIndex]) -> list[LearntIndex]:
    """The ``indexes`` of a table, each set of columns once."""
    found: dict[frozenset[str], LearntIndex] = {}
    for index in indexes:
        known = found.get(frozenset(index.columns))
        if known is None or known.refused:
            refused = table.reason or index.problem or _why_not(table, index.columns)
            found[frozenset(index.columns)] = LearntIndex(table.table, index.name, index.columns, refused)
    return list(found.values())


def is_plain(name: str) -> bool:
    """Whether rows can be found, or ordered, by a column of this name."""
    return name.isprintable() and not _NOT_IN_NAMES & set(name)


def _why_not(table: DescribeTable, names: tuple[str, ...]) -> str:
    """Why rows can't be found by the canonical values of these columns; "" if they can.

    Equality of canonical values must be equality at the source.
    """
    columns = {column.name: column for column in table.columns}
    if set(names) == set(table.primary_key[: len(names)]):
        return "the primary key begins with its columns"
    for name in names:
        column = columns.get(name)
        if column is None:
            return f"column {name} is not published"
        if not is_plain(name):
            return f"column {name} has a name with quotes, commas, parentheses or control characters"
        if not column.exact:
            what = "are compared by a collation" if column.kind == "text" else f"({column.kind}) have several spellings"
            return f"values of column {name} {what}"
    return ""
