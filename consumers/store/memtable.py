"""What was folded since the last commit: key → entry, whose bytes are built when they are read or written.

An empty entry says that the key's entry is gone, also from what was committed before. No entry of a state is empty but
the head's layout.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from consumers.fold.columns import EntryColumns, Kinds, RowEntries
from consumers.fold.entry import ABSENT, kind_and_image
from consumers.fold.state import CATALOG, OBJECT
from consumers.store.building import SEGMENT_ROWS, build_rows, by_segment
from consumers.store.indexing import READ_TOGETHER, Hints

_ABSENT_BYTE: Final = bytes([ABSENT])
_PUT_TOGETHER: Final = 2_048
"""Reads wait for the interpreter meanwhile: a millisecond or so."""
_UNSORTED_MAX: Final = 2_048
"""Keys that a look at a range compares one by one. From there on all are sorted again, in a millisecond or two."""
_GONE: Final = b""
_OBJECTS: Final = CATALOG + OBJECT
_AFTER_CATALOG: Final = bytes([CATALOG[0] + 1])


def _is_marked(marks: Sequence[Sequence[bool]], number: int) -> bool:
    """Whether the row with this number is marked in its segment."""
    segment = marks[number // SEGMENT_ROWS]
    return bool(segment) and segment[number % SEGMENT_ROWS]


class Memtable(Mapping[bytes, bytes]):
    """One thread puts; others may get meanwhile: an entry is the one before the `put`, or the one after it."""

    def __init__(self, hints: Hints | None = None) -> None:
        """``hints``: what its rows make of indexes, if there are any."""
        self.hints = hints
        self.entries: dict[bytes, bytes | int] = {}
        """Key → entry, or the number of a row."""
        self.array_bytes = 0
        """What it holds in memory besides entries and the frames of rows."""
        self.gone: set[bytes] = set()
        """What keys of objects begin with whose older entries are gone (`consumers.fold.objects.objects_prefix`)."""
        self._objects: dict[bytes, set[bytes]] = {}
        """What keys of objects begin with → those that were put."""
        self._segments: list[EntryColumns] = []
        self._sorted: list[bytes] = []
        """The first keys that were put. Nothing is sorted unless somebody asks for a range."""

    def put(self, entries: Mapping[bytes, bytes], gone: Sequence[bytes] = ()) -> int:
        """Adds entries, in place of earlier ones of their keys. Returns of how many rows.

        ``gone``: as in `consumers.fold.state.Changes`. They go last: who reads meanwhile sees by the entries that
        something has changed.
        """
        if self.hints is not None:
            self.hints.note(entries)
        if not isinstance(entries, RowEntries):
            if entries and min(entries) < _AFTER_CATALOG:
                self._note_objects(entries)
            self.entries.update(entries)
            if gone:
                self._remove(entries, gone)
            return len(entries)
        keys, first = entries.keys_of_rows, len(self._segments) * SEGMENT_ROWS
        self._segments.append(entries.columns)
        self.array_bytes += entries.columns.array_bytes
        rows = zip(keys, range(first, first + len(keys)), strict=True)
        for _ in range(0, len(keys), _PUT_TOGETHER):
            self.entries.update(islice(rows, _PUT_TOGETHER))
        return len(keys)

    def _remove(self, entries: Mapping[bytes, bytes], gone: Sequence[bytes]) -> None:
        keys = [each for each in gone if not each.endswith(b"\0") and each not in entries]
        beginnings = tuple(each for each in gone if each.endswith(b"\0"))
        if beginnings:
            self.gone.update(beginnings)
            keys += [key for each in beginnings for key in self._objects.get(each, ()) if key not in entries]
        self.entries.update(dict.fromkeys(keys, _GONE))

    def _note_objects(self, entries: Mapping[bytes, bytes]) -> None:
        for key in entries:
            if key.startswith(_OBJECTS):
                self._objects.setdefault(_beginning(key), set()).add(key)

    def hides(self, key: bytes) -> bool:
        """Whether an older entry of ``key``, which has none here, is gone."""
        return bool(self.gone) and key.startswith(_OBJECTS) and _beginning(key) in self.gone

    def get(self, key: bytes) -> bytes | None:  # type: ignore[override] # it has no default
        """The entry of ``key``, empty if it is gone; None if nothing is known of it here."""
        found = self.entries.get(key)
        if found is None and self.gone and self.hides(key):
            return self.entries.get(key, _GONE)  # type: ignore[return-value] # no row; perhaps it was put just now
        return self._entry(found) if type(found) is int else found  # type: ignore[return-value]

    def begins(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """How the entry of each key begins, at least up to its shard; None if it has none."""
        segments = self._segments
        found = map(self.entries.get, keys)
        return [
            segments[each // SEGMENT_ROWS].begin(each % SEGMENT_ROWS) if type(each) is int else each  # type: ignore[misc]
            for each in found
        ]

    def between(self, start: bytes, end: bytes) -> list[bytes]:
        """The keys with ``start`` ≤ key < ``end``, in no order. Other threads may put, or ask, meanwhile."""
        known = self._sorted
        newest = self._newest(len(known))
        if len(newest) > _UNSORTED_MAX:
            newest += known
            newest.sort()
            self._sorted, known, newest = newest, newest, []
        found = known[bisect_left(known, start) : bisect_left(known, end)]
        found += [key for key in newest if start <= key < end]
        return found

    def _newest(self, without: int) -> list[bytes]:
        """The keys that were put after the first ``without``: those at the end, since none is ever removed."""
        while True:
            held = len(self.entries)
            try:
                newest = list(islice(reversed(self.entries), held - without))
            except RuntimeError:  # another thread has put one meanwhile
                continue
            if len(self.entries) == held:
                return newest

    def tombstones(self) -> list[tuple[bytes, bytes]]:
        """The keys that are absent, with their entries. No other thread may put meanwhile."""
        absent = [each.absent() for each in self._segments]
        if any(each is not None for each in absent):
            marks = [() if each is None else each.tolist() for each in absent]
            some = [key for key, each in self.entries.items() if type(each) is int and _is_marked(marks, each)]
        else:
            some = []
        found = [(key, each) for key, each in self.entries.items() if type(each) is bytes and each[:1] == _ABSENT_BYTE]
        return found + list(self.pairs(some))

    def images(self, begin: bytes) -> Iterator[tuple[list[bytes], Kinds, list[bytes]]]:
        """The keys that begin so, with kind and image of each, some together. No other thread may put meanwhile."""
        rows = {key: each for key, each in self.entries.items() if key.startswith(begin)}
        if not {bytes}.isdisjoint(map(type, rows.values())):
            built = [(key, kind_and_image(each)) for key, each in rows.items() if type(each) is bytes]
            yield [key for key, _ in built], [kind for _, (kind, _) in built], [image for _, (_, image) in built]
            rows = {key: each for key, each in rows.items() if type(each) is int}
        keys = np.empty(len(rows), object)
        keys[:] = list(rows)
        for segment, places, at in by_segment(np.fromiter(rows.values(), np.int64, len(rows))):
            for first in range(0, len(at), READ_TOGETHER):
                some = slice(first, first + READ_TOGETHER)
                yield keys[places[some]].tolist(), *self._segments[segment].images(at[some])

    def _entry(self, number: int) -> bytes:
        return self._segments[number // SEGMENT_ROWS].entry(number % SEGMENT_ROWS)

    def __getitem__(self, key: bytes) -> bytes:
        found = self.entries[key]
        return found if isinstance(found, bytes) else self._entry(found)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def pairs(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """The entries of ``keys``, many of them built together."""
        return zip(keys, self._built([self.entries[key] for key in keys]), strict=True)

    def entries_at(self, places: Sequence[int]) -> Iterator[bytes]:
        """The entries of the keys at ``places`` of all keys, many of them built together. No other thread may put."""
        found = list(self.entries.values())
        return self._built([found[place] for place in places])

    def _built(self, found: list[Any]) -> Iterator[bytes]:
        """Entries, or numbers of rows, as the bytes of entries."""
        others = [place for place, each in enumerate(found) if type(each) is not int]
        rows = build_rows(self._segments, [each for each in found if type(each) is int])
        at = 0
        for place in others:
            yield from islice(rows, place - at)
            yield found[place]
            at = place + 1
        yield from rows

    def built(self) -> dict[bytes, bytes]:
        """All entries, with those that are gone."""
        return dict(self.pairs(list(self.entries)))


def _beginning(key: bytes) -> bytes:
    """What the keys of all objects of a set begin with."""
    return key[: key.find(b"\0", key.find(b"\0") + 1) + 1]
