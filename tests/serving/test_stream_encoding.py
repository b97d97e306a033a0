"""What is in a topic by mistake ends no change stream, and a filter of keys leaves out nothing by a guess."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from serving.client.streaming import Lines
from serving.errors import ReadError
from serving.http.streaming.routes import CHUNK_BYTES, _chunks, _learn_prefixes
from serving.sources.source import RowTable
from serving.streams.choice import Choice
from serving.streams.encoding import Encoder
from stream.changes.checkpoint import Checkpoint, Place
from stream.changes.items import KEYLESS, Mark, RecordEvent, RowEvent, Transaction, Watermark
from stream.shards.map import IdRange
from stream.wire.events import VALUE, VOID
from stream.wire.keys import Layout
from tokens import EventToken, Origin, Position

CHECKPOINT = Checkpoint("shop", "id", (0,))


def transaction(key: bytes, image: bytes) -> Transaction:
    """A row of ``shop.t``."""
    event = RowEvent(1, b"shop.t\0" + key, VALUE, image)
    gtid = "MariaDB/0-1-1"
    return Transaction("shop/0", Place(1, 1), gtid, gtid, 0, "", [event], CHECKPOINT, 100)


@pytest.mark.parametrize("is_sse", [False, True])
@pytest.mark.parametrize(
    ("key", "image", "told"),
    [
        (b"[1]", b'{"a":1}', ("row", "value")),
        (b"[1]", b'{"a":', ("row", "void")),
        (b"[1]", b"5", ("row", "void")),
        (b"[1]", b'{"a":"\xff"}', ("row", "void")),
        (b"[1]", b'{"a":\n\n1}', ("row", "void")),
        (b"[1]", b'{"a":\r1}', ("row", "void")),
        (b"[1", b'{"a":1}', ("void", "")),
        (b'[1]\n\ndata: {"kind":"watermark"}', b'{"a":1}', ("void", "")),
    ],
)
def test_a_row_that_is_no_json_is_told_as_changed_and_breaks_no_line(
    *, is_sse: bool, key: bytes, image: bytes, told: tuple[str, str]
) -> None:
    """A reader can always read on: else it would come back to the same event for ever."""
    encoder = Encoder(Choice(include_rows=True, is_sse=is_sse), Layout(1), {})
    framed = encoder.transaction(transaction(key, image), CHECKPOINT)
    if is_sse:
        name, kind, framed, *rest = framed.split(b"\n")
        assert (name[:4], kind, rest) == (b"id: ", b"event: transaction", [b"", b""])
        framed = framed.removeprefix(b"data: ") + b"\n"
    [event] = Lines().events(framed)
    [change] = event.changes
    assert (change.kind, change.op, change.table) == (*told, "shop.t")


def test_readers_of_a_range_each_tell_rows_by_the_prefix_that_they_have_learnt() -> None:
    """They may be at different descriptions of a table; one that took another's encoding would lose rows."""
    item, everything = transaction(b"[1,2]", b"{}"), Choice(key_range=IdRange.parse("-"))
    knows, does_not = ({"shop.t": prefix} for prefix in (1, None))
    for first, second in ((knows, does_not), (does_not, knows)):
        told = {id(prefixes): Encoder(everything, Layout(1), {**prefixes}) for prefixes in (first, second)}
        kinds = {
            each: next(iter(Lines().events(encoder.transaction(item, CHECKPOINT)))).changes[0].kind
            for each, encoder in told.items()
        }
        assert (kinds[id(knows)], kinds[id(does_not)]) == ("row", "void")


def test_an_encoding_is_shared_by_readers_at_the_same_place_only() -> None:
    """One that has told more of other shards goes on behind that, and would be told it again."""
    item, ahead = transaction(b"[1]", b"{}"), Checkpoint("shop", "id", (0,), {"shop/1": Place(1, 9)})
    encoders = [Encoder(Choice(), Layout(1), {}) for _ in range(3)]
    found = [
        encoder.transaction(item, checkpoint)
        for encoder, checkpoint in zip(encoders, (CHECKPOINT, ahead, CHECKPOINT), strict=True)
    ]
    told = [[event.checkpoint for event in Lines().events(each)] for each in found]
    assert told == [[str(CHECKPOINT)], [str(ahead)], [str(CHECKPOINT)]]


