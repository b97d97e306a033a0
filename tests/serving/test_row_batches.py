"""Batches of rows over several partitions: each element is its own row's answer, from whoever could give it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from consumers.fold.entry import ABSENT, VALUE
from consumers.owner.protocol import HISTORY_LOST, UNKNOWN_KEY, Fill, Filled, OwnerError, OwnerRow
from serving.answers import RawRowAnswer
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.reads import rows
from serving.reads.demands import ReadDemand, RequestedRow
from serving.reads.descriptions import Descriptions
from serving.reads.fills import Fills
from serving.reads.lookups import lookup, sources
from serving.reads.rowkey import parse_row_key
from serving.reads.rows import RowReads
from serving.reads.spaces import RowSpace
from serving.sources.source import RowTable, SchemaChanged, SourceKey, SourceRow
from serving.turns import ELEMENTS_A_TURN
from stream.wire.events import Column
from stream.wire.keys import Layout, row_key, split_row_key
from tests.serving.fakes import FakeOwner, FakeRowSource, Network, at, demand_of, items_of, owner_row, seen
from tests.serving.test_flight import settle

SHARD = "shop/0"
PARTITIONS = 3
LAYOUT = Layout(PARTITIONS)
READ_AT = "0-1-50"
TABLE = RowTable("shop.items", (Column("id", "int", True),), True)

CACHED = "cached"
CACHED_ABSENT = "cached absent"
UNPROVED = "unproved"
"""The cache has a value that it can't prove; the source has a newer one."""
MISSED = "missed"
MISSED_ABSENT = "missed absent"
FAILED = "failed"
"""The source cannot read this row."""
CHANGED = "changed"
"""Its key changes whenever it is read."""
LOST = "lost"
"""The owner says that the session is of a lost history."""
KINDS = (CACHED, CACHED_ABSENT, UNPROVED, MISSED, MISSED_ABSENT, FAILED, CHANGED, LOST)
FROM_SOURCE = {UNPROVED, MISSED, MISSED_ABSENT}


def number_of(key: bytes) -> int:
    return int(str(split_row_key(key)[1][0]))


def image_of(number: int, at_source: bool) -> bytes:
    return b'{"id":%d,"source":%d}' % (number, at_source)


class PartOwner(FakeOwner):
    """The owner of one partition, with the rows that hash there, each of the kind that ``kinds`` gives it."""

    def __init__(self, partition: int, kinds: dict[int, str]) -> None:
        super().__init__(watermarks=seen(SHARD, "0-1-1"))
        self.partition, self.kinds = partition, kinds
        self.batches: list[int] = []
        self.fitting = 1_000
        """Rows of which an answer has room."""

    async def get(self, _: str, partition: int, keys: list[bytes], *__: object) -> list[OwnerRow]:
        self._ask("get")
        assert partition == self.partition
        self.batches.append(len(keys))
        if len(keys) > self.fitting:
            raise OwnerError("64 MiB at most", code="frame_too_large")
        await asyncio.sleep(0)
        return [self._row(number_of(key)) for key in keys]

    def _row(self, number: int) -> OwnerRow:
        kind, own = self.kinds[number], f"0-1-{number + 10}"
        if kind == CACHED:
            return owner_row(image_of(number, False), own, own)
        row = owner_row(None, own, own)
        row.kind, row.stamp = UNKNOWN_KEY, b"stamp of %d" % number
        if kind == CACHED_ABSENT:
            row.kind, row.served, row.freshness = ABSENT, True, "fresh"
        if kind == UNPROVED:
            row.kind = VALUE
        if kind == LOST:
            row.code, row.epoch = HISTORY_LOST, 1
        return row


class PartSource(FakeRowSource):
    """A source that reads each row as its kind says. ``asked``: the rows of each read."""

    def __init__(self, kinds: dict[int, str]) -> None:
        super().__init__(None, READ_AT)
        self.kinds, self.described = kinds, TABLE
        self.asked: list[list[int]] = []

    async def read(self, wanted: Sequence[SourceKey]) -> list[Any]:
        numbers = [int(str(each.values[0])) for each in wanted]
        self.asked.append(numbers)
        return [self._row(number) for number in numbers]

    def _row(self, number: int) -> SourceRow | Exception:
        kind = self.kinds[number]
        if kind == FAILED:
            return ReadError("source_failed", f"row {number}")
        if kind == CHANGED:
            return SchemaChanged(TABLE.name)
        assert kind in (*FROM_SOURCE, LOST)
        image = None if kind == MISSED_ABSENT else image_of(number, True)
        own = at(READ_AT)
        return SourceRow(image, row_key(TABLE.name, [number]), own, own)


