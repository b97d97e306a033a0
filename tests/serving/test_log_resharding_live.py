"""Change logs through a split of two shards into four, on real servers: each row that was written is in them once."""

from __future__ import annotations

import random
import subprocess
import uuid
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import msgspec
from confluent_kafka.admin import AdminClient

from freshet.local.mariadb import MariaDBServer
from serving.changelog.files import files_of
from serving.client import StreamEvent
from stream.kafka.connection import KafkaCluster, client_settings
from tests.serving.logs import command, finished
from tests.serving.sharded import ShardedStack, start_servers
from tests.serving.stack import without_settings
from tests.serving.test_log_topic import records
from tests.serving.test_resharding_live import REPLICA, Traffic, replicate, reshard

MOVED = {"-40": ["-80"], "40-80": ["-80"], "80-c0": ["80-"], "c0-": ["80-"]}
"""New range → the one that it was part of."""


class Writers:
    """A log in files and one in a topic, which follow. They are killed now and then, and started again."""

    def __init__(self, stack: ShardedStack, *logs: tuple[str, str]) -> None:
        self.stack, self.logs = stack, logs
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Both, with the words of before."""
        for words in self.logs:
            run = command(self.stack, *words, "--follow")
            self.running.append(subprocess.Popen(run, stderr=subprocess.DEVNULL, env=without_settings()))

    def kill(self) -> None:
        """Kill -9, wherever they are. Both must have run until now: they wait for a front that is away."""
        codes = [process.poll() for process in self.running]
        self.end()
        assert codes == [None] * len(self.logs)

    def end(self) -> None:
        """Leaves no process."""
        for process in self.running:
            process.kill()
            process.wait()
        self.running.clear()

    def finish(self) -> None:
        """Ends with all that is there."""
        for words in self.logs:
            ended = finished(self.stack, *words)
            assert ended.returncode == 0, ended.stderr


def test_logs_are_complete_through_a_split_of_each_shard(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Two shards become four while rows are written, and the logs are killed before, meanwhile and behind it."""
    suffix = uuid.uuid4().hex[:8]
    log, topic, choose = tmp_path / "log", f"log-{suffix}", random.Random(4)
    with ExitStack() as started:
        before = start_servers(started, tmp_path, ("-80", "80-"))
        after: dict[str, MariaDBServer] = {}
        for number, text in enumerate(MOVED, 3):
            server = MariaDBServer(
                tmp_path / f"mariadb{number}", server_id=number, gtid_domain_id=number, durable=False, options=REPLICA
            )
            after[text] = started.enter_context(server)
        stack = ShardedStack(tmp_path, kafka, before, f"ks{suffix}", f"db_{suffix}")
        stack.run_everywhere(
            f"CREATE DATABASE IF NOT EXISTS {stack.database}",
            f"CREATE TABLE IF NOT EXISTS {stack.database}.items (id INT PRIMARY KEY, v INT NOT NULL)",
        )
        with stack, stack.client() as client:
            traffic = Traffic(stack, client.session(stack.settle()))
            writers = Writers(stack, ("--to", str(log)), ("--to-topic", topic))
            writers.start()
            started.callback(writers.end)
            traffic.start()
            traffic.more(30)
            for text, olds in MOVED.items():
                replicate(after[text], *[before[old] for old in olds])
            writers.kill()
            writers.start()
            traffic.more(choose.randint(5, 20))
            reshard(stack, traffic, after, MOVED, MOVED)
            traffic.more(choose.randint(5, 20))
            writers.kill()
            writers.start()
            traffic.more(30)
            traffic.stopping = True
            traffic.join()
            traffic.check()
            stack.settle()
            writers.kill()
            writers.finish()
        in_files, shards = Counter[tuple[int, int]](), set[str]()
        for path in files_of(log, stack.keyspace):
            for line in path.read_bytes().splitlines()[1:]:
                event = msgspec.json.decode(line, type=StreamEvent)
                in_files.update((c.row["id"], c.row["v"]) for c in event.changes if c.row)
                shards.update(event.shard for c in event.changes if c.row)
        told = [fields["changes"] for name, fields in records(kafka, topic) if name == "Transaction"]
        in_topic = Counter((c["row"]["id"], c["row"]["v"]) for changes in told for c in changes if c["row"])
        admin = AdminClient(client_settings(kafka))
        [deleted] = admin.delete_topics([topic]).values()
        deleted.result(timeout=60)
    assert in_files == traffic.written
    assert in_topic == traffic.written
    assert shards == {f"{stack.keyspace}/{text}" for text in (*before, *after)}, "all shards were written"
