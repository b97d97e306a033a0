"""What a front keeps of the shards around its own: by shard, and in the epoch that named them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from consumers.fold.shards import Kin
from consumers.owner.evidence import demand_of
from consumers.owner.protocol import ShardKin, Waited
from consumers.owner.rows import answer_row
from lab.simulation.models.loop import VirtualLoop
from serving.answers import RawRowAnswer
from serving.errors import ReadError
from serving.locations.places import Key, Location, Origin, Replica, Version
from serving.locations.refreshing import Locations
from serving.metrics import FrontMetrics
from serving.reads.demands import ReadDemand, RequestedRow
from serving.reads.descriptions import Descriptions
from serving.reads.fills import Fills
from serving.reads.owners import Owners
from serving.reads.proof import Proof
from serving.reads.rows import RowReads
from serving.reads.spaces import LEARN_EVERY_S, Epochs, RowSpace, learn_shards, unknown_shards
from stream.wire.keys import Layout
from tests.consumers.fold.test_shards import topology
from tests.consumers.histories import SHARD, marker, start, value
from tests.consumers.owning import Owner, schema
from tests.serving.fakes import FakeOwner, FakeRowSource, Network, at, owner_row, seen
from tokens import Decision, Vector
from tokens.decision import ENDED

OLD, OTHER = "shop/old", "shop/1"


async def read(reads: RowReads, space: RowSpace, vector: Vector, key: bytes = b"7") -> RawRowAnswer | ReadError:
    demand = ReadDemand(vector, given=True, max_wait_ms=100)
    [answer] = await reads.read_many(space, [RequestedRow("shop.items", key)], demand)
    return answer


def reads_of(owners: Owners) -> RowReads:
    metrics = FrontMetrics()
    return RowReads(owners, Descriptions(owners), Fills(owners, metrics), metrics)


def test_an_ancestor_is_forgotten_with_the_epoch_that_named_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The successor's new epoch has lost what the session wrote to the ancestor."""
    owner = FakeOwner()
    owner.row = owner_row(None, "0-1-1", "0-1-1")
    owner.row.kin = Kin(frozenset({SHARD}), {OLD: 1})
    source = FakeRowSource(b'{"id":7}', "0-1-120")
    space = RowSpace("shop", Layout(1), source=source)

    async def run() -> None:
        reads = reads_of(Network(monkeypatch, {"a:1": owner}).owners())
        answer = await read(reads, space, seen(OLD, "0-1-100"))
        assert not isinstance(answer, ReadError), answer
        assert answer.freshness == "fresh"
        owner.row = owner_row(None, "0-1-1", "0-1-1", epoch=2)
        owner.row.kin = Kin(frozenset({SHARD}))
        source.position = source.hi = at("0-1-110")
        lost = await read(reads, space, seen(OLD, "0-1-100"))
        assert isinstance(lost, ReadError), lost
        assert (lost.code, lost.token) == ("history_lost", str(Vector()))

    asyncio.run(run())


def test_kin_is_kept_by_shard_and_epoch() -> None:
    """A newer epoch replaces it, in one epoch it grows, and of an epoch that nobody has told of nothing is known."""
    epochs, nothing = Epochs(), Vector()
    epochs.learn_kin(SHARD, 1, Kin(frozenset({SHARD}), {OLD: 3}))
    epochs.learn_kin(SHARD, 1, Kin(frozenset({SHARD, OTHER})))
    both = Kin(frozenset({SHARD, OTHER}), {OLD: 3})
    assert epochs.kin_of(SHARD, nothing) == both
    assert epochs.kin_of(OTHER, nothing) == Kin()
    assert epochs.kin_of(SHARD, seen(SHARD, "0-1-1", epoch=2)) == Kin()
    epochs.learn(SHARD, 2)
    assert epochs.kin_of(SHARD, nothing) == Kin()
    epochs.learn_kin(SHARD, 2, Kin(frozenset({SHARD})))
    epochs.learn_kin(SHARD, 1, both)
    assert epochs.kin_of(SHARD, nothing) == Kin(frozenset({SHARD}))


