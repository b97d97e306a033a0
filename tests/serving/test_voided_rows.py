"""What void rows that are read for a stream cost its caller, where callers have a rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from serving.answers import RawRowAnswer
from serving.client.answers import FreshnessName, RowAnswer
from serving.errors import ReadError
from serving.http.admission.callers import Callers, Meter, metering
from serving.http.limits import SOURCE_COST, CallerLimits
from serving.http.streaming import voided as voided_rows
from serving.http.streaming.routes import _chunks
from serving.http.streaming.voided import AT_ONCE, VoidedRows
from serving.reads.demands import RequestedRow
from serving.streams.choice import Choice
from serving.streams.encoding import Encoder, ReadRow
from stream.changes.checkpoint import Checkpoint, Place
from stream.changes.items import RowEvent, Transaction, Watermark
from stream.wire.events import VOID
from stream.wire.keys import Layout
from tests.serving.test_stream_encoding import CHECKPOINT, transaction

BURST = 1_000.0
FROM_SOURCE, FROM_CACHE = (
    RowAnswer(served, "fresh", "why", "", False, msgspec.Raw(b"null")) for served in ("source", "cache")
)
BEHIND, FAILED, AWAY = (ReadError(code, "because") for code in ("source_behind", "source_failed", "no_owner"))


class Rows:
    """Owners and a source that give the same answers to each part."""

    def __init__(self, answers: Sequence[RawRowAnswer | ReadError]) -> None:
        self.answers, self.parts = answers, 0

    async def read_many(self, _: Any, asked: Sequence[RequestedRow], __: Any) -> list[RawRowAnswer | ReadError]:
        self.parts += 1
        return [self.answers[at % len(self.answers)] for at in range(len(asked))]


def read(rows: Rows, count: int, *, burst: float = BURST) -> tuple[int, float]:
    """How many rows of so many are read, and what the caller has spent."""
    callers = Callers(CallerLimits(rate_per_s=1.0, burst=burst))
    metering.set(Meter(callers, "reader", lambda: 0.0))
    nothing: Any = None  # rows that are absent have no columns to be described
    voided = VoidedRows(cast("Any", rows), nothing, nothing, wait_ms=0)
    keys = [b"shop.t\0[%d]" % number for number in range(count)]
    found = asyncio.run(voided.read(transaction(b"[0]", b""), keys))
    bucket = callers._of("reader", 0.0).bucket
    assert bucket is not None
    return len(found), burst - bucket._left


@pytest.mark.parametrize(
    ("answers", "read_rows", "cost"),
    [
        ([FROM_CACHE], AT_ONCE, AT_ONCE),
        ([FROM_SOURCE], AT_ONCE, AT_ONCE * SOURCE_COST),
        ([FROM_SOURCE, BEHIND], AT_ONCE // 2, AT_ONCE * SOURCE_COST),
        ([BEHIND, FAILED], 0, AT_ONCE * SOURCE_COST),
        ([AWAY], 0, AT_ONCE),
    ],
)
def test_a_void_row_costs_what_it_costs_in_a_batch(
    answers: list[RawRowAnswer | ReadError], read_rows: int, cost: float
) -> None:
    """Where the source is asked for it that counts, also in vain: else a stream would be the cheap way."""
    assert read(Rows(answers), AT_ONCE) == (read_rows, cost)


def test_who_has_spent_all_gets_the_rest_as_void() -> None:
    """A part is paid before anybody is asked for it, so what the source was asked for stops the parts that follow."""
    rows = Rows([FROM_SOURCE])
    assert read(rows, 3 * AT_ONCE, burst=2.0 * AT_ONCE)[0] == AT_ONCE
    assert rows.parts == 1


def test_where_nobody_answers_no_more_parts_are_asked_for() -> None:
    """Each would be waited for, and the stream with it."""
    rows = Rows([AWAY])
    read(rows, 3 * AT_ONCE)
    assert rows.parts == 1


@pytest.mark.parametrize("columns", [b"[]", b'[{"a":1}]', b'[{"base64":"!"}]', b'[{"a":"eA=="}]', b"[" * 100_000])
def test_a_key_that_no_row_can_have_ends_no_stream(columns: bytes) -> None:
    """What is in a topic by mistake can't be read, so it stays void."""
    nothing: Any = None
    voided = VoidedRows(cast("Any", Rows([FROM_CACHE])), nothing, nothing, wait_ms=0)
    assert asyncio.run(voided.read(transaction(columns, b""), [b"shop.t\0" + columns])) == {}


