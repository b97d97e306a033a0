"""What a change stream leaves out for its reader, and nothing beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlencode

import pytest

from serving.client.errors import BadRequest
from serving.client.streaming import stream_request
from serving.errors import ReadError
from serving.http.app import make_app
from serving.http.front import make_front
from serving.http.route import parameters_of
from serving.http.streaming.parameters import StreamParameters, choice_of
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace
from serving.sources.source import RowTable
from serving.streams.beginning import Beginning
from serving.streams.choice import Choice
from serving.streams.reading import Begin, FromSecond
from stream.changes.checkpoint import Checkpoint, Place
from stream.changes.items import Transaction
from stream.changes.start import FromTime
from stream.wire.events import Column
from stream.wire.keys import Layout
from tests.serving.asking import ask_app


@pytest.mark.parametrize(
    ("text", "image", "is_wanted"),
    [
        ("null", b'{"a":null}', False),
        ("null", b'{"a":"null"}', True),
        ("null", b'{"b":1}', False),
        ("1", b'{"a":1}', True),
        ("1", b'{"a":"1"}', True),
        ("1", b'{"a":10}', False),
        ("true", b'{"a":true}', True),
    ],
)
def test_a_value_is_what_a_parameter_says_and_null_is_no_text(text: str, image: bytes, is_wanted: bool) -> None:
    """As in SQL, nothing equals NULL: the text of four letters is another value."""
    assert Choice(where=(("a", text),)).matches(image) is is_wanted


COLUMNS = tuple(
    Column(name, kind, True, sql_type)
    for name, kind, sql_type in [
        ("total", "decimal", "decimal(10,2)"),
        ("ratio", "double", "double"),
        ("active", "int", "tinyint(1)"),
        ("code", "binary", "varbinary(9)"),
        ("name", "text", "varchar(9)"),
    ]
)
IMAGE = b'{"total":"35.00","ratio":1,"active":1,"code":{"base64":"eA=="},"name":"35.00"}'


def chosen(where: Mapping[str, object], *kinds: str) -> Choice:
    """What a client asks for, of a table with `COLUMNS`, and of one that has the ``kinds`` for ``total``."""
    tables = [RowTable("shop.t", COLUMNS[:1], True, columns=COLUMNS)]
    tables += [RowTable(f"shop.{kind}", (), True, columns=(Column("total", kind, True, ""),)) for kind in kinds]

    async def described(_: RowSpace, name: str) -> RowTable:
        return next(table for table in tables if table.name == name)

    front: Any = SimpleNamespace(descriptions=SimpleNamespace(get=described))
    request = stream_request("shop", "now", tables=[table.name for table in tables], include_rows=True, where=where)
    parameters = parameters_of(StreamParameters, {}, urlencode(request.params).encode())
    return asyncio.run(choice_of(front, RowSpace("shop", Layout(1), "shop"), parameters))


@pytest.mark.parametrize(
    ("name", "value", "is_wanted"),
    [
        ("total", Decimal(35), True),
        ("total", 35.0, True),
        ("total", "35.01", False),
        ("ratio", 1.0, True),
        ("ratio", "1.00", True),
        ("active", 1, True),
        ("active", 0, False),
        ("code", b"x", True),
        ("code", b"y", False),
        ("name", "35.00", True),
        ("name", "35", False),
    ],
)
def test_a_value_is_compared_as_its_column_is(name: str, value: object, is_wanted: bool) -> None:
    """Else a view that is built of the stream lacks the rows that `find` finds with the same value."""
    assert chosen({name: value}).matches(IMAGE) is is_wanted


def test_a_number_is_one_in_all_tables() -> None:
    """Or it is a text: two texts of one number are two texts."""
    assert chosen({"total": 35}, "int").matches(IMAGE)
    assert not chosen({"total": 35}, "text").matches(IMAGE)


@pytest.mark.parametrize("value", [True, None, b"\xff"])
def test_a_client_refuses_what_has_no_text(value: object) -> None:
    """As `find` does: the word of a programming language equals nothing."""
    with pytest.raises(BadRequest):
        chosen({"active": value})


@pytest.mark.parametrize("text", ["True", "snan", "NaN", "1_000", " 1", "٣", ""])
def test_what_is_no_number_is_refused(text: str) -> None:
    """Nothing would ever equal it, or it can't be compared."""
    with pytest.raises(ReadError, match="is not a number") as refused:
        chosen({"active": text})
    assert refused.value.code == "bad_parameter"


def test_once_a_shard_has_begun_nothing_of_it_is_left_out_whatever_its_time() -> None:
    """Clocks go back: a later transaction with an earlier time would be lost."""
    beginning, known = Beginning({"a": FromTime(9)}), Checkpoint("shop", "id", (0,))

    def left_out(number: int, second: int) -> bool:
        gtid = f"MariaDB/0-1-{number}"
        told = Transaction("a", Place(1, number), gtid, gtid, second, "", [], known, 100)
        return beginning.told(told, is_known=True) is None

    assert [left_out(*each) for each in ((1, 8), (2, 9), (3, 8))] == [True, False, False]
    assert beginning.shards == {}


@pytest.mark.parametrize(
    ("params", "headers", "second"),
    [
        ({"from": "7"}, {}, 7),
        ({"from": "7"}, {"last-event-id": "9"}, 9),
        ({}, {"last-event-id": "9"}, 9),
        ({"from": "7", "last_event_id": "8"}, {"last-event-id": "9"}, 8),
    ],
)
def test_a_browser_that_connects_again_goes_on_where_it_was(
    params: dict[str, str], headers: dict[str, str], second: int
) -> None:
    """It sends the same URL each time, and beside it what it has seen: else it would be told all of that again."""
    front = make_front([RowSpace("shop", Layout(1), "shop")], Locations())
    asked: list[Begin] = []

    async def begin(_: str, where: Begin, **__: object) -> Any:
        asked.append(where)
        raise ReadError("stream_unavailable", "no Kafka answers")

    front.streams = cast("Any", SimpleNamespace(begin=begin, stopping=None))
    answer = ask_app(make_app(front), "GET", "/v1/stream", params={"keyspace": "shop", **params}, headers=headers)
    assert (answer.status_code, asked) == (503, [FromSecond(second)])
