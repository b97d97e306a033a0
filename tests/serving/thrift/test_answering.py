"""What the cache proves is answered, and what it doesn't is the metastore's: over reads that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf, nan
from typing import Any, cast

import pytest
from hypothesis import given

from consumers.owner.protocol import OwnerObjects, OwnerTable
from serving.errors import ReadError
from serving.reads.demands import ReadDemand, RequestedTable
from serving.reads.objects import ObjectReads, RequestedObjects
from serving.reads.owners import OwnerAway, Owners
from serving.reads.spaces import TableSpace
from serving.reads.tables import TableReads
from serving.thrift.answering import PASSED_ON, Answers, Outcome, Session
from serving.thrift.calls import ANSWERED
from serving.thrift.log_end import LogEnd
from serving.thrift.messages import Head, reply
from serving.thrift.shown import Shown
from stream.sources.hive.rpc.thrift import CALL, integer, long, record, text, texts
from stream.sources.hive.structs import (
    BOOL,
    DOUBLE,
    I16,
    LIST,
    MAP,
    STRING,
    STRUCT,
    ListValue,
    MapValue,
    Struct,
    encode_struct,
)
from stream.wire.keys import Layout, object_name
from tests.patience import PATIENCE_S
from tests.serving.fakes import FakeTableSource
from tests.serving.test_table_reads import SHARD, external
from tests.serving.thrift.structs import table_struct, values
from tokens import Position, Vector

LISTED = text("db.t:5:9223372036854775807::")
OF: Struct = {1: text("db"), 2: text("t")}


def at(number: int) -> Vector:
    """A session that has seen the log up to ``number``."""
    return Vector({SHARD: (1, Position.parse(f"HiveEvent/{number}"))})


class Cache:
    """Reads that prove what ``proves`` says, and keep the demands. What they show is of event 7."""

    def __init__(self) -> None:
        self.table: Struct | None = table_struct("1", "p")
        self.objects: dict[tuple[str, ...], Struct | None] = {}
        """By name; None: the struct is not known. Names that are not here do not exist."""
        self.proves: Callable[[ReadDemand], bool] = lambda _: True
        self.demands: list[ReadDemand] = []
        self.wanted: list[RequestedTable | RequestedObjects] = []

    async def read_struct(self, _: TableSpace, wanted: RequestedTable, demand: ReadDemand) -> OwnerTable | None:
        self._ask(wanted, demand)
        decided = ("fresh", "why", True, False, SHARD, 1, "HiveEvent/5", "HiveEvent/7", "", "")
        raw = None if self.table is None else encode_struct(self.table)
        write_ids = "" if wanted.write_ids is None else str(wanted.write_ids)
        return OwnerTable(0, 7, 0, None, write_ids, *decided, b"", struct=raw) if self.proves(demand) else None

    async def read_structs(self, _: TableSpace, wanted: RequestedObjects, demand: ReadDemand) -> OwnerObjects | None:
        self._ask(wanted, demand)
        known = {name: each if each is None else encode_struct(each) for name, each in self.objects.items()}
        names = wanted.names or tuple(self.objects)
        decided = ("fresh", "why", True, False, SHARD, 1, "HiveEvent/5", "HiveEvent/7", "")
        found = OwnerObjects(0, 7, 0, *decided, list(map(object_name, names)), [])
        found.structs = [] if wanted.names_only else [known.get(name) for name in names]
        found.count = sum(name in known for name in names)
        listed = wanted.table.write_ids if wanted.table is not None else None
        found.write_ids = "" if listed is None else str(listed)
        return found if self.proves(demand) else None

    def _ask(self, wanted: RequestedTable | RequestedObjects, demand: ReadDemand) -> None:
        self.wanted.append(wanted)
        self.demands.append(demand)


class NoOwners:
    """No owner answers for an epoch."""

    async def ask_any(self, *_: object, **__: object) -> None:
        raise OwnerAway("away")


class World:
    """Answers for one session over one cache and one metastore, whose log ends at ``end``."""

    def __init__(self, max_staleness_ms: int = 0) -> None:
        self.cache, self.session = Cache(), Session()
        self.end: int | ReadError = 9
        self.ends_asked = 0
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
            max_staleness_ms=max_staleness_ms,
        )

    async def _log_end(self) -> int:
        self.ends_asked += 1
        if isinstance(self.end, ReadError):
            raise self.end
        return self.end

    async def outcome(self, call: str, arguments: Struct | bytes) -> Outcome:
        """The outcome of a call, which has the number 3."""
        raw = arguments if isinstance(arguments, bytes) else encode_struct(arguments)
        return await self.answers.answer(Head(call, CALL, 3, 0), raw, self.session)

    async def answered(self, call: str, arguments: Struct) -> bool:
        """Whether the cache answers a call."""
        return (await self.outcome(call, arguments)).reply is not None


def run(use: Callable[[World], Awaitable[None]], **options: Any) -> None:
    """Within an event loop."""

    async def main() -> None:
        await asyncio.wait_for(use(World(**options)), PATIENCE_S)

    asyncio.run(main())


NAMES = {**OF, 3: (I16, -1)}
BY_LIST: Struct = {1: record({2: text("db"), 3: text("t"), 4: texts([]), 6: LISTED, 7: long(7)})}


def by_names(*names: str, processor: bool = False) -> Struct:
    """Of ``get_partitions_by_names_req``."""
    return {1: record({**OF, 3: texts(names), **({5: texts(["A"])} if processor else {})})}


def of_list(kind: int, found: list[Any], *, in_struct: bool = False) -> bytes:
    """The reply with a list."""
    listed = LIST, ListValue(kind, found)
    return encode_struct({0: record({1: listed}) if in_struct else listed})


def test_a_list_with_an_id_is_proved_without_a_look_at_the_end_of_the_log() -> None:
    """It says itself what it must hold. It moves the session to what it was shown."""

    async def use(world: World) -> None:
        assert await world.answered("get_partition_names_ps_req", BY_LIST)
        assert world.ends_asked == 0
        assert [each.max_wait_ms for each in world.cache.demands] == [0, 0]
        assert world.session.token == str(at(7))

    run(use)


def test_a_list_that_is_not_proved_at_once_waits_for_the_end_of_the_log() -> None:
    """The cache has not folded its commit yet."""

    async def use(world: World) -> None:
        world.cache.proves = lambda demand: demand.given
        assert await world.answered("get_partition_names_ps_req", BY_LIST)
        assert world.ends_asked == 1
        assert [(each.token, each.max_wait_ms) for each in world.cache.demands[:2]] == [("", 0), (str(at(9)), 200)]

    run(use)


@pytest.mark.parametrize("missing", [6, 7], ids=["list", "id"])
def test_without_a_list_or_an_id_the_end_of_the_log_is_demanded(missing: int) -> None:
    """Of the moment after the call, each time: a session that has seen it looks again."""

    async def use(world: World) -> None:
        asked = {number: each for number, each in BY_LIST[1][1].items() if number != missing}
        for end in (9, 12):
            world.end = end
            world.cache.demands.clear()
            assert await world.answered("get_partition_names_ps_req", {1: record(asked)})
            assert (world.cache.demands[0].token, world.session.token) == (str(at(end)), str(at(end)))
        assert world.ends_asked == 2

    run(use)


def test_a_table_that_needs_a_list_is_not_looked_for_without_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a few seconds: it may be another table then. With a list it is, and so are others."""

    async def use(world: World) -> None:
        def needs_list(_: ReadDemand) -> bool:
            wanted = world.cache.wanted[-1]
            of = wanted if isinstance(wanted, RequestedTable) else wanted.table
            if of is not None and of.write_ids is None and of.table == "t":
                raise ReadError("missing_write_ids", "a list")
            return True

        world.cache.proves = needs_list
        for _ in range(3):
            assert await world.outcome("get_table_req", table_asked()) == PASSED_ON
            assert await world.outcome("get_partition_names", NAMES) == PASSED_ON
        assert (world.ends_asked, len(world.cache.demands)) == (1, 1)
        assert await world.answered("get_partition_names_ps_req", BY_LIST)
        assert await world.answered("get_partition_names", {**NAMES, 2: text("other")})
        world.cache.proves = lambda _: True
        assert not await world.answered("get_partition_names", NAMES)
        monkeypatch.setattr("serving.thrift.answering.LISTLESS_S", 0.0)
        world.answers._needs_list.clear()
        world.cache.proves = needs_list
        assert not await world.answered("get_partition_names", NAMES)
        world.cache.proves = lambda _: True
        assert await world.answered("get_partition_names", NAMES)

    run(use)


