"""Positions that are a single place in a log: of a binlog, of PostgreSQL's write-ahead log, or of notifications."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Final, Self

from .errors import TokenError
from .integers import INT64_MAX, UINT32_MAX, UINT64_MAX, excerpt, parse_unsigned, parse_unsigned_any_base
from .position import Order, Position

AMBIGUOUS_TIMELINE: Final = UINT32_MAX
"""In a join of places on two timelines. No server has it, so nothing is ordered against such a place."""
_LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class LogPosition(Position):
    """A single place: what is added to it, or united with it, is the later place of both."""

    __slots__ = ()

    def append(self, gtid: str) -> Position:
        return self.join(self.parse_set(self.without_flavor(gtid)))

    def union(self, other: Position) -> Position:
        return self.join(other)

    def join(self, other: Position) -> Position:
        if not other.flavor:
            return self
        self.require_same_flavor(other, "join")
        assert isinstance(other, type(self))
        return self._later(other)

    @abstractmethod
    def _later(self, other: Self) -> Position:
        """The later place of both. Raises `TokenError` if they are not of one log."""


class FilePosition(LogPosition):
    """``FilePos/mysql-bin.000012:154``: everything in the log before this place.

    Two are comparable only if the base names are equal: by file number, then by offset. (Vitess compares the names as
    strings, which puts ``bin.1000000`` before ``bin.999999``.) A name without a number is comparable only with itself.
    """

    __slots__ = ("_base", "_number", "file", "offset")
    flavor = "FilePos"

    def __init__(self, file: str, offset: int) -> None:
        self._text = None
        self._hash = None
        self.file = file
        self.offset = offset
        base, dot, number = file.rpartition(".")
        numbered = dot and number.isascii() and number.isdigit()
        self._base = base if numbered else file
        # Kept as text: int() is slow on a name with a hundred thousand digits.
        self._number = _digits_key(number) if numbered else None

    @classmethod
    def parse_set(cls, text: str) -> Position:
        parts = text.split(":")
        if len(parts) != 2:
            raise TokenError(f"{excerpt(text)} is not file:position")
        return cls(parts[0], parse_unsigned_any_base(parts[1], UINT64_MAX, "file position"))

    def contains(self, other: Position) -> bool:
        if not isinstance(other, FilePosition):
            return not other.flavor
        return self._same_log(other) and self._place() >= other._place()

    def order(self, other: Position) -> Order:
        if not isinstance(other, FilePosition) or not self._same_log(other):
            return Order.UNKNOWN
        mine, theirs = self._place(), other._place()
        if mine == theirs:
            return Order.SAME if self.file == other.file else Order.UNKNOWN
        return Order.NEWER if mine > theirs else Order.OLDER

    def _later(self, other: Self) -> Position:
        if not self._same_log(other):
            raise TokenError(
                f"cannot join {excerpt(str(self))} and {excerpt(str(other))}: the binlog base names differ",
                hint="they come from different logs: start a new epoch",
            )
        return max(self, other, key=lambda position: (position._place(), position.file))

    def set_text(self) -> str:
        return f"{self.file}:{self.offset}"

    def _same_log(self, other: FilePosition) -> bool:
        return self._base == other._base and (self._number is None) == (other._number is None)

    def _place(self) -> tuple[tuple[int, str], int]:
        return self._number or (0, ""), self.offset

    def _key(self) -> object:
        return self.file, self.offset


class PostgresPosition(LogPosition):
    """``Postgres/16/B374D848``: every transaction whose commit ends in the log at or before this place.

    ``Postgres/3:16/B374D848`` also names the timeline, which grows when a replica is promoted or a backup is restored.
    From there on the log of before and the new one have the same places with other transactions, so places of two
    timelines are not ordered, nor is one of a timeline against one of which it isn't said (0).
    """

    __slots__ = ("lsn", "timeline")
    flavor = "Postgres"
    _has_slash = True

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

    def without_flavor(self, gtid: str) -> str:
        return gtid.removeprefix(f"{self.flavor}/")  # an LSN has a slash, too

    def _later(self, other: Self) -> Position:
        if self.timeline == other.timeline:
            return self if self.lsn >= other.lsn else other
        return PostgresPosition(AMBIGUOUS_TIMELINE, max(self.lsn, other.lsn))

    def set_text(self) -> str:
        place = lsn_text(self.lsn)
        return f"{self.timeline}:{place}" if self.timeline else place

    def _key(self) -> object:
        return self.timeline, self.lsn


class EventPosition(LogPosition):
    """``HiveEvent/190``: every event of a notification log up to and including this id; 0 is the log's beginning."""

    __slots__ = ("event_id",)
    flavor = "HiveEvent"
    _counts_after = "/"

    def __init__(self, event_id: int) -> None:
        self._text = None
        self._hash = None
        self.event_id = event_id

    @classmethod
    def parse_set(cls, text: str) -> Position:
        return cls(parse_unsigned(text, INT64_MAX, "event id"))

    def contains(self, other: Position) -> bool:
        if not isinstance(other, EventPosition):
            return not other.flavor
        return self.event_id >= other.event_id

    def order(self, other: Position) -> Order:
        if not isinstance(other, EventPosition):
            return Order.UNKNOWN
        if self.event_id == other.event_id:
            return Order.SAME
        return Order.NEWER if self.event_id > other.event_id else Order.OLDER

    def _later(self, other: Self) -> Position:
        return self if self.event_id >= other.event_id else other

    def set_text(self) -> str:
        return str(self.event_id)

    def _key(self) -> object:
        return self.event_id


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


def _digits_key(digits: str) -> tuple[int, str]:
    """A key that sorts decimal digits as numbers."""
    significant = digits.lstrip("0")
    return len(significant), significant
