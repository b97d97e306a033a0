"""A stretch of a table's rows in some order, as a source is asked for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """How the index of a primary key has its rows. Its columns are in key order, but those that are named here differ.

    ``descending``: columns whose greatest values come first. ``partial``: columns of which it has only how their values
    begin. ``misleading``: those of them whose values may be in another order than their beginnings: a letter is
    compared as two, or two as one. Servers search such an index as if that were not so, and leave rows out.
    """

    descending: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    misleading: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The rows whose keys begin with ``leading`` and are after the key ``after``. Values are canonical.

    ``order``: columns by which they come, before the key; ``after_values``: theirs in the row ``after``. ``where``:
    columns and the values that they must have, too. ``limit``: of rows; 0: they are only counted, up to ``count_max``
    (0: all). ``turned``: columns that come in the other direction. ``up_to``: the last key that is read. ``owns``: of
    rows that are counted, whether one of this key may be there: one that may not is the answer, without an image.
    """

    leading: Sequence[object] = ()
    after: Sequence[object] | None = None
    descending: bool = False
    limit: int = 0
    count_max: int = 0
    where: Sequence[tuple[str, object]] = ()
    order: Sequence[str] = ()
    after_values: Sequence[object] = ()
    turned: Sequence[str] = ()
    up_to: Sequence[object] | None = None
    owns: Callable[[bytes], bool] | None = None

    def descends(self, name: str) -> bool:
        """Whether the greatest values of a column come first."""
        return self.descending is not (name in self.turned)

    def behind(self, key: Sequence[str], column: Callable[[str], str], literal: Callable[[str, object], str]) -> str:
        """The SQL condition of the rows that come after the last one of a page. NULL is before all values.

        ``key``: the columns of the primary key. ``column``: one as it is sorted; ``literal``: a value to compare it
        with. A row comparison, ``(a, b) > (1, 2)``, would not use the index everywhere.
        """
        after = dict(zip(self.order, self.after_values, strict=True))
        values = dict(zip(key, self.after or (), strict=True))
        left = [name for name in key[len(self.leading) :] if name not in after]
        same: list[str] = []
        alternatives: list[str] = []
        for name, value in (*after.items(), *((name, values[name]) for name in left)):
            sorted_by, compared = column(name), "" if value is None else literal(name, value)
            if value is None:
                beyond = "" if self.descends(name) else f"{sorted_by} IS NOT NULL"
            elif self.descends(name):
                beyond = f"{sorted_by} < {compared}"
                beyond = f"({beyond} OR {sorted_by} IS NULL)" if name in after else beyond
            else:
                beyond = f"{sorted_by} > {compared}"
            if beyond:
                alternatives.append(" AND ".join([*same, beyond]))
            same.append(f"{sorted_by} = {compared}" if compared else f"{sorted_by} IS NULL")
        return f"(({') OR ('.join(alternatives)}))" if alternatives else "FALSE"
