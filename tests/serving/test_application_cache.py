"""The application's own cache: readers and invalidators that are killed anywhere, and a store that drops anything."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from serving.client import FreshetClient, HistoryLost, Session, StreamChange, StreamEvent
from serving.client.answers import RowAnswer
from serving.client.cache import (
    CachedRow,
    DictStore,
    EntryTooLarge,
    Found,
    Invalidator,
    MemcachedStore,
    ObjectCache,
    RowCache,
    Store,
    StoreRefused,
)
from serving.client.cache.entries import (
    Entry,
    Floor,
    Raise,
    Told,
    covers,
    decode,
    encode,
    floor_name,
    parsed,
    raised,
    row_name,
)
from serving.client.cache.reading import LEASE_S, Entries
from serving.client.session import Doubt
from tests.serving.memcached import MemcachedServer, can_be_had
from tests.serving.scripted_front import Front, problem, vector
from tokens import EventToken, Position, Vector

SHARDS = ("shop/a", "shop/b")
TABLE = "shop.items"
KEYS = range(4)
FLOOR = floor_name("shop")


class Killed(BaseException):
    """A process that dies in the middle of what it does."""


class Flaky:
    """A store whose user dies before or after one of its next operations, if ``dies_in`` says so."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.dies_in: int | None = None
        self.meanwhile: Callable[[], None] | None = None

    def _step(self) -> None:
        if self.meanwhile is not None:
            self.meanwhile()
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in < 0:
                self.dies_in = None
                raise Killed

    def get(self, names: Sequence[str]) -> dict[str, Found]:
        """One after the other, in any order: stores promise none."""
        found: dict[str, Found] = {}
        for name in reversed(names):
            self._step()
            found |= self.store.get([name])
        return found

    def swap(self, name: str, raw: bytes, found: Found | None, ttl_s: int) -> bool:
        """As the store's own."""
        self._step()
        done = self.store.swap(name, raw, found, ttl_s)
        self._step()
        return done


