"""``freshet log`` over a real stack: every commit is in the files once, in order, whenever the writer was killed."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from freshet.local.mariadb import MariaDBAddress
from serving.changelog.files import files_of
from serving.client import StreamEvent
from stream.kafka.connection import KafkaCluster
from tests.servers.databases import own_database
from tests.serving.logs import finished, run_for, written
from tests.serving.stack import ServingStack, settled


def printed(stack: ServingStack, *words: str) -> list[StreamEvent]:
    """What it prints."""
    ended = finished(stack, *words)
    assert ended.returncode == 0, ended.stderr
    return [msgspec.json.decode(line, type=StreamEvent) for line in ended.stdout.splitlines()]


def test_a_log_has_every_commit_once_after_kills(
    kafka: KafkaCluster, mariadb: MariaDBAddress, tmp_path: Path, keyspace_name: str
) -> None:
    """Killed at random moments while rows are written; the last run ends with all that is committed."""
    choose, log = random.Random(5), tmp_path / "log"
    made = "CREATE TABLE items (id INT PRIMARY KEY, v INT)"
    with (
        own_database(mariadb, made) as database,
        ServingStack(tmp_path, kafka, mariadb, keyspace_name, database, partitions=3) as stack,
    ):
        with written(stack, choose, str) as gtids:
            for _ in range(4):
                run_for(stack, choose.uniform(1.5, 4), "--to", str(log), "--follow")
        settled(stack)
        ended = finished(stack, "--to", str(log))
        assert ended.returncode == 0, ended.stderr
        lines = [line for path in files_of(log, keyspace_name) for line in path.read_bytes().splitlines()[1:]]
        events = [msgspec.json.decode(line, type=StreamEvent) for line in lines]
        told = [event for event in events if event.kind == "transaction"]
        assert [event.gtid for event in told if event.gtid in set(gtids)] == gtids
        assert events[-1].kind == "end"

        rows = {change.key[0]: change.row for event in told for change in event.changes if change.kind == "row"}
        with stack.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, v FROM items")
            assert rows == {id_: {"id": id_, "v": v} for id_, v in cursor.fetchall()}

        key = str(min(rows))
        history = printed(stack, "--table", f"{database}.items", "--key", key)
        of_key = [(e.gtid, c.row) for e in told for c in e.changes if c.kind == "row" and c.key == [int(key)]]
        found = [(e.gtid, c.row) for e in history for c in e.changes if c.kind == "row"]
        assert found == of_key

        other = finished(stack, "--to", str(log), "--table", f"{database}.items")
        assert "error[log_refused]" in other.stderr