@pytest.mark.parametrize(
    ("operation", "before", "after"),
    [
        ("inserted", b"", b""),
        ("deleted", b"", b""),
        ("updated", b'{"a":"2"}', b""),
        ("updated", b"", b'{"a":"2"}'),
    ],
)
def test_a_row_without_a_key_whose_image_is_not_in_the_log_may_be_one_that_is_asked_for(
    operation: str, before: bytes, after: bytes
) -> None:
    """An image above the wire's limit is left out there: who has a predicate is told, as of a row that is void."""
    fields = {"table": "shop.t", "operation": operation, "before": before, "after": after}
    item = transaction(b"[1]", b"{}")
    item.events[:] = [RecordEvent(1, KEYLESS, fields)]  # type: ignore[index]
    choice = Choice(include_rows=True, include_keyless=True, where=(("a", "1"),))
    [event] = Lines().events(Encoder(choice, Layout(1), {}).transaction(item, CHECKPOINT))
    assert [(change.kind, change.op) for change in event.changes] == [("keyless", operation)]


def learn(described: RowTable | ReadError, prefixes: dict[str, int | None], declared: dict[str, int]) -> None:
    """Has ``prefixes`` know ``shop.t``, which is ``described`` now. ``declared``: those of the layout."""

    class Front:
        async def get(self, *_: object) -> RowTable:
            if isinstance(described, ReadError):
                raise described
            return described

    front: Any = Front()
    front.descriptions, front.layout = front, Layout(1, declared)
    asyncio.run(_learn_prefixes(front, front, [transaction(b"[1]", b"{}")], prefixes))


@pytest.mark.parametrize("code", ["no_owner", "source_unreachable", "source_failed"])
def test_a_table_that_nobody_can_describe_now_ends_the_stream_for_a_while(code: str) -> None:
    """A guess at the columns that choose its partitions would leave out rows of the range, for good."""
    prefixes: dict[str, int | None] = {}
    with pytest.raises(ReadError) as failed:
        learn(ReadError(code, "not now"), prefixes, {})
    assert (failed.value.code, prefixes) == ("stream_unavailable", {})


@pytest.mark.parametrize(
    "described",
    [ReadError("unknown_table", "it is gone"), RowTable("shop.t", (), False, "no primary key")],
    ids=["gone", "keyless"],
)
def test_a_table_without_a_key_says_nothing_of_the_range_of_its_earlier_rows(described: RowTable | ReadError) -> None:
    """Which columns chose their partitions is known only where the topic's layout says it."""
    for declared, is_known in (({}, False), ({"shop.t": 1}, True)):
        prefixes: dict[str, int | None] = {}
        learn(described, prefixes, declared)
        assert (prefixes["shop.t"] is not None) == is_known


@pytest.mark.parametrize("key_range", ["-80", "80-"])
def test_rows_whose_range_nobody_knows_are_told_as_a_void_of_their_table(key_range: str) -> None:
    """Those of a table that is gone by now: a guess would leave out some of the range, and tell others instead."""
    choice = Choice(frozenset({"shop.t"}), IdRange.parse(key_range), include_rows=True, reads_void=True)
    encoder = Encoder(choice, Layout(4), {"shop.t": None, "shop.u": None})
    for row in (0, 10):
        keys = [b"shop.%b\0[%d]" % (table, row + at) for table in (b"t", b"u") for at in range(9)]
        item = replace(transaction(b"[1]", b"{}"), events=[RowEvent(at, key, VOID, b"") for at, key in enumerate(keys)])
        [event] = Lines().events(encoder.transaction(item, CHECKPOINT))
        assert [(change.kind, change.table) for change in event.changes] == [("void", "shop.t")]
        assert encoder.void_rows(item) == []


def test_the_description_of_a_table_that_is_gone_says_nothing_of_the_range_of_its_rows() -> None:
    """Another shard has it still: a drop goes from shard to shard."""
    layout, told = Layout(4), []
    gone = {"table": "shop.t", "columns": [], "primary_key": [], "cacheable": False, "prefix": 0}
    dropped = replace(transaction(b"[1]", b"{}"), events=[RecordEvent(1, "TableSchema", gone)])
    for key_range in ("-80", "80-"):
        encoder = Encoder(Choice(key_range=IdRange.parse(key_range)), layout, {"shop.t": 1})
        assert encoder.transaction(dropped, CHECKPOINT)
        of_one = [RowEvent(at, b"shop.t\0[7,%d]" % at, VALUE, b"{}") for at in range(20)]
        told.append(encoder.transaction(replace(dropped, events=of_one, cached={}), CHECKPOINT).count(b'"key"'))
    assert sorted(told) == [0, 20]


