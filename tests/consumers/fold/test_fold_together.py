"""Folding many messages together gives what folding them one by one gives, for good bytes and for bad ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from unittest.mock import patch

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from consumers.fold import columns, runs
from consumers.fold.entry import decode_entry
from consumers.fold.messages import fold_message, fold_messages
from consumers.fold.runs import Messages, Record
from consumers.fold.state import Head, PartitionState, head_entries, lineage_key
from consumers.store.memtable import Memtable
from stream.wire.codec import HEADER_SIZE, READER_VERSION, CodecError, NewerWireError, decode, encode
from stream.wire.columns import Text, join_text
from stream.wire.events import ABSENT, VALUE, VOID
from stream.wire.frames import write_long
from stream.wire.single import read_long, read_single, single_prefix
from tests.consumers.fold.test_shards import topology
from tests.consumers.histories import LAYOUT, SHARD, encode_version_1, event, frame, gtid, key, marker, start, value

STATE = {
    "shard": SHARD,
    "epoch": 1,
    "ordinal": 1,
    "position": gtid(1),
    "timestamp": 1,
    "low_water": gtid(0),
    "partial_gtid": "",
    "partial_events": 0,
    "sequence": 1,
    "whole": True,
    "opened": [],
    "closed": [],
    "layout": LAYOUT,
}
Records = list[tuple[int, bytes | None]]
Outcome = tuple[dict[bytes, bytes], dict[bytes, bytes], list[tuple[int, str]]]

small = st.integers(0, 12)
tables = st.sampled_from(["shop.items", "shop.others"])
operations = st.sampled_from([VALUE, VALUE, VALUE, ABSENT, VOID])
rows = st.builds(
    lambda number, operation, ordinal, image: (key(number), operation, image if operation == VALUE else b"", ordinal),
    st.integers(0, 4),
    operations,
    small,
    st.binary(max_size=3),
)
frames = st.one_of(
    st.builds(value, st.integers(0, 4), st.binary(max_size=3), small),
    st.builds(lambda row: frame([row]), rows),
    st.builds(lambda row: encode_version_1("RowFrame", decode(frame([row]))[1]), rows),
    st.builds(lambda row, shard: frame([row], shard=shard), rows, st.sampled_from([SHARD, "shop/1"])),
    st.builds(lambda row, epoch: frame([row], epoch=epoch), rows, st.integers(1, 2)),
    st.builds(lambda row, position: frame([row], positions=[position]), rows, st.sampled_from([gtid(3), "x"])),
    st.builds(lambda row, stamp: frame([row], timestamps=[stamp]), rows, st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda row, text: frame([row], gtids=[text]), rows, st.text(max_size=3)),
    st.builds(lambda row, base: frame([row], ordinal=base), rows, st.integers(-(2**63), 2**63 - 1)),
    st.builds(frame, st.lists(rows, max_size=3)),
    st.builds(marker, small),
    st.builds(marker, small, shard=st.sampled_from([SHARD, "shop/1"]), epoch=st.integers(1, 2)),
    st.builds(
        marker,
        small,
        whole=st.booleans(),
        continuity=st.integers(0, 2),
        previous=st.integers(0, 2),
        layout=st.sampled_from([LAYOUT, LAYOUT, LAYOUT, "xxh3_64;partitions=2"]),
        low_water=st.sampled_from([gtid(0), gtid(3), gtid(1, 1), "FilePos/a.1:4"]),
    ),
    st.just(encode("SourceState", STATE)),
    st.builds(lambda ordinal, table: event("TableVoid", ordinal, table=table, reason="x"), st.integers(1, 12), tables),
    st.just(start()),
    st.just(start(epoch=2)),
    st.just(topology(SHARD, "shop/1")),
    st.just(topology(SHARD)),
    st.builds(
        lambda ordinal, complete: event("TableBackfill", ordinal, table="shop.items", complete=complete),
        small,
        st.booleans(),
    ),
    st.just(topology("shop/2", shard="shop/2", ancestors={SHARD: 1})),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message with one byte changed, put in or taken out."""
    whole: bytes = draw(frames)
    at = draw(st.integers(0, len(whole) - 1))
    return whole[:at] + draw(st.binary(max_size=2)) + whole[at + draw(st.integers(0, 1)) :]


messages = st.lists(st.one_of(frames, frames, frames, damaged(), st.none(), st.binary(max_size=4)), max_size=25)


