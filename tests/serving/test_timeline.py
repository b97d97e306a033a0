"""What has changed between two looks is said once, in words, for all partitions that it is of."""

from __future__ import annotations

import asyncio

import pytest

import serving.http.status.watch as watching
from serving.http.status.answers import PartitionState, ShardState, StatusEvent
from serving.http.status.page import shown_numbers
from serving.http.status.timeline import changes
from tests.serving.test_status import NOW, told, watch_of


def part(number: int, owner: str = "a:1", state: str = "ready", epoch: int = 1, **tables: bool) -> PartitionState:
    """A partition of shop."""
    shards = [ShardState("shop/0", epoch, "", None)]
    return PartitionState("shop", number, owner, state, None, None, None, 0, 0, shards, tables)


def verified(state: PartitionState, *, equal: bool) -> PartitionState:
    """The partition after an audit."""
    state.verified_at, state.verified_equal = NOW, equal
    return state


def said(before: list[PartitionState], now: list[PartitionState]) -> list[tuple[str, list[int]]]:
    """What, and of which partitions."""
    return [(each.what, each.partitions) for each in changes(before, now, NOW)]


@pytest.mark.parametrize(
    ("then", "now", "what"),
    [
        (part(0), part(0), []),
        (part(0), part(0, "b:1"), ["moved from a:1 to b:1"]),
        (part(0), part(0, state="rebuilding"), ["now rebuilding"]),
        (part(0), part(0, "", "away"), ["nobody says that it owns it"]),
        (part(0), part(0, state="away"), ["no answer from a:1"]),
        (part(0, "", "away"), part(0, "b:1"), ["answered by b:1", "now ready"]),
        (part(0), part(0, epoch=3), ["shop/0 began epoch 3: its history was lost or replaced"]),
        (part(0, epoch=3), part(0, epoch=1), []),  # an owner that is behind: nothing has happened
        (part(0, items=False), part(0, items=True), ["items is whole"]),
        (part(0, items=True), part(0), ["items is no longer whole"]),
        (part(0, items=True), part(0, "", "away"), ["nobody says that it owns it"]),  # nothing is known of its tables
        (part(0, "", "away"), part(0, items=True), ["answered by a:1", "now ready"]),
        (part(0), verified(part(0), equal=True), ["verified: equal to a rebuild"]),
        (verified(part(0), equal=True), verified(part(0), equal=True), []),
        (part(0), verified(part(0), equal=False), ["verified: DIFFERS from a rebuild"]),
        (part(0), verified(part(0, "b:1"), equal=True), ["moved from a:1 to b:1"]),  # an old verdict of another one
    ],
)
def test_each_change_is_said(then: PartitionState, now: PartitionState, what: list[str]) -> None:
    """And nothing that is not a change."""
    assert said([then], [now]) == [(each, [0]) for each in what]


def test_many_partitions_are_one_line() -> None:
    """A consumer that ends is one event, not one for each of its partitions; a new partition is none."""
    before = [part(number) for number in range(4)]
    now = [part(3, "b:1"), part(0), part(2, "b:1"), part(1, "b:1"), part(9, "c:1")]
    assert said(before, now) == [("moved from a:1 to b:1", [1, 2, 3])]
    assert shown_numbers([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"


def test_changes_are_remembered_for_those_who_may_see_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the history, the oldest first, no more than the bound, and only of keyspaces that are asked for."""
    monkeypatch.setattr(watching, "EVENTS_MAX", 3)
    now, of = [NOW], {"a:1": [told(at, 1.0) for at in range(4)]}
    watch = watch_of(dict(of), dict.fromkeys(range(4), "a:1"), lambda: now[0])

    async def story() -> None:
        for is_there in (True, False, True, False):
            watch._owners.of["a:1"] = of["a:1"] if is_there else None  # type: ignore[attr-defined]
            await watch.look()
            now[0] += 10

    asyncio.run(story())
    events = watch.history(["shop"]).events
    assert [each.what for each in events] == ["answered by a:1", "now ready", "no answer from a:1"]
    assert events[-1] == StatusEvent(NOW + 30, "shop", "no answer from a:1", [0, 1, 2, 3])
    assert watch.history(["other"]).events == []


def test_a_clock_that_is_set_back_does_not_stop_the_looks() -> None:
    """Else the page would show for hours what was seen just before."""
    now = [NOW]
    watch = watch_of({"a:1": [told(0, 1.0)]}, dict.fromkeys(range(4), "a:1"), lambda: now[0])

    async def story() -> list[float]:
        first = await watch.look()
        now[0] -= 3_600
        return [first.at, (await watch.look()).at]

    assert asyncio.run(story()) == [NOW, NOW - 3_600]
