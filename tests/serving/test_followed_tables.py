"""Invalidators that follow other tables than one another, as while a deployment adds one: each speaks for its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import msgspec
import pytest

from serving.client import BadRequest, FreshetClient, Session, StreamChange, StreamEvent
from serving.client.cache import DictStore, Invalidator, ObjectCache, RowCache
from serving.client.cache.entries import Entry, Floor, Told, decode, encode, row_name
from tests.serving.scripted_front import Front, vector
from tests.serving.test_application_cache import FLOOR, KEYS, Flaky, Reader, Scripted, World, read_at, told
from tests.serving.test_composite_objects import OBJECTS, Shop, kept
from tests.serving.test_composite_objects import Reader as ShopReader
from tokens import EventToken, Position

ITEMS, ORDERS = "shop.items", "shop.orders"
PRIMARY_KEYS = {ITEMS: ["id"], ORDERS: ["id"]}


def cache_of(front: Front, store: DictStore) -> RowCache:
    """Of both tables, over a scripted front."""
    return RowCache(cast("FreshetClient", Scripted(front)), store, "shop", PRIMARY_KEYS)


def test_a_watermark_says_nothing_of_a_table_that_is_not_followed() -> None:
    """The old invalidator is told of a position at which a row of the new one's table was written."""
    front, store = Front(read_at(1, 5, 1), read_at(1, 6, 2)), DictStore()
    old, new = Invalidator(store, "shop", [ORDERS]), Invalidator(store, "shop", [ORDERS, ITEMS])
    cache = cache_of(front, store)
    for each in (old, new):
        each.apply(told(1, 5))
    assert not cache.get_row(Session(front, vector(shop="1 0-1-5")), ITEMS, 1).from_store
    old.apply(told(1, 6))
    found = cache.get_row(Session(front, vector(shop="1 0-1-6")), ITEMS, 1)
    assert (found.from_store, found.value) == (False, {"id": 1, "v": 2})
    new.apply(told(1, 6))
    assert cache.get_row(Session(front, vector(shop="1 0-1-5")), ITEMS, 1).from_store


def test_nothing_is_kept_of_a_table_that_nobody_follows() -> None:
    """No event would take it away again."""
    front, store = Front(*[read_at(1, 5, 1)] * 3), DictStore()
    Invalidator(store, "shop", [ORDERS]).apply(told(1, 5))
    cache, session = cache_of(front, store), Session(front, vector(shop="1 0-1-5"))
    assert [cache.get_row(session, ITEMS, 1).from_store for _ in range(2)] == [False, False]
    assert store.get([row_name("shop", ITEMS, [1])]) == {}
    assert [cache.get_row(session, ORDERS, 1).from_store for _ in range(2)] == [False, True]


def test_a_table_without_its_database_is_refused() -> None:
    """Events name it with the database: its rows would never be invalidated, while watermarks call them fresh."""
    front, store = cast("FreshetClient", Scripted(Front())), DictStore()
    for make in (
        lambda: RowCache(front, store, "shop", {ITEMS: ["id"], "orders": ["id"]}),
        lambda: ObjectCache(front, store, "shop", {"order": {ITEMS: ["id"], "orders": ["id"]}}),
        lambda: Invalidator(store, "shop", [ITEMS, "orders"]),
        lambda: Invalidator(store, "shop", objects={"order": {ITEMS: ["id"], "orders": ["id"]}}),
    ):
        with pytest.raises(BadRequest, match="orders") as refused:
            make()
        assert (refused.value.code, refused.value.hint) == ("unknown_table", "name it as db.table")


