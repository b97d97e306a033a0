"""Names of partitions as a metastore writes them, ``ds=2024-01-01/hr=7``, from their values and back. Pure.

As ``FileUtils.makePartName`` and ``Warehouse.makeValsFromName`` of Hive 4.0.1: what a path cannot hold is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

DEFAULT: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name of an empty value."""
_SPECIAL: Final = re.compile(r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
_ESCAPED: Final = re.compile("%([0-9A-Fa-f]{2})")


def partition_name(keys: Sequence[str], values: Sequence[str]) -> str:
    """The name of the partition with ``values`` of the columns ``keys``."""
    return "/".join(f"{_escape(key.lower())}={_escape(value)}" for key, value in zip(keys, values, strict=True))


def values_of(name: str) -> tuple[str, ...]:
    """The values in a partition's name."""
    return tuple(_unescape(part.partition("=")[2]) for part in name.split("/"))


def told_by(values: Iterable[str]) -> tuple[str, ...]:
    """What tells a partition from others: a metastore has one of an empty value and of the default one, by either."""
    return tuple(value or DEFAULT for value in values)


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text) if text else DEFAULT


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