def test_an_ancestor_of_another_keyspace_is_not_of_no_concern_in_a_later_epoch() -> None:
    """It is no shard of the successor's topology, so who only drops it would take it for a stranger."""
    epochs, vector, successor = Epochs(), seen(SHARD, "0-1-9"), "moved/0"
    epochs.learn_kin(successor, 1, Kin(frozenset({successor}), {SHARD: 1}))

    def judge(position: str) -> Decision:
        proof = Proof(ReadDemand(vector, True), successor, epochs.known[successor], epochs.kin_of(successor, vector))
        return proof.judge(at(position))

    assert (judge("0-1-9").freshness, judge("0-1-8").freshness) == ("fresh", "stale")
    epochs.learn(successor, 2)
    assert not judge("0-1-8").may_be_served
    epochs.learn_kin(successor, 2, Kin(frozenset({successor}), {SHARD: ENDED}))
    assert judge("0-1-9").history_lost


def test_a_shard_that_was_added_is_not_lost_for_an_owner_that_catches_up() -> None:
    """An owner that rebuilds has folded an old topology. Only one that has caught up can say that a shard is none."""
    epochs, vector = Epochs(), seen(OTHER, "0-2-9").merge(seen(SHARD, "0-1-9"))

    def refusal(*, caught_up: bool) -> ReadError:
        epochs.learn_kin(SHARD, 1, Kin(frozenset({SHARD}), caught_up=caught_up))
        proof = Proof(ReadDemand(vector, True), SHARD, 1, epochs.kin_of(SHARD, vector))
        return proof.refusal(proof.judge(at("0-1-9")), at("0-1-9"))

    assert (refusal(caught_up=False).code, refusal(caught_up=True).code) == ("source_behind", "history_lost")


def test_an_owner_that_is_behind_does_not_take_back_that_another_one_had_caught_up() -> None:
    """Its topology adds nothing, so what the session has seen of a shard that nobody knows is lost all the same."""
    epochs = Epochs()
    for caught_up in (True, False):
        epochs.learn_kin(SHARD, 1, Kin(frozenset({SHARD}), caught_up=caught_up))
    assert epochs.kin_of(SHARD, Vector()).caught_up


def test_an_owner_says_whether_it_has_caught_up(tmp_path: Path) -> None:
    """In each answer that names the shards around a key."""
    owner = Owner(tmp_path)
    owner.fold(start(), topology(SHARD), schema(2), marker(2))
    for is_ready in (False, True):
        owner.partition.ready = is_ready
        assert answer_row(owner.partition, b"shop.items\0[7]", demand_of("")).kin.caught_up is is_ready
    owner.partition.store.close(commit=False)


def test_an_ancestor_of_another_shard_is_not_judged_by_this_one() -> None:
    """Its positions are positions of the shard that took over from it."""
    epochs, shards = Epochs(), frozenset({SHARD, OTHER})
    epochs.learn_kin(SHARD, 1, Kin(shards))
    epochs.learn_kin(OTHER, 1, Kin(shards, {OLD: 1}))
    vector = seen(SHARD, "0-1-5").merge(seen(OLD, "0-1-7"))
    proof = Proof(ReadDemand(vector, True), SHARD, 1, epochs.kin_of(SHARD, vector))
    assert not proof.judge(at("0-1-9")).may_be_served


def test_a_session_of_two_shards_reads_rows_without_an_entry(tmp_path: Path) -> None:
    """With two shards nobody knows which one an unknown row is of; the source knows its own."""
    owner = Owner(tmp_path)
    owner.fold(start(), topology(SHARD, OTHER), schema(2), value(1, b'{"id":1}', 3), marker(3))
    owner.fold(start(shard=OTHER), topology(SHARD, OTHER, shard=OTHER), marker(1, shard=OTHER))

    async def run() -> None:
        host, port = await owner.server.start()
        owners = Owners(Locations(fixed={("shop", 0): f"{host}:{port}"}), FrontMetrics())
        space = RowSpace("shop", Layout(1), source=FakeRowSource(b'{"id":7}', "0-1-9"))
        answer = await read(reads_of(owners), space, seen(SHARD, "0-1-2").merge(seen(OTHER, "0-1-1")))
        assert not isinstance(answer, ReadError), answer
        assert (answer.served_from, answer.freshness) == ("source", "fresh")
        await owners.close()
        await owner.server.stop()

    asyncio.run(run())
    owner.partition.store.close(commit=False)


