"""What an engine was shown, no later answer on its connection goes back behind."""

from __future__ import annotations

from typing import cast

import pytest

from serving.thrift import answering, shown
from serving.thrift.log_end import LogEnd
from serving.thrift.shown import Reader, Shown
from stream.sources.hive.rpc.thrift import long, record, text, texts
from stream.sources.hive.structs import I16, Struct, decode_struct, encode_struct
from tests.serving.thrift.structs import table_struct
from tests.serving.thrift.test_answering import BY_LIST, LISTED, NAMES, OF, World, at, run, table_asked

PARTITION: Struct = {1: texts(["1"])}
IN_CATALOG: Struct = {1: text("hive"), 2: text("db"), 3: text("t")}
CALLS: dict[str, Struct] = {
    "get_table_req": table_asked("A", listed=True)[1][1],
    "get_partitions_by_names_req": {**OF, 3: texts(["p=1"]), 8: LISTED, 10: long(7)},
    "get_partitions_req": {**IN_CATALOG, 5: LISTED, 6: long(7)},
    "fetch_partition_names_req": {**IN_CATALOG, 5: LISTED, 6: long(7)},
    "get_partitions_ps_with_auth_req": {**IN_CATALOG, 4: texts([]), 8: LISTED, 9: long(7)},
    "get_all_table_constraints": {**OF, 4: LISTED, 5: long(7)},
}
"""A call of each kind, with a list and an id: none of them looks at the end of the log."""


@pytest.mark.parametrize("call", CALLS)
def test_each_kind_of_answer_moves_the_session_to_what_it_showed(call: str) -> None:
    """Else the next answer, proved by an older list, could be of before."""

    async def use(world: World) -> None:
        world.cache.objects = {(): PARTITION} if call == "get_all_table_constraints" else {("1",): PARTITION}
        outcome = await world.outcome(call, {1: record(CALLS[call])})
        if outcome.learn is not None:
            assert world.session.token == ""
            outcome.learn(encode_struct({0: record({1: record(cast("Struct", world.cache.table))})}))
            outcome = await world.outcome(call, {1: record(CALLS[call])})
        assert outcome.reply is not None
        assert (world.session.token, world.ends_asked) == (str(at(7)), 0)

    run(use)


@pytest.mark.parametrize(("ends", "answered"), [((3, 4), False), ((3, 6), False), ((3, 7), True), ((7,), True)])
def test_the_log_must_have_the_entry_as_well_as_the_watermark(ends: tuple[int, ...], *, answered: bool) -> None:
    """The cache was proved by event 5 and shows event 7: where the log ends before either, it was set back."""

    async def use(world: World) -> None:
        told = list(ends)

        async def next_end() -> int:
            return told.pop(0)

        world.answers._log_end = LogEnd(next_end)
        assert await world.answered("get_partition_names", NAMES) is answered
        assert told == []

    run(use)


def test_partition_columns_are_read_of_the_table_that_was_found() -> None:
    """Not of another one which has its name by then."""

    async def use(world: World) -> None:
        assert await world.answered("get_partition_names", NAMES)
        assert [(type(each).__name__, getattr(each, "table_id", None)) for each in world.cache.wanted] == [
            ("RequestedObjects", None),
            ("RequestedTable", 7),
        ]

    run(use)


def test_names_alone_are_asked_for_where_no_more_is_wanted() -> None:
    """The structs of 200,000 partitions would be fetched for nothing."""

    async def use(world: World) -> None:
        for call, names_only in (("get_partition_names_ps_req", True), ("get_partitions_req", False)):
            world.cache.objects, world.cache.wanted = {("1",): PARTITION}, []
            request = BY_LIST if names_only else {1: record(CALLS[call])}
            assert await world.answered(call, request)
            assert getattr(world.cache.wanted[0], "names_only", None) is names_only

    run(use)


def test_partitions_of_some_values_are_asked_for_by_them() -> None:
    """All of a table would be another answer."""

    async def use(world: World) -> None:
        world.cache.objects = {("1",): PARTITION}
        request = {**CALLS["get_partitions_ps_with_auth_req"], 4: texts(["1"])}
        assert await world.answered("get_partitions_ps_with_auth_req", {1: record(request)})
        assert getattr(world.cache.wanted[0], "prefix", None) == ("1",)

    run(use)


def test_what_is_kept_of_tables_and_partitions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """For an engine that looks at everything, for years. What is forgotten is looked at again."""
    for module, name in ((shown, "FACTS_MAX"), (shown, "PARTITIONS_MAX"), (answering, "TABLES_MAX")):
        monkeypatch.setattr(module, name, 2)
    known = Shown(1 << 10)
    for number in range(7):
        stored = encode_struct(table_struct(str(number), f"p{number}"))
        assert known.facts_of(stored).partition_keys == (f"p{number}",)
        assert known.facts_of(stored) is known.facts_of(stored)
        assert len(known._facts) <= 2
        partition = encode_struct({6: record({6: (I16, number % 2)})})
        assert known.is_unbucketed(partition) is (number % 2 == 0)
        assert known.is_unbucketed(partition) is (number % 2 == 0)
        assert len(known._unbucketed) <= 2

    async def use(world: World) -> None:
        for epoch in range(1, 7):
            world.answers._keys[epoch, 100] = ("p",)
            world.answers._keys.pop((1, 7), None)
            assert await world.answered("get_partition_names", NAMES)
            assert len(world.answers._keys) <= 3

    run(use)


def test_buckets_and_parameters_that_are_missing_are_none() -> None:
    """A partition without a storage descriptor, a table without parameters."""
    known = Shown(1 << 10)
    assert known.is_unbucketed(encode_struct({1: texts(["1"])}))
    plain = encode_struct({number: each for number, each in table_struct("1", "p").items() if number != 9})
    assert known.learn(plain, Reader(), None, b"seen", decode_struct(plain))