class World:
    """Rows of two shards with all their history. Freshet answers from any place at or past what is demanded."""

    def __init__(self, seed: int, store: Store, drop: Callable[[str], None]) -> None:
        self.random = random.Random(seed)
        self.store, self._drop = store, drop
        self.log: list[StreamEvent] = [self._watermark({})]
        self.at = dict.fromkeys(SHARDS, 1)
        self.rows: dict[int, list[tuple[int, int]]] = {key: [(0, 0)] for key in KEYS}
        """Key → (position, version), as they came."""
        self.flaky = Flaky(store)
        self.invalidators = [self.new_invalidator() for _ in range(2)]
        self.next, self.kept = [0, 0], [0, 0]
        """Of each invalidator, the event that it applies next, and the one after its checkpoint."""
        self.states = ["", ""]
        """Kept with the checkpoints."""
        self.versions = 0
        self.changing = 0
        """The key of the event that an invalidator applies."""
        self.busy = False
        for invalidator in self.invalidators:
            invalidator.begin_anew()

    def new_invalidator(self) -> Invalidator:
        """A process that has just started."""
        return Invalidator(self.flaky, "shop", [TABLE], sleep=lambda _: None)

    def shard(self, key: int) -> str:
        """The shard of a key."""
        return SHARDS[key % 2]

    def _watermark(self, at: dict[str, int]) -> StreamEvent:
        vector = Vector({shard: (1, Position.parse(f"MariaDB/0-1-{each}")) for shard, each in at.items()})
        return StreamEvent("watermark", token=str(vector), checkpoint=str(len(getattr(self, "log", []))))

    def write(self) -> tuple[int, str]:
        """A transaction of one row, and now and then what voids the table. Returns the key and the token."""
        key = self.random.choice(KEYS)
        shard = self.shard(key)
        self.at[shard] += 1
        self.versions += 1
        self.rows[key].append((self.at[shard], self.versions))
        token = str(EventToken(0, shard, Position.parse(f"MariaDB/0-1-{self.at[shard]}"), epoch=1))
        change = StreamChange("row", TABLE, [key], "value")
        if self.random.random() < 0.1:
            change = StreamChange("void", TABLE)
        self.log.append(StreamEvent("transaction", token=token, changes=[change], checkpoint="c"))
        if self.random.random() < 0.5:
            some = self.at if self.random.random() < 0.7 else {shard: self.at[shard]}  # after a start: not of all yet
            self.log.append(self._watermark(some))
        if self.random.random() < 0.03:
            self.log.append(StreamEvent("unreadable", checkpoint="c"))
        return key, token

    def forget(self) -> None:
        """The store drops an entry, seldom the floor."""
        key = self.random.choice(KEYS)
        self._drop(row_name("shop", TABLE, [key]) if self.random.random() < 0.95 else FLOOR)

    def invalidate(self) -> None:
        """One invalidator applies one event, and may die in it. Then it begins at its checkpoint."""
        which = self.random.randrange(2)
        if self.next[which] >= len(self.log):
            return
        if self.random.random() < 0.15:
            self.flaky.dies_in = self.random.randrange(6)
        event = self.log[self.next[which]]
        self.changing = next((change.key[0] for change in event.changes if change.key), self.changing)
        try:
            self.invalidators[which].apply(event)
        except Killed:
            anew = self.new_invalidator()
            anew.go_on(self.states[which])
            if not self.kept[which]:
                anew.begin_anew()
            self.invalidators[which], self.next[which] = anew, self.kept[which]
            return
        finally:
            self.flaky.dies_in = None
        self.next[which] += 1
        if not self.invalidators[which]._begins_anew and self.random.random() < 0.5:
            self.kept[which] = self.next[which]
            self.states[which] = self.invalidators[which].state

    def others(self) -> None:
        """What others do between two steps of a reader."""
        if self.busy or self.random.random() < 0.7:
            return
        self.busy = True
        for _ in range(self.random.randrange(5)):
            self.random.choice([self.write, *[self.invalidate] * 4, self.forget])()
        self.busy = False

    def answer(self, key: int, demand: Vector) -> RowAnswer[dict[str, Any]]:
        """Of Freshet, which lags as far as the demand lets it."""
        shard = self.shard(key)
        component = demand.get(shard)
        lowest = 0
        if component is not None:
            lowest = int(str(component.position).rpartition("-")[2])
        lo = self.random.randint(min(lowest, self.at[shard]), self.at[shard])
        version = [version for at, version in self.rows[key] if at <= lo][-1]
        token = str(EventToken(0, shard, Position.parse(f"MariaDB/0-1-{lo}"), epoch=1)) if lo else None
        served = "cache" if self.random.random() < 0.9 else "source"
        freshness = "fresh" if demand else "eventual"
        value = {"id": key, "v": version}
        session = str(demand.merge(Vector.parse(token))) if token else str(demand)
        return RowAnswer(cast("Any", served), cast("Any", freshness), "", session, True, value, token)


class Reader:
    """What `RowCache` uses of a session, and of a client."""

    def __init__(self, world: World, token: str = "") -> None:
        self.world, self.vector = world, Vector.parse(token) if token else Vector()

    @property
    def token(self) -> str:
        """As `Session.token`."""
        return str(self.vector)

    def is_in_doubt(self, _: str) -> bool:
        """As `Session.is_in_doubt`."""
        return False

    def session(self, token: str) -> Reader:
        """As `FreshetClient.session`."""
        return Reader(self.world, token)

    def adopt(self, token: str) -> None:
        """As `Session.adopt`."""
        self.vector = self.vector.merge(Vector.parse(token))

    def get_row(self, _: str, __: str, key: int, **___: object) -> RowAnswer[dict[str, Any]]:
        """As `Session.get_row`."""
        self.world.others()
        answer = self.world.answer(key, self.vector)
        self.world.others()
        self.adopt(answer.token)
        return answer