class Batches:
    """A front over an owner for each partition and one source."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kinds: dict[int, str]) -> None:
        self.owners = [PartOwner(partition, kinds) for partition in range(PARTITIONS)]
        network = Network(monkeypatch, {f"{each.partition}:1": each for each in self.owners})
        network.announced = {each.partition: [f"{each.partition}:1"] for each in self.owners}
        self.source = PartSource(kinds)
        self.metrics = FrontMetrics()
        owners = network.owners()
        self.reads = RowReads(owners, Descriptions(owners), Fills(owners, self.metrics), self.metrics)
        self.space = RowSpace("shop", LAYOUT, "shop", self.source)

    def read(self, numbers: Sequence[int], demand: ReadDemand) -> list[RawRowAnswer | ReadError]:
        """The answers, after the fills that they caused."""

        async def run() -> list[RawRowAnswer | ReadError]:
            wanted = [RequestedRow("items", b"%d" % number) for number in numbers]
            answers = await self.reads.read_many(self.space, wanted, demand)
            await settle()
            return answers

        return asyncio.run(run())


batches = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(KINDS)), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(batches, st.lists(st.integers(0, 11), max_size=4))
@example([(number, KINDS[number % len(KINDS)]) for number in range(16)], [3, 0])
@example([(number, CACHED) for number in range(9)], [])
@example([(number, MISSED) for number in range(9)], [1])
def test_each_element_of_a_batch_is_its_own_rows_answer(
    monkeypatch: pytest.MonkeyPatch, some: list[tuple[int, str]], again: list[int]
) -> None:
    """Whoever answers which row: images, tokens, errors and fills are never another element's."""
    kinds = dict(some)
    numbers = [*kinds, *(list(kinds)[index] for index in again if index < len(kinds))]
    with monkeypatch.context() as patched:
        patched.setattr(rows, "KEYS_MAX", 2)
        front = Batches(patched, kinds)
        session = seen(SHARD, "0-1-5")
        answers = front.read(numbers, demand_of(session))
    assert len(answers) == len(numbers)
    for number, answer in zip(numbers, answers, strict=True):
        kind = kinds[number]
        if isinstance(answer, ReadError):
            code = "history_lost" if kind == LOST else "source_failed"
            assert (kind in (FAILED, CHANGED, LOST), answer.code) == (True, code)
            assert kind != FAILED or str(answer) == f"row {number}"
            continue
        is_source, is_there = kind in FROM_SOURCE, kind in (CACHED, UNPROVED, MISSED)
        assert (answer.served_from, answer.found) == ("source" if is_source else "cache", is_there)
        assert bytes(answer.value) == (image_of(number, is_source) if is_there else b"null")
        assert answer.token == str(session.merge(seen(SHARD, READ_AT if is_source else f"0-1-{number + 10}")))
    for owner in front.owners:
        assert all(size <= 2 for size in owner.batches)
        offered = {(fill.key, fill.image, fill.stamp) for fill in owner.fills if isinstance(fill, Fill)}
        mine = {number for number in kinds if LAYOUT.partition_of(row_key(TABLE.name, [number]), 0) == owner.partition}
        assert offered == {
            (row_key(TABLE.name, [number]), image, b"stamp of %d" % number)
            for number in mine
            for kind, image in (*((each, image_of(number, True)) for each in (MISSED, LOST)), (MISSED_ABSENT, None))
            if kinds[number] == kind
        }
    unread = {number for number, kind in kinds.items() if kind in (CACHED, CACHED_ABSENT)}
    assert not unread & {number for asked in front.source.asked for number in asked}


