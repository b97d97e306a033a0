"""``freshet lag --tables`` over a real stack: how far each table is read and folded, and what changed it last."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster
from tests.patience import PATIENCE_S
from tests.servers.databases import own_database
from tests.serving.stack import ServingStack, eventually, settled, without_settings

MADE = (
    "CREATE TABLE busy (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE quiet (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE bare (v INT)",
    "INSERT INTO quiet VALUES (1, 1)",
)


def lag(stack: ServingStack, *words: str) -> str:
    """What the command prints."""
    line = [sys.executable, "-m", "freshet", "--config", str(stack.config), "lag", stack.keyspace, "--tables", *words]
    ran = subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=without_settings())
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_each_table_has_its_last_change_and_how_much_of_it_is_there(
    kafka: KafkaCluster, mariadb: MariaDBAddress, tmp_path: Path, keyspace_name: str
) -> None:
    """A write of one table is the last change of that one only; a DDL voids its table, which is then read again."""
    with (
        own_database(mariadb, *MADE) as database,
        ServingStack(tmp_path, kafka, mariadb, keyspace_name, database, backfill=["*"]) as stack,
    ):

        def tables() -> dict[str, Any]:
            told = json.loads(lag(stack, "--json"))
            assert told["keyspace"] == keyspace_name
            return {each["table"].removeprefix(f"{database}."): each for each in told["tables"]}

        def complete() -> dict[str, Any]:
            found = tables()
            states = [found[name]["shards"][stack.shard]["state"] for name in ("busy", "quiet")]
            return found if states == ["complete"] * 2 and found["busy"]["whole"] == 2 else {}

        eventually(complete, what="tables that are read")
        with stack.connect(autocommit=False) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO busy VALUES (7, 1)")
            connection.commit()
            cursor.execute("SELECT @@last_gtid")
            gtid = f"MariaDB/{cursor.fetchone()[0]}"
        settled(stack)
        found = tables()
        assert found.keys() == {"busy", "quiet", "bare"}
        last = found["busy"]["last"]
        assert (last["gtid"], last["kind"], last["shard"]) == (gtid, "row", stack.shard)
        assert 0 <= found["busy"]["age_s"] < PATIENCE_S
        assert found["quiet"]["last"]["gtid"] != gtid
        assert found["bare"]["shards"][stack.shard]["state"] == "unfit"
        assert found["bare"]["shards"][stack.shard]["reason"]
        stack.run("ALTER TABLE quiet ADD w INT")
        settled(stack)
        after = eventually(complete, what="the table that a DDL has voided")
        assert after["quiet"]["last"]["timestamp"] >= found["quiet"]["last"]["timestamp"]
        assert after["quiet"]["last"]["offset"] > found["quiet"]["last"]["offset"]
        shown = lag(stack)
        assert f"{database}.busy" in shown
        assert gtid in shown
        assert "2 of 2" in shown
