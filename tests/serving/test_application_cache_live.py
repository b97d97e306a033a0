"""An application's cache in a real memcached, over a real MariaDB, Kafka and front; its invalidator pauses."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from serving.client import FreshetClient
from serving.client.cache import CachedRow, Invalidator, MemcachedStore, RowCache
from tests.serving.memcached import MemcachedServer, can_be_had
from tests.serving.stack import ServingStack, eventually


class Following:
    """An invalidator in a thread, as an application runs it. ``checkpoint``: the last that it kept."""

    def __init__(
        self, client: FreshetClient, store: MemcachedStore, keyspace: str, table: str, checkpoint: str
    ) -> None:
        self.checkpoint, self._ends = checkpoint, threading.Event()
        invalidator = Invalidator(store, keyspace, [table])

        def run() -> None:
            for kept in invalidator.follow(client, checkpoint):
                self.checkpoint = kept or self.checkpoint
                if self._ends.is_set():
                    return

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def end(self) -> str:
        """Ends it; its checkpoint."""
        self._ends.set()
        self._thread.join()
        return self.checkpoint


@pytest.mark.integration
def test_a_row_is_served_by_the_applications_memcached_until_it_changes(stack: ServingStack) -> None:
    """A hit asks no front; a write is seen by its session at once, by all others soon, and after a pause too."""
    if not can_be_had():
        pytest.skip("NOT RUN: no memcached can be fetched here")
    table = f"{stack.database}.remembered"
    stack.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, balance INT)")
    with (
        tempfile.TemporaryDirectory(prefix="freshet-memcached-") as directory,
        MemcachedServer(Path(directory)) as server,
        stack.client() as client,
        stack.connect(autocommit=True) as connection,
    ):
        store = MemcachedStore(server.client())
        cache = RowCache(client, store, stack.keyspace, {table: ["id"]})

        def hit(pk: int, session: Any = None) -> CachedRow | None:
            row = cache.get_row(session or client.session(), table, pk)
            return row if row.from_store else None

        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table} VALUES (1, 10), (2, 20)")
            following = Following(client, store, stack.keyspace, table, "")
            found = eventually(lambda: hit(1), what="a hit")
            assert found is not None
            assert found.value == {"id": 1, "balance": 10}
            session = client.session()
            with session.wrap(stack.connect(autocommit=True), shard=f"{stack.keyspace}/0") as own:
                own.cursor().execute(f"UPDATE {table} SET balance = 11 WHERE id = 1")
                assert cache.get_row(session, table, 1).value == {"id": 1, "balance": 11}
            found = eventually(lambda: hit(1, session), what="the write in a hit")
            assert found is not None
            assert found.value == {"id": 1, "balance": 11}
            checkpoint = following.end()
            cursor.execute(f"UPDATE {table} SET balance = 12 WHERE id = 1")
            following = Following(client, store, stack.keyspace, table, checkpoint)
            last = {"id": 1, "balance": 12}
            eventually(lambda: (row := hit(1)) is not None and row.value == last, what="what was written in the pause")
            cursor.execute(f"DELETE FROM {table} WHERE id = 1")
            eventually(lambda: cache.get_row(client.session(), table, 1).value is None, what="the deletion")
            cursor.execute(f"ALTER TABLE {table} ADD COLUMN note INT")
            with_note = {"id": 2, "balance": 20, "note": None}
            eventually(lambda: (row := hit(2)) is not None and row.value == with_note, what="the new column")
            following.end()
