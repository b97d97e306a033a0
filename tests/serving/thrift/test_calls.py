"""What calls ask for: only what is understood in full is answered by a cache."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import Any

import pytest
from hypothesis import example, given

from serving.thrift.calls import (
    ANSWERED,
    STILL,
    ConstraintsCall,
    ListCall,
    OfTable,
    PartitionsCall,
    TableCall,
    asked_by,
    table_in,
)
from serving.thrift.shown import Reader
from stream.sources.hive.live.metastore import client_capabilities
from stream.sources.hive.rpc.thrift import field, integer, long, record, text, texts
from stream.sources.hive.structs import BOOL, DOUBLE, I16, SET, STRING, STRUCT, ListValue, Struct
from stream.sources.hive.structs import LIST as LISTS
from tests.serving.thrift.structs import values
from tokens import FreshetError, ValidWriteIdList

LIST = "db.t:5:9223372036854775807::"
LISTED = ValidWriteIdList.parse(LIST)
PLAIN: Struct = {1: text("DB"), 2: text("T")}
CAPABILITIES = tuple(field(client_capabilities()[1], 1))
TRUE = BOOL, True


def named(*numbers: int, write_ids: int, table_id: int, **more: Any) -> Struct:
    """A request: its numbers of the database, the table and the catalog (if it has one)."""
    parts = [text("DB"), text("T"), text("hive")]
    found = dict(zip(numbers, parts, strict=False)) | {write_ids: text(LIST), table_id: long(7)}
    return found | {int(number[1:]): value for number, value in more.items()}


REQUESTS: dict[str, tuple[Struct, Any]] = {
    "get_table_req": (
        named(1, 2, 4, write_ids=6, table_id=11, n3=client_capabilities(), n8=texts(["A"]), n9=text("me")),
        lambda of: TableCall(of, Reader(CAPABILITIES, ("A",))),
    ),
    "get_partitions_by_names_req": (
        named(1, 2, write_ids=8, table_id=10, n3=texts(["p=1"]), n5=texts(["A"])),
        lambda of: PartitionsCall(of, ("p=1",), ("A",), in_struct=True),
    ),
    "get_partition_names_ps_req": (
        named(2, 3, 1, write_ids=6, table_id=7, n4=texts(["1"]), n5=(I16, 3)),
        lambda of: ListCall(of, ("1",), 3, names_only=True, in_struct=True),
    ),
    "get_partitions_req": (
        named(2, 3, 1, write_ids=5, table_id=6, n4=(I16, 3)),
        lambda of: ListCall(of, (), 3, in_struct=True),
    ),
    "fetch_partition_names_req": (
        named(2, 3, 1, write_ids=5, table_id=6, n4=(I16, -1)),
        lambda of: ListCall(of, names_only=True),
    ),
    "get_partitions_ps_with_auth_req": (
        named(2, 3, 1, write_ids=8, table_id=9, n4=texts(["1"]), n6=text("me")),
        lambda of: ListCall(of, ("1",), -1, with_privileges=True, in_struct=True),
    ),
    "get_all_table_constraints": (named(1, 2, 3, write_ids=4, table_id=5), ConstraintsCall),
}
"""Calls with a request struct, and what they ask of a table."""
OTHERS: dict[str, tuple[Struct, Any]] = {
    "get_partitions_by_names": ({**PLAIN, 3: texts(["p=1"])}, lambda of: PartitionsCall(of, ("p=1",))),
    "get_partition_names": ({**PLAIN, 3: (I16, 3)}, lambda of: ListCall(of, (), 3, names_only=True)),
    "get_partition_names_ps": (
        {**PLAIN, 3: texts(["", "1"]), 4: (I16, -1)},
        lambda of: ListCall(of, ("", "1"), names_only=True),
    ),
    "get_partitions": (PLAIN, lambda of: ListCall(of, (), -1)),
}
NUMBERS = {
    "get_table_req": (1, 2, 4, 6),
    "get_partitions_by_names_req": (1, 2, 0, 8),
    "get_partition_names_ps_req": (2, 3, 1, 6),
    "get_partitions_req": (2, 3, 1, 5),
    "fetch_partition_names_req": (2, 3, 1, 5),
    "get_partitions_ps_with_auth_req": (2, 3, 1, 8),
    "get_all_table_constraints": (1, 2, 3, 4),
}
"""Of the database, the table, the catalog (0: none) and the list."""


def asked(call: str, request: Struct) -> Any:
    """What a call with a request struct asks for."""
    return asked_by(call, {1: record(request)}, "hive")


def test_every_call_that_is_answered_is_looked_at_here() -> None:
    """A new one gets its numbers checked. None of them leaves a session where it was when it is passed on."""
    assert REQUESTS.keys() | OTHERS.keys() == ANSWERED
    assert not ANSWERED & STILL
    assert asked_by("get_table", PLAIN, "hive") is None


@pytest.mark.parametrize("call", REQUESTS)
def test_a_request_is_read_by_its_numbers(call: str) -> None:
    """Names in lower case, the list and the id, and what the call has of its own."""
    request, expected = REQUESTS[call]
    assert asked(call, request) == expected(OfTable("db", "t", LISTED, 7))
    assert asked(call, {**request, 55: TRUE}) is None, "a newer engine may mean something by it"


@pytest.mark.parametrize(
    ("call", "numbers"),
    [
        ("get_table_req", {*range(1, 12)} - {5}),
        ("get_partitions_by_names_req", {*range(1, 14)}),
        ("get_partition_names_ps_req", {*range(1, 8)}),
        ("get_partitions_req", {*range(1, 10)}),
        ("get_all_table_constraints", {*range(1, 6)}),
    ],
)
def test_an_engine_may_write_every_field(call: str, numbers: set[int]) -> None:
    """With its default, in place of leaving it out."""
    request, _ = REQUESTS[call]
    assert asked(call, dict.fromkeys(numbers, (BOOL, False)) | request) == asked(call, request)


@pytest.mark.parametrize("call", OTHERS)
def test_a_call_without_a_request_is_read_by_its_numbers(call: str) -> None:
    """It brings no list."""
    arguments, expected = OTHERS[call]
    assert asked_by(call, arguments, "hive") == expected(OfTable("db", "t"))
    assert asked_by(call, {**arguments, 1: text("@hive#db")}, "hive") == expected(OfTable("db", "t"))
    for db in ("@spark#db", "a.b", "db#!", ""):
        assert asked_by(call, {**arguments, 1: text(db)}, "hive") is None
    assert asked_by(call, {**arguments, 5: TRUE}, "hive") is None


@pytest.mark.parametrize(
    ("call", "flag"),
    [
        ("get_table_req", 7),
        ("get_partitions_by_names_req", 4),
        ("get_partitions_by_names_req", 9),
        ("get_partitions_by_names_req", 11),
        ("get_partitions_req", 7),
        ("fetch_partition_names_req", 7),
        ("get_partitions_ps_with_auth_req", 10),
    ],
)
def test_what_asks_for_more_or_less_than_is_stored_is_the_metastores(call: str, flag: int) -> None:
    """Column statistics, file metadata, no columns. A flag that is not set asks for nothing."""
    request, _ = REQUESTS[call]
    assert asked(call, {**request, flag: TRUE}) is None
    assert asked(call, {**request, flag: (BOOL, False)}) == asked(call, request)


@pytest.mark.parametrize(
    ("more", "is_read"),
    [
        ({}, True),
        ({5: (I16, -1)}, True),
        ({5: (I16, 3)}, False),
        ({4: texts(["1"])}, False),
        ({13: texts([])}, True),
        ({13: text("p=1")}, None),
    ],
)
def test_partitions_with_privileges_are_asked_for_by_names_too(more: Struct, *, is_read: bool | None) -> None:
    """As Spark and HiveServer2 do before they write. Names and values together are the metastore's."""
    request, _ = REQUESTS["get_partitions_ps_with_auth_req"]
    by_names = {number: value for number, value in request.items() if number != 4} | {13: texts(["p=1"])} | more
    if is_read is None:
        with pytest.raises(ValueError, match="no list of texts"):
            asked("get_partitions_ps_with_auth_req", by_names)
        return
    names = tuple(field(by_names, 13))
    expected = PartitionsCall(OfTable("db", "t", LISTED, 7), names, with_privileges=True, in_struct=True)
    assert asked("get_partitions_ps_with_auth_req", by_names) == (expected if is_read else None)


