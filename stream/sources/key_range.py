"""A stretch of a table's rows in some order, as a source is asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The rows whose keys begin with ``leading`` and are after the key ``after``. Values are canonical.

    ``order``: columns by which they come, before the key; ``after_values``: theirs in the row ``after``. ``where``:
    columns and the values that they must have, too. ``limit``: of rows; 0: they are only counted, up to ``count_max``
    (0: all).
    """

    leading: Sequence[object] = ()
    after: Sequence[object] | None = None
    descending: bool = False
    limit: int = 0
    count_max: int = 0
    where: Sequence[tuple[str, object]] = ()
    order: Sequence[str] = ()
    after_values: Sequence[object] = ()