@pytest.mark.parametrize(("topic_id", "served_from"), [("theirs", "source"), ("ours", "cache")])
def test_an_address_of_a_withdrawn_owner_is_asked_for_the_announced_topic_only(
    tmp_path: Path, topic_id: str, served_from: str
) -> None:
    """Another installation with keyspaces and shards of the same names may have got the port since."""
    first = Owner(tmp_path / "first", topic_id="ours")
    second = Owner(tmp_path / "second", topic_id=topic_id)
    for owner in (first, second):
        owner.fold(start(), schema(2), value(1, b'{"id":1}', 3), marker(3))

    async def run() -> None:
        host, port = await first.server.start()
        replica = Replica(f"{host}:{port}", "ours")
        locations = Locations()
        announced = Location(Key("shop", 0), Version(1), replica)
        locations.cache.install(announced, Origin.PUSH, 0.0, locations.clock())
        owners = Owners(locations, FrontMetrics(), pause_s=0)
        reads = reads_of(owners)
        space = RowSpace("shop", Layout(1), source=FakeRowSource(b'{"id":1}', "0-1-9"))
        found = await read(reads, space, seen(SHARD, "0-1-2"), b"1")
        assert not isinstance(found, ReadError), found
        assert found.served_from == "cache"
        await first.server.stop()
        locations.cache.install(announced._replace(gone=True, place=1), Origin.PUSH, 0.0, locations.clock())
        await second.server.start(host, port)
        await asyncio.sleep(0)
        for _ in range(2):  # the first may find the old connection closed
            found = await read(reads, space, seen(SHARD, "0-1-2"), b"1")
            assert not isinstance(found, ReadError), found
            await owners._client_of(replica).greet()
            locations.cache.down.clear()
        assert found.served_from == served_from
        await owners.close()
        await second.server.stop()

    asyncio.run(run())
    for owner in (first, second):
        owner.partition.store.close(commit=False)


def test_an_answer_without_a_shard_teaches_no_epoch() -> None:
    """An owner that has folded nothing names none; an older epoch doesn't replace a newer one."""
    epochs = Epochs()
    for shard, epoch in (("", 5), (SHARD, 3), (SHARD, 2), (OTHER, 0)):
        epochs.learn(shard, epoch)
    assert epochs.known == {SHARD: 3, OTHER: 0}


class Declaring(FakeOwner):
    """An owner that folds the topology when it is asked for the ``at``-th time."""

    def __init__(self, at: int) -> None:
        super().__init__(watermarks=seen(SHARD, "0-1-5"))
        self.at = at
        self.asked_at: list[float] = []

    async def wait(self, *_: object) -> Waited:
        self._ask("wait")
        self.asked_at.append(asyncio.get_running_loop().time())
        kin = Kin(frozenset({SHARD, OTHER})) if len(self.asked) >= self.at else Kin()
        return Waited(0, True, self.watermarks, [ShardKin(SHARD, 1, kin)])


@pytest.mark.parametrize(
    ("at", "patience_s", "asks"),
    [(1, 0.0, [1]), (2, 0.0, [1]), (3, 60.0, [3]), (1_000, 4 * LEARN_EVERY_S, range(1, 6))],
)
def test_owners_are_asked_for_shards_until_they_are_known_or_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch, at: int, patience_s: float, asks: Sequence[int]
) -> None:
    """An owner may still be folding what declares them; it is asked again after a pause, never in a busy loop."""
    owner = Declaring(at)
    space = RowSpace("shop", Layout(1), source=FakeRowSource(b"{}", "0-1-9"))
    vector = seen(SHARD, "0-1-5").merge(seen(OTHER, "0-9-9"))

    async def run() -> None:
        owners = Network(monkeypatch, {"a:1": owner}).owners()
        await learn_shards(owners, space, vector, asyncio.get_running_loop().time() + patience_s)

    assert unknown_shards(vector, space) == [OTHER]
    asyncio.run(run())
    assert len(owner.asked) in asks
    assert unknown_shards(vector, space) == ([] if at <= len(owner.asked) else [OTHER])