def test_after_a_call_that_was_passed_on_the_end_of_the_log_is_demanded_first() -> None:
    """What the metastore showed, no list may go back behind. Once: then the token has it."""

    async def use(world: World) -> None:
        world.session.moved = True
        for _ in range(2):
            assert await world.answered("get_partition_names_ps_req", BY_LIST)
            assert (world.ends_asked, world.session.moved) == (1, False)
        assert {each.token for each in world.cache.demands} == {str(at(9))}

    run(use)


@pytest.mark.parametrize("moved", [False, True])
def test_a_bound_on_staleness_takes_the_place_of_the_end(*, moved: bool) -> None:
    """But for a session that was shown something by the metastore; one that can't be kept is no answer."""

    async def use(world: World) -> None:
        world.session.moved = moved
        assert await world.answered("get_partition_names", NAMES)
        first = world.cache.demands[0]
        assert (world.ends_asked, first.not_before_ms) == ((1, 0) if moved else (0, 95_000))
        world.cache.proves = lambda demand: not demand.not_before_ms
        world.session.moved = False
        assert await world.answered("get_partition_names", NAMES)
        assert world.ends_asked == 1 + moved

    run(use, max_staleness_ms=5_000)


def test_the_token_moves_with_each_answer_and_never_back() -> None:
    """The next answer may not be older than one before."""

    async def use(world: World) -> None:
        world.end = 7
        assert await world.answered("get_partition_names", NAMES)
        assert world.session.token == str(at(7))
        assert await world.answered("get_partition_names", NAMES)
        assert {each.token for each in world.cache.demands[-1:]} == {str(at(7))}
        world.session.token = str(at(8))
        assert await world.answered("get_partition_names_ps_req", BY_LIST)
        assert world.session.token == str(at(8))

    run(use)