def test_an_invalidator_that_follows_more_than_before_does_not_go_on_in_its_generation() -> None:
    """It was not told what happened to the table that it did not follow, so what is kept of that is void."""
    front, store = Front(read_at(1, 5, 1), read_at(1, 7, 2)), DictStore()
    old, beside = Invalidator(store, "shop", [ORDERS]), Invalidator(store, "shop", [ITEMS])
    for each in (old, beside):
        each.apply(told(1, 5))
    cache = cache_of(front, store)
    assert not cache.get_row(Session(front, vector(shop="1 0-1-5")), ITEMS, 1).from_store
    old.apply(told(1, 6))  # the row is written at 6: it is not told, and beside lags
    new = Invalidator(store, "shop", [ORDERS, ITEMS])
    new.go_on(old.state)
    new.apply(told(1, 7))
    found = cache.get_row(Session(front, vector(shop="1 0-1-6")), ITEMS, 1)
    assert (found.from_store, found.value) == (False, {"id": 1, "v": 2})
    again = Invalidator(store, "shop", [ITEMS, ORDERS])
    again.go_on(new.state)
    again.apply(told(1, 7))
    assert cache.get_row(Session(front, vector(shop="1 0-1-7")), ITEMS, 1).from_store, "a restart voids nothing"


@pytest.mark.parametrize("state", ["one@", "one.other@"])
def test_a_state_that_does_not_say_what_was_followed_knows_no_generation(state: str) -> None:
    """As one that an earlier version has kept. What was dealt with by then is known all the same."""
    store, ahead = DictStore(), vector(shop="1 0-1-9")
    store.swap(FLOOR, encode(Floor("one", str(vector(shop="1 0-1-5")), [Told([ITEMS])], {}, "")), None, 0)
    invalidator = Invalidator(store, "shop", [ITEMS])
    invalidator.go_on(f"{state}{ahead}")
    invalidator.apply(told(1, 9))
    assert floor_of(store).generation != "one"


def test_what_an_earlier_version_keeps_in_the_same_store_is_not_used() -> None:
    """Its floor does not say of which tables it tells, and its invalidators may still raise it."""
    front, store = Front(*[read_at(1, 5, 1)] * 2), DictStore()
    at = str(vector(shop="1 0-1-5"))
    floor, entry = ["one", at, at, {}, at], Entry("one", at, {"id": 1, "v": 0}, at)
    store.swap(FLOOR.replace("-f2-", "-f1-"), msgspec.msgpack.encode(floor), None, 0)
    store.swap(row_name("shop", ITEMS, [1]).replace("-f2-", "-f1-"), encode(entry), None, 0)
    cache, session = cache_of(front, store), Session(front, vector(shop="1 0-1-5"))
    assert not cache.get_row(session, ITEMS, 1).from_store
    Invalidator(store, "shop", [ITEMS]).apply(told(1, 5))
    assert [cache.get_row(session, ITEMS, 1).from_store for _ in range(2)] == [False, True]


def floor_of(store: DictStore) -> Floor:
    """The floor that is in a store."""
    floor = decode(store.get([FLOOR])[FLOOR].raw, Floor)
    assert floor is not None
    return floor


def test_what_another_one_says_as_well_is_left_out_of_the_floor() -> None:
    """A set of tables that nobody follows any more is not carried along for good."""
    store = DictStore()
    old, new, third = (Invalidator(store, "shop", tables) for tables in ([ORDERS], [ORDERS, ITEMS], [ITEMS]))
    for invalidator, number, sets in (
        (old, 5, [[ORDERS]]),
        (new, 5, [[ITEMS, ORDERS]]),
        (old, 6, [[ITEMS, ORDERS], [ORDERS]]),
        (third, 5, [[ITEMS, ORDERS], [ORDERS]]),
        (new, 7, [[ITEMS, ORDERS]]),
        (old, 6, [[ITEMS, ORDERS]]),
    ):
        invalidator.apply(told(1, number))
        assert [each.followed for each in floor_of(store).told] == sets
    old.apply(StreamEvent("unreadable"))
    assert [each.followed for each in floor_of(store).told] == [[ORDERS]], "of a generation that nobody else goes on in"


