"""Compares two folded states byte for byte and finds their differences. Pure.

Both sides come in key order, so one pass is enough. Equal stretches are compared a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from spark_jobs.describe import describe_key, describe_value

Item = tuple[bytes, bytes]

CHUNK_ITEMS = 4096
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
    """The result for two states: items on each side, keys that differ by kind, and the first differences."""

    left_items: int = 0
    right_items: int = 0
    only_left: int = 0
    only_right: int = 0
    changed: int = 0
    first: list[Difference] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether no key differs."""
        return not (self.only_left or self.only_right or self.changed)


def compare_items(left: Iterable[Item], right: Iterable[Item], *, keep: int = DIFFERENCES_MAX) -> StateComparison:
    """Compares two states, given as (key, value) in key order; keeps the first ``keep`` differences."""
    outcome = StateComparison()
    lefts, rights = iter(left), iter(right)
    while True:
        chunk, other = list(islice(lefts, CHUNK_ITEMS)), list(islice(rights, CHUNK_ITEMS))
        if chunk != other:
            _merge(outcome, chain(chunk, lefts), chain(other, rights), keep)
            return outcome
        if not chunk:
            return outcome
        outcome.left_items += len(chunk)
        outcome.right_items += len(chunk)


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