def test_what_is_not_answered_shows_nothing_to_the_session() -> None:
    """Its token stays at what it has seen, which is what the end of the log proved."""

    async def use(world: World) -> None:
        world.end = 3
        world.cache.objects[("1",)] = None
        assert not await world.answered("get_partitions", NAMES)
        assert world.session.token == str(at(3))

    run(use)


@pytest.mark.parametrize("broken", ["end", "epoch", "source", "cache"])
def test_what_is_not_proved_is_passed_on(broken: str) -> None:
    """The metastore does not tell its end, nobody knows its epoch, there is none, or the cache is behind."""

    async def use(world: World) -> None:
        if broken == "end":
            world.end = ReadError("source_unreachable", "away")
        elif broken == "epoch":
            world.space.epochs.known.clear()
        elif broken == "source":
            world.space.source = None
        else:
            world.cache.proves = lambda _: False
        for call, arguments in (("get_partition_names", NAMES), ("get_partition_names_ps_req", BY_LIST)):
            world.session.moved = True
            assert await world.outcome(call, arguments) == PASSED_ON
            assert world.session.moved or broken == "cache"

    run(use)


def table_asked(*processor: str, listed: bool = False) -> Struct:
    """Of ``get_table_req``."""
    request = {**OF, 4: text("hive"), 8: texts(processor)}
    return {1: record(request | ({6: LISTED, 11: long(7)} if listed else {}))}


def test_a_table_is_answered_as_the_metastore_showed_it() -> None:
    """The second time, to the same kind of reader, while it is the same version."""

    async def use(world: World) -> None:
        outcome = await world.outcome("get_table_req", table_asked("A"))
        assert outcome.reply is None
        assert outcome.learn is not None
        seen = encode_struct({0: record({1: record(table_struct("1", "p") | {22: integer(8)})})})
        outcome.learn(seen)
        world.end = 7
        world.session.token = ""
        assert (await world.outcome("get_table_req", table_asked("A"))).reply == reply("get_table_req", 3, seen)
        assert world.session.token == str(at(7))
        for other in (table_asked("B"), table_asked(), table_asked("A", listed=True)):
            assert not await world.answered("get_table_req", other)
        world.cache.table = table_struct("2", "p")
        assert not await world.answered("get_table_req", table_asked("A"))
        world.cache.table = table_struct("1", "p")
        assert await world.answered("get_table_req", table_asked("A"))

    run(use)


