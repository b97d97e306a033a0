"""Requests to several partitions: those to one owner are sent in one go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import cast

import pytest

from consumers.owner.client import OwnerClient
from consumers.owner.protocol import Description, GetRange, OwnerError, RangeRows
from serving.errors import ReadError
from serving.locations.places import Key, Location, Origin, Replica, Version
from serving.reads.owners import OwnerAway, Owners
from tests.serving.fakes import AWAY, FakeOwner, Network


class RangeOwner(FakeOwner):
    """Answers for partitions. ``together``, ``alone``: for which ones it was asked."""

    def __init__(self, *has: int, failure: OwnerError | None = None) -> None:
        super().__init__(failure=failure)
        self.has = set(has)
        self.together: list[list[int]] = []
        self.alone: list[int] = []
        self.when_asked: Callable[[], None] = lambda: None
        self.refusal = OwnerError("it is another's", code="not_owner")

    async def answers(self, requests: Sequence[GetRange], _: object) -> list[RangeRows | OwnerError]:  # type: ignore[override]
        """As `consumers.owner.client.OwnerClient.answers`."""
        self.together.append([each.partition for each in requests])
        self._ask("answers")
        self.when_asked()
        return [said(each) if each.partition in self.has else self.refusal for each in requests]

    async def answer(self, request: GetRange, _: object) -> RangeRows:  # type: ignore[override]
        """See there."""
        self.alone.append(request.partition)
        self._ask("answer")
        if request.partition not in self.has:
            raise self.refusal
        return said(request)


def said(request: GetRange) -> RangeRows:
    """An answer whose count is the partition."""
    return RangeRows(0, [], [], request.partition, False, "fresh", "proved", True, False, "shop/0", 1, "", "")


def read(owners: Owners, partitions: int = 4, *, wholly: bool = True) -> list[int | str]:
    """The partitions that have answered, in the order of the requests, or why not."""
    requests = [GetRange(0, "shop", number, partitions, b"shop.items\0", 0) for number in range(partitions)]

    async def run() -> list[RangeRows | OwnerAway]:
        found = await owners.read_each(
            "shop",
            requests,
            RangeRows,
            lambda answer: answer.served,
            consistency="bounded",
            patience_s=0.0,
            wholly=wholly,
        )
        await owners.close()
        return found

    return [str(each) if isinstance(each, OwnerAway) else each.count for each in asyncio.run(run())]


def test_each_owner_is_asked_once_for_all_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come in the order of the requests, whoever gave them."""
    one, other = RangeOwner(0, 2), RangeOwner(1, 3)
    network = Network(monkeypatch, {"a:1": one, "b:1": other})
    network.announced = {0: ["a:1"], 1: ["b:1"], 2: ["a:1"], 3: ["b:1"]}
    assert read(network.owners()) == [0, 1, 2, 3]
    assert (one.together, other.together, one.alone + other.alone) == ([[0, 2]], [[1, 3]], [])


def test_what_an_owner_refuses_is_asked_for_where_it_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' answers count; a partition that nobody has is away."""
    one, other = RangeOwner(0, 2), RangeOwner(1)
    network = Network(monkeypatch, {"a:1": one, "b:1": other})
    network.announced = {number: ["a:1"] for number in range(3)}
    one.when_asked = lambda: network.announced.update({1: ["b:1"]})
    assert read(network.owners(), 3) == [0, 1, 2]
    assert (one.together, other.alone) == ([[0, 1, 2]], [1])
    other.has.clear()
    with pytest.raises(OwnerAway):
        read(network.owners(), 3)


def test_an_owner_that_has_too_much_to_do_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have even more; nor does a demand that nobody can read become a better one."""
    busy = RangeOwner(0)
    network = Network(monkeypatch, {"a:1": busy})
    network.announced = {0: ["a:1"], 1: ["a:1"]}
    for refusal, expected in (
        (OwnerError("later", code="too_busy"), "no_owner"),
        (OwnerError("?", code="bad_token"), "bad_token"),
    ):
        busy.refusal = refusal
        with pytest.raises(ReadError) as raised:
            read(network.owners(), 2)
        assert raised.value.code == expected
    assert (busy.together, busy.alone) == ([[0, 1]] * 2, [])


def test_an_owner_that_is_away_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not asked again for each of its partitions, which would cost its silence as often."""
    away = RangeOwner(failure=AWAY)
    network = Network(monkeypatch, {"a:1": away})
    network.announced = {0: ["a:1"], 1: ["a:1"]}
    with pytest.raises(OwnerAway):
        read(network.owners(), 2)
    assert (away.together, away.alone) == ([[0, 1]], [])


