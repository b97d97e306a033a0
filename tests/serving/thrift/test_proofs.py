"""What proves an answer of the Thrift front, over reads and a metastore that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from consumers.owner.protocol import OwnerObjects, OwnerTable
from serving.reads.demands import ReadDemand, RequestedTable
from serving.reads.objects import ObjectReads, RequestedObjects
from serving.reads.owners import OwnerAway, Owners
from serving.reads.spaces import TableSpace
from serving.reads.tables import TableReads
from serving.thrift.answering import Answers, Session
from serving.thrift.log_end import LogEnd
from serving.thrift.messages import Head
from serving.thrift.shown import Shown
from stream.sources.hive.rpc.thrift import CALL, long, record, text, texts
from stream.sources.hive.structs import I16, LIST, STRUCT, ListValue, Struct, encode_struct
from stream.wire.keys import Layout, object_name
from tests.serving.fakes import FakeTableSource
from tests.serving.test_table_reads import SHARD, external
from tokens import Position, Vector


class Cache:
    """Owners that have folded the log up to event ``folded``, and the table and its partitions from event 5."""

    def __init__(self) -> None:
        self.folded, self.epoch = 9, 1
        self.write_ids = ""
        """Of the table; "": it has no list."""
        self.key = "p"
        """Its partition column."""
        self.demands: list[ReadDemand] = []

    async def read_struct(self, _: TableSpace, __: RequestedTable, demand: ReadDemand) -> OwnerTable | None:
        keys = LIST, ListValue(STRUCT, [{1: text(self.key), 2: text("string")}])
        raw = encode_struct({1: text("t"), 2: text("db"), 8: keys})
        decided = ("fresh", "why", True, False, SHARD, self.epoch, *self._positions(), f"HiveEvent/{self.folded}", "")
        return OwnerTable(0, 7, 0, None, self.write_ids, *decided, b"", struct=raw) if self._proves(demand) else None

    async def read_structs(self, _: TableSpace, wanted: RequestedObjects, demand: ReadDemand) -> OwnerObjects | None:
        decided = ("fresh", "why", True, False, SHARD, self.epoch, *self._positions(), f"HiveEvent/{self.folded}")
        names = [*map(object_name, wanted.names or [("1",)])]
        found = OwnerObjects(0, 7, 0, *decided, names, [], write_ids=self.write_ids, count=len(names))
        found.structs = [encode_struct({1: texts(["1"])})] * len(names)
        return found if self._proves(demand) else None

    def _positions(self) -> tuple[str, str]:
        return "HiveEvent/5", "HiveEvent/5"

    def _proves(self, demand: ReadDemand) -> bool:
        self.demands.append(demand)
        known = demand.vector.get(SHARD)
        return known is None or int(str(known.position).rpartition("/")[2]) <= self.folded


class NoOwners:
    """No owner answers for an epoch."""

    async def ask_any(self, *_: object, **__: object) -> None:
        raise OwnerAway("away")


class World:
    """Answers over one cache and one metastore. ``ends``: of its log, at each question the next one, then the last."""

    def __init__(self, *ends: int) -> None:
        self.cache, self.session = Cache(), Session()
        self.ends = list(ends)
        self.space = TableSpace("hive", Layout(1), FakeTableSource(external()))
        self.space.epochs.learn(SHARD, 1)
        self.space.epochs.confirmed_at = float("inf")
        self.answers = Answers(
            self.space,
            cast("Owners", NoOwners()),
            cast("TableReads", self.cache),
            cast("ObjectReads", self.cache),
            LogEnd(self._log_end),
            Shown(1 << 20),
            lambda: 100_000,
            catalog="hive",
            max_wait_ms=200,
            max_staleness_ms=0,
        )

    async def _log_end(self) -> int:
        return self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]

    async def ask(self, call: str, arguments: Struct) -> bytes | None:
        """The reply from the cache to a call; None: it is the metastore's."""
        head = Head(call, CALL, 3, 0)
        return (await self.answers.answer(head, encode_struct(arguments), self.session)).reply


def run(world: World, use: Callable[[World], Awaitable[None]]) -> None:
    """``use``, within an event loop."""

    async def main() -> None:
        await asyncio.wait_for(use(world), 60)

    asyncio.run(main())


def constraints(listed: str) -> Struct:
    """Of ``get_all_table_constraints``, as HiveServer2 asks for them: with a list and an id of any table."""
    return {1: record({1: text("db"), 2: text("t"), 4: text(listed), 5: long(7)})}


def test_a_list_proves_nothing_of_a_table_that_has_none() -> None:
    """HiveServer2 brings one for external tables, too: the log's end proves these, not what the session saw before."""

    async def use(world: World) -> None:
        seen = world.session.token = str(Vector({SHARD: (1, Position.parse("HiveEvent/6"))}))
        assert await world.ask("get_all_table_constraints", constraints("db.t:0:9223372036854775807::")) is None
        world.session.token, world.cache.write_ids = seen, "db.t:5:9223372036854775807::"
        assert await world.ask("get_all_table_constraints", constraints("db.t:5:9223372036854775807::")) is not None

    run(World(20), use)


NAMES: Struct = {1: text("db"), 2: text("t"), 3: (I16, -1)}


def test_a_metastore_that_was_set_back_is_asked() -> None:
    """Its log ends before what the cache has folded, and nobody has begun another epoch yet: nothing is proved.

    Events that follow the first look at the log are in the second one.
    """

    async def use(world: World) -> None:
        assert await world.ask("get_partition_names", NAMES) is None

    run(World(4), use)

    async def goes_on(world: World) -> None:
        assert await world.ask("get_partition_names", NAMES) is not None

    run(World(8, 9), goes_on)


def test_a_session_is_not_moved_beyond_a_new_history() -> None:
    """The epoch is asked first: the end of the old log, in the epoch of the new one, would be out of reach for long."""

    async def use(world: World) -> None:
        async def replaced() -> int:
            world.space.epochs.learn(SHARD, 2)
            return 190

        world.answers._log_end = LogEnd(replaced)
        await world.ask("get_partition_names", NAMES)
        known = Vector.parse(world.session.token).get(SHARD)
        assert known is not None
        assert known.epoch == 1

    run(World(9), use)


def test_a_table_id_of_another_history_has_its_own_partition_columns() -> None:
    """A metastore that was set back gives ids again: names of partitions are made of the columns of now."""

    async def use(world: World) -> None:
        assert b"p=1" in (await world.ask("get_partition_names", NAMES) or b"")
        world.cache.epoch, world.cache.key = 2, "q"
        world.space.epochs.learn(SHARD, 2)
        assert b"q=1" in (await world.ask("get_partition_names", NAMES) or b"")

    run(World(9), use)