def test_what_is_not_the_proved_table_is_not_learnt() -> None:
    """Another version, or none: the metastore was asked later."""

    async def use(world: World) -> None:
        for seen in ({0: record({1: record(table_struct("2", "p"))})}, {2: record({1: text("missing")})}):
            outcome = await world.outcome("get_table_req", table_asked())
            assert outcome.learn is not None
            outcome.learn(encode_struct(cast("Struct", seen)))
            assert not await world.answered("get_table_req", table_asked())
        world.cache.table = None
        assert await world.outcome("get_table_req", table_asked()) == PASSED_ON

    run(use)


def test_partitions_by_names_are_those_that_exist_by_name() -> None:
    """Once each, and sorted as a metastore sorts them: by its names, not as they are kept."""

    async def use(world: World) -> None:
        one, two, other = [{1: texts([value])} for value in ("a", "a b", "a=")]
        world.cache.objects = {("a b",): two, ("a",): one, ("a=",): other}
        call = by_names("p=a%3D", "p=a b", "p=none", "p=a", "p=a")
        found = await world.outcome("get_partitions_by_names_req", call)
        body = of_list(STRUCT, [one, two, other], in_struct=True)
        assert found.reply == reply("get_partitions_by_names_req", 3, body)
        plain = {**OF, 3: texts(["p=a"])}
        found = await world.outcome("get_partitions_by_names", plain)
        assert found.reply == reply("get_partitions_by_names", 3, of_list(STRUCT, [one]))

    run(use)


@pytest.mark.parametrize("name", ["q=1/r=2", "R=2/q=1", "q=1", "q=1/r=2/s=3", "q=%61/r=2", "1/2", "Q=1/r=2"])
def test_only_names_as_the_metastore_writes_them_are_answered(name: str) -> None:
    """It compares texts: by other columns, in another order or otherwise escaped there is no such partition."""

    async def use(world: World) -> None:
        world.cache.table = table_struct("1", "Q", "r")
        world.cache.objects = {("1", "2"): {1: texts(["1", "2"])}, ("a", "2"): {1: texts(["a", "2"])}}
        assert await world.answered("get_partitions_by_names_req", by_names(name)) is (name == "q=1/r=2")

    run(use)


def test_a_partition_without_its_struct_is_the_metastores() -> None:
    """It was published by an earlier version. Its name is known."""

    async def use(world: World) -> None:
        world.cache.objects = {("1",): {1: texts(["1"])}, ("2",): None}
        assert await world.outcome("get_partitions_by_names_req", by_names("p=1", "p=2")) == PASSED_ON
        assert await world.outcome("get_partitions", NAMES) == PASSED_ON
        assert await world.answered("get_partitions_by_names_req", by_names("p=1"))
        found = await world.outcome("get_partition_names", NAMES)
        assert found.reply == reply("get_partition_names", 3, of_list(STRING, [b"p=1", b"p=2"]))

    run(use)


def test_partitions_in_buckets_are_shown_to_capabilities_by_the_metastore() -> None:
    """It changes them for who says what it can do, and for no other."""

    async def use(world: World) -> None:
        world.cache.objects = {("1",): {6: record({6: integer(4)})}, ("2",): {6: record({6: integer(-1)})}}
        assert not await world.answered("get_partitions_by_names_req", by_names("p=1", "p=2", processor=True))
        assert await world.answered("get_partitions_by_names_req", by_names("p=2", processor=True))
        assert await world.answered("get_partitions_by_names_req", by_names("p=1", "p=2"))

    run(use)


def test_lists_are_sorted_by_name() -> None:
    """As the metastore writes names, not as they are kept: a value is before those that it begins."""

    async def use(world: World) -> None:
        world.cache.objects = {(value,): {1: texts([value])} for value in ("b", "a b", "a/", "a")}
        names = [b"p=a", b"p=a b", b"p=a%2F", b"p=b"]
        found = await world.outcome("get_partition_names", NAMES)
        assert found.reply == reply("get_partition_names", 3, of_list(STRING, names))
        found = await world.outcome("get_partitions_req", {1: record({2: text("db"), 3: text("t")})})
        structs = [{1: texts([value])} for value in ("a", "a b", "a/", "b")]
        assert found.reply == reply("get_partitions_req", 3, of_list(STRUCT, structs, in_struct=True))

    run(use)


