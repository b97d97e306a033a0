"""What a commit does with many rows together is what is done with one: their order, and their entries."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.fold.columns import EntryColumns
from consumers.fold.state import OFFSET_KEY, lineage_key
from consumers.store import building
from consumers.store.building import SEGMENT_ROWS, build_rows
from consumers.store.sorting import sorted_places
from stream.wire.columns import Floors, join_text, read_columns
from stream.wire.events import ABSENT, VALUE, VOID
from stream.wire.single import single_prefix
from tests.consumers.histories import SHARD, frame, gtid, key

KEYS: dict[str, Callable[[int], bytes]] = {
    "integers": lambda number: key(number * 37),
    "long integers": lambda number: key(10**12 + number * 37),
    "texts": lambda number: b'shop.items\0["%x"]' % (number * 0x9E3779B97F4A7C15 % 2**128),
    "composite": lambda number: b"shop.items\0[%d,%d]" % (number % 3, number),
    "begin alike": lambda number: (
        b"shop.items\0" + b"a" * (number % 40) + bytes([number // 40 % 256, number // 10_240])
    ),
    "zero bytes": lambda number: b"t" + b"\0" * number,
    "two tables": lambda number: key(number, ("shop.items", "shop.others")[number % 2]),
}
"""Name → the key with a number."""


@pytest.mark.parametrize("name", KEYS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.sampled_from([1, 999, 1_000, 3_000]))
def test_keys_of_any_form_come_in_their_order(name: str, seed: int, count: int) -> None:
    """Whatever numpy makes of the bytes in which most keys differ, and of the few that begin otherwise."""
    keys = list({KEYS[name](number) for number in range(count)})
    keys += [OFFSET_KEY, lineage_key(SHARD), key(7, "a.small"), key(7, "z.small"), b"s", b"shop.item", b"\xff" * 20]
    Random(seed).shuffle(keys)
    assert [keys[place] for place in sorted_places(keys)] == sorted(keys)


def _values(
    first: int,
    rows: int,
    frames: int,
    *,
    shard: str = SHARD,
    texts: list[str] | None = None,
    sizes: list[int] | None = None,
    domains: int = 1,
) -> list[bytes]:
    """Frames of ``rows`` rows each, of all kinds. ``sizes``: of their transactions; ``domains``: of frames in turn."""
    values = []
    for at in range(first, first + rows * frames, rows):
        numbers = range(at, at + rows)
        kinds = [(VALUE, VALUE, ABSENT, VOID)[number % 4] for number in numbers]
        cells = [
            (key(number), kind, b"%d" % number * (number % 5 + 1) if kind == VALUE else b"", number)
            for number, kind in zip(numbers, kinds, strict=True)
        ]
        more: dict[str, Any] = {"timestamps": [1_700_000_000 + number for number in numbers]}
        more["gtids"] = texts or [gtid(number, at % domains) for number in numbers]
        if sizes:
            more = {name: numbered[: len(sizes)] for name, numbered in more.items()} | {"transactions": sizes}
        values.append(frame(cells, shard=shard, **more))
    return values


def _segment(first: int, rows: int, frames: int, *, shard: str = SHARD, texts: list[str] | None = None) -> EntryColumns:
    """Such frames, read."""
    values = _values(first, rows, frames, shard=shard, texts=texts)
    columns = read_columns(join_text(values), len(single_prefix(shard, 1)), Floors(np.full(frames, first - 1)))
    assert columns is not None
    assert len(columns.ordinals) == rows * frames
    return EntryColumns(columns, [(shard, 1)])


def _of_two(other: str, **more: Any) -> EntryColumns:
    """Frames of two shards in turn, read together; ``more``: of the other one's."""
    own, others = _values(1, 3, 4, sizes=[2, 1]), _values(1, 2, 4, shard=other, **more)
    values = [value for pair in zip(own, others, strict=True) for value in pair]
    begins = np.array([len(single_prefix(shard, 1)) for shard in (SHARD, other)] * 4)
    columns = read_columns(join_text(values), begins, Floors(np.zeros(8, np.int64), np.maximum(np.arange(-2, 6), -1)))
    assert columns is not None
    assert columns.rows.tolist() == [3, 2] * 4
    return EntryColumns(columns, [(SHARD, 1), (other, 1)], np.repeat(np.array([0, 1] * 4, np.uint8), columns.rows))


NUMBERED = [_segment(1, 40, 3), _segment(200, 7, 9)]
TEXTS = [_segment(400, 1, 50), _segment(500, 3, 2)]
OTHERS = [_segment(600, 3, 4, texts=["a", "b", "a"]), _segment(1, 4, 5, shard="shop/1")]
OF_TWO_SHARDS = [
    *(_of_two("shop/1"), _of_two("shop/a longer name"), _of_two("shop/1", texts=["a", "b"])),
    *(_of_two("shop/1", domains=3), _of_two("shop/1", domains=2)),
]
OF_TWO_DOMAINS = [_segment(700, 2, 3, texts=[gtid(1), gtid(2, 1)])]


@pytest.mark.parametrize("together", [1, 3, 32_768])
@pytest.mark.parametrize(
    "segments",
    [
        *(NUMBERED, NUMBERED[:1], TEXTS, TEXTS[:1], OTHERS, NUMBERED + TEXTS, NUMBERED + OTHERS),
        *(OF_TWO_DOMAINS + NUMBERED, OF_TWO_SHARDS[:1], OF_TWO_SHARDS[:2], OF_TWO_SHARDS + NUMBERED),
        *(OF_TWO_SHARDS[3:4], OF_TWO_SHARDS[4:]),
        OF_TWO_SHARDS[:2] * 70,  # together they have more lineages than a byte can count
    ],
)
def test_rows_are_built_together_as_one_by_one(
    segments: list[EntryColumns], together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order, of frames of one row and of many, of one shard and of several, with GTIDs of any form."""
    monkeypatch.setattr(building, "_GATHERED", 5 * together)
    monkeypatch.setattr(building, "_TOGETHER", together)
    places = [
        (segment, row) for segment, columns in enumerate(segments) for row in range(len(columns.columns.ordinals))
    ]
    Random(together).shuffle(places)
    built = list(build_rows(segments, [segment * SEGMENT_ROWS + row for segment, row in places]))
    assert built == [segments[segment].entry(row) for segment, row in places]
    assert list(build_rows(segments, [])) == []


def test_whose_each_row_is_counts_as_memory() -> None:
    """A memtable is committed before its arrays need too much."""
    segment = OF_TWO_SHARDS[0]
    assert segment.array_bytes == segment.columns.array_bytes + len(segment.columns.ordinals)