def read(world: World, reader: Reader, cache: RowCache, key: int) -> CachedRow | None:
    """One read with a session; None if the reader died in it. Checks that it is as new as the session demands."""
    seen = reader.vector.get(world.shard(key))
    demanded = int(str(seen.position).rpartition("-")[2]) if seen is not None else 0
    least = [version for at, version in world.rows[key] if at <= demanded][-1]
    try:
        row = cache.get_row(cast("Session", reader), TABLE, key)
    except Killed:
        return None
    assert row.value is not None
    assert row.value["v"] >= least, "a session went back in time"
    return row


def play(seed: int, store: Store, drop: Callable[[str], None], steps: int) -> int:
    """One story. At its end all is told, and nothing that is cached may be old. How many reads the store answered."""
    world = World(seed, store, drop)
    flaky = Flaky(store)
    flaky.meanwhile = world.others
    sessions = [Reader(world) for _ in range(3)]
    cache = RowCache(cast("FreshetClient", Reader(world)), flaky, "shop", {TABLE: ["id"]})
    beside = RowCache(cast("FreshetClient", Reader(world)), store, "shop", {TABLE: ["id"]})
    passing = Reader(world)

    def meanwhile() -> None:
        """Between two steps of an invalidator: the store drops an entry, and somebody reads it."""
        if world.random.random() < 0.4:
            busy, world.busy = world.busy, True
            key = world.changing if world.random.random() < 0.8 else world.random.choice(KEYS)
            if world.random.random() < 0.5:
                drop(row_name("shop", TABLE, [key]))
            read(world, passing, beside, key)
            world.busy = busy

    world.flaky.meanwhile = meanwhile
    hits = 0
    for _ in range(steps):
        flaky.dies_in = world.random.randrange(8) if world.random.random() < 0.1 else None
        session, key = world.random.choice(sessions), world.random.choice(KEYS)
        if world.random.random() < 0.3:  # a session writes, and reads that
            key, token = world.write()
            session.adopt(token)
        row = read(world, session, cache, key)
        hits += row is not None and row.from_store
        world.others()
    world.log.append(world._watermark(world.at))
    while any(place < len(world.log) for place in world.next):
        world.invalidate()
    flaky.dies_in, flaky.meanwhile, world.busy = None, None, True
    for key in KEYS:
        found = cache.get_row(cast("Session", Reader(world)), TABLE, key)
        if found.from_store:
            assert found.value == {"id": key, "v": world.rows[key][-1][1]}, f"key {key} is poisoned"
    return hits


def test_no_schedule_of_kills_and_evictions_poisons_the_cache() -> None:
    """Two invalidators and three readers over a store that drops what it likes: nobody goes back, nothing stays old."""
    hits = 0
    for seed in range(200):
        store = DictStore()
        hits += play(seed, store, store.drop, steps=50)
    assert hits > 1_500


def write_of(world: World, key: int) -> StreamEvent:
    """A transaction of this row, the next one of its shard."""
    shard = world.shard(key)
    world.at[shard] += 1
    world.versions += 1
    world.rows[key].append((world.at[shard], world.versions))
    token = str(EventToken(0, shard, Position.parse(f"MariaDB/0-1-{world.at[shard]}"), epoch=1))
    return StreamEvent("transaction", token=token, changes=[StreamChange("row", TABLE, [key], "value")])


