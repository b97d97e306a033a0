"""Which owner a front asks, and where, with owners that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from consumers.owner.client import Identity, OwnerClient
from consumers.owner.protocol import Description, OwnerError
from serving.locations.cache import REMEMBERED_S
from serving.locations.places import Replica
from serving.reads.demands import Consistency
from serving.reads.descriptions import Descriptions, table_of
from serving.reads.owners import OtherPartition, OwnerAway, Owners
from serving.reads.spaces import RowSpace
from stream.wire.keys import Layout
from tests.serving.fakes import AWAY, FakeOwner, Network, items_of


async def describe(client: OwnerClient, _: int = 0) -> Description:
    return await client.describe("shop", "shop.items")


def ask_any(owners: Owners, partitions: Sequence[int]) -> Description:
    return asyncio.run(owners.ask_any("shop", partitions, describe, lambda found: found.found))


def test_the_next_owner_is_asked_if_the_first_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any owner can answer, so one that is away only costs an attempt; none is asked after an answer."""
    away, second, third = FakeOwner(failure=AWAY), FakeOwner(), FakeOwner()
    network = Network(monkeypatch, {"a:1": away, "b:1": second, "c:1": third})
    network.announced = {0: ["a:1"], 2: ["b:1"], 3: ["c:1"]}  # no process has announced partition 1
    assert ask_any(network.owners(), range(4)) == second.description
    assert (away.asked, second.asked, third.asked) == (["describe"], ["describe"], [])


def test_each_owner_is_asked_once_until_an_answer_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner of many partitions is asked once; an answer that is not enough is the last resort."""
    unknowing, knowing = FakeOwner(), FakeOwner()
    unknowing.description = Description(0, False, "")
    network = Network(monkeypatch, {"a:1": unknowing, "b:1": knowing})
    network.announced = {0: ["a:1"], 1: ["a:1"], 2: ["b:1"]}
    assert ask_any(network.owners(), range(3)) == knowing.description
    assert unknowing.asked == ["describe"]
    assert ask_any(network.owners(), range(2)) == unknowing.description


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nonsense",
        "a:",
        ":1",
        "[:1",
        "a:-1",
        "a:65536",
        "a:²",
        "a:" + "9" * 5_000,
        "a..b:1",
        "\0:1",
        "x" * 64 + ":1",
    ],
)
def test_an_announced_address_that_is_none_is_an_owner_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """Whatever stands in the topic: no other error comes of it, again and again, and other partitions are read."""
    network = Network(monkeypatch, {"a:1": (owner := FakeOwner())})
    network.announced = {0: [address], 1: ["a:1"]}

    def connect(named: str, **options: Any) -> OwnerClient | FakeOwner:
        return owner if named == "a:1" else OwnerClient(named, **options)

    monkeypatch.setattr("serving.reads.owners.OwnerClient", connect)
    now = [100.0]
    owners = network.owners(clock=lambda: now[0])

    async def run() -> None:
        for _ in range(3):
            with pytest.raises(OwnerAway):
                await owners.ask("shop", 0, describe)
            now[0] += 10
            await settle_tasks()
        assert await owners.ask("shop", 1, describe) == owner.description
        await owners.close()

    asyncio.run(run())


def test_no_owner_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """If every owner is away, `OwnerAway` is raised."""
    with pytest.raises(OwnerAway):
        ask_any(Network(monkeypatch, {"a:1": FakeOwner(failure=AWAY)}).owners(), [0])


def test_a_partition_that_moved_is_asked_at_its_new_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that fails is sent again to the address that is announced by then, if it is another one."""
    old, new = FakeOwner(failure=AWAY), FakeOwner()
    network = Network(monkeypatch, {"a:1": old, "b:1": new})
    network.announced[0] = ["a:1", "b:1"]
    assert asyncio.run(network.owners().ask("shop", 0, describe)) == new.description
    assert (old.asked[:1], new.asked) == (["describe"], ["describe"])


def test_a_fixed_address_precedes_the_announced_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that the settings fix is asked, whatever is announced."""
    fixed, announced = FakeOwner(), FakeOwner()
    network = Network(monkeypatch, {"a:1": announced, "b:1": fixed})
    owners = network.owners(fixed={("shop", 0): "b:1"})
    assert asyncio.run(owners.ask("shop", 0, describe)) == fixed.description
    assert announced.asked == []


def test_a_front_without_a_role_still_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that its token may not send, say a fill, does not count as an owner that is away for all readers."""
    owner = FakeOwner(failure=OwnerError("front has no role fill", code="forbidden"))
    owners = Network(monkeypatch, {"a:1": owner}).owners()

    async def story() -> None:
        with pytest.raises(OwnerAway):
            await owners.ask("shop", 0, describe)
        owner.failure = None
        assert await owners.ask("shop", 0, describe) == owner.description

    asyncio.run(story())


