"""Reads of rows over owners and sources that the test sets: positions, epochs and shared flights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from consumers.fold.entry import ABSENT, VALUE
from consumers.owner.meaning import refuse_row
from consumers.owner.protocol import SCHEMA_CHANGED, Fill, Filled, OwnerError, OwnerRow, Waited
from serving.answers import RawRowAnswer
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.reads.demands import NO_OPTIONS, ReadDemand, RequestedRow, RowOptions
from serving.reads.descriptions import Descriptions
from serving.reads.fills import Fills
from serving.reads.rowkey import KEY_BYTES_MAX
from serving.reads.rows import RowReads
from serving.reads.spaces import RowSpace, epoch_of
from serving.sources.source import RowTable, SchemaChanged, SourceKey, SourceRow
from stream.shards.map import ShardMap
from stream.wire.events import Column
from stream.wire.keys import Layout, row_key
from tests.serving.fakes import FakeOwner, FakeRowSource, Network, at, demand_of, items_of, owner_row, seen
from tests.serving.test_flight import settle
from tokens import EventToken, Vector

SHARD = "shop/0"
IMAGE = b'{"id":7}'


class Reads:
    """`RowReads` over one owner. ``now``: of the clock that descriptions age by."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: FakeOwner) -> None:
        owners, metrics = Network(monkeypatch, {"a:1": owner}).owners(), FrontMetrics()
        self.now = 100.0
        descriptions = Descriptions(owners, clock=lambda: self.now)
        self._reads = RowReads(owners, descriptions, Fills(owners, metrics), metrics)

    async def answer(
        self,
        space: RowSpace,
        vector: Vector | None = None,
        options: RowOptions = NO_OPTIONS,
        *,
        max_wait_ms: int = 0,
    ) -> RawRowAnswer | ReadError:
        """The answer for row 7, after the fills that it caused."""
        demand = ReadDemand() if vector is None else demand_of(vector)._replace(max_wait_ms=max_wait_ms)
        [answer] = await self._reads.read_many(space, [RequestedRow("shop.items", b"7")], demand, options)
        await settle()
        return answer

    async def outcomes(self, space: RowSpace, wanted: Sequence[RequestedRow]) -> Sequence[RawRowAnswer | ReadError]:
        """What comes of rows that are asked for without a demand."""
        return await self._reads.read_many(space, wanted, ReadDemand())


def space_of(source: FakeRowSource | None = None, name: str = "shop") -> RowSpace:
    return RowSpace(name, Layout(1), source=source)


def served(answer: RawRowAnswer | ReadError) -> RawRowAnswer:
    assert not isinstance(answer, ReadError), answer
    return answer