def one_by_one(records: Records) -> Outcome:
    entries: dict[bytes, bytes] = {}
    state = PartitionState(Head(), entries.get)
    dead = []
    for offset, message in records:
        if offset < state.head.offset:
            continue
        changes = fold_message(state, offset, message)
        changes.put_into(entries)
        state.apply(changes)
        dead += [(offset, letter.code) for letter in changes.rejections]
    return entries, head_entries(state.head), dead


def test_what_rows_were_before_is_passed_over() -> None:
    """Whole or damaged: who folds gets the same state as without, and no dead letter."""
    told = encode("BeforeImages", {"shard": "shop/0", "epoch": 1, "ordinal": 1, "ordinals": [1], "images": [b"{}"]})
    for message in (told, told[:-3], told + b"more", told[:HEADER_SIZE]):
        entries, head, dead = one_by_one([(0, message)])
        assert (entries, dead) == ({}, [])
        assert head == one_by_one([(0, encode("SourceState", STATE))])[1]


def _together(records: Records, cuts: set[int], given_as: Callable[[Records], Sequence[Record]] = list) -> Outcome:
    entries = Memtable()
    state = PartitionState(Head(), entries.get)
    dead = []
    edges = sorted({0, len(records), *(cut for cut in cuts if cut < len(records))})
    for first, last in pairwise(edges):
        for changes in fold_messages(state, given_as(records[first:last])):
            entries.put(changes.entries, changes.gone)
            state.apply(changes)
            dead += [(changes.offset - 1, letter.code) for letter in changes.rejections]
    assert dict(entries) == entries.built(), "read one by one as they are written"
    return entries.built(), head_entries(state.head), dead


def by_column(records: Records, cuts: set[int], given_as: Callable[[Records], Sequence[Record]] = list) -> Outcome:
    """As `_together`, with every run of frames folded by column that can be."""
    with patch.object(columns, "RUN_BYTES_MIN", 1):
        return _together(records, cuts, given_as)


def in_text(records: Records) -> Sequence[Record]:
    """Messages in one text, between others; those without a value in a list, as where they are read."""
    values = [message for _, message in records if message is not None]
    if len(values) < len(records):
        return records
    text, starts, ends = join_text([b"before", *values, frame([(key(0), VALUE, b"after", 1)])])
    return Messages(np.array([offset for offset, _ in records]), Text(text, starts[1:-1], ends[1:-1]))


def in_text_and_list(records: Records) -> Sequence[Record]:
    """Messages in one text that are also given one by one, as a poll gives them."""
    values = [message for _, message in records if message is not None]
    if len(values) < len(records):
        return records
    return Messages(np.array([offset for offset, _ in records]), join_text(values), values)


def _without_timestamp(frame: bytes) -> bytes:
    """A damaged frame of one row."""
    return frame[:-7] + bytes(2)


@settings(max_examples=1_000, deadline=None)
@given(messages, st.sets(st.integers(1, 25), max_size=4), st.integers(1, 3))
@example([start(), frame([(key(1), VALUE, b"x", 3)], ordinal=-5)], set(), 1)
@example([_without_timestamp(frame([(key(0), VALUE, b"\0", 2)]))], set(), 1)
def test_batches_of_any_size_fold_to_the_same_bytes_as_single_messages(
    history: list[bytes | None], cuts: set[int], step: int
) -> None:
    """The folded state is a function of the log's prefix, however it was cut into batches, and nothing raises."""
    records = [(number * step, message) for number, message in enumerate([start(), *history])]
    try:
        expected = one_by_one(records)
    except NewerWireError:
        assume(False)  # the damage made a marker of a newer version: the fold stops before it
    assert _together(records, cuts) == expected
    assert by_column(records, cuts) == expected
    readable: Records = [(offset, message or b"") for offset, message in records]
    expected = by_column(readable, cuts)
    assert by_column(readable, cuts, in_text) == expected
    assert by_column(readable, cuts, in_text_and_list) == expected


@settings(max_examples=400, deadline=None)
@given(messages, st.integers(1, 400), st.integers(0, 8))
def test_messages_in_one_text_make_the_same_runs(history: list[bytes | None], size_max: int, at: int) -> None:
    """Which are folded together, and in which step, does not depend on how they came."""
    begin = [start(), topology(SHARD, "shop/1"), start(shard="shop/1")]
    state = PartitionState(Head(), lambda _: None)
    for offset, message in enumerate(begin):
        state.apply(fold_message(state, offset, message))
    records: Records = [(3 + 2 * number, message or b"") for number, message in enumerate([*history, start()])]
    at = min(at, len(records) - 1)
    with patch.object(runs, "RUN_BYTES_MAX", size_max):
        one, other = (runs.gather(state.head, given, at) for given in (records, in_text(records)))
    assert (one.end, one.size, one.markers) == (other.end, other.size, other.markers)
    shards = [[each.frames.shards[number] for number in each.frames.of] for each in (one, other)]
    assert (shards[0], one.frames.places) == (shards[1], other.frames.places)
    if shards[0]:
        text, starts, ends = other.frames.text()
        assert [text[start:end] for start, end in zip(starts, ends, strict=True)] == one.frames.values