class Found(Rows):
    """Rows as they are stored, whichever key finds them. ``stored``: the id of the row that each asked one finds."""

    def __init__(self, size: int = 1, stored: bytes = b"") -> None:
        super().__init__([])
        self.size, self.stored = size, stored

    async def read_many(self, _: Any, asked: Sequence[RequestedRow], __: Any) -> list[RawRowAnswer | ReadError]:
        self.parts += 1
        images = [b'{"id":%b,"v":"%b"}' % (self.stored or each.pk, b"x" * self.size) for each in asked]
        return [RowAnswer("cache", "fresh", "why", "", True, msgspec.Raw(image)) for image in images]


def found(rows: Rows, *columns: bytes) -> Mapping[bytes, ReadRow]:
    """What is read of rows of a table whose key is ``id``."""

    class Descriptions:
        async def get(self, *_: object) -> Any:
            return SimpleNamespace(key=[SimpleNamespace(name="id")])

    descriptions, nothing = cast("Any", Descriptions()), cast("Any", None)
    metering.set(Meter(Callers(CallerLimits()), "reader", lambda: 0.0))
    voided = VoidedRows(cast("Any", rows), descriptions, nothing, wait_ms=0)
    return asyncio.run(voided.read(transaction(b"[0]", b""), [b"shop.t\0" + each for each in columns]))


@pytest.mark.parametrize(("stored", "is_told"), [(b'"Abc"', False), (b'"abc"', True)])
def test_a_row_of_another_spelling_is_told_under_its_own_key_alone(stored: bytes, is_told: bool) -> None:
    """A collation finds it by the key of a row that is gone: a copy would have it twice, under two keys."""
    assert set(found(Found(stored=stored), b'["abc"]')) == ({b'shop.t\0["abc"]'} if is_told else set())


@pytest.mark.parametrize(("size", "parts"), [(4_000, 1), (4_000 // AT_ONCE, 1), (2_000 // AT_ONCE, 2)])
def test_of_a_transaction_of_large_rows_only_so_much_is_read(
    monkeypatch: pytest.MonkeyPatch, size: int, parts: int
) -> None:
    """All of its images are in memory at once: what is beyond the bound, taken together, stays void."""
    monkeypatch.setattr(voided_rows, "BYTES_MAX", 4_000)
    rows = Found(size=size)
    read_rows = found(rows, *(b"[%d]" % number for number in range(3 * AT_ONCE)))
    assert (len(read_rows), rows.parts) == (parts * AT_ONCE, parts)


@pytest.mark.parametrize("freshness", ["eventual", "stale", "unknown"])
def test_a_row_that_is_not_proved_for_the_event_stays_void(freshness: FreshnessName) -> None:
    """It may be of before the event, which would be told as what came of it."""
    assert read(Rows([RowAnswer("cache", freshness, "why", "", False, msgspec.Raw(b"null"))]), 3)[0] == 0


class Slow(Rows):
    """The first part is answered, and the others never."""

    async def read_many(self, *asked: Any) -> list[RawRowAnswer | ReadError]:
        if self.parts:
            await asyncio.Event().wait()
        return await super().read_many(*asked)


class Backlog:
    """A batch of two transactions with a row that changed to what the log has not."""

    def __init__(self) -> None:
        void = RowEvent(1, b"shop.t\0[1]", VOID, b"")
        self.items = [replace(transaction(b"[1]", b""), place=Place(1, at), events=[void]) for at in (1, 2)]
        self.watermark, self.has_ended = Watermark({}, CHECKPOINT, (1,)), False

    async def batches(self, _: float) -> AsyncIterator[list[tuple[Transaction, Checkpoint]]]:
        yield [(each, each.checkpoint) for each in self.items]


def test_a_transaction_does_not_wait_for_what_is_read_for_those_behind_it() -> None:
    """A batch of them, a few seconds each, is more silence than a client bears: it would begin there again for good."""
    nothing: Any = None
    voided = VoidedRows(cast("Any", Slow([FROM_SOURCE])), nothing, nothing, wait_ms=0)
    encoder = Encoder(Choice(include_rows=True, reads_void=True), Layout(1), {})

    async def story() -> None:
        chunks = _chunks(nothing, nothing, cast("Any", Backlog()), encoder, 60.0, None, voided)
        told = [await asyncio.wait_for(anext(chunks), 5) for _ in range(2)]
        assert [b'"kind":"transaction"' in each for each in told] == [False, True]
        await chunks.aclose()

    asyncio.run(story())