@pytest.mark.parametrize(
    ("call", "pattern"),
    [
        ("get_partitions_by_names_req", 12),
        ("get_partitions_by_names_req", 13),
        ("get_partitions_req", 8),
        ("get_partitions_req", 9),
        ("get_partitions_ps_with_auth_req", 11),
        ("get_partitions_ps_with_auth_req", 12),
    ],
)
def test_some_of_the_parameters_are_the_metastores_to_choose(call: str, pattern: int) -> None:
    """An engine that has no pattern may write an empty one."""
    request, _ = REQUESTS[call]
    assert asked(call, {**request, pattern: text("x")}) is None
    assert asked(call, {**request, pattern: text("")}) == asked(call, request)


@pytest.mark.parametrize("call", ["get_partition_names_ps_req", "get_partitions_ps_with_auth_req"])
def test_partitions_by_no_values_are_the_metastores(call: str) -> None:
    """No values at all are not an empty list of them: it may say so in its own way."""
    request = dict(REQUESTS[call][0])
    del request[4]
    assert asked(call, request) is None


@pytest.mark.parametrize("call", REQUESTS)
def test_other_catalogs_and_odd_names_are_the_metastores(call: str) -> None:
    """``@catalog#db`` goes before the field, names have no dots, and a list is of this table."""
    request, expected = REQUESTS[call]
    db, table, in_catalog, write_ids = NUMBERS[call]
    whole = expected(OfTable("db", "t", LISTED, 7))
    assert asked(call, {**request, db: text("@HIVE#db")}) == whole
    for name in ("@spark#db", "@hive", "a.b", "db#!", "", "@hive#"):
        assert asked(call, {**request, db: text(name)}) is None, name
    if in_catalog:
        assert asked(call, {**request, in_catalog: text("spark")}) is None
        assert asked(call, {**request, in_catalog: text("spark"), db: text("@hive#db")}) == whole
        assert asked_by(call, {1: record({**request, in_catalog: text("spark")})}, "spark") == whole
    for name in ("", "a.b"):
        with pytest.raises(ValueError, match="names no table"):
            asked(call, {**request, table: text(name)})
    for listed in ("db.other:5:9223372036854775807::", "no list", "db.t:x:9::"):
        assert asked(call, {**request, write_ids: text(listed)}) is None, listed


