"""MySQL GTID sets: ``uuid:1-5:8,…``, and since MySQL 8.3 with tags: ``uuid:1-5:tag:1-2``.

Text as Vitess v0.24 reads it (`go/mysql/replication/mysql56_gtid_set.go`), plus tags, which Vitess refuses. Intervals
are merged: comparison is set inclusion, as in MySQL's ``GTID_SUBSET``. (Vitess never merges, so it misses inclusions.)
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TypeAlias

from .errors import TokenError
from .integers import GO_SPACE, INT64_MAX, excerpt, parse_unsigned
from .position import Order, Position

Intervals: TypeAlias = tuple[tuple[int, int], ...]
"""Closed intervals (first, last), ascending, with a gap of at least one number between neighbours."""
SourceId: TypeAlias = tuple[str, str]
"""(UUID in lower case, tag); the tag is ``""`` for untagged transactions."""

_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
TAG_CHARS_MAX = 32
_TAG = re.compile(rf"[a-zA-Z_][a-zA-Z0-9_]{{0,{TAG_CHARS_MAX - 1}}}")


class MysqlPosition(Position):
    """A MySQL GTID set: (UUID, tag) → merged intervals."""

    __slots__ = ("_sources",)
    flavor = "MySQL56"
    _counts_after = "-"

    _sources: dict[SourceId, Intervals]

    def __init__(self, sources: dict[SourceId, Intervals]) -> None:
        self._text = None
        self._hash = None
        self._sources = sources

    @classmethod
    def parse_set(cls, text: str) -> Position:
        found: dict[SourceId, list[tuple[int, int]]] = {}
        for part in text.split(","):
            uuid_set = part.strip(GO_SPACE)
            if uuid_set:
                _parse_uuid_set(uuid_set, found)
        return cls({source: _merged(intervals) for source, intervals in found.items() if intervals})

    @classmethod
    def parse_first(cls, gtid: str) -> Position:
        return cls({}).append(gtid)

    @property
    def sources(self) -> dict[SourceId, Intervals]:
        """(UUID, tag) → intervals; a copy."""
        return dict(self._sources)

    def intervals(self, source: SourceId) -> Intervals:
        """The intervals of one source. Raises ``KeyError``: there are none."""
        return self._sources[source]

    @property
    def count(self) -> int:
        """How many transactions are in the set."""
        return sum(last - first + 1 for intervals in self._sources.values() for first, last in intervals)

    def contains(self, other: Position) -> bool:
        if not isinstance(other, MysqlPosition):
            return not other.flavor
        mine = self._sources
        for source, wanted in other._sources.items():
            held = mine.get(source)
            if held is None or (held != wanted and not _includes(held, wanted)):
                return False
        return True

    def order(self, other: Position) -> Order:
        if not isinstance(other, MysqlPosition):
            return Order.UNKNOWN
        if self._sources == other._sources:
            return Order.SAME
        if self.contains(other):
            return Order.NEWER
        return Order.OLDER if other.contains(self) else Order.UNKNOWN

    def append(self, gtid: str) -> Position:
        return self.with_number(*parse_gtid(self.without_flavor(gtid)))

    def with_number(self, source: SourceId, number: int) -> MysqlPosition:
        """This set plus one transaction of ``source``; the same object if it has it."""
        intervals = self._sources.get(source, ())
        added = _with_number(intervals, number)
        return self if added is intervals else MysqlPosition({**self._sources, source: added})

    def extended(self, source: SourceId, last: int) -> MysqlPosition:
        """This set plus the transactions of ``source`` after its last one, up to ``last``, which is above that."""
        *others, (first, _) = self._sources[source]
        return MysqlPosition({**self._sources, source: (*others, (first, last))})

    def union(self, other: Position) -> Position:
        if not other.flavor or other is self:
            return self
        self.require_same_flavor(other, "union")
        assert isinstance(other, MysqlPosition)
        sources = dict(self._sources)
        for source, theirs in other._sources.items():
            mine = sources.get(source)
            sources[source] = theirs if mine is None or mine == theirs else _merged([*mine, *theirs])
        return MysqlPosition(sources)

    join = union

    def difference(self, other: Position) -> Position:
        if not other.flavor:
            return self
        self.require_same_flavor(other, "subtract")
        assert isinstance(other, MysqlPosition)
        sources = {}
        for source, mine in self._sources.items():
            left = _minus(mine, other._sources.get(source, ()))
            if left:
                sources[source] = left
        return MysqlPosition(sources)

    def set_text(self) -> str:
        parts: list[str] = []
        previous = ""
        for (uuid, tag), intervals in sorted(self._sources.items()):
            if uuid != previous:
                parts.append(f",{uuid}" if parts else uuid)
                previous = uuid
            if tag:
                parts.append(f":{tag}")
            parts.extend(f":{first}" if first == last else f":{first}-{last}" for first, last in intervals)
        return "".join(parts)

    def _key(self) -> object:
        return self._sources


def parse_gtid(gtid: str) -> tuple[SourceId, int]:
    """((UUID, tag), number) of one GTID without flavor; ``+5`` is 5, as in Go. Raises `TokenError`."""
    uuid, *rest = gtid.split(":")
    if len(rest) not in (1, 2):
        raise TokenError(f"MySQL GTID {excerpt(gtid)} is not uuid:number or uuid:tag:number")
    tag = checked_tag(rest[0]) if len(rest) == 2 else ""
    number = parse_unsigned(rest[-1].removeprefix("+"), INT64_MAX, "MySQL GTID number")
    if number == 0:
        raise TokenError(f"MySQL GTID {excerpt(gtid)} has number 0", hint="GTIDs count from 1")
    return (_checked_uuid(uuid), tag), number


def _checked_uuid(text: str) -> str:
    if _UUID.fullmatch(text) is None:
        raise TokenError(f"{excerpt(text)} is not a server UUID", hint="8-4-4-4-12 hexadecimal digits")
    return text.lower()


def checked_tag(text: str) -> str:
    """The tag in lower case. Raises `TokenError`."""
    if _TAG.fullmatch(text) is None:
        raise TokenError(
            f"{excerpt(text)} is neither an interval nor a tag",
            hint="intervals are 5 or 5-9, tags [a-z_][a-z0-9_]{0,31}",
        )
    return text.lower()


def _parse_uuid_set(text: str, found: dict[SourceId, list[tuple[int, int]]]) -> None:
    """Add the intervals of ``uuid:[tag:]interval…`` to ``found``. One trailing colon is allowed."""
    head, *parts = text.split(":")
    if not parts:
        raise TokenError(f"{excerpt(text)} in a MySQL GTID set is not uuid:interval")
    uuid = _checked_uuid(head)
    if parts[-1] == "":
        parts.pop()
    intervals = found.setdefault((uuid, ""), [])
    pending_tag = ""
    for part in parts:
        # Not isdigit(): it also accepts superscripts and digits of other scripts.
        if "0" <= part[:1] <= "9":
            pending_tag = ""
            first, last = _parse_interval(part)
            if first <= last:  # else it is dropped, as MySQL does
                intervals.append((first, last))
            continue
        if pending_tag:
            raise TokenError(f"tag {excerpt(pending_tag)} in a MySQL GTID set has no interval")
        pending_tag = part
        intervals = found.setdefault((uuid, checked_tag(part)), [])
    if pending_tag:
        raise TokenError(f"tag {excerpt(pending_tag)} in a MySQL GTID set has no interval")


def _parse_interval(text: str) -> tuple[int, int]:
    start, dash, end = text.partition("-")
    first = parse_unsigned(start, INT64_MAX, "interval start")
    if first == 0:
        raise TokenError(f"interval {excerpt(text)} starts at 0", hint="GTIDs count from 1")
    return first, parse_unsigned(end, INT64_MAX, "interval end") if dash else first


def _merged(intervals: list[tuple[int, int]]) -> Intervals:
    if len(intervals) == 1:
        return (intervals[0],)
    intervals.sort()
    merged: list[tuple[int, int]] = []
    first, last = intervals[0]
    for start, end in intervals:
        if start > last + 1:
            merged.append((first, last))
            first, last = start, end
        elif end > last:
            last = end
    merged.append((first, last))
    return tuple(merged)


def _includes(held: Intervals, wanted: Intervals) -> bool:
    index, count = 0, len(held)
    for first, last in wanted:
        while index < count and held[index][1] < first:
            index += 1
        if index == count or held[index][0] > first or held[index][1] < last:
            return False
    return True


def _with_number(intervals: Intervals, number: int) -> Intervals:
    """``intervals`` with ``number`` added; the same object if it already holds the number."""
    at = bisect_right(intervals, (number, INT64_MAX))
    first = last = number
    begin = end = at
    if at > 0:
        if intervals[at - 1][1] >= number:
            return intervals
        if intervals[at - 1][1] == number - 1:
            begin, first = at - 1, intervals[at - 1][0]
    if at < len(intervals) and intervals[at][0] == number + 1:
        end, last = at + 1, intervals[at][1]
    return (*intervals[:begin], (first, last), *intervals[end:])


def _minus(held: Intervals, taken: Intervals) -> Intervals:
    left: list[tuple[int, int]] = []
    index, count = 0, len(taken)
    for first, last in held:
        start = first
        while index < count and taken[index][1] < start:
            index += 1
        at = index
        while at < count and taken[at][0] <= last and start <= last:
            if taken[at][0] > start:
                left.append((start, taken[at][0] - 1))
            start = max(start, taken[at][1] + 1)
            at += 1
        if start <= last:
            left.append((start, last))
    return tuple(left)