@pytest.mark.parametrize("fitting", [0, 1, 3])
def test_rows_that_do_not_fit_into_one_answer_are_asked_for_in_parts(
    monkeypatch: pytest.MonkeyPatch, fitting: int
) -> None:
    """They would be read at the source each time, and never be kept. One that does not fit alone is read there."""
    front = Batches(monkeypatch, dict.fromkeys(range(20), CACHED if fitting else MISSED))
    for owner in front.owners:
        owner.fitting = fitting
    answers = front.read(list(range(20)), demand_of(seen(SHARD, "0-1-5")))
    images = [bytes(answer.value) for answer in answers if not isinstance(answer, ReadError)]
    assert images == [image_of(number, not fitting) for number in range(20)]
    assert not fitting or front.source.asked == []


def test_the_misses_of_a_batch_are_one_snapshot_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that misses in several partitions costs the source one read, and all its rows are of one moment."""
    front = Batches(monkeypatch, dict.fromkeys(range(9), MISSED))
    answers = front.read(list(range(9)), demand_of(seen(SHARD, "0-1-5")))
    assert [sorted(asked) for asked in front.source.asked] == [list(range(9))]
    assert not any(isinstance(answer, ReadError) for answer in answers)


@pytest.mark.parametrize("kind", [CACHED, MISSED])
def test_a_long_batch_lets_others_be_answered_in_between(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """No turn of the event loop works on more than a few dozen rows of a partition, as far as rows are concerned."""
    front, worked_on, most = Batches(monkeypatch, dict.fromkeys(range(1_000), kind)), 0, 0

    def counted(work: Any) -> Any:
        def run(*given: Any) -> Any:
            nonlocal worked_on
            worked_on += 1
            return work(*given)

        return run

    monkeypatch.setattr(rows, "parse_row_key", counted(parse_row_key))
    monkeypatch.setattr(sources, "_fill_of", counted(sources._fill_of))
    for module in (rows, sources):
        monkeypatch.setattr(module, "answer", counted(lookup.answer))

    async def run() -> list[RawRowAnswer | ReadError]:
        nonlocal worked_on, most
        wanted = [RequestedRow("items", b"%d" % number) for number in range(1_000)]
        batch = asyncio.create_task(front.reads.read_many(front.space, wanted, demand_of(seen(SHARD, "0-1-5"))))
        while not batch.done():
            most, worked_on = max(most, worked_on), 0
            await asyncio.sleep(0)
        await settle()
        return await batch

    assert not any(isinstance(each, ReadError) for each in asyncio.run(run()))
    assert 0 < most <= PARTITIONS * ELEMENTS_A_TURN


@pytest.mark.parametrize("broken", range(PARTITIONS))
def test_an_owner_that_is_away_costs_only_its_own_rows_their_cache(
    monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    """The other owners' answers count, and nothing is offered for a row whose owner has said nothing."""
    front = Batches(monkeypatch, dict.fromkeys(range(9), MISSED))
    front.owners[broken].failure = OwnerError("away", code="owner_unreachable")
    answers = front.read(list(range(9)), demand_of(seen(SHARD, "0-1-5")))
    assert [not isinstance(answer, ReadError) and answer.served_from for answer in answers] == ["source"] * 9
    assert [bool(owner.fills) for owner in front.owners] == [owner.partition != broken for owner in front.owners]


def test_a_source_that_breaks_is_nobodys_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error of the source is raised, not given as a row."""
    front = Batches(monkeypatch, {1: MISSED})

    async def fail(_: object) -> list[Any]:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(front.source, "read", fail)
    with pytest.raises(ZeroDivisionError):
        front.read([1], demand_of(seen(SHARD, "0-1-5")))


def test_the_sources_failures_are_counted_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators see how many rows the source was asked for, in how many snapshots, and how many failed."""
    front = Batches(monkeypatch, {1: MISSED, 2: FAILED, 3: FAILED, 4: CACHED})
    front.read([1, 2, 3, 4], demand_of(seen(SHARD, "0-1-5")))
    counted = (front.metrics.source_reads, front.metrics.source_snapshots, front.metrics.source_failures)
    assert [each._value.get() for each in counted] == [3, 1, 2]

    async def refuse(_: object) -> list[Any]:
        raise ReadError("source_unreachable", "away")

    monkeypatch.setattr(front.source, "read", refuse)
    answers = front.read([1, 2], demand_of(seen(SHARD, "0-1-5")))
    assert [isinstance(answer, ReadError) and answer.code for answer in answers] == ["source_unreachable"] * 2
    assert [each._value.get() for each in counted] == [5, 2, 4]