def test_a_fill_keeps_the_snapshot_as_lo_and_the_latest_as_hi(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fill carries the position of the read as ``lo`` and the latest that the row may hold as ``hi``."""
    owner = FakeOwner()
    reads, space = Reads(monkeypatch, owner), space_of(FakeRowSource(IMAGE, "0-1-5", "0-1-9"))
    answer = served(asyncio.run(reads.answer(space)))
    assert (answer.served_from, bytes(answer.value)) == ("source", IMAGE)
    [fill] = owner.fills
    assert isinstance(fill, Fill)
    assert (fill.lo, fill.hi, fill.image) == (str(at("0-1-5")), str(at("0-1-9")), IMAGE)


@pytest.mark.parametrize("filled", [True, False])
def test_a_fill_replaces_a_fill_that_is_too_old_and_no_value_of_the_stream(
    monkeypatch: pytest.MonkeyPatch, *, filled: bool
) -> None:
    """Else who has seen more than a fill would be answered by the source until the row changes."""
    owner = FakeOwner()
    owner.row = owner_row(IMAGE, "0-1-5", "0-1-5")
    owner.row.served, owner.row.needs_source, owner.row.filled = False, True, filled
    source = FakeRowSource(IMAGE, "0-1-9")
    answer = served(asyncio.run(Reads(monkeypatch, owner).answer(space_of(source), seen(SHARD, "0-1-9"))))
    assert answer.served_from == "source"
    assert [fill.lo for fill in owner.fills] == [str(at("0-1-9"))] * filled


@pytest.mark.parametrize("image", [IMAGE, None])
def test_an_answer_of_the_source_moves_the_session_to_its_hi(
    monkeypatch: pytest.MonkeyPatch, image: bytes | None
) -> None:
    """The token and the event token hold the latest position of the source's row, or of its absence."""
    reads, space = Reads(monkeypatch, FakeOwner()), space_of(FakeRowSource(image, "0-1-5", "0-1-9"))
    answer = served(asyncio.run(reads.answer(space, seen(SHARD, "0-1-5"), RowOptions(include_event_token=True))))
    assert answer.served_from == "source"
    assert answer.token == str(seen(SHARD, "0-1-9"))
    assert EventToken.parse(answer.event_token or "").position == at("0-1-9")


@pytest.mark.parametrize("image", [IMAGE, None])
def test_an_answer_of_the_cache_moves_the_session_to_its_hi(
    monkeypatch: pytest.MonkeyPatch, image: bytes | None
) -> None:
    """The token and the event token hold the latest position that the cached row, or its absence, may hold."""
    owner = FakeOwner()
    owner.row = owner_row(IMAGE, "0-1-5", "0-1-9")
    owner.row.image = image
    reads = Reads(monkeypatch, owner)
    answer = served(asyncio.run(reads.answer(space_of(), seen(SHARD, "0-1-4"), RowOptions(include_event_token=True))))
    assert answer.served_from == "cache"
    assert answer.token == str(seen(SHARD, "0-1-9"))
    assert EventToken.parse(answer.event_token or "").position == at("0-1-9")


def test_an_answer_without_a_position_has_no_event_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows where it stands: a token of the empty position would call every other row newer."""
    owner = FakeOwner()
    owner.row = owner_row(IMAGE, "0-1-5", "0-1-5")
    owner.row.lo = owner.row.hi = ""
    answer = served(
        asyncio.run(Reads(monkeypatch, owner).answer(space_of(), options=RowOptions(include_event_token=True)))
    )
    assert (answer.served_from, answer.event_token) == ("cache", None)


def test_an_epoch_is_learnt_from_an_answer_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that has not folded the table's description names the epoch; a session of the one before is told."""
    owner = FakeOwner()
    owner.row = owner_row(None, "0-1-5", "0-1-5", epoch=2)
    owner.row.code = SCHEMA_CHANGED
    source = FakeRowSource(IMAGE, "0-1-9", "0-1-9")
    source.described = OLD
    reads, space = Reads(monkeypatch, owner), space_of(source)
    answer = asyncio.run(reads.answer(space, seen(SHARD, "0-1-7")))
    assert isinstance(answer, ReadError)
    assert answer.code == "history_lost", answer


def test_only_the_position_of_the_read_proves_a_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row read before the demanded position is refused, even if it may hold something later."""
    reads, space = Reads(monkeypatch, FakeOwner()), space_of(FakeRowSource(IMAGE, "0-1-5", "0-1-9"))
    answer = asyncio.run(reads.answer(space, seen(SHARD, "0-1-7")))
    assert isinstance(answer, ReadError)
    assert answer.code == "source_behind"


def test_a_source_that_is_about_to_commit_the_demand_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token may hold what a primary has written to its binlog and not committed yet, also if nobody wants to wait."""

    class Committing(FakeRowSource):
        async def wait(self, *_: object) -> bool:
            self.position = self.hi = at("0-1-7")
            return True

    reads, space = Reads(monkeypatch, FakeOwner()), space_of(Committing(IMAGE, "0-1-6"))
    answer = served(asyncio.run(reads.answer(space, seen(SHARD, "0-1-7"))))
    assert (answer.freshness, answer.served_from) == ("fresh", "source")


def test_a_flight_of_an_older_epoch_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demand of epoch 2 does not take the result of a read that began in epoch 1."""

    async def story() -> None:
        owner, source = FakeOwner(), FakeRowSource(IMAGE, "0-1-5")
        reads, space = Reads(monkeypatch, owner), space_of(source)
        source.gate.clear()
        first = asyncio.create_task(reads.answer(space))
        await settle()
        owner.row = owner_row(None, "0-1-1", "0-1-1", epoch=2)
        second = asyncio.create_task(reads.answer(space, seen(SHARD, "0-1-4", epoch=2)))
        await settle()
        assert source.reads == 2
        source.gate.set()
        tokens = [served(answer).token for answer in await asyncio.gather(first, second)]
        assert tokens == [str(seen(SHARD, "0-1-5")), str(seen(SHARD, "0-1-5", epoch=2))]

    asyncio.run(story())


def test_a_flight_of_another_keyspace_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal keys of two keyspaces are read from their own sources."""

    async def story() -> None:
        sources = FakeRowSource(IMAGE, "0-1-5"), FakeRowSource(b'{"id":8}', "0-1-5")
        reads = Reads(monkeypatch, FakeOwner())
        tasks = []
        for name, source in zip(("shop", "bank"), sources, strict=True):
            source.gate.clear()
            tasks.append(asyncio.create_task(reads.answer(space_of(source, name))))
        await settle()
        for source in sources:
            source.gate.set()
        assert [bytes(served(answer).value) for answer in await asyncio.gather(*tasks)] == [IMAGE, b'{"id":8}']

    asyncio.run(story())


@pytest.mark.parametrize("image", [IMAGE, None])
def test_an_answer_of_an_owner_raises_the_known_epoch(monkeypatch: pytest.MonkeyPatch, image: bytes | None) -> None:
    """Each answer of an owner makes its epoch known if it is higher, whether it is served or not."""
    owner = FakeOwner()
    reads, space = Reads(monkeypatch, owner), space_of()
    for epoch, known in ((2, 2), (3, 3), (1, 3)):
        owner.row = owner_row(image, "0-1-5", "0-1-5", epoch=epoch)
        asyncio.run(reads.answer(space))
        assert space.epochs.known == {SHARD: known}


def test_owners_are_asked_until_one_names_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """`epoch_of` goes on to the next owner until the shard's epoch is known. The next read asks the others, too."""
    owners = {
        "a:1": FakeOwner(watermarks=seen("shop/1", "0-1-5", epoch=9)),
        "b:1": FakeOwner(watermarks=seen(SHARD, "0-1-5", epoch=4)),
        "c:1": FakeOwner(watermarks=seen(SHARD, "0-1-5", epoch=5)),
    }
    network = Network(monkeypatch, owners)
    network.announced = {number: [address] for number, address in enumerate(owners)}
    space = RowSpace("shop", Layout(3))
    assert asyncio.run(epoch_of(network.owners(), space, SHARD)) == 4
    assert [owner.asked for owner in owners.values()] == [["wait"], ["wait"], []]
    assert asyncio.run(epoch_of(network.owners(), space, SHARD)) == 5


class OneMarkerOwner(FakeOwner):
    """An owner that has folded a marker in one of its partitions only, number 2."""

    async def wait(self, *args: object) -> Waited:
        _, partition, *_ = args
        self._ask(f"wait {partition}")
        return Waited(0, True, str(seen(SHARD, "0-1-5", epoch=4) if partition == 2 else Vector()))


def test_an_owner_is_asked_for_each_partition_until_one_names_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one partition has not folded yet, another of the same owner may know."""
    owner = OneMarkerOwner()
    network = Network(monkeypatch, {"a:1": owner})
    network.announced = {number: ["a:1"] for number in range(4)}
    space = RowSpace("shop", Layout(4))
    assert asyncio.run(epoch_of(network.owners(), space, SHARD)) == 4
    assert owner.asked == ["wait 0", "wait 1", "wait 2"]


class MeaningOwner(FakeOwner):
    """An owner that compares what keys mean, as `consumers.owner.meaning` does. ``folded``: its table."""

    def __init__(self, folded: RowTable) -> None:
        super().__init__()
        self.folded = folded

    async def get(self, _: str, __: int, keys: list[bytes], *more: object) -> list[OwnerRow]:
        self._ask("get")
        meanings = more[2]
        assert isinstance(meanings, dict)
        row = owner_row(IMAGE, "0-1-5", "0-1-5")
        if meanings["shop.items"] != self.folded.meaning:
            refuse_row(row, "its description has changed")
        return [row for _ in keys]


OLD = RowTable("shop.items", (Column("id", "int", True),), True)
NEW = RowTable("shop.items", (Column("id", "int", False),), True)


def test_a_table_is_described_again_if_its_owner_means_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The front's description is older than the DDL that the owner has folded: asked once more, the cache answers."""
    owner, source = MeaningOwner(NEW), FakeRowSource(b'{"id":8}', "0-1-9")
    source.described = NEW
    reads, space = Reads(monkeypatch, owner), space_of(source)

    async def run() -> None:
        owner.folded = OLD
        assert served(await reads.answer(space, seen(SHARD, "0-1-5"))).served_from == "cache"
        owner.folded, reads.now = NEW, reads.now + 2
        assert served(await reads.answer(space, seen(SHARD, "0-1-5"))).served_from == "cache"
        assert (source.descriptions, source.reads) == (1, 0)

    asyncio.run(run())


def test_an_owner_that_is_behind_the_ddl_is_not_described_to_at_every_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has folded the DDL the source answers, nothing is filled, and the table is described once a second."""
    owner, source = MeaningOwner(NEW), FakeRowSource(b'{"id":8}', "0-1-9")
    source.described = OLD
    reads, space = Reads(monkeypatch, owner), space_of(source)

    async def run() -> None:
        for _ in range(5):
            answer = served(await reads.answer(space, seen(SHARD, "0-1-5")))
            assert (answer.served_from, bytes(answer.value)) == ("source", b'{"id":8}')
            assert "its description has changed" in answer.why
        assert (source.descriptions, source.reads, owner.fills) == (1, 5, [])
        reads.now += 2
        for _ in range(5):
            assert served(await reads.answer(space, seen(SHARD, "0-1-5"))).served_from == "source"
        assert (source.descriptions, source.reads, owner.fills) == (2, 10, [])

    asyncio.run(run())


def test_a_read_of_a_key_that_means_something_else_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that began before a DDL looks the key up as it was: who knows the new description reads for itself."""

    class BySpelling(FakeRowSource):
        async def read(self, wanted: Sequence[SourceKey]) -> list[Any]:
            found = await super().read(wanted)
            images = {OLD.meaning: IMAGE, NEW.meaning: b'{"id":8}'}
            return [row._replace(image=images[key.table.meaning]) for key, row in zip(wanted, found, strict=True)]

    async def story() -> None:
        owner, source = FakeOwner(), BySpelling(None, "0-1-5")
        reads, space = Reads(monkeypatch, owner), space_of(source)
        source.gate.clear()
        tasks = [asyncio.create_task(reads.answer(space))]
        await settle()
        owner.description.columns[0].exact, reads.now = False, reads.now + 60
        tasks.append(asyncio.create_task(reads.answer(space)))
        await settle()
        source.gate.set()
        assert [bytes(served(answer).value) for answer in await asyncio.gather(*tasks)] == [IMAGE, b'{"id":8}']

    asyncio.run(story())


def test_a_key_that_does_not_fit_is_refused_only_by_the_sources_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at the first read: the owner may be behind the DDL that changed the key."""
    owner, source = MeaningOwner(NEW), FakeRowSource(IMAGE, "0-1-9")
    owner.description = items_of(("id", "b"), ("id", "b"))
    source.described = NEW
    reads, space = Reads(monkeypatch, owner), space_of(source)

    async def run() -> None:
        assert served(await reads.answer(space, seen(SHARD, "0-1-5"))).served_from == "cache"
        assert source.descriptions == 1
        source.described = RowTable(NEW.name, (*NEW.key, Column("b", "int", True)), True)
        reads.now += 60
        refused = await reads.answer(space, seen(SHARD, "0-1-5"))
        assert isinstance(refused, ReadError)
        assert (refused.code, source.descriptions) == ("bad_key", 2)

    asyncio.run(run())


def test_a_key_that_does_not_fit_while_the_source_is_away_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can say if the owner is behind a DDL. A key that is too long is one of no table, and needs no source."""
    source = FakeRowSource(IMAGE, "0-1-9")
    reads, space, too_long = Reads(monkeypatch, FakeOwner()), space_of(source), b"1" * (KEY_BYTES_MAX + 1)

    async def is_down(_: str) -> RowTable | None:
        raise ReadError("source_unreachable", "it is down")

    monkeypatch.setattr(source, "describe", is_down)
    wanted = [RequestedRow("shop.items", key) for key in (b"one", too_long)] + [RequestedRow("shop.gone", too_long)]
    errors = [each for each in asyncio.run(reads.outcomes(space, wanted)) if isinstance(each, ReadError)]
    assert [each.code for each in errors] == ["source_unreachable", "bad_key", "bad_key"]
    assert str(errors[0]) == "it is down"


def test_the_first_read_after_a_ddl_is_answered_though_an_owner_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source refuses a key that the owner described in the same request; only the source's description helps."""

    class KeyedSource(FakeRowSource):
        async def read(self, wanted: Sequence[SourceKey]) -> list[Any]:
            found = await super().read(wanted)
            return [
                row if key.table.meaning == NEW.meaning else SchemaChanged(key.table.name)
                for key, row in zip(wanted, found, strict=True)
            ]

    owner, source = FakeOwner(), KeyedSource(IMAGE, "0-1-9")
    owner.row = owner_row(None, "0-1-5", "0-1-5")
    source.described = NEW
    reads, space = Reads(monkeypatch, owner), space_of(source)
    answer = served(asyncio.run(reads.answer(space, seen(SHARD, "0-1-9"))))
    assert (answer.served_from, source.descriptions) == ("source", 1)


def test_a_key_of_another_partition_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The front's layout was wrong: it asks for it, and the source answers if the owner still refuses."""
    other = OwnerError("the key is kept in partition 1", code="wrong_partition")
    owner, source = FakeOwner(), FakeRowSource(IMAGE, "0-1-9")
    source.described = OLD
    reads, space = Reads(monkeypatch, owner), space_of(source)

    async def refuse(*_: object) -> list[OwnerRow]:
        owner._ask("get")
        raise other

    monkeypatch.setattr(owner, "get", refuse)

    async def run() -> None:
        assert served(await reads.answer(space, seen(SHARD, "0-1-5"))).served_from == "source"
        reads.now, owner.asked = reads.now + 2, []
        assert served(await reads.answer(space, seen(SHARD, "0-1-5"))).served_from == "source"
        assert owner.asked[:3] == ["get", "describe", "get"]
        assert owner.fills == []

    asyncio.run(run())


def test_the_meaning_of_every_table_of_a_batch_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request to an owner holds keys of several tables. A table left out would be answered uncompared."""
    owner, told = FakeOwner(), list[set[str]]()

    async def get(_: str, __: int, keys: list[bytes], *rest: object) -> list[OwnerRow]:
        meanings = rest[2]
        assert isinstance(meanings, dict)
        told.append(set(meanings))
        return [owner_row(IMAGE, "0-1-5", "0-1-5") for _ in keys]

    async def describe(_: str, table: str) -> object:
        return msgspec.structs.replace(items_of(), table=table)

    monkeypatch.setattr(owner, "get", get)
    monkeypatch.setattr(owner, "describe", describe)
    owners, metrics = Network(monkeypatch, {"a:1": owner}).owners(), FrontMetrics()
    reads = RowReads(owners, Descriptions(owners), Fills(owners, metrics), metrics)
    wanted = [RequestedRow(f"shop.{name}", b"7") for name in ("a", "b", "a", "c")]
    asyncio.run(reads.read_many(space_of(), wanted, demand_of(seen(SHARD, "0-1-5"))))
    assert told == [{"shop.a", "shop.b", "shop.c"}]


@pytest.mark.parametrize("leased", [True, False])
def test_a_front_that_can_keep_nothing_ends_its_lease(monkeypatch: pytest.MonkeyPatch, leased: bool) -> None:
    """The source failed: others shall not wait for this front. Without a lease an owner hears nothing of it."""
    owner, given_up = FakeOwner(), list[Fill]()
    owner.row = owner_row(None, "0-1-1", "0-1-1")
    owner.row.leased = leased
    source = FakeRowSource(IMAGE, "0-1-5")

    async def read(_: Sequence[SourceKey]) -> list[Any]:
        raise ReadError("source_unreachable", "away")

    async def fill(nothing: Fill) -> Filled:
        given_up.append(nothing)
        return Filled(0, False, "there is nothing to keep")

    monkeypatch.setattr(owner, "fill", fill, raising=False)
    monkeypatch.setattr(source, "read", read)
    answer = asyncio.run(Reads(monkeypatch, owner).answer(space_of(source)))
    assert isinstance(answer, ReadError)
    assert [(each.key, each.lo, each.stamp) for each in given_up] == [(row_key("shop.items", [7]), "", b"")] * leased
    assert owner.fills == []


def test_a_front_that_may_keep_nothing_ends_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source's answer takes no place of what the stream said: who waits for this front to fill it waits in vain."""
    owner, given_up = FakeOwner(), list[Fill]()
    owner.row = owner_row(None, "0-1-1", "0-1-1")
    owner.row.kind, owner.row.leased = VALUE, True

    async def fill(nothing: Fill) -> Filled:
        given_up.append(nothing)
        return Filled(0, False, "there is nothing to keep")

    monkeypatch.setattr(owner, "fill", fill, raising=False)
    answer = asyncio.run(Reads(monkeypatch, owner).answer(space_of(FakeRowSource(IMAGE, "0-1-5"))))
    assert served(answer).served_from == "source"
    assert [each.key for each in given_up] == [row_key("shop.items", [7])]
    assert owner.fills == []


def test_without_an_owner_and_a_source_the_reader_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nobody who could answer, and the error says so."""
    owner = FakeOwner()
    reads, space = Reads(monkeypatch, owner), space_of()
    asyncio.run(reads.answer(space))
    owner.failure = OwnerError("away", code="owner_unreachable")
    answer = asyncio.run(reads.answer(space, seen("shop/0", "0-1-5")))
    assert isinstance(answer, ReadError)
    assert answer.code == "no_owner"


@pytest.mark.parametrize(
    ("lo", "hi", "compared", "fresher"),
    [
        ("0-1-6", "0-1-6", "0-1-5", True),
        ("0-1-5", "0-1-5", "0-1-5", True),
        ("0-1-4", "0-1-4", "0-1-5", False),
        ("0-2-5", "0-2-5", "0-1-5", None),
        ("0-1-5", "0-1-7", "0-1-5", True),
        ("0-1-4", "0-1-5", "0-1-5", None),
        ("0-1-4", "0-1-6", "0-1-5", None),
        ("0-1-3", "0-1-4", "0-1-5", False),
    ],
)
@pytest.mark.parametrize("image", [IMAGE, None])
@pytest.mark.parametrize("source", [False, True])
def test_a_row_is_compared_with_the_readers_token(
    monkeypatch: pytest.MonkeyPatch,
    image: bytes | None,
    source: bool,
    lo: str,
    hi: str,
    compared: str,
    fresher: bool | None,
) -> None:
    """As new counts as fresher. What was read before a commit in whose time it was read is not as new as that commit.

    Nobody knows where two servers gave out one number.
    """
    owner = FakeOwner()
    if not source:
        owner.row = owner_row(IMAGE, lo, hi)
        owner.row.image = image
    reads = Reads(monkeypatch, owner)
    space = space_of(FakeRowSource(image, lo, hi) if source else None)
    options = RowOptions(compare_event_token=EventToken(1, SHARD, at(compared), epoch=1))
    answer = served(asyncio.run(reads.answer(space, None, options)))
    assert (answer.served_from, answer.fresher) == ("source" if source else "cache", fresher)


def test_a_table_that_is_always_read_through_fills_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows must not be kept: nobody would void them."""
    owner = FakeOwner()
    owner.description.cacheable = False
    answer = asyncio.run(Reads(monkeypatch, owner).answer(space_of(FakeRowSource(IMAGE, "0-1-5"))))
    assert served(answer).served_from == "source"
    assert owner.fills == []


def test_without_an_epoch_a_rows_position_is_no_event_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has named the epoch that the source's position belongs to, so it stands for no place in history."""
    owner = FakeOwner(failure=OwnerError("away", code="owner_unreachable"))
    source = FakeRowSource(IMAGE, "0-1-5")
    source.described = OLD
    reads, compared = Reads(monkeypatch, owner), EventToken(1, SHARD, at("0-1-4"))
    options = RowOptions(include_event_token=True, compare_event_token=compared)
    answer = served(asyncio.run(reads.answer(space_of(source), None, options)))
    assert (answer.served_from, answer.freshness, bytes(answer.value)) == ("source", "eventual", IMAGE)
    assert (answer.event_token, answer.fresher, answer.token) == (None, None, ReadDemand().token)


def test_a_table_that_cannot_be_described_again_is_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner means something else, and the source fails to describe it: the source's row is the answer."""
    owner, source = MeaningOwner(OLD), FakeRowSource(b'{"id":8}', "0-1-9")
    reads, space = Reads(monkeypatch, owner), space_of(source)

    async def fail(_: str) -> None:
        raise ReadError("source_failed", "SHOW CREATE TABLE")

    monkeypatch.setattr(source, "describe", fail)

    async def run() -> None:
        assert served(await reads.answer(space, seen(SHARD, "0-1-5"))).served_from == "cache"
        owner.folded, reads.now = NEW, reads.now + 2
        answer = served(await reads.answer(space, seen(SHARD, "0-1-5")))
        assert (answer.served_from, bytes(answer.value)) == ("source", b'{"id":8}')

    asyncio.run(run())


@pytest.mark.parametrize(("position", "reads_of_source"), [("0-1-5", 1), ("0-1-4", 3)])
def test_a_read_that_proves_each_demand_is_shared(
    monkeypatch: pytest.MonkeyPatch, position: str, reads_of_source: int
) -> None:
    """Readers of one row cost the source one read; one whose demand it doesn't prove costs another."""

    async def story() -> None:
        source = FakeRowSource(IMAGE, position)
        reads, space = Reads(monkeypatch, FakeOwner()), space_of(source)
        await reads.answer(space)  # the front knows the epoch
        source.reads = 0
        source.gate.clear()
        readers = [asyncio.create_task(reads.answer(space, seen(SHARD, gtid))) for gtid in ("0-1-3", "0-1-4", "0-1-5")]
        await settle()
        assert source.reads == 1
        source.gate.set()
        answers = await asyncio.gather(*readers)
        assert source.reads == reads_of_source
        codes = [isinstance(answer, ReadError) and answer.code for answer in answers]
        assert codes == [False, False, position == "0-1-4" and "source_behind"]

    asyncio.run(story())


@pytest.mark.parametrize(("image", "number", "fills"), [(IMAGE, 7, [IMAGE]), (IMAGE, 8, []), (None, 7, [])])
def test_the_absence_of_a_spelling_is_no_absence_of_the_row(
    monkeypatch: pytest.MonkeyPatch, image: bytes | None, number: int, fills: list[bytes | None]
) -> None:
    """Where a collation decides which keys are one, the source is asked; only what has the key itself is a fill."""
    owner, source = FakeOwner(), FakeRowSource(image, "0-1-9")
    owner.description.columns[0].exact = False
    owner.row = owner_row(IMAGE, "0-1-5", "0-1-5")
    owner.row.image, owner.row.kind = None, ABSENT

    async def read(_: object) -> list[SourceRow]:
        return [SourceRow(image, row_key("shop.items", [number]), at("0-1-9"), at("0-1-9"))]

    monkeypatch.setattr(source, "read", read)
    answer = served(asyncio.run(Reads(monkeypatch, owner).answer(space_of(source))))
    assert (answer.served_from, answer.found) == ("source", image is not None)
    assert [fill.image for fill in owner.fills if isinstance(fill, Fill)] == fills


@pytest.mark.parametrize("image", [b'{"id":7,"old":1}', None], ids=["a row", "an absence"])
def test_an_owner_that_takes_a_key_for_another_shards_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, image: bytes | None
) -> None:
    """While the sources get a map, an owner knows the old shard alone. The row lies in another server by now."""
    owner = FakeOwner(watermarks=seen("shop/-80", "0-1-1").merge(seen("shop/80-", "0-1-1")))
    shards = ShardMap.parse({"shop/-80": "-80", "shop/80-": "80-"})
    own = shards.shard_of(Layout(1).keyspace_id(row_key("shop.items", [7])))
    [other] = set(shards.shards) - {own}
    sources = [FakeRowSource(IMAGE, "0-1-9", shard=name) for name in shards.shards]
    space = RowSpace("shop", Layout(1), source=sources[0], sources=sources, map=shards)
    for shard, expected in ((other, "source"), (own, "cache")):
        owner.row = owner_row(image, "0-1-5", "0-1-5", shard=shard)
        owner.row.kind, owner.row.served, owner.row.freshness = VALUE if image else ABSENT, True, "fresh"
        answer = served(asyncio.run(Reads(monkeypatch, owner).answer(space)))
        assert answer.served_from == expected
        assert expected == "cache" or (answer.found and f"one of {other}" in answer.why)
    assert not owner.fills