def test_a_partition_with_a_follower_is_asked_for_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its follower answers if the owner does not; the partitions beside it go together."""
    away, follower, other = RangeOwner(failure=AWAY), RangeOwner(0), RangeOwner(1, 2)
    network = Network(monkeypatch, {"a:1": away, "f:1": follower, "b:1": other})
    network.announced = {0: ["a:1"], 1: ["b:1"], 2: ["b:1"]}
    assert read(network.owners(followers=[Replica("f:1", "", "f")]), 3) == [0, 1, 2]
    assert (away.alone, follower.alone, other.together) == ([0], [0], [[1, 2]])


def test_one_that_nobody_answers_takes_nothing_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request has its own reason: an owner that is too busy for it, none at all, one that is away."""
    one, away = RangeOwner(0, 4), RangeOwner(failure=AWAY)
    network = Network(monkeypatch, {"a:1": one, "b:1": away})
    network.announced = {0: ["a:1"], 1: ["a:1"], 3: ["b:1"], 4: ["a:1"]}
    one.refusal = OwnerError("later", code="too_busy")
    first, busy, unowned, gone, last = read(network.owners(), 5, wholly=False)
    assert (first, busy, last) == (0, "later", 4)
    assert "shop/2" in str(unowned)
    assert "does not answer" in str(gone)
    assert (one.together, away.together, away.alone) == ([[0, 1, 4]], [[3]], [])


def test_where_all_are_needed_nobody_is_asked_if_one_has_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' answers would be of no use, and may take as long as the request waits."""
    one = RangeOwner(0)
    network = Network(monkeypatch, {"a:1": one})
    network.announced = {0: ["a:1"]}
    with pytest.raises(OwnerAway):
        read(network.owners(), 2)
    assert one.together == []


@pytest.mark.parametrize(
    ("code", "is_asked"), [("too_busy", True), ("not_owner", True), ("forbidden", True), ("owner_unreachable", False)]
)
def test_a_follower_that_refuses_is_asked_again(monkeypatch: pytest.MonkeyPatch, code: str, is_asked: bool) -> None:
    """What it refuses now says nothing of its next answer. One that does not answer is left alone for a while."""
    follower = FakeOwner()
    network = Network(monkeypatch, {"o:1": FakeOwner(failure=AWAY), "f:1": follower})
    owners = network.owners(followers=[Replica("f:1", "", "f")])

    async def story() -> list[Description | None]:
        found: list[Description | None] = []
        for failure in (OwnerError("not now", code=code), None):
            follower.failure = failure
            try:
                found.append(await owners.read("shop", 0, lambda client: client.describe("shop", "shop.items")))
            except OwnerAway:
                found.append(None)
        await owners.close()
        return found

    assert asyncio.run(story()) == [None, follower.description if is_asked else None]


def test_a_follower_that_stops_in_order_is_not_kept_as_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """It withdraws, and then ends its connections: nothing names it any more, and nobody would ever try it again."""
    stopping = FakeOwner(failure=AWAY)
    network = Network(monkeypatch, {"o:1": FakeOwner(failure=AWAY), "f:1": stopping})
    owners = network.owners(followers=[Replica("f:1", "", "f")])
    cache = owners._locations.cache

    async def ask(client: OwnerClient) -> Description:
        if cast("object", client) is stopping:
            for keyspace in ("shop", "hive", "bank"):
                known = Location(Key(keyspace, 0), Version(9), Replica("o:1"), (), place=9)
                assert cache.install(known, Origin.PUSH, monotonic(), monotonic())
        return await client.describe("shop", "shop.items")

    async def story() -> None:
        with pytest.raises(OwnerAway):
            await owners.read("shop", 0, ask)
        await owners.close()

    asyncio.run(story())
    assert stopping.asked[0] == "describe"
    assert set(cache.down) == {Replica("o:1")}
