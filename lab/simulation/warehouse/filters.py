"""Filters of partitions: each as a reader writes it, and as what it means. The latter uses nothing of Freshet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Meaning = Callable[[str, int | None], bool]
"""Whether a partition passes, by its ``ds`` and ``hr``; None: the hour is no number."""
DEFAULT: Final = "__HIVE_DEFAULT_PARTITION__"
FILTERS: Final[tuple[tuple[str, Meaning], ...]] = (
    ("ds = 'x'", lambda ds, _: ds == "x"),
    ("ds != 'x' and hr >= 2", lambda ds, hr: ds != "x" and hr is not None and hr >= 2),
    ("hr IN (1, 10) OR `ds` = 'y'", lambda ds, hr: hr in (1, 10) or ds == "y"),
    ("hr NOT IN (2, -3)", lambda _, hr: hr not in (None, 2, -3)),
    ("hr BETWEEN 2 AND 10", lambda _, hr: hr is not None and 2 <= hr <= 10),
    ("(ds = 'x' OR ds = 'é') AND (hr) NOT BETWEEN 1 AND 2", lambda ds, hr: ds in ("x", "é") and hr not in (None, 1, 2)),
    ("10 > hr", lambda _, hr: hr is not None and hr < 10),
    ("ds LIKE '%x' or ds like '_'", lambda ds, _: ds.endswith("x") or len(ds) == 1),
    ("(STRUCT(ds, hr)) IN (STRUCT('x', 1), CONST STRUCT('y', 2))", lambda ds, hr: (ds, hr) in (("x", 1), ("y", 2))),
    (f"hr = '{DEFAULT}'", lambda _, hr: hr is None),
)
BAD_FILTERS: Final = ("ds = ", "nope = 1", "hr = 'x'", "ds = 'x' AND", "((ds = 'x')", "hr < 2 $", "hr NOT = 2")
"""None of these can be meant."""