def test_the_owner_token_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection to an owner carries the owner token, and one connection serves all requests."""
    network = Network(monkeypatch, {"a:1": FakeOwner()})
    owners = network.owners(identity=Identity(lambda: "secret"))
    for _ in range(2):
        asyncio.run(owners.ask("shop", 0, describe))
    assert network.tokens == ["secret"]


def test_a_primary_key_is_described_in_key_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key (b, a) of the columns (a, b) stays (b, a): paths and store keys are in key order."""
    owner = FakeOwner()
    owner.description = items_of(columns=("a", "b", "c"), primary_key=("b", "a"))
    assert [column.name for column in table_of(owner.description).key] == ["b", "a"]
    descriptions = Descriptions(Network(monkeypatch, {"a:1": owner}).owners())
    found = asyncio.run(descriptions.get(RowSpace("shop", Layout(1)), "shop.items"))
    assert [column.name for column in found.key] == ["b", "a"]


def test_descriptions_of_two_keyspaces_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of the same name in two keyspaces are described by their own owners, also at the same time."""
    shop, bank = FakeOwner(), FakeOwner()
    bank.description = items_of(columns=("code",), primary_key=("code",))
    fixed = {("shop", 0): "a:1", ("bank", 0): "b:1"}
    descriptions = Descriptions(Network(monkeypatch, {"a:1": shop, "b:1": bank}).owners(fixed=fixed))
    spaces = [RowSpace(name, Layout(1)) for name in ("shop", "bank")]

    async def read() -> list[str]:
        found = await asyncio.gather(*(descriptions.get(space, "shop.items") for space in spaces))
        return [table.key[0].name for table in found]

    assert [asyncio.run(read()) for _ in range(2)] == [["id", "code"]] * 2
    assert (shop.asked, bank.asked) == (["describe"], ["describe"])


async def settle_tasks() -> None:
    """Lets background work go on until it waits for something else."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("keyspaces", [("shop",), ("shop", "bank")])
def test_a_failed_address_is_tried_again_in_the_background(
    monkeypatch: pytest.MonkeyPatch, keyspaces: tuple[str, ...]
) -> None:
    """Only the first reader pays for an owner that is away; the others are told at once until it answers again.

    Also where it owns a single partition, which is refreshed meanwhile.
    """
    owner, now = FakeOwner(failure=AWAY), [100.0]
    network = Network(monkeypatch, {"a:1": owner})
    network.keyspaces = keyspaces
    owners = network.owners(pause_s=2, clock=lambda: now[0])

    async def run() -> None:
        for _ in range(3):
            with pytest.raises(OwnerAway):
                await owners.ask("shop", 0, describe)
        assert owner.asked == ["describe"]
        for passed, asked in ((1, []), (1, ["greet"]), (1, []), (2, ["greet"])):
            owner.asked, now[0] = [], now[0] + passed
            with pytest.raises(OwnerAway):
                await owners.ask("shop", 0, describe)
            await settle_tasks()
            assert owner.asked == asked
        owner.failure, owner.asked, now[0] = None, [], now[0] + 2
        with pytest.raises(OwnerAway):
            await owners.ask("shop", 0, describe)
        await settle_tasks()
        assert await owners.ask("shop", 0, describe) == owner.description
        assert owner.asked == ["greet", "describe"]

    asyncio.run(run())


def test_a_partition_without_an_announced_owner_is_asked_at_its_last_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only consumer withdraws when it is restarted, and comes back there before it announces itself."""
    owner, now = FakeOwner(), [100.0]
    network = Network(monkeypatch, {"a:1": owner})
    owners = network.owners(clock=lambda: now[0])

    async def run() -> None:
        await owners.ask("shop", 0, describe)
        network.announced[0] = []
        await owners.ask("shop", 0, describe)  # the front learns now that it was withdrawn
        now[0] += REMEMBERED_S - 1
        assert await owners.ask("shop", 0, describe) == owner.description
        now[0] += 1
        with pytest.raises(OwnerAway):
            await owners.ask("shop", 0, describe)

    asyncio.run(run())


def test_connections_to_addresses_that_nobody_announces_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front that outlives many owners does not keep one connection for each."""
    old, new, now = FakeOwner(), FakeOwner(), [100.0]
    network = Network(monkeypatch, {"a:1": old, "b:1": new})
    owners = network.owners(clock=lambda: now[0])

    async def run() -> None:
        await owners.ask("shop", 0, describe)
        network.announced[0] = ["b:1"]
        await owners.ask("shop", 0, describe)
        await settle_tasks()
        assert old.asked == ["describe", "close"]
        assert new.asked == ["describe"]

    asyncio.run(run())


