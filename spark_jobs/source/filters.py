"""Filters that Spark pushes down: which partitions and rows they leave. Spark applies each of them again.

Only those that mean the same here as in Spark are used: equality of integers and texts, and the order of integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stream.wire.keys import KeyFormatError, Layout, row_key

_COMPARED: Final = {
    "EqualTo": pc.equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
}
Used = tuple[str, str, Any]
"""Name of the filter, column, and its value or values."""


def used(filters: Iterable[Any]) -> list[Used]:
    """The filters of PySpark that are used here."""
    found: list[Used] = []
    for each in filters:
        name: str = type(each).__name__
        column: Any = getattr(each, "attribute", ())
        values = [*getattr(each, "value", ())] if name == "In" else [getattr(each, "value", None)]
        plain = all(type(value) is int or (type(value) is str and name in ("EqualTo", "In")) for value in values)
        if len(column) == 1 and plain and (name == "In" or name in _COMPARED):
            found.append((name, column[0], values if name == "In" else values[0]))
    return found


def keeps(table: pa.Table, filters: Iterable[Used]) -> pa.Table:
    """The rows for which no filter is false or unknown."""
    for name, column, value in filters:
        if column not in table.column_names:
            continue
        try:
            if name == "In":
                mask = pc.is_in(table[column], value_set=pa.array(value, table[column].type))
            else:
                mask = _COMPARED[name](table[column], pa.scalar(value, table[column].type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            continue  # a value that the column can't have: Spark decides
        table = table.filter(mask)
    return table


def only_partition(
    layout: Layout, table: str, primary_key: tuple[str, ...], kinds: Mapping[str, str], prefix: int, filters: list[Used]
) -> int | None:
    """The only partition that has rows for the filters, if they name one primary key of integers; else None.

    Texts are left out: the source's collation may find a row by another text than its key's.
    """
    wanted = {column: value for name, column, value in filters if name == "EqualTo" and kinds.get(column) == "int"}
    if not primary_key or not wanted.keys() >= set(primary_key):
        return None
    try:
        return layout.partition_of(row_key(table, [wanted[column] for column in primary_key]), prefix)
    except KeyFormatError:
        return None