@pytest.mark.parametrize(
    ("stored", "at_other", "expected"),
    [("own", False, True), ("other", True, True), ("own", True, False), ("other", False, False), ("", False, False)],
)
def test_another_spelling_of_a_key_may_name_a_row_of_another_shard(
    monkeypatch: pytest.MonkeyPatch, stored: str, at_other: bool, expected: bool
) -> None:
    """`abc` and `ABC`, or 1.5 and 1.50, are one key to a server, and lie where their own spelling says."""
    owner = FakeOwner(watermarks=seen("shop/-80", "0-1-1").merge(seen("shop/80-", "0-1-1")))
    owner.description.columns[0].exact = False
    shards, layout = ShardMap.parse({"shop/-80": "-80", "shop/80-": "80-"}), Layout(1)

    def shard_of(number: int) -> str:
        return shards.shard_of(layout.keyspace_id(row_key("shop.items", [number])))

    own = shard_of(7)
    spelled = next(each for each in range(8, 99) if (shard_of(each) == own) is (stored == "own"))
    sources = [FakeRowSource(None, "0-1-9", shard=name) for name in shards.shards]
    for source in sources:
        image = IMAGE if stored and (source.shard != own) is at_other else None

        async def read(_: object, image: bytes | None = image) -> list[SourceRow]:
            return [SourceRow(image, row_key("shop.items", [spelled]), at("0-1-9"), at("0-1-9"))]

        monkeypatch.setattr(source, "read", read)
    space = RowSpace("shop", layout, source=sources[0], sources=sources, map=shards)
    answer = served(asyncio.run(Reads(monkeypatch, owner).answer(space)))
    assert (answer.served_from, answer.found) == ("source", expected)
    assert not owner.fills or not expected


