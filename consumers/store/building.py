"""Builds the entries of many rows of a memtable at once: numbers by column, and few objects of Python for each row.

The objects for some thousand rows are made in the memory that those of the rows before have left: it is in the
processor's cache, and the system need not give it anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from operator import add
from typing import Any, Final

import numpy as np

from consumers.fold.columns import EntryColumns
from stream.wire.frames import ROWS_MAX
from stream.wire.single import Numbers

SEGMENT_ROWS: Final = 2 * ROWS_MAX
"""A row of a memtable is known by the number of its segment times this, plus its own."""
_GATHERED: Final = 32_768
_TOGETHER: Final = 2_048
_HEAD: Final = (("kind", "u1"), ("ordinal", ">u8"), ("timestamp", ">i8"), ("size", ">u4"))
"""As `consumers.fold.entry.PREFIX`."""
_PLACES: Final = ("image", "image_end", "position", "position_end", "number", "segment", "lead")
_SPANS: Final = np.dtype([(name, "i8") for name in _PLACES])


def build_rows(segments: Sequence[EntryColumns], numbers: Sequence[int]) -> Iterator[bytes]:
    """The entries of the rows with these ``numbers``."""
    parts = (np.array(numbers[at : at + _GATHERED], np.int64) for at in range(0, len(numbers), _GATHERED))
    return chain.from_iterable(chain.from_iterable(_build(segments, part) for part in parts))


def by_segment(numbers: Numbers) -> Iterator[tuple[int, Numbers, Numbers]]:
    """Numbers of segments, with the places in ``numbers`` of their rows, and which rows of the segment these are."""
    segments, rows = np.divmod(numbers, SEGMENT_ROWS)
    order = np.argsort(segments, kind="stable")
    for some in np.split(order, np.flatnonzero(np.diff(segments[order])) + 1):
        if len(some):
            yield int(segments[some[0]]), some, rows[some]


def _build(segments: Sequence[EntryColumns], numbers: Numbers) -> Iterator[Iterator[bytes]]:
    groups = [(segments[segment], places, rows) for segment, places, rows in by_segment(numbers)]
    is_prefixed = all(each.leads is not None for each, _, _ in groups)
    firsts = list(accumulate((len(each.places) for each, _, _ in groups), initial=0))
    leads = [lead for each, _, _ in groups for lead in ((each.leads if is_prefixed else None) or each.places)]
    shared = leads[0] if len(set(leads)) == 1 else b""
    sizes = np.array(list(map(len, leads)))
    head = np.dtype([*_HEAD, ("lead", "u1", (len(shared),))])
    heads, spans = np.empty(len(numbers), head), np.empty(len(numbers), _SPANS)
    heads["lead"] = np.frombuffer(shared, np.uint8)
    for number, (segment, places, rows) in enumerate(groups):
        spans["segment"][places] = number
        spans["lead"][places] = 0 if segment.of is None else segment.of[rows]
        spans["lead"][places] += firsts[number]
        _gather(segment, rows, places, heads, spans)
    for at in range(0, len(numbers), _TOGETHER):
        some, begins = spans[at : at + _TOGETHER], heads[at : at + _TOGETHER]
        texts = [groups[each][0].text for each in some["segment"].tolist()]
        ends = _decimals(some["number"]) if is_prefixed else _positions(texts, some)
        begins["size"] = list(map(len, ends))
        begins["size"] += sizes[some["lead"]].astype(np.uint32)
        pieces: list[Any] = [begins.view(np.dtype((np.void, head.itemsize))).tolist()]
        if not shared:
            pieces.append(map(leads.__getitem__, some["lead"].tolist()))
        yield map(b"".join, zip(*pieces, ends, _cut(texts, some["image"], some["image_end"]), strict=True))


def _gather(segment: EntryColumns, rows: Numbers, places: Numbers, heads: Any, spans: Any) -> None:
    """Writes what the columns have of ``rows`` to ``places``."""
    columns = segment.columns
    transactions = columns.transactions[rows]
    heads["kind"][places] = columns.operations[rows]
    heads["ordinal"][places] = columns.ordinals[rows]
    heads["timestamp"][places] = columns.timestamps[transactions]
    starts, positions = columns.image_starts[rows], columns.position_starts[transactions]
    spans["image"][places], spans["image_end"][places] = starts, starts + columns.image_sizes[rows]
    spans["position"][places] = positions
    spans["position_end"][places] = positions + columns.position_sizes[transactions]
    spans["number"][places] = columns.position_numbers[transactions]


def _cut(texts: Any, starts: Numbers, ends: Numbers) -> list[bytes]:
    return [text[start:end] for text, start, end in zip(texts, starts.tolist(), ends.tolist(), strict=True)]


def _decimals(numbers: Numbers) -> list[bytes]:
    # The text of a list, split: a step in Python for each number would take twice as long.
    return str(numbers.tolist())[1:-1].encode().split(b", ")


def _positions(texts: Any, spans: Any) -> list[bytes]:
    """The positions, some as a text, others as a text and a number."""
    found, numbers = _cut(texts, spans["position"], spans["position_end"]), spans["number"]
    if numbers.max() < 0:
        return found
    decimals = [b"%d" % number if number >= 0 else b"" for number in numbers.tolist()]
    return list(map(add, found, decimals))