def test_an_address_that_was_last_known_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has announced its partition since, so its connection is closed when another is opened."""
    old, new, now = FakeOwner(), FakeOwner(), [100.0]
    network = Network(monkeypatch, {"a:1": old, "b:1": new})
    owners = network.owners(clock=lambda: now[0])

    async def run() -> None:
        await owners.ask("shop", 0, describe)
        network.announced = {0: [], 1: ["b:1"]}
        await owners.ask("shop", 0, describe)
        now[0] += REMEMBERED_S
        await owners.ask("shop", 1, describe)
        for _ in range(5):
            await asyncio.sleep(0)
        assert old.asked[-1] == "close"
        assert "close" not in new.asked

    asyncio.run(run())


def test_a_front_that_ends_closes_every_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where closing one of them fails."""
    first, broken, last = FakeOwner(), FakeOwner(), FakeOwner()
    network = Network(monkeypatch, {"a:1": first, "b:1": broken, "c:1": last})
    network.announced = {0: ["a:1"], 1: ["b:1"], 2: ["c:1"]}

    async def run() -> None:
        owners = network.owners()
        for partition in range(3):
            await owners.ask("shop", partition, describe)
        broken.failure = AWAY
        await owners.close()

    asyncio.run(run())
    assert [owner.asked for owner in (first, broken, last)] == [["describe", "close"]] * 3


def read(owners: Owners, consistency: Consistency = "bounded", patience_s: float | None = None) -> Description:
    return asyncio.run(
        owners.read("shop", 0, describe, lambda found: found.found, consistency=consistency, patience_s=patience_s)
    )


def following(network: Network, *addresses: str, zone: str = "") -> Owners:
    """Owners whose partition 0 has followers at ``addresses``, each in the zone that its name says."""
    return network.owners(followers=[Replica(each, "", each[0]) for each in addresses], zone=zone)


def test_a_follower_answers_while_the_owner_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest that answers; the owner alone may answer a request for the leader, and is asked first otherwise."""
    away, far, near, dead = FakeOwner(failure=AWAY), FakeOwner(), FakeOwner(), FakeOwner(failure=AWAY)
    network = Network(monkeypatch, {"o:1": away, "e:1": far, "w:1": dead, "w:2": near})
    owners = following(network, "e:1", "w:1", "w:2", zone="w")
    assert read(owners) == near.description
    assert (dead.asked, near.asked, far.asked) == (["describe"], ["describe"], [])
    with pytest.raises(OwnerAway):
        read(following(network, "e:1"), "leader")
    away.failure = None
    assert read(following(network, "e:1")) == away.description
    assert far.asked == []


def test_a_followers_answer_that_proves_nothing_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is behind: the owner is asked too, and the follower's word counts only if that is away."""
    owner, behind = FakeOwner(), FakeOwner()
    behind.description = Description(0, False, "")
    network = Network(monkeypatch, {"o:1": owner, "f:1": behind})
    owners = following(network, "f:1", zone="f")
    assert read(owners, "any") == owner.description
    assert behind.asked == ["describe"]
    owner.failure = AWAY
    assert read(following(network, "f:1", zone="f"), "any") == behind.description


