"""What a change stream leaves out for its reader, and nothing beside it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from serving.errors import ReadError
from serving.http.app import make_app
from serving.http.front import make_front
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace
from serving.streams.beginning import Beginning
from serving.streams.choice import Choice
from serving.streams.reading import Begin, FromSecond
from stream.changes.checkpoint import Checkpoint, Place
from stream.changes.items import Transaction
from stream.changes.start import FromTime
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
