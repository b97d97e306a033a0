"""Frames that are read by column hold what the general decoder reads, or are left to it."""

from __future__ import annotations

from io import BytesIO
from itertools import accumulate, chain, pairwise, repeat
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from fastavro import schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.wire.checks import check_frame
from stream.wire.codec import HEADER_SIZE, ROW_FRAME_HEADER, decode, encode
from stream.wire.columns import Columns, Floors, join_text, read_columns
from stream.wire.events import ABSENT, VALUE, VOID
from stream.wire.frames import INT_MAX, NUMBER_MAX, PREFIX_MAX, read
from stream.wire.keys import is_row_key
from stream.wire.single import single_prefix
from tests.consumers.histories import SHARD, frame, gtid, key
from tests.stream.test_frames import SCHEMA, packed_fields
from tests.stream.test_frames import frames as any_frames

BEGIN = len(single_prefix(SHARD, 1))
Row = tuple[int, bytes, int, bytes, str, int]

keys = st.one_of(st.integers(0, 5).map(key), st.sampled_from([key(1, "shop.other"), b"\x01t\0x", b"no table", b"\0"]))
bodies = st.sampled_from([b"x", b"x" * 300, b"y" * 70_000, b""])


@st.composite
def published(draw: st.DrawFn) -> bytes:
    """A frame of the lineage, mostly one that a publisher would write."""
    fields: dict[str, Any] = draw(any_frames())
    rows = len(fields["keys"])
    fields |= {"shard": SHARD, "epoch": 1, "ordinal": draw(st.sampled_from([0, 0, 5, 300, 2**40]))}
    if draw(st.integers(0, 3)):
        fields |= {
            "keys": draw(st.lists(keys.filter(is_row_key), min_size=rows, max_size=rows)),
            "images": draw(st.lists(bodies.filter(bool), min_size=rows, max_size=rows)),
            "operations": bytes(draw(st.lists(st.sampled_from([VALUE, ABSENT, VOID]), min_size=rows, max_size=rows))),
            "origins": [],
            "gtids": [gtid(number) for number in range(7, 7 + len(fields["gtids"]))],
        }
        of_each = draw(
            st.sampled_from(
                [None, None, "p%d", "x" * 62 + "%d", "x" * 300 + "%d", "x" * 9_000 + "%d", "é%d", "x" * 300 + "é%d"]
            )
        )
        fields["positions"] = [of_each % number for number in range(8, 8 + len(fields["gtids"]))] if of_each else []
    return encode("RowFrame", fields)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A frame with one byte changed, put in or taken out behind its lineage."""
    whole = draw(published())
    at = draw(st.integers(BEGIN, len(whole) - 1) | st.integers(BEGIN, min(len(whole) - 1, BEGIN + 40)))
    return whole[:at] + draw(st.binary(max_size=2)) + whole[at + draw(st.integers(0, 1)) :]


def rows_of(value: bytes) -> list[Row]:
    """The rows of a frame as the general decoder reads it. Raises as it does."""
    fields = read(value, HEADER_SIZE)
    check_frame(fields)
    assert not fields["origins"]
    sizes = fields["transactions"]
    return [
        (fields["ordinal"] + ordinal, found, operation, image if operation == VALUE else b"", text, timestamp)
        for ordinal, found, operation, image, text, timestamp in zip(
            fields["ordinals"],
            fields["keys"],
            fields["operations"],
            fields["images"],
            chain.from_iterable(map(repeat, fields["positions"] or fields["gtids"], sizes)),
            chain.from_iterable(map(repeat, fields["timestamps"], sizes)),
            strict=True,
        )
    ]


def rows_in(columns: Columns) -> list[Row]:
    """The rows of columns."""
    text, found = columns.text, []
    for row, name in enumerate(columns.keys()):
        image, transaction = columns.image_starts[row], columns.transactions[row]
        start, number = columns.position_starts[transaction], columns.position_numbers[transaction]
        position = text[start : start + columns.position_sizes[transaction]].decode("ascii")
        found.append(
            (
                int(columns.ordinals[row]),
                name,
                int(columns.operations[row]),
                text[image : image + columns.image_sizes[row]],
                position + (str(number) if number >= 0 else ""),
                int(columns.timestamps[transaction]),
            )
        )
    return found


def _read(values: list[bytes], after: int = 0) -> Columns | None:
    """Of frames of one lineage."""
    return read_columns(join_text(values), BEGIN, Floors(np.full(len(values), after)))


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(published(), published(), damaged()), min_size=1, max_size=5), st.sampled_from([0, 0, 7]))
def test_what_is_read_is_what_the_decoder_reads(values: list[bytes], after: int) -> None:
    """For any bytes: the rows are the decoder's, valid, and in order; nothing raises."""
    columns = _read(values, after)
    if columns is None:
        return
    expected = [row for value in values[: len(columns.rows)] for row in rows_of(value)]
    assert rows_in(columns) == expected
    ordinals = [after, *(row[0] for row in expected)]
    assert all(earlier < later for earlier, later in pairwise(ordinals))
    for _, name, operation, image, _, _ in expected:
        assert is_row_key(name)
        assert (operation == VALUE and image) or operation in (ABSENT, VOID)