@pytest.mark.parametrize("restarts", ["neither", "the one ahead", "the one ahead, stateless", "the one behind"])
def test_an_invalidator_that_is_behind_makes_no_floor_for_one_that_is_ahead(restarts: str) -> None:
    """The store loses all, the floor is made anew by who is behind: what the other told is not taken for dealt with."""
    for seed in range(10):  # owners that lag more or less
        store = DictStore()
        world = World(seed, store, store.drop)
        world.busy = True
        ahead, behind = world.invalidators
        for each in world.invalidators:
            each.apply(world._watermark(world.at))
        first, second = write_of(world, 2), write_of(world, 0)
        ahead.apply(first)
        ahead.apply(second)
        store.drop(FLOOR)
        store.drop(row_name("shop", TABLE, [0]))
        if restarts != "neither":
            anew = Invalidator(store, "shop", [TABLE])
            anew.go_on(ahead.state if restarts == "the one ahead" else "")
            ahead, behind = (ahead, anew) if restarts == "the one behind" else (anew, behind)
        behind.apply(first)
        ahead.apply(world._watermark({SHARDS[1]: 1}))  # of the other shard: says nothing of this one
        cache = RowCache(cast("FreshetClient", Reader(world)), store, "shop", {TABLE: ["id"]})
        read(world, Reader(world), cache, 0)
        ahead.apply(world._watermark(world.at))
        reads = [read(world, Reader(world, second.token), cache, 0) for _ in range(50)]
        assert any(row is not None and row.from_store for row in reads), "nothing is kept any more"
        behind.apply(second)
        for each in (behind, ahead, behind):
            each.apply(world._watermark(world.at))
        assert ahead.state == behind.state, "each voids what the other began"


class Scripted:
    """What `RowCache` uses of a client, over a front that answers by a script."""

    def __init__(self, front: Front) -> None:
        self.front = front

    def session(self, token: str) -> Session:
        """As `FreshetClient.session`."""
        return Session(self.front, Vector.parse(token))


def kept_by(front: Front) -> tuple[RowCache, Invalidator]:
    """A cache over a scripted front, and its invalidator."""
    store = DictStore()
    cache = RowCache(cast("FreshetClient", Scripted(front)), store, "shop", {TABLE: ["id"]})
    return cache, Invalidator(store, "shop", [TABLE], sleep=lambda _: None)


def told(epoch: int, number: int) -> StreamEvent:
    """A watermark."""
    return StreamEvent("watermark", token=str(vector(shop=f"{epoch} 0-1-{number}")), checkpoint="c")


def read_at(epoch: int, number: int, version: int) -> tuple[int, bytes]:
    """A row of the cache, read at this place."""
    place = vector(shop=f"{epoch} 0-1-{number}")
    event = EventToken(0, "shop/0", Position.parse(f"MariaDB/0-1-{number}"), epoch=epoch)
    answer = RowAnswer("cache", "fresh", "", str(place), True, {"id": 1, "v": version}, str(event))
    return 200, msgspec.json.encode(answer)


def test_a_session_that_does_not_know_its_own_commit_is_given_nothing_kept() -> None:
    """Of such a commit no token tells, so no entry is compared with it: Freshet is asked for all that is committed."""
    front = Front(read_at(1, 5, 1), read_at(1, 6, 2))
    cache, invalidator = kept_by(front)
    invalidator.apply(told(1, 5))
    session = Session(front, vector(shop="1 0-1-5"))
    assert not cache.get_row(session, TABLE, 1).from_store
    assert cache.get_row(session, TABLE, 1).from_store
    session.doubt("shop/0", Doubt(1, 1_800_000_000))
    found = cache.get_row(session, TABLE, 1)
    assert (found.from_store, found.value) == (False, {"id": 1, "v": 2})
    assert front.requests[-1].params["max_staleness_ms"] == "0"


def test_a_checkpoint_is_told_when_its_event_has_been_dealt_with() -> None:
    """An invalidator that dies in the middle of an event does that event again, and says nothing of it before."""
    changed = str(EventToken(0, "shop/0", Position.parse("MariaDB/0-1-6"), epoch=1))
    written = StreamEvent("transaction", "c6", changed, changes=[StreamChange("row", TABLE, [1], "value")])

    class Streaming:
        def stream(self, *_: object, **__: object) -> Iterator[StreamEvent]:
            yield told(1, 5)
            yield written

    for dies_in in range(6):
        store = Flaky(DictStore())
        told_of = [""]
        invalidator = Invalidator(store, "shop", [TABLE], sleep=lambda _: None)
        following = invalidator.follow(cast("FreshetClient", Streaming()))
        told_of.append(next(following))
        store.dies_in = dies_in
        try:
            told_of.append(next(following))
        except Killed:
            assert not told_of[-1].startswith("c6")
        else:
            assert told_of[-1].startswith("c6")
            assert store.store.get([row_name("shop", TABLE, [1])])