def test_a_watermark_is_as_old_as_the_shards_that_go_on() -> None:
    """One that others have succeeded stays in its last second: no watermark would ever be later than that."""
    marks = {
        "shop/0": Mark(Place(1, 1), "MariaDB/0-1-1", 5, 5_000, is_over=True),
        "shop/1": Mark(Place(1, 1), "MariaDB/0-2-1", 9, 9_500),
    }
    told = Encoder(Choice(), Layout(1), {}).watermark(Watermark(marks, CHECKPOINT, (0,)), CHECKPOINT)
    [event] = Lines().events(told)
    assert (event.timestamp, event.as_of_ms) == (9, 9_500)


def test_a_stream_with_an_end_tells_no_watermark_there() -> None:
    """Both have one checkpoint: who goes on at the watermark's is told of no end, and waits for ever."""

    class Ending:
        watermark, has_ended = Watermark({}, CHECKPOINT, (0,)), False

        async def batches(self, _: float) -> AsyncIterator[list[Any]]:
            yield []
            self.has_ended = True
            yield []

    async def story() -> list[str]:
        nothing: Any = None
        reading: Any = Ending()
        chunks = _chunks(nothing, nothing, reading, Encoder(Choice(), Layout(1), {}), 0.0, None, None)
        return [event.kind async for chunk in chunks for event in Lines().events(chunk)]

    assert asyncio.run(story()) == ["watermark", "watermark", "end"]


def test_what_is_sent_before_a_batch_has_ended_is_sent_once() -> None:
    """Large transactions of one batch leave in several pieces, each event in one of them."""
    image = b'{"a":"%b"}' % (b"x" * (CHUNK_BYTES // 2))

    class Large:
        watermark, has_ended = Watermark({}, CHECKPOINT, (0,)), False

        async def batches(self, _: float) -> AsyncIterator[list[Any]]:
            self.has_ended = True
            yield [(transaction(b"[%d]" % number, image), CHECKPOINT) for number in range(5)]

    async def story() -> list[list[Any]]:
        nothing: Any = None
        reading: Any = Large()
        encoder = Encoder(Choice(include_rows=True), Layout(1), {})
        chunks = _chunks(nothing, nothing, reading, encoder, 0.0, None, None)
        pieces = [list(Lines().events(chunk)) async for chunk in chunks]
        return [[change.key for event in piece for change in event.changes] for piece in pieces]

    told = asyncio.run(story())
    assert [key for keys in told for key in keys] == [[number] for number in range(5)]
    assert sum(map(bool, told)) > 1


@pytest.mark.parametrize(
    ("origin", "known"),
    [
        ("shop/9 3 MariaDB/0-1-7", Origin("shop/9", Position.parse("MariaDB/0-1-7"), 3)),
        ("shop/9 MariaDB/0-1-7", None),
        ("shop/9 three MariaDB/0-1-7", None),
        ("", None),
    ],
)
def test_a_transaction_tells_which_one_it_is_a_copy_of(origin: str, known: Origin | None) -> None:
    """By it rows of both shards are compared. Older frames name no epoch: such an origin orders nothing."""
    item = replace(transaction(b"[1]", b"{}"), origin=origin)
    [event] = Lines().events(Encoder(Choice(), Layout(1), {}).transaction(item, CHECKPOINT))
    assert EventToken.parse(event.token).origin == known


def test_the_columns_that_choose_a_partition_are_those_of_the_last_description() -> None:
    """A DDL may have changed them: by those of before, rows of a range would be left out."""
    prefixes: dict[str, int | None] = {"shop.t": 0}
    described = {"table": "shop.t", "prefix": 1, "columns": [], "primary_key": ["a"], "cacheable": True, "reason": ""}
    item = replace(transaction(b"[1]", b"{}"), events=[RecordEvent(1, "TableSchema", described)])
    Encoder(Choice(), Layout(1), prefixes).transaction(item, CHECKPOINT)
    assert prefixes == {"shop.t": 1}
