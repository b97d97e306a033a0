"""A place in the history of one shard: a GTID set, a place in a binlog or write-ahead log, or a log event id.

Text always names its flavor: ``MySQL56/…``, ``MariaDB/…``, ``Postgres/…``, ``FilePos/…``, ``HiveEvent/…``. Comparison
is set inclusion within one flavor; two flavors are never comparable. Positions are immutable, hashable and compare by
what they hold.
"""

from __future__ import annotations

from abc import abstractmethod
from enum import IntEnum
from functools import lru_cache
from typing import ClassVar

from .errors import TokenError
from .integers import excerpt

CACHED_TEXT_MAX = 1024
"""Longer texts are not cached, so that a few huge sets cannot fill the memory."""


class Order(IntEnum):
    """The order of two places in history. ``order(a, b) is NEWER`` means that *a* is newer."""

    OLDER = -1
    SAME = 0
    NEWER = 1
    UNKNOWN = 2

    def reversed(self) -> Order:
        """The same answer with the two sides swapped."""
        return _REVERSED[self]


_REVERSED = {
    Order.OLDER: Order.NEWER,
    Order.NEWER: Order.OLDER,
    Order.SAME: Order.SAME,
    Order.UNKNOWN: Order.UNKNOWN,
}


class Position:
    """One position. Use `Position.parse`; the flavors are subclasses."""

    __slots__ = ("_hash", "_text")

    flavor: ClassVar[str] = ""
    _counts_after: ClassVar[str] = ""
    """A text that ends in this and a number has all of the same text with a smaller number; "": no text says so."""
    _has_slash: ClassVar[bool] = False
    """Whether its texts have a slash also without their flavor."""
    _flavors: ClassVar[dict[str, type[Position]]] = {}

    _text: str | None
    _hash: int | None

    def __init_subclass__(cls) -> None:
        if cls.flavor:
            Position._flavors[cls.flavor] = cls

    def __init__(self) -> None:
        self._text = None
        self._hash = None

    @staticmethod
    def parse(text: str, default_flavor: str | None = None) -> Position:
        """The position that ``text`` stands for; ``""`` is "no position" (`NO_POSITION`).

        A text without ``flavor/`` is read as ``default_flavor``, if one is given. Raises `TokenError`.
        """
        if len(text) <= CACHED_TEXT_MAX:
            return _parse_cached(text, default_flavor)
        return _parse(text, default_flavor)

    @classmethod
    def parse_set(cls, text: str) -> Position:
        """Parse ``text``, a position without its flavor. Raises `TokenError`."""
        raise TokenError(f"{excerpt(text)} is not a position")

    @classmethod
    def parse_first(cls, gtid: str) -> Position:
        """The position after a single transaction; ``gtid`` is without its flavor. Raises `TokenError`."""
        return cls.parse_set(gtid)

    @abstractmethod
    def contains(self, other: Position) -> bool:
        """True iff everything in ``other`` is in this position; False for another flavor.

        Every position contains the nil position. For MariaDB only domain and sequence count (as in MariaDB and Vitess).
        Where a wrong yes would mean a stale answer, use `order` or `at_or_past`.
        """

    @abstractmethod
    def order(self, other: Position) -> Order:
        """The order of this position against ``other``. Antisymmetric."""

    @abstractmethod
    def append(self, gtid: str) -> Position:
        """This position plus one transaction; ``gtid`` may carry its flavor. Raises `TokenError`."""

    @abstractmethod
    def union(self, other: Position) -> Position:
        """Everything in either. If they name different servers for one sequence, this one wins. Raises `TokenError`."""

    @abstractmethod
    def join(self, other: Position) -> Position:
        """The least position that contains both: like `union`, but commutative, associative and idempotent.

        Raises `TokenError` if there is none (two flavors, two binlog base names).
        """

    @abstractmethod
    def set_text(self) -> str:
        """The canonical text without the flavor."""

    @abstractmethod
    def _key(self) -> object:
        """The value by which positions of this flavor are compared for equality."""

    def at_or_past(self, other: Position) -> bool:
        """True iff provably everything up to ``other`` is in this position: `order` says SAME or NEWER."""
        answer = self.order(other)
        return answer is Order.SAME or answer is Order.NEWER

    def has_passed_text(self, text: str) -> bool:
        """Whether this is at or past ``text``, a position's text, as far as a last number tells; False: perhaps.

        A quarter of the time that it takes to parse a text and order it.
        """
        mine = str(self)
        at = mine.rfind(self._counts_after) + 1 if self._counts_after else 0
        last = text[at:]
        if not (at and mine[at:].isdecimal() and last.isdecimal() and last.isascii() and text.startswith(mine[:at])):
            return False
        return len(text) < len(mine) or (len(text) == len(mine) and text <= mine)

    def difference(self, other: Position) -> Position:
        """Everything in this position that is not in ``other``; MySQL only. Raises `TokenError`."""
        raise TokenError(
            f"cannot subtract {excerpt(str(other))} from {excerpt(str(self))}",
            hint="only MySQL sets can be subtracted",
        )

    def require_same_flavor(self, other: Position, what: str) -> None:
        """Raise `TokenError` unless both positions have the same flavor. ``what``: the refused operation, a verb."""
        if other.flavor != self.flavor:
            raise TokenError(
                f"cannot {what} {excerpt(str(self))} and {excerpt(str(other))}: the flavors differ",
                hint="combine only positions of the same flavor",
            )

    def without_flavor(self, gtid: str) -> str:
        """``gtid`` without its flavor. Raises `TokenError` if that is not this position's flavor."""
        flavor, slash, rest = gtid.partition("/")
        if not slash:
            return gtid
        if flavor != self.flavor:
            raise TokenError(f"GTID {excerpt(gtid)} cannot be added to a {self.flavor} position")
        return rest

    def __str__(self) -> str:
        text = self._text
        if text is None:
            text = self._text = f"{self.flavor}/{self.set_text()}"
        return text

    def __repr__(self) -> str:
        return f"Position.parse({str(self)!r})"

    def __bool__(self) -> bool:
        return bool(self.flavor)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Position):
            return NotImplemented
        return self.flavor == other.flavor and self._key() == other._key()

    def __hash__(self) -> int:
        value = self._hash
        if value is None:
            value = self._hash = hash(str(self))
        return value

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Position.parse, (str(self),)