def test_a_lost_history_of_the_floor_refuses_no_session() -> None:
    """A reader who has seen nothing of it gets its row; one who has is told once, and goes on."""
    lost = problem("history_lost", str(vector(shop="2 0-1-3")))
    front = Front(lost, read_at(2, 4, 1), lost, lost, read_at(2, 4, 1))
    cache, invalidator = kept_by(front)
    invalidator.apply(told(1, 9))
    assert cache.get_row(Session(front, Vector()), TABLE, 1).value == {"id": 1, "v": 1}
    session = Session(front, vector(shop="1 0-1-9"))
    with pytest.raises(HistoryLost):
        cache.get_row(session, TABLE, 2)
    assert session.vector == vector(shop="2 0-1-3")
    assert cache.get_row(session, TABLE, 2).value == {"id": 1, "v": 1}


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_session_whose_history_is_lost_is_told_whatever_others_keep(is_kept: bool) -> None:
    """A row of a later history says nothing of what was lost before it: only a front knows, and it asks that one."""
    lost, left = problem("history_lost", str(vector(shop="2 0-1-3"))), read_at(2, 4, 1)
    front = Front(left, lost, left)
    cache, invalidator = kept_by(front)
    invalidator.apply(told(2, 3))
    if is_kept:
        cache.get_row(Session(front, Vector()), TABLE, 1)
    session = Session(front, vector(shop="1 0-1-9"))
    with pytest.raises(HistoryLost):
        cache.get_row(session, TABLE, 1)
    assert cache.get_row(session, TABLE, 1).from_store


def test_a_shard_that_has_failed_over_costs_no_rows_of_others() -> None:
    """What a session has seen of it says nothing of another shard's rows: they are kept, and given to it."""
    front = Front(read_at(1, 5, 1))
    cache, invalidator = kept_by(front)
    ahead = vector(shop="1 0-1-5").merge(Vector({"shop/b": (2, Position.parse("MariaDB/0-2-1"))}))
    invalidator.apply(StreamEvent("watermark", token=str(ahead), checkpoint="c"))
    session = Session(front, vector(shop="1 0-1-5").merge(Vector({"shop/b": (1, Position.parse("MariaDB/0-2-9"))})))
    found = [cache.get_row(session, TABLE, 1) for _ in range(3)]
    assert [each.from_store for each in found] == [False, True, True]


def test_a_table_that_two_shards_void_is_void_by_both() -> None:
    """A value must have both events in it, whichever came last."""
    one, other = vector(shop="1 0-1-5"), Vector({"shop/b": (1, Position.parse("MariaDB/0-2-9"))})
    floor = None
    for token in (one, other):
        floor = raised(floor, Raise(token, voided=[TABLE]), [TABLE], "g")
    assert floor is not None
    assert covers(parsed(floor.voids[TABLE]), one.merge(other))


def test_a_row_of_a_shard_that_no_invalidator_has_told_of_is_not_kept() -> None:
    """It may have changed before the first event that is told of the shard: nothing would say so."""
    front = Front(read_at(1, 5, 1), read_at(1, 5, 1))
    cache, invalidator = kept_by(front)
    other = Vector({"shop/b": (1, Position.parse("MariaDB/0-2-9"))})
    invalidator.apply(StreamEvent("watermark", token=str(other), checkpoint="c"))
    found = [cache.get_row(Session(front, Vector()), TABLE, 1) for _ in range(2)]
    assert [each.from_store for each in found] == [False, False]