AHEAD = 4
"""A row that is found later than the others: it comes of somebody else's read, which is shared."""


class SlowSource(PartSource):
    """A replica that reaches what it is waited for, unless ``error``. ``waits``: (position, seconds)."""

    def __init__(self, kinds: dict[int, str], error: ReadError | None) -> None:
        super().__init__(kinds)
        self.error, self.waits = error, list[tuple[str, float]]()

    async def wait(self, *given: object) -> bool:
        position, seconds, tables = given
        assert tables == {TABLE.name}
        self.waits.append((str(position), float(str(seconds))))
        if self.error is not None:
            raise self.error
        return True

    def _row(self, number: int) -> SourceRow | Exception:
        is_late = bool(self.waits) or number == AHEAD
        own = at("0-1-60" if is_late else READ_AT)
        return SourceRow(image_of(number, is_late), row_key(TABLE.name, [number]), own, own)


@pytest.mark.parametrize("error", [None, ReadError("source_unreachable", "gone while it was waited for")])
def test_a_replica_that_lags_is_waited_for_once_for_all_rows(
    monkeypatch: pytest.MonkeyPatch, error: ReadError | None
) -> None:
    """It is waited for until the session's position, for as long as the reader waits; then these rows are read anew."""
    front = Batches(monkeypatch, dict.fromkeys(range(5), MISSED))
    source = front.space.source = SlowSource(dict.fromkeys(range(5), MISSED), error)
    demand = demand_of(seen(SHARD, "0-1-55"))._replace(max_wait_ms=30_000)
    answers = front.read(list(range(5)), demand)
    [(position, seconds)] = source.waits
    assert position == str(at("0-1-55"))
    assert 25 < seconds <= 30
    for number, answer in enumerate(answers):
        if error is not None and number != AHEAD:
            assert answer is error
            continue
        assert not isinstance(answer, ReadError)
        assert (bytes(answer.value), answer.token) == (image_of(number, True), str(seen(SHARD, "0-1-60")))


def test_a_table_that_is_always_read_through_is_asked_of_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a cached one it neither takes its answer nor is offered as a fill."""
    front = Batches(monkeypatch, {1: MISSED})
    described = {"shop.items": True, "shop.log": False}

    async def describe(_: str, table: str) -> object:
        found = items_of()
        found.table, found.cacheable = table, described[table]
        return found

    for owner in front.owners:
        monkeypatch.setattr(owner, "describe", describe)

    async def run() -> list[RawRowAnswer | ReadError]:
        wanted = [RequestedRow("items", b"1"), RequestedRow("log", b"1")]
        answers = await front.reads.read_many(front.space, wanted, demand_of(seen(SHARD, "0-1-5")))
        await settle()
        return answers

    assert [not isinstance(each, ReadError) and each.served_from for each in asyncio.run(run())] == ["source"] * 2
    fills = [fill for owner in front.owners for fill in owner.fills if isinstance(fill, Fill)]
    assert [fill.key for fill in fills] == [row_key("shop.items", [1])]
    assert sum(sum(owner.batches) for owner in front.owners) == 1


def test_a_fill_that_is_refused_is_counted_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted and refused ones are told apart."""
    front = Batches(monkeypatch, dict.fromkeys(range(6), MISSED))
    for owner in front.owners:

        async def fill_rows(fills: Sequence[Fill]) -> list[Filled]:
            return [Filled(0, number_of(fill.key) % 3 > 0, "") for fill in fills]

        monkeypatch.setattr(owner, "fill_rows", fill_rows)
    told: Counter[str] = Counter()
    monkeypatch.setattr(front.metrics, "fill", lambda outcome, count=1: told.update({outcome: count}))
    front.read(list(range(6)), demand_of(seen(SHARD, "0-1-5")))
    assert told == {"accepted": 4, "refused": 2}


def test_a_table_that_was_dropped_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owners have not folded the DROP yet; the source is asked once, and every row of the table says so."""
    front = Batches(monkeypatch, {1: CHANGED, 2: CACHED, 3: CHANGED})
    front.read([2], ReadDemand())  # the front knows a description from before
    front.source.described = None
    codes = [isinstance(each, ReadError) and each.code for each in front.read([1, 2, 3], ReadDemand())]
    assert codes == ["unknown_table", False, "unknown_table"]
    assert len(front.source.asked) == 1
