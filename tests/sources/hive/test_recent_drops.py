"""What a source remembers of drops: as little as its fetches need."""

from __future__ import annotations

import tracemalloc

from stream.sources.hive.recent_drops import RecentDrops
from stream.wire.events import ObjectImage

TABLES = 2_000


def test_tables_without_statistics_cost_no_memory() -> None:
    """A sweep says so of each table that has none: of most of them."""
    drops = RecentDrops()
    tracemalloc.start()
    for table_id in range(1, TABLES + 1):
        drops.note(table_id, [ObjectImage("statistics", table_id, (), "dropped")])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 10 * TABLES
