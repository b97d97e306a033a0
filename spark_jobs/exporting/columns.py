"""Typed columns of a table's changes, from its description in the topic. Pure but for pyarrow.

A value that has no form in its column's type (a zero date, an integer above 63 bits, a column that the description
lacks) is in the column `UNTYPED` as the image has it, so that nothing is lost and nothing is wrong.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final

import pyarrow as pa

from stream.wire.canonical import json_of

UNTYPED: Final = "_untyped"
FIXED: Final = (
    pa.field("_kind", pa.string(), nullable=False),
    pa.field("_key", pa.string()),
    pa.field("_reason", pa.string()),
    pa.field("_shard", pa.string()),
    pa.field("_epoch", pa.int64()),
    pa.field("_ordinal", pa.int64()),
    pa.field("_gtid", pa.string()),
    pa.field("_time", pa.timestamp("s", "UTC")),
    pa.field("_partition", pa.int32(), nullable=False),
    pa.field("_offset", pa.int64(), nullable=False),
    pa.field(UNTYPED, pa.map_(pa.string(), pa.string())),
)
"""The columns that each file has, before those of the table."""
_INT_MAX: Final = 2**63 - 1
_FIRST_SECOND: Final = -62_135_596_800
"""Seconds since 1970 at which the year 1 begins,"""
_LAST_SECOND: Final = 253_402_300_799
"""and the year 9999 ends. Readers of the files have no date for others."""
_TYPES: Final = {
    "int": pa.int64(),
    "bit": pa.int64(),
    "year": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "UTC"),
}
"""Kind of a column → its type; all others are text, decimals too: the description has no scale."""


def column_types(columns: Mapping[str, str]) -> list[pa.Field]:
    """The fields of a table's ``columns`` (name → kind), without those that have another one's name but for its case.

    What Spark reads from the directories' names has its name there: a file's column would be hidden by it.
    """
    seen = {each.name for each in FIXED} | {"table", "day"}
    fields = []
    for name, kind in columns.items():
        if name.lower() not in seen:
            seen.add(name.lower())
            fields.append(pa.field(name, _TYPES.get(kind, pa.string())))
    return fields


def typed(kind: str, value: Any) -> Any:
    """A canonical value as its column's type has it. Raises ``ValueError``, ``TypeError``, ``KeyError`` or
    ``OverflowError``.
    """
    if value is None:
        return None
    if kind in ("int", "bit", "year"):
        if type(value) is not int or not -_INT_MAX - 1 <= value <= _INT_MAX:
            raise ValueError(value)
        return value
    if kind in ("float", "double"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(value)
        return float(value)
    if kind == "binary":
        return b64decode(value["base64"], validate=True)
    if kind == "date":
        return date.fromisoformat(value)
    if kind in ("datetime", "timestamp"):
        parsed = datetime.fromisoformat(value)
        return parsed if kind == "datetime" else parsed.replace(tzinfo=UTC)
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def table_of(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> pa.Table:
    """An arrow table of changes. Each row has the values of `FIXED` by name, and in ``image`` its image if known."""
    fields = column_types(columns)
    found: dict[str, list[Any]] = {each.name: [] for each in (*FIXED, *fields)}
    for row in rows:
        image: dict[str, Any] = dict(row.get("image") or {})
        for each in fields:
            value = None
            if each.name in image:
                try:
                    value = typed(columns[each.name], image[each.name])
                except (ValueError, TypeError, KeyError, OverflowError):
                    pass
                else:
                    del image[each.name]
            found[each.name].append(value)
        for each in FIXED:
            if each.name != UNTYPED:
                value = row.get(each.name)
                if each.name == "_time" and value is not None and not _FIRST_SECOND <= value <= _LAST_SECOND:
                    value = None
                found[each.name].append(value)
        found[UNTYPED].append([(name, json_of(value).decode()) for name, value in image.items()] or None)
    schema = pa.schema([*FIXED, *fields])
    return pa.table([pa.array(found[each.name], each.type) for each in schema], schema=schema)