@settings(max_examples=400, deadline=None)
@given(st.lists(rows.map(lambda row: (*row[:3], row[3] + 1)), min_size=1, max_size=6), small)
def test_a_frame_folds_as_its_rows_wouldone_by_one(cells: list[tuple[bytes, int, bytes, int]], before: int) -> None:
    """The state does not depend on how a publisher groups rows into frames."""
    begin = [(0, start()), (1, value(2, b"before", before + 1))]
    whole = _together([*begin, (2, frame(cells))], set())
    single = one_by_one([*begin, *((2 + at, frame([row])) for at, row in enumerate(cells))])
    assert whole[0] == single[0]
    assert [code for _, code in whole[2]] == [code for _, code in single[2]]
    assert whole[1][lineage_key(SHARD)] == single[1][lineage_key(SHARD)]


@settings(max_examples=200, deadline=None)
@given(st.lists(rows.map(lambda row: (*row[:3], row[3] + 1)), min_size=1, max_size=6), st.sets(st.integers(0, 4)))
@example([(key(1), VALUE, b"x", 1), (key(1), VALUE, b"y", 2)], {1})
def test_so_it_does_over_the_entries_of_another_shard(
    cells: list[tuple[bytes, int, bytes, int]], held: set[int]
) -> None:
    """The first event of a key voids the other shard's entry, the second one has a value: also in one frame."""
    other = "shop/1"
    begin: Records = [(0, start()), (1, topology(SHARD, other)), (2, start(shard=other))]
    begin += [(3 + at, frame([(key(at), VALUE, b"other", 5 + at)], shard=other)) for at in sorted(held)]
    at = 3 + len(begin) + max(held, default=0)
    whole = _together([*begin, (at, frame(cells))], set())
    single = one_by_one([*begin, *((at + more, frame([row])) for more, row in enumerate(cells))])
    assert whole[0] == single[0]


def test_large_runs_are_foldedby_column() -> None:
    """A run of large frames, of different sizes and kinds of GTIDs, and the marker after it are one step."""
    image, ordinal = b"x" * 1_000, 1
    records: Records = []
    for offset, size in enumerate((40, 1, 3, 20, 1), 1):
        operations = [VALUE, ABSENT, VOID, VALUE][: max(1, size)]
        some = []
        for number in range(size):
            operation = operations[number % len(operations)]
            body = image if operation == VALUE else b""
            some.append((key(number % 9), operation, body, ordinal + 1 + number))
        records.append((offset, frame(some, timestamps=[ordinal + number for number in range(size)])))
        ordinal += size
    records = [(0, start()), *records, (6, marker(ordinal))]
    state = PartitionState(Head(), lambda _: None)
    state.apply(fold_message(state, 0, start()))
    with patch.object(columns, "RUN_BYTES_MIN", 10_000):
        assert [changes.messages for changes in fold_messages(state, records[1:])] == [6]
        assert _together(records, set()) == one_by_one(records)


def test_a_frame_of_another_form_does_not_end_the_readingby_column() -> None:
    """The frames before it and most of those after it are still folded by column."""
    odd = frame([(key(3), VALUE, b"x", 12)], origins=["old/0 1 MariaDB/1-1-3"])
    records: Records = [(at, value(at % 4, b"x" * 40, at + 1)) for at in range(1, 11)]
    records += [(11, odd), *((at, value(at % 4, b"y", at + 1)) for at in range(12, 40))]
    state = PartitionState(Head(), lambda _: None)
    state.apply(fold_message(state, 0, start()))
    with patch.object(columns, "RUN_BYTES_MIN", 1):
        steps = [(changes.messages, type(changes.entries)) for changes in fold_messages(state, records)]
    assert steps[0] == (10, columns.RowEntries)
    assert steps[-1][1] is columns.RowEntries
    assert by_column([(0, start()), *records], set()) == one_by_one([(0, start()), *records])


def _steps(records: Records, size_min: int = 1) -> tuple[list[tuple[int, bool]], Outcome]:
    """How many messages each step folds, and whether by column; and what comes out."""
    entries = Memtable()
    state = PartitionState(Head(), entries.get)
    steps, dead = [], []
    with patch.object(columns, "RUN_BYTES_MIN", size_min):
        for changes in fold_messages(state, records):
            steps.append((changes.messages, isinstance(changes.entries, columns.RowEntries)))
            entries.put(changes.entries, changes.gone)
            state.apply(changes)
            dead += [(changes.offset - 1, letter.code) for letter in changes.rejections]
    return steps, (entries.built(), head_entries(state.head), dead)