def test_a_store_swaps_only_what_is_still_there() -> None:
    """Two readers that have seen the same entry: one of them changes it. What was set last is dropped last."""
    store = DictStore(entries_max=2)
    assert store.swap("a", b"1", None, 0)
    seen = store.get(["a"])["a"]
    assert store.swap("a", b"2", seen, 0)
    assert not store.swap("a", b"3", seen, 0)
    assert store.swap("b", b"1", None, 0)
    assert store.swap("b", b"2", store.get(["b"])["b"], 0)
    assert store.swap("a", b"4", store.get(["a"])["a"], 0)
    assert store.swap("c", b"1", None, 0)
    assert {name: found.raw for name, found in store.get(["a", "b", "c"]).items()} == {"a": b"4", "c": b"1"}


@pytest.mark.parametrize("raw", [b"", b"{}", b"[1", b"\x91\xa1\xff", b"\x99" + b"\xa0" * 8 + b"\x91" * 100_000])
def test_what_others_put_into_the_store_is_no_entry(raw: bytes) -> None:
    """Each read of the row would fail until the store drops it."""
    assert decode(raw, Entry) is None


def test_what_is_known_of_an_earlier_epoch_proves_nothing_of_a_later_one() -> None:
    """Whatever its position is: the log of the later epoch counts anew."""
    have, same = vector(shop="1 0-1-9"), vector(shop="1 0-1-8")
    assert covers(have, same)
    assert not covers(have, vector(shop="2 0-1-1"))
    assert covers(vector(shop="2 0-1-1"), have)


def test_a_row_that_does_not_say_where_it_stands_is_not_kept() -> None:
    """A front of before event tokens: nobody could tell of it whether it is new enough."""
    status, body = read_at(1, 5, 1)
    answer = msgspec.json.decode(body)
    del answer["event_token"]
    front = Front((status, msgspec.json.encode(answer)), (status, body))
    cache, invalidator = kept_by(front)
    invalidator.apply(told(1, 5))
    session = Session(front, vector(shop="1 0-1-5"))
    assert [cache.get_row(session, TABLE, 1).from_store for _ in range(2)] == [False, False]


def test_a_row_of_the_source_is_not_kept() -> None:
    """It may be of a table that is always read through: of what changes there the stream tells nothing."""
    status, body = read_at(1, 5, 1)
    through = msgspec.json.encode(msgspec.json.decode(body) | {"served_from": "source"})
    front = Front((status, through), (status, through))
    cache, invalidator = kept_by(front)
    invalidator.apply(told(1, 5))
    session = Session(front, vector(shop="1 0-1-5"))
    assert [cache.get_row(session, TABLE, 1).from_store for _ in range(2)] == [False, False]


def test_an_invalidator_begins_now_and_keeps_its_place() -> None:
    """An event without a checkpoint leaves the one of before: it is still the place to go on from."""
    begins: list[str] = []

    class Streaming:
        def stream(self, _: str, begin: str, **__: object) -> Iterator[StreamEvent]:
            begins.append(begin)
            yield told(1, 5)
            yield StreamEvent("watermark", token=str(vector(shop="1 0-1-6")))

    following = Invalidator(DictStore(), "shop", [TABLE]).follow(cast("FreshetClient", Streaming()))
    assert [next(following).partition("@")[0] for _ in range(2)] == ["c", "c"]
    assert begins == ["now"]


def test_an_event_that_is_applied_again_changes_no_entry() -> None:
    """An invalidator that was killed does its last event again: readers that fill meanwhile need not begin anew."""
    cache, invalidator = kept_by(Front(read_at(1, 5, 1)))
    invalidator.apply(told(1, 5))
    cache.get_row(Session(Front(read_at(1, 5, 1)), vector(shop="1 0-1-5")), TABLE, 1)
    changed = str(EventToken(0, "shop/0", Position.parse("MariaDB/0-1-6"), epoch=1))
    written = StreamEvent("transaction", "c6", changed, changes=[StreamChange("row", TABLE, [1], "value")])
    store, name = invalidator._store, row_name("shop", TABLE, [1])
    invalidator.apply(written)
    once = store.get([name])
    invalidator.apply(written)
    assert store.get([name]) == once != {}