@pytest.mark.parametrize("code", ["bad_filter", "bad_token"])
def test_a_followers_refusal_is_not_the_readers(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """It may be of an older version, which does not know what the owner answers."""
    owner, older = FakeOwner(), FakeOwner(failure=OwnerError("no", code=code))
    owners = following(Network(monkeypatch, {"o:1": owner, "f:1": older}), "f:1", zone="f")
    assert read(owners, "any") == owner.description
    assert older.asked == ["describe"]
    owner.failure = AWAY
    with pytest.raises(OwnerAway):
        read(owners)


def test_an_owner_that_keeps_no_such_key_is_not_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The front's layout or description is wrong, which it must learn: a follower that is behind may still answer."""
    owner, behind = FakeOwner(failure=OwnerError("it is kept in partition 1", code="wrong_partition")), FakeOwner()
    with pytest.raises(OtherPartition):
        read(following(Network(monkeypatch, {"o:1": owner, "f:1": behind}), "f:1"))
    assert behind.asked == []


def test_any_instance_takes_turns_within_the_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are spread over the instances of the front's zone; without one, over all, the owner among them."""
    instances = {address: FakeOwner() for address in ("o:1", "a:1", "a:2", "b:1")}
    network = Network(monkeypatch, instances)
    owners = following(network, "a:1", "a:2", "b:1", zone="a")
    for _ in range(6):
        read(owners, "any")
    assert [len(each.asked) for each in instances.values()] == [0, 3, 3, 0]
    owners = following(network, "a:1", "a:2", "b:1")  # the owner says no zone either
    for _ in range(4):
        read(owners, "any")
    assert [len(each.asked) for each in instances.values()] == [4, 3, 3, 0]
    owners = following(network, "a:1", "a:2", "b:1", zone="c")
    for _ in range(8):
        read(owners, "any")
    assert [len(each.asked) for each in instances.values()] == [6, 5, 5, 2]


def test_a_silent_owner_is_passed_by_and_still_asked_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused process costs a reader a moment, not its time-out; once that has passed, nothing at all."""
    owner, follower = FakeOwner(), FakeOwner()
    monkeypatch.setattr("serving.reads.owners.HEDGE_S", 0.02)
    owners = following(Network(monkeypatch, {"o:1": owner, "f:1": follower}), "f:1")

    async def run() -> None:
        resumed, asked = asyncio.Event(), []

        async def silent(*_: object) -> Description:
            asked.append(1)
            await resumed.wait()
            raise AWAY

        monkeypatch.setattr(owner, "describe", silent)
        for _ in range(2):
            assert await owners.read("shop", 0, describe, patience_s=0.0) == follower.description
        resumed.set()
        await settle_tasks()
        monkeypatch.setattr("serving.reads.owners.HEDGE_S", 3600.0)
        assert await owners.read("shop", 0, describe, patience_s=0.0) == follower.description
        assert len(asked) == 2  # the third reader was not sent to it
        await owners.close()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_slow_owner_is_waited_for_if_the_follower_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that is behind answers sooner, and its answer would send the reader to the source."""
    owner, behind = FakeOwner(), FakeOwner()
    monkeypatch.setattr("serving.reads.owners.HEDGE_S", 0.02)
    owners = following(Network(monkeypatch, {"o:1": owner, "f:1": behind}), "f:1")

    async def run() -> None:
        follower_has_answered = asyncio.Event()

        async def answers_at_once(*_: object) -> Description:
            asyncio.get_running_loop().call_later(0.02, follower_has_answered.set)
            return Description(0, False, "")

        async def slow(*_: object) -> Description:
            await follower_has_answered.wait()
            return owner.description

        monkeypatch.setattr(behind, "describe", answers_at_once)
        monkeypatch.setattr(owner, "describe", slow)
        found = await owners.read("shop", 0, describe, lambda each: each.found, patience_s=0.0)
        assert found == owner.description
        await owners.close()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_follower_that_hangs_holds_up_no_answer_of_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower is asked beside a slow owner: whoever answers first counts."""
    owner, follower = FakeOwner(), FakeOwner()
    monkeypatch.setattr("serving.reads.owners.HEDGE_S", 0.02)
    owners = following(Network(monkeypatch, {"o:1": owner, "f:1": follower}), "f:1")

    async def run() -> None:
        follower_is_asked = asyncio.Event()

        async def hangs(*_: object) -> Description:
            follower_is_asked.set()
            await asyncio.Event().wait()
            raise AWAY

        async def slow(*_: object) -> Description:
            await follower_is_asked.wait()
            return owner.description

        monkeypatch.setattr(follower, "describe", hangs)
        monkeypatch.setattr(owner, "describe", slow)
        assert await owners.read("shop", 0, describe, patience_s=0.0) == owner.description
        await owners.close()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_followers_connection_outlives_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections to what nobody announces are closed; a follower's is not."""
    away, follower, other = FakeOwner(failure=AWAY), FakeOwner(), FakeOwner()
    network = Network(monkeypatch, {"o:1": away, "f:1": follower, "p:1": other})
    network.announced[1] = ["p:1"]
    owners = following(network, "f:1")

    async def run() -> None:
        await owners.read("shop", 0, describe)
        await owners.ask("shop", 1, describe)
        await settle_tasks()

    asyncio.run(run())
    assert follower.asked == ["describe"]
