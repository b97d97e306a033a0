"""Bounded staleness of a catalog at its owner: a marker's time proves tables and objects as it proves rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from consumers.owner.client import OwnerClient
from consumers.owner.protocol import FillTable, GetObjects, OwnerObjects, OwnerTable
from tests.consumers.histories import event, marker
from tests.consumers.owner.test_owner_tables import NAME, at, bind, catalog, image
from tests.consumers.owning import KEYSPACE, Owner

NOON = 1_700_000_000_000
Ask = Callable[[OwnerClient, int, int], Coroutine[Any, Any, OwnerTable | OwnerObjects]]


def mark(ordinal: int, as_of_ms: int = 0) -> bytes:
    return marker(ordinal, position=at(ordinal), low_water=at(0), as_of_ms=as_of_ms)


def partitions(ordinal: int, change: str) -> bytes:
    of_set = {"kind": "partition", "table_id": 7, "change": change, "lo": at(ordinal), "reason": ""}
    return catalog("CatalogSet", ordinal, of_set)


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    """An external table with its partitions, none of them, below a watermark as of noon."""
    owner = Owner(tmp_path)
    owner.fold(
        event("EpochStart", 1, gtid=at(1), position=at(0), reason="first_start"),
        mark(1),
        bind(2, 7),
        image(3, "created", b'{"v":1}', kind="external"),
        partitions(4, "begun"),
        partitions(5, "complete"),
        mark(5, NOON),
    )
    return owner


async def table(client: OwnerClient, not_before_ms: int, wait_ms: int = 0) -> OwnerTable:
    return await client.get_table(KEYSPACE, NAME, max_wait_ms=wait_ms, not_before_ms=not_before_ms)


async def objects(client: OwnerClient, not_before_ms: int, wait_ms: int = 0) -> OwnerObjects:
    wanted = GetObjects(0, KEYSPACE, "partition", NAME, max_wait_ms=wait_ms, not_before_ms=not_before_ms)
    return await client.get_objects(wanted)


@pytest.mark.parametrize("ask", [table, objects])
def test_a_time_is_proved_up_to_the_clock_in_the_marker(owner: Owner, ask: Ask) -> None:
    """Without a token. Who waits gets the answer with the marker that is late enough."""

    async def use(client: OwnerClient) -> None:
        found = await ask(client, NOON, 0)
        assert (found.served, found.freshness, found.as_of_ms) == (True, "fresh", NOON)
        found = await ask(client, NOON + 1, 0)
        assert (found.served, found.freshness, found.needs_source) == (False, "stale", False)
        waiting = asyncio.create_task(ask(client, NOON + 1, 60_000))
        while not owner.partition.waiters:  # noqa: ASYNC110 - what is waited for is in this thread
            await asyncio.sleep(0)
        owner.fold(mark(5, NOON + 1))
        found = await waiting
        assert (found.served, found.freshness, found.as_of_ms) == (True, "fresh", NOON + 1)

    owner.run(use)


@pytest.mark.parametrize("ask", [table, objects])
def test_a_marker_says_nothing_of_what_follows_it(owner: Owner, ask: Ask) -> None:
    """The table was altered since: its image has no time before the next marker."""
    owner.fold(image(6, "image", b'{"v":2}', kind="external"))

    async def use(client: OwnerClient) -> None:
        found = await ask(client, NOON, 0)
        assert (found.served, found.watermark, found.as_of_ms) == (False, "", 0)
        owner.fold(mark(6, NOON + 1))
        assert (await ask(client, NOON + 1, 0)).freshness == "fresh"

    owner.run(use)


@pytest.mark.parametrize("ask", [table, objects])
def test_a_marker_without_a_clock_proves_no_time(owner: Owner, ask: Ask) -> None:
    """As from a source of before: the metastore answers."""
    owner.fold(mark(6))

    async def use(client: OwnerClient) -> None:
        found = await ask(client, 1, 0)
        assert (found.served, found.freshness, found.needs_source) == (False, "unknown", True)
        assert (await ask(client, 0, 0)).freshness == "eventual"

    owner.run(use)


def test_a_fill_is_as_of_each_later_marker(owner: Owner) -> None:
    """It was read at or past the watermark, and nothing of the table has come since."""
    owner.fold(catalog("TableVoid", 6, {"table": NAME, "reason": "a test", "position": at(6)}), mark(6, NOON))

    async def use(client: OwnerClient) -> None:
        found = await table(client, NOON)
        assert (found.served, found.as_of_ms) == (False, NOON)
        fill = FillTable(0, KEYSPACE, 0, 7, NAME, "external", b'{"v":3}', "", at(6), at(6), found.stamp)
        assert (await client.fill_table(fill)).accepted
        assert not (await table(client, NOON + 1)).served
        owner.fold(mark(7, NOON + 1))
        found = await table(client, NOON + 1)
        assert (found.freshness, found.image, found.filled) == ("fresh", b'{"v":3}', True)

    owner.run(use)


def test_a_list_and_a_time_are_both_demanded(owner: Owner) -> None:
    """Neither proves the other."""
    owner.fold(
        catalog("NameBinding", 6, {"name": "sales.acid", "table_id": 8, "previous_name": ""}),
        image(7, "created", b"{}", table_id=8, name="sales.acid", write_ids="sales.acid:5:9223372036854775807::"),
        mark(7, NOON),
    )

    async def use(client: OwnerClient) -> None:
        async def is_served(hwm: int, not_before_ms: int) -> bool:
            listed = f"sales.acid:{hwm}:9223372036854775807::"
            found = await client.get_table(KEYSPACE, "sales.acid", listed, 8, not_before_ms=not_before_ms)
            return found.served

        assert [await is_served(*each) for each in ((5, NOON), (6, NOON), (5, NOON + 1))] == [True, False, False]

    owner.run(use)
