"""Bounded staleness at the owner: a time is proved by the source's own clock in a marker, and by nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.owner.protocol import Answer, Fill, Get, OwnerRow, Rows
from tests.consumers.histories import event, gtid, key, marker, start, value
from tests.consumers.owning import KEYSPACE, Owner, schema, vector

NOON = 1_700_000_000_000


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    """Row 1 below the watermark, which is as of noon; row 2 above it."""
    owner = Owner(tmp_path)
    owner.fold(start(), marker(1), schema(2), value(1, b'{"id":1}', 3), marker(3, as_of_ms=NOON))
    owner.fold(value(2, b'{"id":2}', 4))
    yield owner
    owner.partition.store.close(commit=False)


def request(number: int, not_before_ms: int, token: str = "", wait_ms: int = 0) -> Get:
    return Get(1, KEYSPACE, 0, [key(number)], token, wait_ms, not_before_ms=not_before_ms)


def ask(owner: Owner, wanted: Get) -> OwnerRow:
    answer = owner.server.answer(wanted)
    assert isinstance(answer, Rows)
    [row] = answer.rows
    return row


def test_a_time_is_proved_up_to_the_clock_in_the_marker(owner: Owner) -> None:
    """At the very millisecond and before it is fresh, without a token; a millisecond later is not."""
    for not_before in (1, NOON - 1, NOON):
        row = ask(owner, request(1, not_before))
        assert (row.served, row.freshness, row.as_of_ms) == (True, "fresh", NOON)
    row = ask(owner, request(1, NOON + 1))
    assert (row.served, row.freshness, row.image, row.needs_source) == (False, "stale", None, False)
    assert "1 ms" in row.why


def test_a_time_and_a_position_are_both_demanded(owner: Owner) -> None:
    """Neither proves the other."""
    assert ask(owner, request(1, NOON, vector(3))).freshness == "fresh"
    assert not ask(owner, request(1, NOON, vector(4))).served
    assert not ask(owner, request(1, NOON + 1, vector(3))).served


def test_an_event_after_the_marker_has_no_time_until_the_next(owner: Owner) -> None:
    """The wait ends with the marker that covers the event and says a time that is late enough."""

    async def main() -> OwnerRow:
        waiting = owner.server.answer(request(2, NOON + 5, wait_ms=60_000))
        assert asyncio.iscoroutine(waiting)
        task: asyncio.Task[Answer] = asyncio.create_task(waiting)
        for as_of_ms in (NOON + 4, NOON + 5):
            while not owner.partition.waiters:  # noqa: ASYNC110 - what is waited for is in this thread
                await asyncio.sleep(0)
            assert not task.done()
            owner.fold(marker(4, as_of_ms=as_of_ms))
            await asyncio.sleep(0)
        answer = await task
        assert isinstance(answer, Rows)
        return answer.rows[0]

    row = asyncio.run(asyncio.wait_for(main(), 20))
    assert (row.served, row.freshness) == (True, "fresh")


def test_a_marker_without_a_clock_proves_no_time(owner: Owner) -> None:
    """As from a source of before, or from a catalog: the source answers."""
    owner.fold(marker(4))
    row = ask(owner, request(1, 1))
    assert (row.served, row.freshness, row.needs_source) == (False, "unknown", True)


def test_a_void_hides_what_the_clock_would_prove(owner: Owner) -> None:
    """The image is unknown, whatever the time."""
    owner.fold(event("TableVoid", 5, table="shop.items", reason="a test"), marker(5, as_of_ms=NOON + 9))
    assert not ask(owner, request(1, NOON)).served


def test_an_unknown_key_says_the_time_and_its_fill_is_proved_by_it(owner: Owner) -> None:
    """The front judges a replica's answer by that time; the fill is then as of each later marker."""
    unknown = ask(owner, request(7, NOON))
    assert (unknown.served, unknown.as_of_ms, unknown.watermark) == (False, NOON, gtid(3))
    fill = Fill(0, KEYSPACE, 0, key(7), b'{"id":7}', gtid(3), gtid(3), 1, unknown.stamp)
    assert owner.server.answer(fill).accepted  # type: ignore[union-attr]
    assert ask(owner, request(7, NOON)).freshness == "fresh"
    assert not ask(owner, request(7, NOON + 1)).served
    owner.fold(marker(4, as_of_ms=NOON + 1))
    assert ask(owner, request(7, NOON + 1)).freshness == "fresh"
