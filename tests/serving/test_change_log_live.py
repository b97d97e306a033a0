"""``freshet log`` over a real stack: every commit is in the files once, in order, whenever the writer was killed."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from freshet.local.mariadb import MariaDBAddress
from serving.changelog.files import files_of
from serving.client import StreamEvent
from stream.kafka.connection import KafkaCluster
from tests.patience import PATIENCE_S
from tests.servers.databases import own_database
from tests.serving.stack import ServingStack, settled, without_settings


def command(stack: ServingStack, *words: str) -> list[str]:
    """``freshet log`` of the stack's keyspace."""
    return [sys.executable, "-m", "freshet", "--config", str(stack.config), "log", stack.keyspace, *words]


def printed(stack: ServingStack, *words: str) -> list[StreamEvent]:
    """What it prints."""
    ended = subprocess.run(command(stack, *words), capture_output=True, timeout=4 * PATIENCE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    return [msgspec.json.decode(line, type=StreamEvent) for line in ended.stdout.splitlines()]


def test_a_log_has_every_commit_once_after_kills(
    kafka: KafkaCluster, mariadb: MariaDBAddress, tmp_path: Path, keyspace_name: str
) -> None:
    """Killed at random moments while rows are written; the last run ends with all that is committed."""
    choose, gtids, ends = random.Random(5), list[str](), threading.Event()
    made = "CREATE TABLE items (id INT PRIMARY KEY, v INT)"
    with (
        own_database(mariadb, made) as database,
        ServingStack(tmp_path, kafka, mariadb, keyspace_name, database, partitions=3) as stack,
    ):

        def write() -> None:
            with stack.connect(autocommit=False) as connection, connection.cursor() as cursor:
                while not ends.is_set():
                    for _ in range(choose.randint(1, 4)):
                        cursor.execute(f"REPLACE INTO items VALUES ({choose.randint(1, 40)}, {len(gtids)})")
                    connection.commit()
                    cursor.execute("SELECT @@last_gtid")
                    gtids.append(f"MariaDB/{cursor.fetchone()[0]}")
                    ends.wait(0.01)

        writer, log = threading.Thread(target=write), tmp_path / "log"
        writer.start()
        try:
            for _ in range(4):
                process = subprocess.Popen(
                    command(stack, "--to", str(log), "--follow"), stderr=subprocess.DEVNULL, env=without_settings()
                )
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(choose.uniform(1.5, 4))
                process.kill()
                process.wait()
        finally:
            ends.set()
            writer.join()
        settled(stack)
        ended = subprocess.run(
            command(stack, "--to", str(log)), capture_output=True, timeout=4 * PATIENCE_S, text=True, check=False
        )
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

        other = subprocess.run(
            command(stack, "--to", str(log), "--table", f"{database}.items"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert "error[log_refused]" in other.stderr
