"""The rows that are read most come first after a DDL, over real servers and processes."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster
from stream.sources.mariadb.backfill.chunks import ROWS_MAX
from tests.servers.databases import own_database
from tests.serving.stack import ServingStack, eventually, settled


@pytest.mark.slow
def test_a_row_that_is_read_is_published_long_before_its_turn(
    kafka: KafkaCluster, mariadb: MariaDBAddress, tmp_path: Path
) -> None:
    """The consumer asks the source for it when the table is void, though the backfill comes to it in a quarter of an
    hour."""
    keyspace, hot = f"hot{uuid.uuid4().hex[:10]}", ROWS_MAX + 300
    table = f"CREATE TABLE t (id INT PRIMARY KEY, v INT) SELECT seq AS id, 1 AS v FROM seq_1_to_{ROWS_MAX + 400}"
    with (
        own_database(mariadb, table) as database,
        ServingStack(
            tmp_path, kafka, mariadb, keyspace, database, backfill=["*"], backfill_rows_per_s=ROWS_MAX // 900
        ) as stack,
    ):
        place = f"/v1/rows/{keyspace}/t"
        eventually(lambda: "folded from" in stack.get(f"{place}/1").json()["why"], what="the first chunk")
        assert stack.get(f"{place}/{hot}").json()["served_from"] == "source"
        stack.run("ALTER TABLE t ADD COLUMN w INT DEFAULT 7")
        settled(stack)

        def is_published() -> bool:
            found = stack.get(f"{place}/{hot}").json()
            return "folded from" in found["why"] and found["served_from"] == "cache"

        eventually(is_published, what="the hot row")
        assert stack.get(f"{place}/{hot}").json()["row"] == {"id": hot, "v": 1, "w": 7}
        assert "folded from" not in stack.get(f"{place}/{hot + 50}").json()["why"]