def test_an_object_of_other_tables_is_another_object() -> None:
    """An invalidator that makes the kind of fewer tables says nothing of it, and its readers' objects lack a table."""
    store = DictStore()
    world = Shop(1, store)
    world.busy = True
    fewer = {"customer": {"shop.customers": ["id"]}}
    Invalidator(store, "shop", objects=fewer).apply(world._watermark(world.at))
    small, whole = (ObjectCache(cast("FreshetClient", ShopReader(world)), store, "shop", of) for of in (fewer, OBJECTS))
    assert kept(world, small, 1) is True
    assert not kept(world, whole, 1)
    Invalidator(store, "shop", objects=OBJECTS).apply(world._watermark(world.at))
    assert kept(world, whole, 1)
    assert set(whole.get(cast("Session", ShopReader(world)), "customer", 1).rows) == set(OBJECTS["customer"])
    assert set(small.get(cast("Session", ShopReader(world)), "customer", 1).rows) == set(fewer["customer"])


class Streamed(Invalidator):
    """Is told what its stream has: of a transaction the changes of its tables, and of others nothing."""

    def apply(self, event: StreamEvent) -> None:
        """As `Invalidator.apply`."""
        changes = [change for change in event.changes if change.table in self._tables]
        if changes or event.kind != "transaction":
            super().apply(event)


class Deployed(World):
    """Rows of two tables. An invalidator that begins again may follow others of them than it did before."""

    def new_invalidator(self) -> Invalidator:
        tables: Collection[str] = self.random.choice([[ITEMS], [ORDERS], [ITEMS, ORDERS], [ITEMS, ORDERS]])
        return Streamed(self.flaky, "shop", tables, sleep=lambda _: None)

    @staticmethod
    def table(key: int) -> str:
        """Of a key."""
        return ITEMS if key < 2 else ORDERS

    def write(self) -> tuple[int, str]:
        key = self.random.choice(KEYS)
        shard = self.shard(key)
        self.at[shard] += 1
        self.versions += 1
        self.rows[key].append((self.at[shard], self.versions))
        token = str(EventToken(0, shard, Position.parse(f"MariaDB/0-1-{self.at[shard]}"), epoch=1))
        change = StreamChange("row", self.table(key), [key], "value")
        if self.random.random() < 0.1:
            change = StreamChange("void", self.table(key))
        self.log.append(StreamEvent("transaction", token=token, changes=[change], checkpoint="c"))
        if self.random.random() < 0.5:
            self.log.append(self._watermark(self.at))
        return key, token

    def forget(self) -> None:
        key = self.random.choice(KEYS)
        self._drop(row_name("shop", self.table(key), [key]) if self.random.random() < 0.95 else FLOOR)


def test_no_schedule_of_deployments_gives_a_session_an_old_row() -> None:
    """Two invalidators that are killed, and follow other tables afterwards, from the checkpoint that they have kept."""
    hits = 0
    for seed in range(150):
        store = DictStore()
        world = Deployed(seed, store, store.drop)
        flaky = Flaky(store)
        flaky.meanwhile = world.others
        cache = RowCache(cast("FreshetClient", Reader(world)), flaky, "shop", PRIMARY_KEYS)
        sessions = [Reader(world) for _ in range(3)]
        for _ in range(60):
            session, key = world.random.choice(sessions), world.random.choice(KEYS)
            if world.random.random() < 0.3:
                key, token = world.write()
                session.adopt(token)
            hits += read(world, session, cache, key)
            world.others()
    assert hits > 500


def read(world: Deployed, reader: Reader, cache: RowCache, key: int) -> bool:
    """One read, which must be as new as the session demands. Whether it was in the store."""
    seen = reader.vector.get(world.shard(key))
    demanded = int(str(seen.position).rpartition("-")[2]) if seen is not None else 0
    least = [version for at, version in world.rows[key] if at <= demanded][-1]
    row = cache.get_row(cast("Session", reader), world.table(key), key)
    assert row.value is not None
    assert row.value["v"] >= least, "a session went back in time"
    return row.from_store
