"""Rows given to the cache, and tables whose events carry no rows, over real servers and processes."""

from __future__ import annotations

import asyncio

import pytest

from serving.client import AsyncClient, Conflict, Session
from tests.serving.stack import ServingStack, eventually, settled


def test_an_application_fills_the_cache(stack: ServingStack, session: Session) -> None:
    """A row older than the topic, read at the database and given with its place: the cache answers with it then."""
    session.adopt(settled(stack))
    kept = session.put_row(stack.keyspace, "old", {"id": 1900, "v": 1900}, 1900)
    assert (kept.kept, kept.freshness) == (True, "fresh")
    found = session.get_row(stack.keyspace, "old", 1900)
    assert (found.served_from, found.value) == ("cache", {"id": 1900, "v": 1900})

    async def of_asyncio() -> bool:
        async with AsyncClient(stack.url) as client:
            kept = await client.session(session.token).put_row(stack.keyspace, "old", {"id": 1901, "v": 1901}, 1901)
            return kept.kept

    assert asyncio.run(of_asyncio())


def test_a_given_row_that_is_old_poisons_nothing(stack: ServingStack, session: Session) -> None:
    """A row read before a change and given with the place of the change, as a lying application does, is refused."""
    with session.wrap(stack.connect(), shard=stack.shard) as connection, connection.cursor() as cursor:
        cursor.execute("REPLACE INTO old VALUES (1910, 1)")
        before = session.get_row(stack.keyspace, "old", 1910)
        cursor.execute("UPDATE old SET v = 2 WHERE id = 1910")
        with pytest.raises(Conflict, match="another row") as lost:
            session.put_row(stack.keyspace, "old", before.value, 1910)
        assert lost.value.code == "fill_lost"
        found = session.get_row(stack.keyspace, "old", 1910)
    assert found.value == {"id": 1910, "v": 2}


def test_events_without_rows_invalidate_and_reads_fill(stack: ServingStack, session: Session) -> None:
    """Mode invalidate: each change voids the row, the first read brings it, the next ones have it from the cache."""
    with (
        stack.client() as client,
        session.wrap(stack.connect(), shard=stack.shard) as connection,
        connection.cursor() as cursor,
    ):
        events = client.stream(stack.keyspace, tables=[f"{stack.database}.bare"], include_rows=True)
        assert next(events).kind == "watermark"
        for value in (1, 2):
            cursor.execute("REPLACE INTO bare VALUES (1, %s)", (value,))
            first = session.get_row(stack.keyspace, "bare", 1, max_wait_ms=10_000)
            assert (first.served_from, first.freshness, first.value) == ("source", "fresh", {"id": 1, "v": value})
            kept = eventually(lambda: cached(stack, session), what="a filled row")
            assert kept == {"id": 1, "v": value}
            [change] = next(event for event in events if event.kind == "transaction").changes
            assert (change.op, change.row) == ("void", None)
        cursor.execute("DELETE FROM bare")
        # A marker may have come amid, and a fill below its low-water is none: the source answers once more then.
        assert not session.get_row(stack.keyspace, "bare", 1, max_wait_ms=10_000).found
        eventually(lambda: is_known_absent(stack, session), what="an absence from the cache")


def cached(stack: ServingStack, session: Session) -> object:
    """The row, if the cache has it."""
    row = session.get_row(stack.keyspace, "bare", 1)
    return row.value if row.served_from == "cache" else None


def is_known_absent(stack: ServingStack, session: Session) -> bool:
    """Whether the cache answers that there is no such row."""
    row = session.get_row(stack.keyspace, "bare", 1)
    assert not row.found
    return row.served_from == "cache"