def _batches(count: int, shards: tuple[str, ...] = (SHARD,)) -> Records:
    """Beginnings of ``shards``, then batches of two frames and a marker of each in turn, with gaps between them."""
    records: Records = [(0, start())]
    for shard in shards[1:]:
        records += [(len(records), topology(*shards)), (len(records) + 1, start(shard=shard))]
    at = 10
    for number in range(count):
        for which, shard in enumerate(shards):
            first = 2 + 2 * number
            for ordinal in (first, first + 1):
                row = (key(which * 100 + ordinal % 5), VALUE, b"x" * 40, ordinal)
                records.append((at + ordinal - first, frame([row], shard=shard)))
            records.append(
                (at + 2, marker(first + 1, shard=shard, continuity=first, previous=first - 2 if number else 0))
            )
            at += 4
    return records


def test_markers_between_frames_do_not_end_a_run() -> None:
    """Small batches of several shards are folded by column too, and the watermarks are those of the last markers."""
    records = _batches(20, (SHARD, "shop/1", "shop/2"))
    steps, found = _steps(records)
    assert steps == [(1, False)] * 5 + [(180, True)]
    assert found == one_by_one(records)
    assert found[2] == []


def test_state_records_between_frames_do_not_end_a_run() -> None:
    """They stand in the shard's home partition at the end of each batch."""
    records = _batches(3)
    records.insert(4, (13, encode("SourceState", STATE)))
    steps, found = _steps(records)
    assert steps == [(1, False), (10, True)]
    assert found == one_by_one(records)


def test_a_row_that_is_not_above_the_marker_before_it_is_compared() -> None:
    """A marker covers ordinals of other partitions too: what comes after it with such a number is no news."""
    records = _batches(3)
    records += [(40, marker(50)), (41, value(1, b"late", 40)), (42, value(1, b"new", 51)), (43, marker(51))]
    steps, found = _steps(records)
    assert steps[:2] == [(1, False), (10, True)]
    assert found == one_by_one(records)
    assert decode_entry(found[0][key(1)]).image == b"new"


def test_a_marker_after_a_frame_that_is_folded_otherwise_moves_nothing_before_it() -> None:
    """Else a crash between the two steps would leave a watermark whose rows are missing."""
    for shards in ((SHARD,), (SHARD, "shop/1")):
        records = _batches(6, shards)
        at = next(number for number, (offset, _) in enumerate(records) if offset >= 26)
        odd = frame([(key(99), VALUE, b"x", 1_000)], origins=["old/0 1 MariaDB/1-1-3"])
        records[at:] = [(26, odd), (27, marker(2_000)), (28, value(1, b"y", 2_001))]
        steps, found = _steps(records)
        assert (at - (1 if len(shards) == 1 else 3), True) in steps
        assert found == one_by_one(records)
        entries = Memtable()
        state = PartitionState(Head(), entries.get)
        with patch.object(columns, "RUN_BYTES_MIN", 1):
            for changes in fold_messages(state, records):
                state.apply(changes)
                entries.put(changes.entries, changes.gone)
                assert state.head.offset > 26 or state.head.lineages[SHARD].watermark_ordinal < 1_000


def test_a_marker_in_a_run_ends_the_wait_of_voids() -> None:
    """Fills are possible again at the same marker as if messages were folded one by one."""
    records = _batches(2)
    records += [(20, event("TableVoid", 6, table="shop.items", position="", reason="x"))]
    records += [(30, value(3, b"a", 7)), (31, marker(7, whole=False)), (32, value(4, b"b", 8)), (33, marker(8))]
    records += [(34, value(4, b"b", 9)), (35, marker(9))]
    steps, found = _steps(records)
    assert steps == [(1, False), (6, True), (1, False), (6, True)]
    assert found == one_by_one(records)


def test_a_marker_that_is_rejected_is_a_message_of_its_own() -> None:
    """Its dead letter names its offset. The frames before it are folded by column, and those soon after it."""
    records = _batches(30)
    for at, (offset, _) in enumerate(records):
        if offset == 28:
            records[at] = (offset, marker(11, continuity=77, previous=76))
    steps, found = _steps(records)
    assert found == one_by_one(records)
    assert found[2] == [(28, "log_gap"), (32, "log_gap")]
    assert steps[:2] == [(1, False), (14, True)]
    assert steps[-1][1]