@pytest.mark.parametrize(
    ("chosen", "is_answered"),
    [
        ({}, True),
        ({3: texts(["a-1"])}, True),
        ({3: texts(["a.*"])}, False),
        ({3: texts(["a_b"])}, False),
        ({3: texts(["", ""])}, False),
        ({4: (I16, 5)}, False),
        ({4: (I16, 0)}, False),
    ],
)
def test_lists_that_a_metastore_may_take_otherwise_are_its_own(chosen: Struct, *, is_answered: bool) -> None:
    """Patterns, limits, more values than columns."""

    async def use(world: World) -> None:
        assert await world.answered("get_partition_names_ps", {**OF, 3: texts([]), **chosen}) is is_answered

    run(use)


def test_partitions_with_privileges_of_their_own_are_the_metastores() -> None:
    """It shows them with the partitions."""

    async def use(world: World) -> None:
        asked: Struct = {1: record({2: text("db"), 3: text("t"), 4: texts([])})}
        by_name: Struct = {1: record({2: text("db"), 3: text("t"), 13: texts(["p=1"])})}
        world.cache.objects = {("1",): {1: texts(["1"])}}
        for each in (asked, by_name):
            found = await world.outcome("get_partitions_ps_with_auth_req", each)
            body = of_list(STRUCT, [{1: texts(["1"])}], in_struct=True)
            assert found.reply == reply("get_partitions_ps_with_auth_req", 3, body)
        world.cache.table = table_struct("1", "p", PARTITION_LEVEL_PRIVILEGE="TRUE")
        for each in (asked, by_name):
            assert not await world.answered("get_partitions_ps_with_auth_req", each)
        assert await world.answered("get_partition_names", NAMES)

    run(use)


def test_a_table_without_columns_for_partitions_has_no_list_here() -> None:
    """The metastore has its own answer to that."""

    async def use(world: World) -> None:
        world.cache.table = table_struct("1")
        assert await world.outcome("get_partition_names", NAMES) == PASSED_ON
        world.cache.table = None
        world.answers._keys.clear()
        assert await world.outcome("get_partition_names", NAMES) == PASSED_ON

    run(use)


def test_constraints_are_answered_if_they_are_known() -> None:
    """All of a table are one object."""

    async def use(world: World) -> None:
        asked: Struct = {1: record({**OF, 3: text("hive")})}
        assert await world.outcome("get_all_table_constraints", asked) == PASSED_ON
        world.cache.objects[()] = {1: texts(["pk"])}
        found = await world.outcome("get_all_table_constraints", asked)
        body = encode_struct({0: record({1: record({1: texts(["pk"])})})})
        assert found.reply == reply("get_all_table_constraints", 3, body)
        [_, wanted] = world.cache.wanted
        assert isinstance(wanted, RequestedObjects)
        assert (wanted.kind, wanted.table) == ("constraints", RequestedTable("hive", "db", "t"))

    run(use)


@given(values(STRUCT, 2))
def test_anything_odd_is_passed_on(odd: Struct) -> None:
    """No call raises, whatever it brings and whatever is stored: it is the metastore's to refuse."""

    async def use(world: World) -> None:
        world.cache.table = world.cache.objects[("1",)] = odd
        for call in ANSWERED:
            raw = encode_struct(odd)
            for arguments in (odd, {1: record(odd)}, {**OF, **odd}, raw[:-1], raw + b"\0"):
                await world.outcome(call, arguments)
        for call, request in (("get_table_req", table_asked()), ("get_partitions_by_names_req", by_names("p=1"))):
            await world.outcome(call, request)
        assert await world.outcome("get_table", OF) == PASSED_ON

    run(use)


@pytest.mark.parametrize(
    "limit", [(DOUBLE, inf), (DOUBLE, nan), record({}), (MAP, MapValue(STRING, BOOL, [])), text("")], ids=str
)
def test_a_number_of_another_type_is_passed_on(limit: tuple[int, Any]) -> None:
    """It is none, and it raises nothing."""

    async def use(world: World) -> None:
        assert await world.outcome("get_partition_names", {**OF, 3: limit}) == PASSED_ON

    run(use)
