"""Compares two folded states byte for byte and finds their differences. Pure.

Both sides come in key order, so one pass is enough. Equal ranges are compared at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter

from consumers.store.digest import Digest
from spark_jobs.auditing.describe import describe_key, describe_value

Item = tuple[bytes, bytes]

RANGE_ITEMS = 4096
"""Keys of one range on the left."""
DIFFERENCES_MAX = 10
"""How many differences are kept; all are counted."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose values differ; None: that side lacks the key."""

    key: bytes
    left: bytes | None
    right: bytes | None

    def as_json(self) -> dict[str, object]:
        """Key and both values, decoded, as JSON values."""
        return {
            "key": describe_key(self.key),
            "key_hex": self.key.hex(),
            "left": describe_value(self.key, self.left),
            "right": describe_value(self.key, self.right),
            "first_differing_byte": _first_difference(self.left, self.right),
        }


@dataclass(slots=True)
class StateComparison:
    """The result for two states: items on each side, keys that differ by kind, and the first differences.

    ``ranges``, ``unequal_ranges``: of keys, as they were compared, and those that differ. The digests are those of the
    whole states (`consumers.store.digest.digest_items`).
    """

    left_items: int = 0
    right_items: int = 0
    only_left: int = 0
    only_right: int = 0
    changed: int = 0
    first: list[Difference] = field(default_factory=list)
    ranges: int = 0
    unequal_ranges: int = 0
    left_digest: str = ""
    right_digest: str = ""

    @property
    def equal(self) -> bool:
        """Whether no key differs."""
        return not (self.only_left or self.only_right or self.changed)


def compare_items(
    left: Iterable[Item], right: Iterable[Item], *, keep: int = DIFFERENCES_MAX, range_items: int = RANGE_ITEMS
) -> StateComparison:
    """Compares two states, given as (key, value) in key order; keeps the first ``keep`` differences.

    Each side is read once. Ranges of keys are compared as they are, and key by key only where they differ.
    """
    outcome = StateComparison()
    lefts, rights = iter(left), iter(right)
    of_left = of_right = Digest()
    held: list[Item] = []
    while True:
        chunk = list(islice(lefts, range_items))
        beside, held = _up_to(chunk[-1][0] if chunk else None, held, rights, range_items)
        if not chunk and not beside:
            break
        outcome.ranges += 1
        if chunk != beside:
            outcome.unequal_ranges += 1
            _merge(outcome, iter(chunk), iter(beside), keep)
            if of_right is of_left:
                of_right = of_left.copy()
        else:
            outcome.left_items += len(chunk)
            outcome.right_items += len(beside)
        of_left.add(chunk)
        if of_right is not of_left:
            of_right.add(beside)
    outcome.left_digest, outcome.right_digest = of_left.hex(), of_right.hex()
    return outcome


def _up_to(edge: bytes | None, held: list[Item], rights: Iterator[Item], count: int) -> tuple[list[Item], list[Item]]:
    """Of the other side what belongs to the range that ends with the key ``edge``, and what was read behind it.

    ``edge`` None: the range has no end. ``held``: what was read behind the range before. ``count``: how many are
    read at once.
    """
    found = held + list(islice(rights, max(0, count - len(held))))
    while edge is not None and found and found[-1][0] < edge and (more := list(islice(rights, count))):
        found += more
    at = len(found) if edge is None else bisect_right(found, edge, key=itemgetter(0))
    return found[:at], found[at:]


def _merge(outcome: StateComparison, lefts: Iterator[Item], rights: Iterator[Item], keep: int) -> None:
    left, right = next(lefts, None), next(rights, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            assert left is not None
            outcome.only_left += 1
            outcome.left_items += 1
            difference = Difference(left[0], left[1], None)
            left = next(lefts, None)
        elif left is None or right[0] < left[0]:
            outcome.only_right += 1
            outcome.right_items += 1
            difference = Difference(right[0], None, right[1])
            right = next(rights, None)
        else:
            outcome.left_items += 1
            outcome.right_items += 1
            same = left[1] == right[1]
            difference = Difference(left[0], left[1], right[1])
            left, right = next(lefts, None), next(rights, None)
            if same:
                continue
            outcome.changed += 1
        if len(outcome.first) < keep:
            outcome.first.append(difference)


def _first_difference(left: bytes | None, right: bytes | None) -> int | None:
    if left is None or right is None:
        return None
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return place
    return min(len(left), len(right))