def test_what_a_store_drops_is_gone() -> None:
    """The schedules of kills and evictions rely on it: a store that kept all would show none of their mistakes."""
    store = DictStore()
    assert store.swap("a row", b"1", None, 0)
    store.drop("a row")
    assert store.get(["a row"]) == {}


def test_a_killed_readers_lease_ends() -> None:
    """While one reader fills, others read and keep nothing; the lease of one that died is over in time."""
    now = 0.0
    store = DictStore(clock=lambda: now)
    world = World(1, store, store.drop)
    world.busy = True
    for each in world.invalidators:
        each.apply(write_of(world, 0))
        each.apply(world._watermark(world.at))
    store.drop(row_name("shop", TABLE, [0]))
    flaky = Flaky(store)
    dying = RowCache(cast("FreshetClient", Reader(world)), flaky, "shop", {TABLE: ["id"]})
    flaky.dies_in = 3  # it has read, and set its lease
    assert read(world, Reader(world), dying, 0) is None
    cache = RowCache(cast("FreshetClient", Reader(world)), store, "shop", {TABLE: ["id"]})

    def is_kept() -> bool:
        return any((row := read(world, Reader(world), cache, 0)) is not None and row.from_store for _ in range(20))

    assert not is_kept(), "two have filled at once"
    now = LEASE_S + 0.1
    assert is_kept(), "nobody fills after a reader that died"


class Small(DictStore):
    """A store that takes tombstones and leases, and no row."""

    def swap(self, name: str, raw: bytes, found: Found | None, ttl_s: int) -> bool:
        """As `Store.swap`."""
        if name != FLOOR and msgspec.msgpack.decode(raw, type=Entry).value is not None:
            raise EntryTooLarge(len(raw))
        return super().swap(name, raw, found, ttl_s)


def test_a_row_that_the_store_does_not_take_is_answered_all_the_same() -> None:
    """It is read each time, and no lease of it stays: who comes next need not wait for one to end."""
    front, store = Front(read_at(1, 5, 1), read_at(1, 5, 1)), Small()
    cache = RowCache(cast("FreshetClient", Scripted(front)), store, "shop", {TABLE: ["id"]})
    Invalidator(store, "shop", [TABLE]).apply(told(1, 5))
    for _ in range(2):
        row = cache.get_row(Session(front, vector(shop="1 0-1-5")), TABLE, 1)
        assert (row.from_store, row.value) == (False, {"id": 1, "v": 1})
        kept = store.get([name := row_name("shop", TABLE, [1])])[name]
        assert msgspec.msgpack.decode(kept.raw, type=Entry).lease == ""


FIRST, SECOND = Floor("first", told=[Told([TABLE])]), Floor("second", told=[Told([TABLE])])
MINE = Entry("first", lease="mine")


@pytest.mark.parametrize(
    ("floor", "entry", "is_mine"),
    [
        (FIRST, MINE, True),
        (None, MINE, False),
        (FIRST, None, False),
        (None, None, False),
        (SECOND, MINE, False),
        (FIRST, Entry("first", lease="another's"), False),
        (SECOND, Entry("second", lease="another's"), False),
    ],
)
def test_a_lease_counts_only_if_it_is_still_there(
    monkeypatch: pytest.MonkeyPatch, floor: Floor | None, entry: Entry | None, is_mine: bool
) -> None:
    """The store may drop either, and others may begin anew, between a lease and the floor that is read after it."""

    class Changing(DictStore):
        def swap(self, name: str, raw: bytes, found: Found | None, ttl_s: int) -> bool:
            done = super().swap(name, raw, found, ttl_s)
            if name == "row":
                for each, value in ((FLOOR, floor), (name, entry)):
                    self.drop(each)
                    if value is not None:
                        super().swap(each, encode(value), None, 0)
            return done

    monkeypatch.setattr("uuid.uuid4", lambda: SimpleNamespace(hex="mine"))
    store = Changing()
    store.swap(FLOOR, encode(FIRST), None, 0)
    entries = Entries(store, "shop")
    assert (entries.lease("row", entries.see("row"), TABLE, [TABLE]) is not None) == is_mine


