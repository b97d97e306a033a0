"""What a store of the application's cache is given comes back as it was, whatever the numbers in it."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from serving.client import FreshetClient, Session
from serving.client.cache import DictStore, Invalidator, RowCache
from serving.client.cache.entries import Entry, decode, encode
from tests.serving.scripted_front import Front, vector
from tests.serving.test_application_cache import TABLE, Scripted, read_at, told

GREAT = [5 * 10**19, 10**21 - 1, -(10**20), 2**64, -(2**63) - 1, 10**40]


@pytest.mark.parametrize("number", [*GREAT, 2**64 - 1, -(2**63), 1e300])
def test_a_row_with_a_great_number_is_kept_as_it_is(number: float) -> None:
    """A double of 2^64 or more has only digits in canonical text, and MessagePack has no such whole number."""
    status, body = read_at(1, 5, 1)
    answer = msgspec.json.decode(body)
    answer["row"]["v"] = number
    front, store = Front((status, msgspec.json.encode(answer))), DictStore()
    cache = RowCache(cast("FreshetClient", Scripted(front)), store, "shop", {TABLE: ["id"]})
    Invalidator(store, "shop", [TABLE]).apply(told(1, 5))
    session = Session(front, vector(shop="1 0-1-5"))
    found = [cache.get_row(session, TABLE, 1) for _ in range(2)]
    assert [(each.from_store, each.value) for each in found] == [(False, answer["row"]), (True, answer["row"])]


def test_who_reads_only_entries_without_great_numbers_finds_none() -> None:
    """An application of an earlier version beside this one: its read takes the entry for one that is not there."""
    raw = encode(Entry("g", value={"id": GREAT[0]}))
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(raw, type=Entry)


@pytest.mark.parametrize(
    "value", [{"text": "é\x00", "list": [None, True, {"deep": GREAT[1]}]}, {"t": [{"n": GREAT[2]}]}]
)
def test_all_beside_a_great_number_comes_back(value: dict[str, Any]) -> None:
    """Columns of JSON, and the tables of an object."""
    entry = Entry("g", "proven", value, "token", "lease")
    assert decode(encode(entry), Entry) == entry
