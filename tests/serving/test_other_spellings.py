"""A key of which another spelling may name a row of another shard: every shard that was asked is in the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import pytest

from consumers.fold.shards import Kin
from serving.errors import ReadError
from serving.reads.spaces import RowSpace
from serving.sources.source import SourceRow
from stream.shards.map import ShardMap
from stream.wire.keys import Layout, row_key
from tests.serving.fakes import FakeOwner, FakeRowSource, at, seen
from tests.serving.test_row_reads import IMAGE, Reads, served
from tokens import Vector

SHARDS: Final = ShardMap.parse({"shop/-80": "-80", "shop/80-": "80-"})
SPELLED: Final = {
    SHARDS.shard_of(Layout(1).keyspace_id(key)): key for key in (row_key("shop.items", [n]) for n in range(99))
}
"""Of each shard, the key of a row that is there. To the server it is another spelling of the one that is read."""
OWN: Final = SHARDS.shard_of(Layout(1).keyspace_id(row_key("shop.items", [7])))
[OTHER] = set(SHARDS.shards) - {OWN}
REACHED: Final = {OWN: "0-1-5", OTHER: "0-1-9"}


class SpellingSource(FakeRowSource):
    """A source that has its shard's row by the spelling that belongs there, or none."""

    async def read(self, _: object) -> list[Any]:
        return [SourceRow(self.image, SPELLED[self.shard], self.position, self.hi)]


def owner_of(*shards: str) -> FakeOwner:
    """One that has folded a marker of each of ``shards``."""
    owner = FakeOwner(watermarks=Vector({name: (1, at("0-1-1")) for name in shards}))
    owner.description.columns[0].exact = False
    return owner


def front(images: Mapping[str, bytes | None], positions: Mapping[str, str]) -> RowSpace:
    """A front's view of both shards' sources, each at its position."""
    sources = [SpellingSource(images.get(name), positions[name], shard=name) for name in SHARDS.shards]
    space = RowSpace("shop", Layout(1), source=sources[0], sources=sources, map=SHARDS)
    for name in SHARDS.shards:
        space.epochs.learn_kin(name, 1, Kin(frozenset(SHARDS.shards)))
    return space


@pytest.mark.parametrize("stored", [False, True], ids=["in neither", "in the other"])
@pytest.mark.parametrize("lagging", [OWN, OTHER], ids=["the key's own", "the other"])
def test_the_session_has_seen_every_shard_that_was_asked(
    monkeypatch: pytest.MonkeyPatch, stored: bool, lagging: str
) -> None:
    """The row was deleted in one of them: who has seen that is not given it by a front that reads a replica there."""
    reads = Reads(monkeypatch, owner_of(*SHARDS.shards))
    up_to_date = front({OTHER: IMAGE if stored else None}, REACHED)
    answer = served(asyncio.run(reads.answer(up_to_date, seen(OWN, "0-1-5"))))
    assert (answer.freshness, answer.found) == ("fresh", stored)
    assert answer.token == str(seen(OWN, "0-1-5").merge(seen(OTHER, "0-1-9")))
    assert all(f"from the source at {at(position)}" in answer.why for position in REACHED.values())
    replica = front({lagging: IMAGE}, REACHED | {lagging: "0-1-4"})
    refused = asyncio.run(reads.answer(replica, Vector.parse(answer.token)))
    assert isinstance(refused, ReadError)
    assert refused.code == "source_behind"


def test_a_session_that_has_seen_nothing_gets_every_shard_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first answer is its first demand."""
    reads = Reads(monkeypatch, owner_of(*SHARDS.shards))
    answer = served(asyncio.run(reads.answer(front({}, REACHED))))
    assert (answer.freshness, answer.found) == ("eventual", False)
    assert answer.token == str(seen(OWN, "0-1-5").merge(seen(OTHER, "0-1-9")))


@pytest.mark.parametrize(
    ("named", "token"), [(OWN, seen(OWN, "0-1-5")), (OTHER, seen(OTHER, "0-1-9"))], ids=["its own", "the other"]
)
def test_an_absence_is_as_fresh_as_the_shard_that_proves_least(
    monkeypatch: pytest.MonkeyPatch, named: str, token: Vector
) -> None:
    """No owner has named one shard's epoch yet: its part of the answer proves nothing, so neither does all of it."""
    space = front({}, REACHED)
    space.epochs.known.clear()
    answer = served(asyncio.run(Reads(monkeypatch, owner_of(named)).answer(space, seen(named, "0-1-2"))))
    assert (answer.found, answer.freshness, answer.token) == (False, "eventual", str(token))