class NoPosition(Position):
    """The nil position, text ``""``: equal only to itself, contained in everything, ordered against nothing."""

    __slots__ = ()

    def contains(self, other: Position) -> bool:
        return not other.flavor

    def order(self, other: Position) -> Order:
        return Order.UNKNOWN if other.flavor else Order.SAME

    def append(self, gtid: str) -> Position:
        flavor, slash, text = gtid.partition("/")
        if not slash or flavor not in Position._flavors:
            raise TokenError(f"GTID {excerpt(gtid)} has no known flavor", hint="write it as MariaDB/0-1-5")
        return Position._flavors[flavor].parse_first(text)

    def union(self, other: Position) -> Position:
        return other

    def join(self, other: Position) -> Position:
        return other

    def set_text(self) -> str:
        return ""

    def _key(self) -> object:
        return None

    def __str__(self) -> str:
        return ""


NO_POSITION = NoPosition()


def _parse(text: str, default_flavor: str | None) -> Position:
    if not text:
        return NO_POSITION
    flavor, slash, rest = text.partition("/")
    default = Position._flavors.get(default_flavor or "")
    if not slash or (default is not None and default._has_slash and flavor not in Position._flavors):
        if default_flavor is None:
            raise TokenError(
                f"position {excerpt(text)} has no flavor",
                hint="write it as MariaDB/0-1-5, MySQL56/uuid:1-5 or FilePos/file:pos",
            )
        flavor, rest = default_flavor, text
    parser = Position._flavors.get(flavor)
    if parser is None:
        raise TokenError(
            f"unknown flavor {excerpt(flavor)} in position {excerpt(text)}",
            hint=f"flavors are {', '.join(sorted(Position._flavors))}",
        )
    return parser.parse_set(rest)


_parse_cached = lru_cache(maxsize=8192)(_parse)
