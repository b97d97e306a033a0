"""Whether column statistics of a transactional table hold for a reader, as Hive's ``isStatsCompliant``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from stream.wire.canonical import UNDECODABLE
from tokens import ValidWriteIdList

ACCURATE: Final = "COLUMN_STATS_ACCURATE"


def is_stats_compliant(image: Mapping[str, Any], listed: ValidWriteIdList) -> bool:
    """Hive's ``ObjectStore.isCurrentStatsValidForTheQuery`` for a reader with ``listed``.

    ``image``: the JSON image of the table, or of the partition that the statistics are of. They hold if the write that
    set them is valid for the reader, and the basic statistics are up to date: after an ABORT they are not.
    """
    written = image.get("writeId", -1)
    if not isinstance(written, int) or written < 1:
        return True
    return _basic_are_accurate(image.get("parameters")) and listed.is_valid(written)


def do_hold(images: Iterable[bytes | None], listed: ValidWriteIdList) -> bool:
    """Whether statistics hold for a reader with ``listed``. ``images``: of all that they are of, as JSON."""
    return all(is_stats_compliant(msgspec.json.decode(image or b"{}"), listed) for image in images)


def _basic_are_accurate(parameters: Any) -> bool:
    text = parameters.get(ACCURATE) if isinstance(parameters, dict) else None
    if not isinstance(text, str):
        return False
    try:
        found = msgspec.json.decode(text)
    except UNDECODABLE:
        return text.lower() == "true"  # as Hive wrote it before 2.1
    if isinstance(found, bool):
        return found
    return isinstance(found, dict) and str(found.get("BASIC_STATS", "")).lower() == "true"
