"""Which shard has which keys: ranges of keyspace ids, and the map of a keyspace's shards. Pure.

A *keyspace id* is the 64 bits of `stream.wire.keys.Layout.keyspace_id`: the topic's own named hash of a key, or of the
declared prefix of it. Ranges are written as in Vitess (facts: ``-40``, ``40-80``, ``80-``): hexadecimal digits of the
first bytes of an id, the first id that is in the range, and the first after it; an empty side is open. ``-`` is all.
See docs/decisions/0043-shards-by-the-partitioners-hash.md.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, Self

from tokens.errors import FreshetError

ID_BITS: Final = 64
IDS: Final = 1 << ID_BITS
"""How many keyspace ids there are."""
_DIGITS: Final = ID_BITS // 4
_TEXT: Final = re.compile(r"([0-9A-Fa-f]*)-([0-9A-Fa-f]*)")


class ShardMapError(FreshetError, ValueError):
    """A range that can't be read (``bad_key_range``), or ranges that are no map of a keyspace (``bad_shard_map``)."""

    code = "bad_shard_map"


class IdRange(NamedTuple):
    """The keyspace ids from ``start`` on, before ``end``."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """The range that ``text`` names. Raises `ShardMapError` ``bad_key_range``, which names the offending side."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise _bad_range(text, "it is not two hexadecimal numbers with a '-' between them")
        start, end = (_bound(text, digits) for digits in found.groups())
        return cls._checked(text, start, end if found[2] else IDS)

    @classmethod
    def _checked(cls, text: str, start: int, end: int) -> Self:
        if start >= end:
            raise _bad_range(text, "it begins where it ends, or after that: it has no ids")
        return cls(start, end)

    def __str__(self) -> str:
        """As `parse` reads it, in lower case, without zero bytes at the end: ``40-80``."""
        return f"{_digits(self.start)}-{_digits(self.end % IDS)}"

    def __contains__(self, keyspace_id: object) -> bool:
        """Whether an id is in the range."""
        return isinstance(keyspace_id, int) and self.start <= keyspace_id < self.end

    def covers(self, other: IdRange) -> bool:
        """Whether each id of ``other`` is in this range."""
        return self.start <= other.start and other.end <= self.end

    def overlaps(self, other: IdRange) -> bool:
        """Whether both have an id in common."""
        return self.start < other.end and other.start < self.end


def _bad_range(text: str, why: str) -> ShardMapError:
    hint = "write it like -40, 40-80 or 80-; '-' is every key"
    return ShardMapError(f"{text!r} is no range of keyspace ids: {why}", hint=hint, code="bad_key_range")


def _bound(text: str, digits: str) -> int:
    """The id that begins with ``digits``; "" is 0."""
    if len(digits) > _DIGITS:
        raise _bad_range(text, f"{digits!r} has more than {_DIGITS} digits")
    if len(digits) % 2:
        raise _bad_range(text, f"{digits!r} has an odd number of digits: two are a byte")
    return int(digits.ljust(_DIGITS, "0"), 16)


def _digits(bound: int) -> str:
    return bound.to_bytes(ID_BITS // 8, "big").rstrip(b"\0").hex()


class ShardMap:
    """The shards of a keyspace, each with its range. Together they have each id once. Compared by its contents."""

    __slots__ = ("_names", "_starts", "ranges")

    ranges: tuple[tuple[str, IdRange], ...]
    """(shard, range), in the order of ids."""

    def __init__(self, ranges: Iterable[tuple[str, IdRange]]) -> None:
        """Raises `ShardMapError` ``bad_shard_map`` if ids have no shard or two, or a shard has two ranges."""
        self.ranges = tuple(sorted(ranges, key=lambda each: each[1]))
        self._names = [shard for shard, _ in self.ranges]
        self._starts = [each.start for _, each in self.ranges]
        self._check()

    def _check(self) -> None:
        twice = sorted({name for name in self._names if self._names.count(name) > 1})
        if twice:
            raise ShardMapError(f"shard {twice[0]} has two ranges", hint="a shard has one range")
        reached, before = 0, ""
        for shard, each in self.ranges:
            if each.start > reached:
                raise _without_shard(IdRange(reached, each.start))
            if each.start < reached:
                both = IdRange(each.start, min(reached, each.end))
                raise ShardMapError(f"{before} and {shard} overlap: both have {both}", hint="each key has one shard")
            reached, before = each.end, shard
        if reached < IDS:
            raise _without_shard(IdRange(reached, IDS))

    @classmethod
    def parse(cls, ranges: Mapping[str, str]) -> Self:
        """The map of shard → text of its range. Raises `ShardMapError`."""
        return cls((shard, IdRange.parse(text)) for shard, text in ranges.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardMap) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __repr__(self) -> str:
        return f"ShardMap({', '.join(f'{shard} {each}' for shard, each in self.ranges)})"

    @property
    def shards(self) -> tuple[str, ...]:
        """The names, in the order of ids."""
        return tuple(self._names)

    def texts(self) -> dict[str, str]:
        """Shard → text of its range, in the order of ids. `parse` reads it."""
        return {shard: str(each) for shard, each in self.ranges}

    def __contains__(self, shard: object) -> bool:
        """Whether the map has this shard."""
        return shard in self._names

    def range_of(self, shard: str) -> IdRange | None:
        """The ids of a shard; None if the map does not have it."""
        return dict(self.ranges).get(shard)

    def shard_of(self, keyspace_id: int) -> str:
        """The shard that has an id (0 to 2^64 - 1)."""
        return self._names[bisect_right(self._starts, keyspace_id) - 1]

    def within(self, wanted: IdRange) -> tuple[str, ...]:
        """The shards that have ids of a range, in order. Any range may be asked for."""
        return tuple(shard for shard, each in self.ranges if each.overlaps(wanted))


def _without_shard(missing: IdRange) -> ShardMapError:
    return ShardMapError(
        f"no shard has the range {missing}", hint="the ranges of a keyspace's shards must cover all ids"
    )


@lru_cache(maxsize=64)
def map_of(ranges: tuple[tuple[str, str], ...]) -> ShardMap:
    """The map of (shard, text of its range), as declarations hold it. Raises `ShardMapError`."""
    return ShardMap((shard, IdRange.parse(text)) for shard, text in ranges)
