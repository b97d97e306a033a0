"""Composite objects of an application's cache: no schedule of kills, evictions and lagging owners leaves an old one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import msgspec
import pytest

from serving.client import BadRequest, FreshetClient, Session, StreamChange, StreamEvent
from serving.client.answers import DescribedColumn, DescriptionAnswer, Page
from serving.client.cache import CachedObject, DictStore, Invalidator, ObjectCache, RowCache
from serving.client.cache.entries import floor_name, followed_kind, object_name, row_name
from tests.serving.test_application_cache import FLOOR, KEYS, SHARDS, Flaky, Killed, World
from tokens import EventToken, Position, Vector

CUSTOMERS, ORDERS = "shop.customers", "shop.orders"
OBJECTS = {"customer": {CUSTOMERS: ["id"], ORDERS: ["customer"]}}
CUSTOMER = followed_kind("customer", OBJECTS["customer"])
TABLES = {CUSTOMERS: ["id"], ORDERS: ["customer", "number"]}


class Shop(World):
    """Customers and their orders, which lie on two shards whatever the customer."""

    def __init__(self, seed: int, store: DictStore) -> None:
        self.primary_keys = dict(TABLES)
        super().__init__(seed, store, store.drop)
        self.parts: dict[tuple[str, int], list[tuple[int, int]]] = {
            (table, key): [(0, 0)] for table in TABLES for key in KEYS
        }
        """(Table, customer) → (position, version), as they came."""

    def new_invalidator(self) -> Invalidator:
        return Invalidator(self.flaky, "shop", objects=OBJECTS, sleep=lambda _: None)

    @staticmethod
    def shard_of(table: str) -> str:
        """Tables of one object need not share a shard."""
        return SHARDS[table == ORDERS]

    def write(self) -> tuple[int, str]:
        key, table = self.random.choice(KEYS), self.random.choice([CUSTOMERS, ORDERS])
        shard = self.shard_of(table)
        self.at[shard] += 1
        self.versions += 1
        self.parts[table, key].append((self.at[shard], self.versions))
        token = str(EventToken(0, shard, Position.parse(f"MariaDB/0-1-{self.at[shard]}"), epoch=1))
        parts = [key] if table == CUSTOMERS else [key, self.random.randint(1, 3)]
        change = StreamChange("row", table, parts, self.random.choice(["value", "deleted", "void"]))
        if self.random.random() < 0.1:
            change = StreamChange("void", table)
        self.log.append(StreamEvent("transaction", token=token, changes=[change], checkpoint="c"))
        if self.random.random() < 0.5:
            self.log.append(self._watermark(self.at))
        return key, token

    def forget(self) -> None:
        name = object_name("shop", CUSTOMER, [self.random.choice(KEYS)])
        self.store.drop(name if self.random.random() < 0.95 else FLOOR)  # type: ignore[attr-defined]

    def version(self, table: str, key: int, at: int) -> int:
        """The last one at a position."""
        return [version for position, version in self.parts[table, key] if position <= at][-1]


class Reader:
    """What `ObjectCache` uses of a session, and of a client."""

    def __init__(self, world: Shop, token: str = "") -> None:
        self.world, self.vector = world, Vector.parse(token) if token else Vector()

    @property
    def token(self) -> str:
        return str(self.vector)

    def session(self, token: str) -> Reader:
        return Reader(self.world, token)

    def adopt(self, token: str) -> None:
        self.vector = self.vector.merge(Vector.parse(token))

    def is_in_doubt(self, _: str) -> bool:
        """A session of these stories knows all that it has written."""
        return False

    def describe(self, _: str, table: str) -> DescriptionAnswer:
        columns = [DescribedColumn(name, "int") for name in TABLES[table]]
        return DescriptionAnswer(table, columns, self.world.primary_keys[table], cacheable=True)

    def scan(self, _: str, table: str, columns: Mapping[str, int], *, limit: int) -> Iterator[Page]:
        """One page, of an owner that lags as far as the demand lets it."""
        assert limit > 0
        world, shard = self.world, self.world.shard_of(table)
        [key] = columns.values()
        world.others()
        lowest = number_of(self.vector, shard)
        at = world.random.randint(min(lowest, world.at[shard]), world.at[shard])
        rows = [{TABLES[table][0]: key, "v": world.version(table, key, at)}]
        served = "cache" if world.random.random() < 0.9 else "source"
        freshness = "fresh" if self.vector else "eventual"
        if at:
            self.adopt(str(Vector({shard: (1, Position.parse(f"MariaDB/0-1-{at}"))})))
        world.others()
        yield Page(cast("Any", served), cast("Any", freshness), "", self.token, rows)


def number_of(vector: Vector, shard: str) -> int:
    """The position of a shard, as a number."""
    component = vector.get(shard)
    return int(str(component.position).rpartition("-")[2]) if component is not None else 0


def read(world: Shop, reader: Reader, cache: ObjectCache, key: int) -> CachedObject | None:
    """One read; None if the reader died in it. Checks that each part is as new as the session demands."""
    least = {table: world.version(table, key, number_of(reader.vector, world.shard_of(table))) for table in TABLES}
    try:
        found = cache.get(cast("Session", reader), "customer", key)
    except Killed:
        return None
    for table, [row] in found.rows.items():
        assert row["v"] >= least[table], f"a session went back in time in {table}"
    return found


def cache_of(world: Shop, store: Any) -> ObjectCache:
    """A process that reads."""
    return ObjectCache(cast("FreshetClient", Reader(world)), store, "shop", OBJECTS)


def test_no_schedule_of_kills_and_evictions_leaves_an_old_object() -> None:
    """Two invalidators and three readers, two tables on two shards, over a store that drops what it likes."""
    hits = 0
    for seed in range(150):
        store = DictStore()
        world = Shop(seed, store)
        flaky = Flaky(store)
        flaky.meanwhile = world.others
        cache, sessions = cache_of(world, flaky), [Reader(world) for _ in range(3)]
        for _ in range(50):
            flaky.dies_in = world.random.randrange(8) if world.random.random() < 0.1 else None
            session, key = world.random.choice(sessions), world.random.choice(KEYS)
            if world.random.random() < 0.3:
                key, token = world.write()
                session.adopt(token)
            found = read(world, session, cache, key)
            hits += found is not None and found.from_store
            world.others()
        world.log.append(world._watermark(world.at))
        while any(place < len(world.log) for place in world.next):
            world.invalidate()
        flaky.dies_in, flaky.meanwhile, world.busy = None, None, True
        for key in KEYS:
            found = cache.get(cast("Session", Reader(world)), "customer", key)
            if found.from_store:
                last = {table: world.parts[table, key][-1][1] for table in TABLES}
                assert {table: rows[0]["v"] for table, rows in found.rows.items()} == last, f"{key} is poisoned"
    assert hits > 300


def kept(world: Shop, cache: ObjectCache, key: int) -> bool:
    """Whether the object is in the store within a few reads of lagging owners."""
    reads = [read(world, Reader(world), cache, key) for _ in range(20)]
    return any(found is not None and found.from_store for found in reads)


@pytest.mark.parametrize("table", [CUSTOMERS, ORDERS])
def test_each_component_invalidates_its_object_and_no_other(table: str) -> None:
    """A row of either table replaces its object, by the first column of its key; others stay."""
    store = DictStore()
    world = Shop(1, store)
    world.busy = True
    cache = cache_of(world, store)
    invalidator = world.invalidators[0]
    invalidator.apply(world._watermark(world.at))
    assert kept(world, cache, 1)
    assert kept(world, cache, 2)
    shard = world.shard_of(table)
    world.at[shard] += 1
    token = str(EventToken(0, shard, Position.parse(f"MariaDB/0-1-{world.at[shard]}"), epoch=1))
    change = StreamChange("row", table, [1] if table == CUSTOMERS else [1, 9], "deleted")
    invalidator.apply(StreamEvent("transaction", token=token, changes=[change]))
    world.parts[table, 1].append((world.at[shard], 77))
    assert cache.get(cast("Session", Reader(world)), "customer", 2).from_store
    found = cache.get(cast("Session", Reader(world)), "customer", 1)
    assert not found.from_store
    assert kept(world, cache, 1)
    assert cache.get(cast("Session", Reader(world)), "customer", 1).rows[table][0]["v"] == 77


def test_an_object_whose_columns_do_not_name_it_is_refused() -> None:
    """Events would name another object: other leading columns, another number of them, or a key of text."""
    store = DictStore()
    world = Shop(1, store)
    world.busy = True
    cache = cache_of(world, store)
    for wrong in ((), (1, 2)):
        with pytest.raises(BadRequest, match="no object of this cache") as refused:
            cache.get(cast("Session", Reader(world)), "customer", *wrong)
        assert refused.value.code == "bad_object"
    invalidator = world.invalidators[0]
    invalidator.apply(world._watermark(world.at))
    assert kept(world, cache, 1)
    world.primary_keys[ORDERS] = ["number", "customer"]
    token = str(EventToken(0, SHARDS[1], Position.parse("MariaDB/0-1-2"), epoch=1))
    world.at[SHARDS[1]] = 2
    invalidator.apply(StreamEvent("transaction", token=token, changes=[StreamChange("schema", ORDERS)]))
    for key in KEYS[:2]:  # each time: nothing of such an object is kept
        with pytest.raises(BadRequest, match="is not named by"):
            kept(world, cache, key)


@pytest.mark.parametrize("spelling", ["007", "+7", "-0", " 7", "7\n", "７", 7.0, True, None, b"7", ""])
def test_an_object_that_is_named_by_another_spelling_of_its_number_is_refused(spelling: Any) -> None:
    """A front answers for some of them, and no event would invalidate what was kept under such a name."""
    world, cache = busy_shop(Reader, DictStore())
    with pytest.raises(BadRequest, match="is named by") as refused:
        cache.get(cast("Session", Reader(world)), "customer", spelling)
    assert refused.value.code == "bad_object"


def test_an_object_that_is_named_by_the_text_of_its_number_is_the_same_object() -> None:
    """As an application has it from a path: events spell the number so."""
    world, cache = busy_shop(Reader, DictStore())
    assert kept(world, cache, 1)
    assert cache.get(cast("Session", Reader(world)), "customer", cast("int", "1")).from_store


def test_objects_and_rows_share_a_store() -> None:
    """One invalidator keeps both; their entries have different names."""
    store = DictStore()
    world = Shop(1, store)
    world.busy = True
    invalidator = Invalidator(store, "shop", [CUSTOMERS], objects=OBJECTS)
    invalidator.apply(world._watermark(world.at))
    token = str(EventToken(0, SHARDS[0], Position.parse("MariaDB/0-1-2"), epoch=1))
    invalidator.apply(StreamEvent("transaction", token=token, changes=[StreamChange("row", CUSTOMERS, [1], "value")]))
    names = [floor_name("shop"), row_name("shop", CUSTOMERS, [1]), object_name("shop", CUSTOMER, [1])]
    assert len(set(names)) == len(store.get(names)) == 3
    RowCache(cast("FreshetClient", Reader(world)), store, "shop", TABLES)


def busy_shop(client: Callable[[Shop], Reader], store: DictStore) -> tuple[Shop, ObjectCache]:
    """A shop whose invalidator has come to the present, and the cache of an application that reads by ``client``."""
    world = Shop(1, store)
    world.busy = True
    world.invalidators[0].apply(world._watermark(world.at))
    return world, ObjectCache(cast("FreshetClient", client(world)), store, "shop", OBJECTS)


class PagedReader(Reader):
    """Whose orders come in two pages: other reads may have come between."""

    def session(self, token: str) -> Reader:
        return PagedReader(self.world, token)

    def scan(self, _: str, table: str, columns: Mapping[str, int], *, limit: int) -> Iterator[Page]:
        [page] = super().scan(_, table, columns, limit=limit)
        if table == ORDERS:
            yield msgspec.structs.replace(page, page="the next one")
        yield page


def test_an_object_of_several_pages_is_given_and_not_kept() -> None:
    """No two pages need be of one position, so together they prove nothing; its reader has them all the same."""
    store = DictStore()
    world, cache = busy_shop(PagedReader, store)
    for _ in range(20):
        found = cache.get(cast("Session", Reader(world)), "customer", 1)
        assert (len(found.rows[ORDERS]), found.from_store) == (2, False)
    assert kept(world, cache_of(world, store), 1)


class NewerReader(Reader):
    """Whose fronts are newer than the application: their answers bring a token that it can't read."""

    newer = ""

    @property
    def token(self) -> str:
        return ",".join(filter(None, [str(self.vector), self.newer]))

    def session(self, token: str) -> Reader:
        return NewerReader(self.world, token)

    def adopt(self, token: str) -> None:
        vector, newer = Vector.parse_known(token)
        self.vector, self.newer = self.vector.merge(vector), ",".join(newer)

    def scan(self, _: str, table: str, columns: Mapping[str, int], *, limit: int) -> Iterator[Page]:
        yield from super().scan(_, table, columns, limit=limit)
        self.newer = "v9.AAAA"


def test_an_object_with_a_token_that_cannot_be_read_is_given_and_not_kept() -> None:
    """Nobody here could tell of it what its readers have seen then: each later read of it would fail."""
    world, cache = busy_shop(NewerReader, DictStore())
    for _ in range(20):
        reader = NewerReader(world)
        assert not cache.get(cast("Session", reader), "customer", 1).from_store
        assert reader.newer == "v9.AAAA"
