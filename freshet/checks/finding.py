"""One finding of `freshet doctor`, with the fix for what is missing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. ``status``: ok, warning (Freshet works in part) or missing (it does not work)."""

    name: str
    status: str
    found: str
    fix: str = ""


def healthy(checks: Iterable[Check]) -> bool:
    """Whether nothing essential is missing."""
    return all(check.status != "missing" for check in checks)