@st.composite
def singles(draw: st.DrawFn) -> bytes:
    """A frame of one row, mostly as it is published; some are damaged."""
    ordinal = draw(st.integers(1, 400) | st.sampled_from([2**13, 2**31, 2**40, 2**55]))
    operation = draw(st.sampled_from([VALUE, VALUE, ABSENT, VOID]))
    stamp = draw(st.sampled_from([1_700_000_000, 0, -1, 2**40, -(2**62)]))
    text = draw(st.sampled_from([gtid(ordinal), "", "x" * 63, "x" * 64, "ü"]))
    row = (draw(keys), operation, draw(bodies), ordinal)
    positions: list[str] = draw(st.sampled_from([[], [], ["p"]]))
    whole = frame([row], gtids=[text], timestamps=[stamp], positions=positions)
    if draw(st.integers(0, 3)):
        return whole
    at = draw(st.integers(BEGIN, len(whole) - 1))
    return whole[:at] + draw(st.binary(max_size=2)) + whole[at + draw(st.integers(0, 1)) :]


@settings(max_examples=600, deadline=None)
@given(st.lists(singles(), min_size=1, max_size=4), st.sampled_from([0, 0, 7]))
def test_frames_of_one_row_are_read_as_frames_of_many(values: list[bytes], after: int) -> None:
    """For any bytes the short way gives what the long one gives, or leaves it to that."""
    columns = _read(values, after)
    with patch("stream.wire.columns.find_singles", lambda *_: None):
        expected = _read(values, after)
    assert (columns is None) == (expected is None)
    if columns is not None and expected is not None:
        assert len(columns.rows) == len(expected.rows)
        assert rows_in(columns) == rows_in(expected)


def test_published_frames_of_one_row_take_the_short_way() -> None:
    """It must keep matching what the publisher writes: narrow and wide lengths, ordinals of any size, no image."""
    values = [
        frame([(key(number), VALUE if image else ABSENT, image, number)])
        for number, image in ((1, b"x"), (63, b""), (64, b"x" * 255), (65, b"x" * 256), (2**31, b"y" * 65_535))
    ]
    with patch("stream.wire.columns._columns", side_effect=AssertionError("the long way")):
        columns = _read(values, 0)
    assert columns is not None
    assert len(columns.rows) == len(values)


def test_a_long_position_costs_the_others_nothing() -> None:
    """It is looked at by itself: at a step a word for all of them, one of 100 KB would take a run three seconds."""
    values = [
        frame([(key(number), VALUE, b"x", number) for number in range(1, 10)], positions=["p"] * 9),
        frame([(key(1), VALUE, b"x", 10)], positions=["p" * 100_000]),
        frame([(key(number), VALUE, b"x", number) for number in range(11, 20)], positions=["p" * 20_000] * 9),
    ]
    with patch.object(np, "clip", wraps=np.clip) as steps:
        columns = _read(values, 0)
    assert columns is not None
    assert rows_in(columns) == [row for each in values for row in rows_of(each)]
    assert steps.call_count < 50


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.sampled_from([b"x", b"x" * 300, b"y" * 70_000]))
def test_every_usual_frame_is_read(sizes: list[int], image: bytes) -> None:
    """The reader must keep matching what the publisher writes: frames of any size, mixed in a run."""
    firsts = [0, *accumulate(sizes)]
    values = [
        frame([(key(number % 7), VALUE, image, number) for number in range(first + 1, first + size + 1)])
        for first, size in zip(firsts, sizes, strict=False)
    ]
    columns = _read(values, 0)
    assert columns is not None
    assert len(columns.rows) == len(values)


def _odd(**changes: Any) -> bytes:
    """A frame of five rows whose packed fields are changed: no publisher writes it."""
    rows = [(key(number), VALUE, b"image", number) for number in range(10, 15)]
    out, fields = BytesIO(), packed_fields(decode(frame(rows))[1])
    schemaless_writer(out, SCHEMA, fields | changes)
    return ROW_FRAME_HEADER + out.getvalue()