def test_a_row_of_another_spelling_is_looked_for_until_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards behind it are not asked: what one of them still has of the key is no second answer."""
    names = ("shop/-40", "shop/40-80", "shop/80-")
    shards, layout = ShardMap.parse({name: name.removeprefix("shop/") for name in names}), Layout(1)
    owner = FakeOwner(watermarks=Vector(dict.fromkeys(names, (1, at("0-1-1")))))
    owner.description.columns[0].exact = False
    spelled = {shards.shard_of(layout.keyspace_id(key)): key for key in (row_key("shop.items", [n]) for n in range(99))}
    own = shards.shard_of(layout.keyspace_id(row_key("shop.items", [7])))
    first, second = (name for name in names if name != own)
    asked = []
    sources = [FakeRowSource(None, "0-1-9", shard=name) for name in names]
    for source in sources:

        async def read(_: object, shard: str = source.shard) -> list[SourceRow]:
            asked.append(shard)
            image = None if shard == own else shard.encode()
            return [SourceRow(image, spelled[shard], at("0-1-9"), at("0-1-9"))]

        monkeypatch.setattr(source, "read", read)
    space = RowSpace("shop", layout, source=sources[0], sources=sources, map=shards)
    answer = served(asyncio.run(Reads(monkeypatch, owner).answer(space)))
    assert (bytes(answer.value), asked) == (first.encode(), [own, first]), second