def test_a_session_with_a_newer_token_is_given_nothing_kept() -> None:
    """What a newer front has told it can't be compared here, so a front is asked, with all of the token."""
    front = Front(read_at(1, 5, 1), read_at(1, 6, 2))
    cache, invalidator = kept_by(front)
    invalidator.apply(told(1, 5))
    assert not cache.get_row(Session(front, vector(shop="1 0-1-5")), TABLE, 1).from_store
    session = Session(front, vector(shop="1 0-1-5"))
    session.adopt("v9.AAAA")
    found = cache.get_row(session, TABLE, 1)
    assert (found.from_store, found.value) == (False, {"id": 1, "v": 2})
    assert "v9.AAAA" in front.requests[-1].params["token"]


@pytest.fixture(scope="module")
def memcached() -> Iterator[MemcachedServer]:
    """A real one."""
    if not can_be_had():
        pytest.skip("NOT RUN: no memcached can be fetched here")
    with (
        tempfile.TemporaryDirectory(prefix="freshet-memcached-") as directory,
        MemcachedServer(Path(directory)) as server,
    ):
        yield server


@pytest.mark.integration
def test_memcached_says_what_it_does_not_take(memcached: MemcachedServer) -> None:
    """Its words are told from a failure: an object of thousands of rows is larger than its 1 MiB."""
    store, large = MemcachedStore(memcached.client()), b"x" * 2_000_000
    with pytest.raises(EntryTooLarge):
        store.swap("large", large, None, 0)
    assert store.swap("small", b"x", None, 0)
    with pytest.raises(EntryTooLarge):
        store.swap("small", large, store.get(["small"])["small"], 0)
    assert store.get(["large", "small"])["small"].raw == b"x"


@pytest.mark.integration
def test_a_memcached_that_does_not_compare_is_refused() -> None:
    """Started with -C it takes no CAS at all: nothing would be kept, and invalidators would try for ever."""
    with (
        tempfile.TemporaryDirectory(prefix="freshet-memcached-") as directory,
        MemcachedServer(Path(directory), "-C") as server,
    ):
        client = server.client()
        client.set("row", b"new", noreply=False)
        assert not client.cas("row", b"old", client.gets("row")[1], noreply=False), "though nobody changed it"
        with pytest.raises(StoreRefused) as refused:
            MemcachedStore(client).get(["row"])
        assert "-C" in refused.value.hint


def test_what_is_no_store_is_refused_before_anything_is_cached() -> None:
    """A client in place of a store, or one that can't compare and set, is found where it is given."""
    front: Any = SimpleNamespace()
    client: Any = SimpleNamespace(get=print, set=print, gets_many=print, add=print)
    with pytest.raises(StoreRefused, match="no cas"):
        MemcachedStore(client)
    for make in (
        lambda: RowCache(front, client, "shop", {TABLE: ["id"]}),
        lambda: ObjectCache(front, client, "shop", {"item": {TABLE: ["id"]}}),
        lambda: Invalidator(client, "shop", [TABLE]),
    ):
        with pytest.raises(StoreRefused, match="no swap") as refused:
            make()
        assert refused.value.code == "store_refused"
        assert refused.value.hint


@pytest.mark.integration
def test_no_schedule_poisons_a_real_memcached(memcached: MemcachedServer) -> None:
    """The same stories, with memcached's own CAS, evictions and names."""
    client = memcached.client()
    hits = 0
    for seed in range(1_000, 1_030):
        client.flush_all(noreply=False)
        hits += play(seed, MemcachedStore(client), lambda name: client.delete(name, noreply=False), steps=40)
    assert hits > 25
