"""Catalog tables over the owner protocol: names to ids, lists, fills."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from consumers.owner.client import OwnerClient
from consumers.owner.protocol import FillTable, OwnerError
from stream.wire.codec import encode
from tests.consumers.histories import event, marker
from tests.consumers.owning import KEYSPACE, Owner
from tokens import Position, Vector

SHARD = "shop/0"
NAME = "sales.orders"


def at(number: int) -> str:
    """A position of the log."""
    return f"HiveEvent/{number}"


def catalog(kind: str, ordinal: int, fields: dict[str, Any]) -> bytes:
    """A catalog event at log position ``ordinal``."""
    place = {"shard": SHARD, "epoch": 1, "ordinal": ordinal, "gtid": at(ordinal), "timestamp": 1_700_000_000}
    return encode(kind, place | fields)


def bind(ordinal: int, table_id: int) -> bytes:
    """Binds the name to ``table_id``."""
    return catalog("NameBinding", ordinal, {"name": NAME, "table_id": table_id, "previous_name": ""})


def mark(ordinal: int) -> bytes:
    """A marker at log position ``ordinal``."""
    return marker(ordinal, position=at(ordinal), low_water=at(0))


def image(ordinal: int, change: str, content: bytes | None, **fields: Any) -> bytes:
    """An event of table 7."""
    record: dict[str, Any] = {
        "table_id": 7,
        "name": NAME,
        "kind": "transactional",
        "change": change,
        "txn": 0,
        "write_id": 0,
        "staged": False,
        "image": content,
        "write_ids": None,
        "lo": at(ordinal),
        "hi": at(ordinal),
    }
    return catalog("TableImage", ordinal, record | fields)


def token(number: int) -> str:
    """A session that has seen the log up to ``number``."""
    return str(Vector({SHARD: (1, Position.parse(at(number)))}))


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    """Table 7 is there, with an image and an empty list, and the watermark at 4."""
    owner = Owner(tmp_path)
    owner.fold(
        event("EpochStart", 1, gtid=at(1), position=at(0), reason="first_start"),
        mark(1),
        bind(2, 7),
        image(3, "created", b'{"v":1}', write_ids=f"{NAME}:5:9223372036854775807::"),
        mark(4),
    )
    return owner


def test_a_covered_list_is_answered_from_the_cache(owner: Owner) -> None:
    """Name to id, list covered, watermark past the session: fresh, with the image and the list it is good for."""

    async def use(client: OwnerClient) -> None:
        found = await client.get_table(KEYSPACE, NAME, f"{NAME}:5:9223372036854775807::", 7, token(4))
        assert (found.table_id, found.served, found.freshness, found.image) == (7, True, "fresh", b'{"v":1}')
        assert found.hi == at(3)

    owner.run(use)


def test_a_commit_that_the_owner_has_not_seen_is_awaited(owner: Owner) -> None:
    """A list with a newer write id waits for the stream, and is served when the commit is folded."""

    async def use(client: OwnerClient) -> None:
        wanted = f"{NAME}:6:9223372036854775807::"
        found = await client.get_table(KEYSPACE, NAME, wanted, 7, token(4))
        assert (found.served, found.freshness, found.image) == (False, "stale", None)
        waiting = asyncio.create_task(client.get_table(KEYSPACE, NAME, wanted, 7, token(8), 10_000))
        while not owner.partition.waiters:  # noqa: ASYNC110 - what is waited for is in this thread
            await asyncio.sleep(0)
        owner.fold(
            catalog("AllocWriteId", 5, {"table_id": 7, "txn": 3, "write_id": 6, "reallocated": False}),
            image(6, "written", None, txn=3, write_id=6),
            catalog("CommitTxn", 7, {"txn": 3, "write_ids": [{"table_id": 7, "write_id": 6}]}),
            image(8, "image", b'{"v":2}', write_ids=f"{NAME}:6:9223372036854775807::"),
            mark(8),
        )
        found = await waiting
        assert (found.served, found.freshness, found.image) == (True, "fresh", b'{"v":2}')

    owner.run(use)


def test_a_demand_without_list_or_id_is_an_error(owner: Owner) -> None:
    """A managed table can't be judged without list and id."""

    async def use(client: OwnerClient) -> None:
        for write_ids, table_id in (("", 7), (f"{NAME}:5:9223372036854775807::", 0)):
            with pytest.raises(OwnerError) as caught:
                await client.get_table(KEYSPACE, NAME, write_ids, table_id, token(4))
            assert caught.value.code == "missing_write_ids"

    owner.run(use)


def test_a_name_bound_to_another_table_is_not_answered_by_the_old_one(owner: Owner) -> None:
    """A re-created table has the same name and list but another id."""
    owner.fold(bind(5, 8), mark(5))

    async def use(client: OwnerClient) -> None:
        found = await client.get_table(KEYSPACE, NAME, f"{NAME}:5:9223372036854775807::", 7, token(4))
        assert (found.served, found.image) == (False, None)
        assert "is bound to table id 8" in found.why
        nothing = await client.get_table(KEYSPACE, "sales.none", vector=token(4))
        assert (nothing.table_id, nothing.served, nothing.needs_source) == (0, False, True)

    owner.run(use)


def test_a_filled_table_answers_until_it_is_written(owner: Owner) -> None:
    """A fill is kept under CAS while the entry's image is missing, and is not served after the next write."""
    listed = f"{NAME}:5:9223372036854775807::"
    owner.fold(image(5, "written", None), mark(5))

    async def use(client: OwnerClient) -> None:
        missed = await client.get_table(KEYSPACE, NAME, listed, 7, token(5))
        assert (missed.served, missed.needs_source) == (False, True)
        offer = FillTable(0, KEYSPACE, 0, 7, NAME, "transactional", b'{"v":3}', listed, at(6), at(6), missed.stamp)
        filled = await client.fill_table(offer)
        assert filled.accepted, filled.why
        found = await client.get_table(KEYSPACE, NAME, listed, 7, token(6))
        assert (found.image, found.freshness, found.filled) == (b'{"v":3}', "fresh", True)
        owner.fold(image(7, "written", None), mark(7))
        found = await client.get_table(KEYSPACE, NAME, listed, 7, token(6))
        assert not found.served
        late = await client.fill_table(offer)
        assert not late.accepted
        assert "changed since it was read" in late.why

    owner.run(use)