def test_markers_that_are_all_rejected_cost_few_tries() -> None:
    """Else each of them would gather the whole run again, which takes seconds."""
    records: Records = [(0, start())]
    for at in range(1, 400):
        records += [
            (2 * at, value(at % 7, b"x" * 40, at + 1)),
            (2 * at + 1, marker(at + 1, continuity=9 * at, previous=1)),
        ]
    with patch.object(columns, "gather", wraps=runs.gather) as gather:
        found = _steps(records)[1]
    assert len(found[2]) == 398
    assert found == one_by_one(records)
    assert gather.call_count < 60


def test_a_marker_of_a_newer_version_stops_the_fold_before_it() -> None:
    """What is before it is folded; it waits for the update."""
    records = [*_batches(3), (30, marker(9, reader_version=READER_VERSION + 1)), (31, value(1, b"x", 10))]
    entries, folded = Memtable(), []
    state = PartitionState(Head(), entries.get)
    with patch.object(columns, "RUN_BYTES_MIN", 1), suppress(NewerWireError):
        for changes in fold_messages(state, records):
            state.apply(changes)
            folded.append(changes.messages)
    assert folded == [1, 9]
    assert state.head.offset < 30


def test_rows_carry_the_tag_of_their_transaction() -> None:
    """That holds even if a transaction has no rows and the columns happen to have equal lengths."""
    both = [(key(1), VALUE, b"a", 2), (key(2), VALUE, b"b", 3)]
    entries, _, _ = _together([(0, start()), (1, frame(both, transactions=[0, 2]))], set())
    assert {decode_entry(entries[key(number)]).position for number in (1, 2)} == {gtid(3)}


def test_records_that_were_folded_before_are_skipped() -> None:
    """After a restart the consumer may be given records again that the store's offset has passed."""
    records: Records = [(offset, value(offset, b"x", offset + 2)) for offset in range(6)]
    again: Records = [(0, start()), *records[1:4], *records[2:]]
    assert _together(again, set()) == one_by_one([(0, start()), *records[1:]])


@settings(max_examples=400, deadline=None)
@given(st.one_of(frames, damaged()), st.sampled_from([SHARD, "shop/1", ""]), st.integers(1, 2))
def test_the_fast_reader_agrees_with_the_decoder_or_declines(message: bytes, shard: str, epoch: int) -> None:
    """For any bytes, a row read by the fast path equals the row that Avro decodes."""
    prefix = single_prefix(shard, epoch)
    row = read_single(message, len(prefix)) if message.startswith(prefix) else None
    if row is None:
        return
    ordinal, found, operation, image, position, stamp = row
    seconds = read_long(stamp)
    if seconds is None or not position.isascii():
        return
    try:
        name, fields = decode(message)
    except CodecError as error:
        raise AssertionError(f"{message!r} was read as {row}") from error
    assert name == "RowFrame"
    assert (fields["shard"], fields["epoch"], fields["keys"], fields["images"]) == (shard, epoch, [found], [image])
    assert (fields["operations"], fields["timestamps"]) == (bytes([operation]), [seconds])
    assert (fields["ordinal"] + fields["ordinals"][0], fields["gtids"]) == (ordinal, [position.decode()])
    assert (fields["transactions"], fields["positions"], fields["origins"]) == ([1], [], [])


def test_every_published_frame_of_one_row_takes_the_fast_path() -> None:
    """The fast path must keep matching what the publisher writes."""
    for size in (1, 31, 32, 63, 64, 127, 128, 255, 256, 8_191, 8_192, 65_535):
        message = value(7, b"x" * size, 2**40 + size)
        assert read_single(message, len(single_prefix(SHARD, 1))) is not None


def test_small_frames_are_folded_in_one_step() -> None:
    """A run of small frames, of one row and of several, costs one change of the head; a frame out of order ends it."""
    several = frame([(key(1), VALUE, b"a", 3), (key(2), ABSENT, b"", 4), (key(1), VALUE, b"c", 5)])
    records: Records = [(1, value(7, b"x", 2)), (2, several), (3, value(7, b"y", 6)), (4, several), (5, marker(6))]
    state = PartitionState(Head(), lambda _: None)
    state.apply(fold_message(state, 0, start()))
    assert [changes.messages for changes in fold_messages(state, records)] == [3, 1, 1]


@given(st.integers(-(2**62), 2**62 - 1))
def test_longs_are_read_as_they_are_written(number: int) -> None:
    """The two directions of Avro's zigzag agree."""
    assert read_long(write_long(number)) == number
