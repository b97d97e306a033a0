"""Two fronts that miss a row at the same moment, over real servers and processes: one of them reads the source."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from serving.client import FreshetClient
from serving.client.answers import Row
from tests.patience import PATIENCE_S
from tests.serving.stack import ServingStack

KEYS = range(500, 540)


def test_of_two_fronts_that_miss_a_row_one_reads_the_source(stack: ServingStack) -> None:
    """The other one's answer comes from its fill: mostly, since a lease is short and the machine may be busy."""
    together = Barrier(2)
    with stack.client() as one, stack.add_front() as other:
        first = one.session()
        with first.wrap(stack.connect(), shard=stack.shard) as tracked, tracked.cursor() as cursor:
            cursor.execute("REPLACE INTO bare VALUES " + ",".join(f"({key}, {key})" for key in (499, *KEYS)))
        first.get_row(stack.keyspace, "bare", 499, max_wait_ms=10_000)  # its watermark has passed the commit

        def read(client: FreshetClient) -> list[Row]:
            session, found = client.session(first.token), []
            for key in KEYS:
                together.wait(PATIENCE_S)
                found.append(session.get_row(stack.keyspace, "bare", key, max_wait_ms=10_000))
            return found

        with ThreadPoolExecutor(2) as threads:
            rows = list(zip(*threads.map(read, (one, other)), strict=True))
    assert [[row.value for row in pair] for pair in rows] == [[{"id": key, "v": key}] * 2 for key in KEYS]
    assert {row.freshness for pair in rows for row in pair} == {"fresh"}
    answered_by = [sorted(row.served_from for row in pair) for pair in rows]
    assert answered_by.count(["cache", "source"]) > len(KEYS) // 2, answered_by
