"""Why a location could not be told. Codes are in docs/operating/errors.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import ReadError

if TYPE_CHECKING:
    from .places import Location

TIMED_OUT: Final = frozenset({
    "kafka_unreachable",
    "kafka_error",
    "read_failed",
    "read_timeout",
    "owner_unreachable",
    "owner_timeout",
    "too_busy",
    "unauthorized",
})  # fmt: skip
"""Errors of whoever was asked after which nobody knows more than before: the location may be there."""


class LocationError(ReadError):
    """``location_unknown``, ``leader_unknown``, ``bad_location``, ``location_timeout``, ``location_queue_full``,
    ``location_limited``, ``locations_closed``.

    ``stale``: what was known last, of an error after which it may still be right.
    """

    def __init__(self, code: str, message: str, stale: Location | None = None) -> None:
        super().__init__(code, message)
        self.stale = stale


def code_of(asked: str) -> str:
    """The code for who wanted a location where the one that was asked failed with the code ``asked``."""
    return "location_timeout" if asked in TIMED_OUT else "location_unknown"
