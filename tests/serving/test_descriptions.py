"""How long a description of a table is taken as it is, and what counts if nobody can describe it now."""

from __future__ import annotations

import asyncio

import pytest

from consumers.owner.protocol import Description, OwnerError
from serving.errors import ReadError
from serving.reads import descriptions as descriptions_of
from serving.reads.descriptions import Descriptions
from serving.reads.spaces import RowSpace
from serving.sources.source import RowTable
from stream.wire.events import Column
from stream.wire.keys import Layout
from tests.serving.fakes import FakeOwner, FakeRowSource, Network, items_of
from tests.serving.test_flight import settle

AWAY = OwnerError("away", code="owner_unreachable")
NAME = "shop.items"


class Described:
    """Descriptions from one owner, and from a source if there is one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, with_source: bool = False) -> None:
        self.owner = FakeOwner()
        self.now = 100.0
        self.source = FakeRowSource(b"{}", "0-1-5")
        self.source.described = RowTable(NAME, (Column("source", "int", True),), True, "", 0)
        self.space = RowSpace("shop", Layout(1), source=self.source if with_source else None)
        owners = Network(monkeypatch, {"a:1": self.owner}).owners(pause_s=0.0)
        self.of = Descriptions(owners, keep_s=10.0, clock=lambda: self.now)

    def get(self, name: str = NAME) -> list[str]:
        """The key columns of a table."""
        return [column.name for column in asyncio.run(self.of.get(self.space, name)).key]


def test_a_description_is_asked_for_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept for `keep_s` seconds, and then asked for again."""
    described = Described(monkeypatch)
    assert described.get() == described.get() == ["id"]
    described.owner.description = items_of(("no",), ("no",))
    described.now = 109.9
    assert described.get() == ["id"]
    described.now = 110.0
    assert described.get() == ["no"]
    assert described.owner.asked.count("describe") == 2


def test_a_table_that_may_not_be_cached_is_soon_described_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After DDL that may be so for a moment, which must not send all reads to the source until `keep_s` is over."""
    described = Described(monkeypatch)
    described.owner.description.cacheable = False
    table = asyncio.run(described.of.get(described.space, NAME))
    assert not table.cacheable
    described.owner.description = items_of()
    described.now += 0.99
    assert asyncio.run(described.of.get(described.space, NAME)) is table
    described.now += 0.02
    assert asyncio.run(described.of.get(described.space, NAME)).cacheable
    assert described.owner.asked.count("describe") == 2


def test_an_old_description_counts_while_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads go on; a table that was never described is an error."""
    described = Described(monkeypatch)
    assert described.get() == ["id"]
    described.owner.failure = AWAY
    described.now += 60
    assert described.get() == ["id"]
    with pytest.raises(ReadError) as caught:
        described.get("shop.others")
    assert caught.value.code == "no_owner"


def test_without_an_owner_or_its_description_the_source_describes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that has folded nothing of the table says so; one that is away says nothing."""
    described = Described(monkeypatch, with_source=True)
    assert described.get() == ["id"]
    assert described.source.descriptions == 0
    described.now += 60
    described.owner.description = Description(0, False, "", "", [], [], False)
    assert described.get() == ["source"]
    described.now += 60
    described.owner.failure = AWAY
    assert described.get() == ["source"]
    assert described.source.descriptions == 2


def test_a_table_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old description must not come back when the next question fails."""
    described = Described(monkeypatch, with_source=True)
    assert described.get() == ["id"]
    described.owner.description = Description(0, False, "", "", [], [], False)
    described.source.described = None
    described.now += 60
    for failure in (None, AWAY):
        described.owner.failure = failure
        with pytest.raises(ReadError) as caught:
            described.get()
        assert caught.value.code == "unknown_table"


def test_a_renewed_description_is_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner may not have folded the DDL yet, whenever it was asked. The source is not asked again for a moment."""
    described = Described(monkeypatch, with_source=True)
    assert described.get() == ["id"]
    assert described.of.now() == 100.0
    assert not described.of.describes_since(described.space, NAME, 100.0)
    asyncio.run(described.of.renew(described.space, NAME, 99.0))
    assert described.get() == ["source"]
    asyncio.run(described.of.renew(described.space, NAME, 100.0))
    assert described.source.descriptions == 1
    assert described.of.describes_since(described.space, NAME, 100.0)
    assert not described.of.describes_since(described.space, NAME, 100.1)
    assert not described.of.describes_since(described.space, "shop.others", 0.0)


@pytest.mark.parametrize(("moment", "asked"), [(100.0, 1), (100.5, 2)])
def test_two_who_renew_share_what_is_late_enough_for_both(
    monkeypatch: pytest.MonkeyPatch, moment: float, asked: int
) -> None:
    """The second joins the first one's question; if it was asked too early, another one follows."""
    described = Described(monkeypatch, with_source=True)
    describe, may_answer = described.source.describe, asyncio.Event()

    async def slow(name: str) -> RowTable | None:
        await may_answer.wait()
        return await describe(name)

    monkeypatch.setattr(described.source, "describe", slow)

    async def story() -> None:
        first = asyncio.create_task(described.of.renew(described.space, NAME, 99.0))
        await settle()
        second = asyncio.create_task(described.of.renew(described.space, NAME, moment))
        await settle()
        may_answer.set()
        await asyncio.gather(first, second)

    asyncio.run(story())
    assert described.source.descriptions == asked


