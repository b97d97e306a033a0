"""What a change stream leaves out for its reader, and nothing beside it."""

from __future__ import annotations

import pytest

from serving.streams.beginning import Beginning
from serving.streams.choice import Choice
from stream.changes.checkpoint import Checkpoint, Place
from stream.changes.items import Transaction
from stream.changes.start import FromTime


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
        return beginning.leaves_out(told, is_known=True)

    assert [left_out(*each) for each in ((1, 8), (2, 9), (3, 8))] == [True, False, False]
    assert beginning.shards == {}
