"""What a store of the application's cache is given comes back as it was, whatever the numbers in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import pytest

from serving.client import FreshetClient, Session, StreamChange, StreamEvent
from serving.client.cache import DictStore, Found, Invalidator, RowCache
from serving.client.cache.entries import Entry, decode, encode
from tests.serving.scripted_front import Front, vector
from tests.serving.test_application_cache import TABLE, Scripted, read_at, told
from tokens import EventToken, Position

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


class Torn(DictStore):
    """A store that reads what it is asked for one by one, the floor last."""

    meanwhile: Callable[[], object] | None = None
    """What others do before the floor is read, once."""

    def get(self, names: Sequence[str]) -> dict[str, Found]:
        """As of several moments."""
        floor, *others = names
        found = super().get(others or [floor])
        if others:
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()
            found |= super().get([floor])
        return found


def test_an_entry_that_was_invalidated_before_its_floor_was_read_is_not_used() -> None:
    """The floor says that the change has been dealt with, and the entry was read before it was: it has the old row."""
    front, store = Front(read_at(1, 5, 1), read_at(1, 6, 2)), Torn()
    cache = RowCache(cast("FreshetClient", Scripted(front)), store, "shop", {TABLE: ["id"]})
    invalidator = Invalidator(store, "shop", [TABLE])
    invalidator.apply(told(1, 5))
    for from_store in (False, True):
        assert cache.get_row(Session(front, vector(shop="1 0-1-5")), TABLE, 1).from_store is from_store
    change = StreamChange("row", TABLE, [1], "value")
    place = str(EventToken(0, "shop/0", Position.parse("MariaDB/0-1-6"), epoch=1))

    def invalidated() -> None:
        invalidator.apply(StreamEvent("transaction", "c6", place, changes=[change]))
        invalidator.apply(told(1, 6))

    store.meanwhile = invalidated
    found = cache.get_row(Session(front, vector(shop="1 0-1-6")), TABLE, 1)
    assert store.meanwhile is None
    assert (found.from_store, found.value) == (False, {"id": 1, "v": 2})