def test_an_owner_does_not_stand_in_for_the_source_that_was_asked_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner's later description does not keep the source's from being taken, nor counts as one of the source."""
    described = Described(monkeypatch, with_source=True)
    asyncio.run(described.of.renew(described.space, NAME, 99.0))
    described.now = 111.0
    assert described.get() == ["id"]
    assert not described.of.describes_since(described.space, NAME, 111.0)
    asyncio.run(described.of.renew(described.space, NAME, 111.0))
    assert described.get() == ["source"]


def test_the_layout_is_that_of_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner tells it with a description; without one the configured layout stays."""
    described = Described(monkeypatch)
    described.get()
    assert described.space.layout == Layout(1)
    described.owner.description = Description(0, True, "xxh3_64;partitions=1", NAME, items_of().columns, ["id"], True)
    described.now += 60
    described.get()
    assert str(described.space.layout) == "xxh3_64;partitions=1"


def test_descriptions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that asks for ever new names costs no memory without end."""
    monkeypatch.setattr(descriptions_of, "TABLES_MAX", 2)
    described = Described(monkeypatch)
    for name in ("shop.a", "shop.b", "shop.a"):
        described.get(name)
    assert described.owner.asked.count("describe") == 2
    described.get("shop.c")
    assert len(described.of._known) == 1


def test_the_source_is_asked_for_the_table_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a description is renewed."""
    described = Described(monkeypatch, with_source=True)
    asked: list[str] = []

    async def describe(_: str) -> RowTable | None:
        asked.append(_)
        return described.source.described

    described.source.describe = describe  # type: ignore[method-assign]
    asyncio.run(described.of.renew(described.space, NAME, 100.0))
    described.owner.description = Description(0, False, "", "", [], [], False)
    described.get("shop.others")
    assert asked == [NAME, "shop.others"]


def test_a_table_that_was_dropped_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys mean nothing any more, also within the time for which a description is taken as it is."""
    described = Described(monkeypatch, with_source=True)
    assert described.get() == ["id"]
    described.source.described = None
    described.now += 1
    with pytest.raises(ReadError) as caught:
        asyncio.run(described.of.renew(described.space, NAME, described.now))
    assert caught.value.code == "unknown_table"
    described.owner.description = Description(0, False, "")
    with pytest.raises(ReadError) as caught:
        described.get()
    assert caught.value.code == "unknown_table"


def test_an_older_description_that_comes_later_does_not_replace_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that answers slowly may still mean the old key; whoever asked it gets the new description."""
    described = Described(monkeypatch, with_source=True)
    gate, describe = asyncio.Event(), described.owner.describe

    async def slowly(*given: object) -> Description:
        await gate.wait()
        return await describe(*given)

    async def run() -> list[str]:
        monkeypatch.setattr(described.owner, "describe", slowly)
        slow = asyncio.create_task(described.of.get(described.space, NAME))
        await settle()
        monkeypatch.setattr(described.owner, "describe", describe)
        described.now += 1
        await described.of.renew(described.space, NAME, described.now)
        gate.set()
        return [
            column.name for table in (await slow, await described.of.get(described.space, NAME)) for column in table.key
        ]

    assert asyncio.run(run()) == ["source", "source"]


@pytest.mark.parametrize("answers", [(True, True), (False, True), (False, False)])
def test_the_first_source_that_answers_describes_a_table(answers: tuple[bool, bool]) -> None:
    """All shards have the same tables: one that is away keeps no table from being described."""

    class Shard(FakeRowSource):
        def __init__(self, does_answer: bool) -> None:
            super().__init__(b"{}", "0-1-5")
            self.does_answer = does_answer

        async def describe(self, table: str) -> RowTable | None:
            if not self.does_answer:
                raise ReadError("source_unreachable", "it is away")
            return RowTable(table, (Column("id", "int", True),), True)

    space = RowSpace("shop", Layout(1), sources=[Shard(each) for each in answers])
    if any(answers):
        assert asyncio.run(space.describe(NAME)) == RowTable(NAME, (Column("id", "int", True),), True)
    else:
        with pytest.raises(ReadError, match="away"):
            asyncio.run(space.describe(NAME))
