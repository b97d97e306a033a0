"""Sorts the keys of a commit, most of them in numpy: it is faster, and lets other threads run meanwhile."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_SMALL: Final = 1_000
"""Fewer keys are sorted by Python alone."""
_SAMPLES: Final = 64
_WORD: Final = 8
_MASKS: Final = np.array([(1 << 64) - (1 << 8 * (_WORD - size)) for size in range(_WORD + 1)], np.uint64)
"""Number of bytes → the bits of a big-endian word that they are."""


def sorted_places(keys: Sequence[bytes]) -> list[int]:
    """The places of ``keys`` in the order of the keys.

    numpy sorts those that begin as most of them do, by the eight bytes after that. Where these are alike, and for all
    others, Python compares.
    """
    if len(keys) < _SMALL:
        return sorted(range(len(keys)), key=keys.__getitem__)
    sizes = np.fromiter(map(len, keys), np.int64, len(keys))
    starts = np.cumsum(sizes) - sizes
    text = b"".join((*keys, bytes(_WORD)))
    words: NDArray[np.uint64] = np.ndarray((len(text) - _WORD + 1,), np.dtype(">u8"), text, strides=(1,))
    begin = _most_begin_with(keys)
    alike = sizes >= len(begin)
    for done in range(0, len(begin), _WORD):
        part = begin[done : done + _WORD]
        word = words[np.minimum(starts + done, len(words) - 1)] & _MASKS[len(part)]
        alike &= word == int.from_bytes(part.ljust(_WORD, b"\0"), "big")
    some = np.flatnonzero(alike)
    left = np.minimum(sizes[some] - len(begin), _WORD)
    found = words[starts[some] + len(begin)].astype(np.uint64) & _MASKS[left]
    order = np.argsort(found)
    found = found[order]
    places: list[int] = some[order].tolist()
    if (found[1:] == found[:-1]).any():
        places.sort(key=keys.__getitem__)  # quick, since nearly all are in order
    others: list[int] = sorted(np.flatnonzero(~alike).tolist(), key=keys.__getitem__)
    before = bisect_left(others, begin, key=keys.__getitem__)
    return others[:before] + places + others[before:]


def _most_begin_with(keys: Sequence[bytes]) -> bytes:
    """What most of ``keys`` begin with, by some of them. The head's keys and those of small tables are few."""
    some = sorted(keys[:: len(keys) // _SAMPLES])
    low, high = some[len(some) // 8], some[-1 - len(some) // 8]
    size = next((at for at, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), len(low))
    return low[:size]