def test_an_id_that_is_not_given_is_none() -> None:
    """An engine writes -1 for it. A list that is empty or names no table says another thing to a metastore."""
    request = dict(REQUESTS["get_table_req"][0])
    request.pop(6, None)
    assert asked("get_table_req", {**request, 11: long(-1)}).of == OfTable("db", "t")
    for odd in ("", "[5:]"):
        assert asked_by("get_table_req", {1: record({**request, 6: text(odd)})}, "hive") is None


@given(values(STRUCT, 2))
@example(dict.fromkeys((3, 4, 5, 6, 7, 9, 10, 11), (DOUBLE, inf)))
def test_values_of_other_types_raise_only_what_is_caught(odd: Struct) -> None:
    """What `Answers.answer` passes on."""
    for call, (request, _) in {**REQUESTS, **OTHERS}.items():
        for found in ({**request, **odd}, odd):
            with suppress(FreshetError, ValueError, TypeError, AttributeError, KeyError, OverflowError):
                asked_by(call, found if call in OTHERS else {1: record(found)}, "hive")


@pytest.mark.parametrize("names", [(SET, ListValue(STRING, [b"p=1"])), (LISTS, ListValue(I16, [1])), text("p=1")])
def test_names_are_a_list_of_texts(names: tuple[int, Any]) -> None:
    """A number is not taken for its text; of an empty list the type does not matter."""
    with pytest.raises(ValueError, match="no list of texts"):
        asked_by("get_partitions_by_names", {**PLAIN, 3: names}, "hive")
    empty = {**PLAIN, 3: (LISTS, ListValue(0, []))}
    assert asked_by("get_partitions_by_names", empty, "hive") == PartitionsCall(OfTable("db", "t"), ())


def test_the_table_in_a_result_is_found() -> None:
    """An exception has none."""
    assert table_in({0: record({1: record(PLAIN)})}) == PLAIN
    assert table_in({2: record({1: integer(3)})}) is None