def test_reads_that_do_not_know_a_shard_ask_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many readers send a token of an unknown shard, the owners are asked once in each pause."""
    owner = Declaring(1_000)
    space = RowSpace("shop", Layout(1), source=FakeRowSource(b"{}", "0-1-9"))
    vector = seen(SHARD, "0-1-5").merge(seen(OTHER, "0-9-9"))

    async def run() -> None:
        owners = Network(monkeypatch, {"a:1": owner}).owners()
        deadline = asyncio.get_running_loop().time() + 3 * LEARN_EVERY_S
        await asyncio.gather(*(learn_shards(owners, space, vector, deadline) for _ in range(50)))

    asyncio.run(run())
    assert len(owner.asked) in range(1, 5)


@pytest.mark.parametrize("patience_s", [0.0, 3.7 * LEARN_EVERY_S])
def test_readers_that_come_one_after_the_other_ask_once_in_each_pause(
    monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    """Each waits for a round that began after it came, even if its time is up: an answer from before may not know the
    shard of its token yet."""
    loop, owner, came_at = VirtualLoop(), Declaring(1_000), list[float]()
    space = RowSpace("shop", Layout(1), source=FakeRowSource(b"{}", "0-1-9"))
    vector = seen(SHARD, "0-1-5").merge(seen(OTHER, "0-9-9"))
    owners = Network(monkeypatch, {"a:1": owner}).owners(clock=loop.time)

    async def read() -> float:
        came_at.append(loop.time())
        await learn_shards(owners, space, vector, loop.time() + patience_s)
        return loop.time()

    reading = []
    for _ in range(40):
        reading.append(loop.create_task(read()))
        loop.advance(LEARN_EVERY_S / 7)
    loop.advance(10 * LEARN_EVERY_S)
    assert all(later - earlier > 0.999 * LEARN_EVERY_S for earlier, later in pairwise(owner.asked_at))
    for came, ended in zip(came_at, (each.result() for each in reading), strict=True):
        assert any(came <= asked <= ended for asked in owner.asked_at)
        assert came + patience_s <= ended + 1e-9 <= came + patience_s + 1.001 * LEARN_EVERY_S


def test_equal_kin_of_a_newer_epoch_is_of_that_epoch() -> None:
    """The shard took over from the same ancestors again: in the new epoch they count, too."""
    epochs, kin = Epochs(), Kin(frozenset({SHARD}), {OLD: 3})
    for epoch in (1, 2, 4):
        epochs.learn_kin(SHARD, epoch, kin)
        assert epochs.kin_of(SHARD, seen(SHARD, "0-1-1", epoch=epoch)) == kin
    assert epochs.kin_of(SHARD, seen(SHARD, "0-1-1", epoch=5)) == Kin()


class Slow(Declaring):
    """An owner that knows the topology, and answers when the test says so."""

    def __init__(self) -> None:
        super().__init__(1)
        self.goes_on = asyncio.Event()

    async def wait(self, *asked: object) -> Waited:
        await self.goes_on.wait()
        return await super().wait(*asked)


def test_a_reader_that_leaves_takes_no_answer_from_those_who_ask_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for the same round of questions, and its own request may have ended by its own time."""
    space = RowSpace("shop", Layout(1), source=FakeRowSource(b"{}", "0-1-9"))
    vector = seen(SHARD, "0-1-5").merge(seen(OTHER, "0-9-9"))

    async def run() -> None:
        owner, loop = Slow(), asyncio.get_running_loop()
        owners = Network(monkeypatch, {"a:1": owner}).owners()
        leaves, stays = (asyncio.create_task(learn_shards(owners, space, vector, loop.time() + 60)) for _ in range(2))
        while space.epochs.asking is None:  # noqa: ASYNC110 - what is waited for is in this thread
            await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.wait([leaves])
        owner.goes_on.set()
        await stays

    asyncio.run(asyncio.wait_for(run(), 20))
    assert unknown_shards(vector, space) == []
