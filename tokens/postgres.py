"""PostgreSQL positions: a place in a server's write-ahead log (an LSN), on one of its timelines."""

from __future__ import annotations

import re
from typing import Final

from .errors import TokenError
from .integers import UINT32_MAX, UINT64_MAX, excerpt, parse_unsigned
from .position import Order, Position

AMBIGUOUS_TIMELINE: Final = UINT32_MAX
"""In a join of places on two timelines. No server has it, so nothing is ordered against such a place."""
_LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class PostgresPosition(Position):
    """``Postgres/16/B374D848``: every transaction whose commit ends in the log at or before this place.

    ``Postgres/3:16/B374D848`` also names the timeline, which grows when a replica is promoted or a backup is restored.
    From there on the log of before and the new one have the same places with other transactions, so places of two
    timelines are not ordered, nor is one of a timeline against one of which it isn't said (0).
    """

    __slots__ = ("lsn", "timeline")
    flavor = "Postgres"

    def __init__(self, timeline: int, lsn: int) -> None:
        self._text = None
        self._hash = None
        self.timeline = timeline
        self.lsn = lsn

    @classmethod
    def parse_set(cls, text: str) -> Position:
        timeline, colon, lsn = text.rpartition(":")
        number = parse_unsigned(timeline, UINT32_MAX, "PostgreSQL timeline") if colon else 0
        if colon and not number:
            raise TokenError(f"PostgreSQL position {excerpt(text)} has timeline 0", hint="leave out the 0:")
        return cls(number, parse_lsn(lsn))

    def contains(self, other: Position) -> bool:
        if not isinstance(other, PostgresPosition):
            return not other.flavor
        return self.lsn >= other.lsn

    def order(self, other: Position) -> Order:
        if not isinstance(other, PostgresPosition):
            return Order.UNKNOWN
        if self._key() == other._key():
            return Order.SAME
        if self.timeline != other.timeline or self.timeline == AMBIGUOUS_TIMELINE:
            return Order.UNKNOWN
        return Order.NEWER if self.lsn > other.lsn else Order.OLDER

    def append(self, gtid: str) -> Position:
        return self.join(PostgresPosition.parse_set(gtid.removeprefix(f"{self.flavor}/")))  # an LSN has a slash, too

    def union(self, other: Position) -> Position:
        return self.join(other)

    def join(self, other: Position) -> Position:
        if not other.flavor:
            return self
        self.require_same_flavor(other, "join")
        assert isinstance(other, PostgresPosition)
        if self.timeline == other.timeline:
            return self if self.lsn >= other.lsn else other
        return PostgresPosition(AMBIGUOUS_TIMELINE, max(self.lsn, other.lsn))

    def set_text(self) -> str:
        place = lsn_text(self.lsn)
        return f"{self.timeline}:{place}" if self.timeline else place

    def _key(self) -> object:
        return self.timeline, self.lsn


def parse_lsn(text: str) -> int:
    """The number of bytes of log before a place written as PostgreSQL does, ``16/B374D848``. Raises `TokenError`."""
    found = _LSN.fullmatch(text)
    if found is None:
        raise TokenError(
            f"PostgreSQL position {excerpt(text)} is not an LSN", hint="write it as the server does: 16/B374D848"
        )
    return int(found[1], 16) << 32 | int(found[2], 16)


def lsn_text(lsn: int) -> str:
    """As PostgreSQL writes a place in its log."""
    assert 0 <= lsn <= UINT64_MAX
    return f"{lsn >> 32:X}/{lsn & UINT32_MAX:X}"