@pytest.mark.parametrize(
    "changes",
    [
        {"gtids": ["twice"]},
        {"gtid_prefix": "", "gtids": ["too", "few"]},
        {"gtid_prefix": "MariaDB/\0-"},
        {"gtid_prefix": "x" * (PREFIX_MAX + 1)},
        {"gtid_prefix": "ü"},
        {"gtid_base": -1},
        {"gtid_base": NUMBER_MAX},
        {"positions": ["p"] * 4},
        {"positions": ["é"] * 5},
        {"origins": ["old/0 MariaDB/1-1-3"] * 5},
        {"transactions": 0},
        {"transactions": 4},
        {"transactions": 6},
        {"sizes": bytes([1, 0, 0, 0, 0])},
        {"lengths": bytes([9] * 10)},
        {"lengths": bytes(10)},
        {"lengths": bytes([1] * 9)},
        {"rows": b"too short"},
        {"operations": bytes([VALUE, VALUE, 0, VALUE, VALUE])},
        {"operations": bytes([VALUE, VALUE, 4, VALUE, VALUE])},
        {"operations": bytes([VALUE] * 4)},
        {"ordinals": (INT_MAX + 1).to_bytes(8, "little") * 5},
        {"ordinals": b"\xff" * 40},
        {"ordinal": 0},
        {"timestamps": b"\xff" * 40},
        {"gtid_numbers": b"\xff" * 40},
        {"gtid_numbers": b"\xff" * 3},
    ],
    ids=str,
)
def test_a_frame_that_contradicts_itself_is_left_to_the_decoder(changes: dict[str, Any]) -> None:
    """It is refused, or read as its bytes say; never folded as if nothing were wrong with it."""
    first, last = frame([(key(1), VALUE, b"a", 1)]), frame([(key(2), VALUE, b"b", 99)])
    whole = _read([first, _odd(), last], 0)
    assert whole is not None
    assert len(whole.rows) == 3
    columns = _read([first, _odd(**changes), last], 0)
    assert columns is not None
    assert len(columns.rows) == 1
    assert rows_in(columns) == rows_of(first)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(-1, 2), st.integers(1, 3)), min_size=1, max_size=9))
def test_frames_of_two_lineages_are_read_together(steps: list[tuple[bool, int, int]]) -> None:
    """Up to the first whose ordinals don't rise in its own lineage; of frames of one row, and of several."""
    shards, lasts = (SHARD, "shop/of a longer name"), [4, 0]
    values, begins, good = [], [], True
    before: list[int] = []
    expected: list[Row] = []
    for is_other, step, count in steps:
        first = lasts[is_other] + step
        good &= step > 0
        rows = [(key(number), VALUE, b"x%d" % number, number) for number in range(first, first + count)]
        values.append(frame(rows, shard=shards[is_other]))
        expected += rows_of(values[-1]) if good else []
        before.append(max((at for at, each in enumerate(steps[: len(before)]) if each[0] == is_other), default=-1))
        begins.append(len(single_prefix(shards[is_other], 1)))
        lasts[is_other] = max(lasts[is_other], first + count - 1)
    least = np.array([0 if each[0] else 4 for each in steps])
    columns = read_columns(join_text(values), np.array(begins), Floors(least, np.array(before)))
    assert ([] if columns is None else rows_in(columns)) == expected


@pytest.mark.parametrize("more", [0, 1])
def test_no_more_rows_are_read_at_once_than_a_frame_may_have(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row's number in the memtable has room for so many."""
    monkeypatch.setattr("stream.wire.columns.ROWS_MAX", 6)
    frames = [
        frame([(key(number), VALUE, b"a", number) for number in range(at, at + 3)]) for at in range(1, 7 + 3 * more, 3)
    ]
    columns = _read(frames, 0)
    assert columns is not None
    assert (len(columns.rows), len(columns.ordinals)) == (2, 6)


def test_it_stops_before_the_first_frame_that_needs_more() -> None:
    """What is before it is read; a frame with rows of another shard, or an ordinal that falls, is not."""
    good, later = frame([(key(1), VALUE, b"a", 1)]), frame([(key(2), VALUE, b"b", 2)])
    row = [(key(1), VALUE, b"c", 3)]
    from_another = frame(row, origins=["old/0 1 MariaDB/1-1-3"])
    for other in (from_another, good, frame([(b"x", VALUE, b"c", 3)])):
        columns = _read([good, later, other, later], 0)
        assert columns is not None
        assert len(columns.rows) == 2
        assert _read([other, good], 1) is None
