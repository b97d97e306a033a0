"""Logs and a copy through a split of two shards into four, on real servers.

Each row that was written is in each log once, and the copy has what is there.
"""

from __future__ import annotations

import random
import subprocess
import uuid
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from confluent_kafka.admin import AdminClient

from freshet.local.mariadb import MariaDBServer
from serving.changelog.files import files_of
from serving.client import StreamEvent
from stream.kafka.connection import KafkaCluster, client_settings
from tests.patience import PATIENCE_S
from tests.serving.logs import command as log_command
from tests.serving.sharded import ShardedStack, start_servers
from tests.serving.stack import eventually, without_settings
from tests.serving.test_log_topic import records
from tests.serving.test_resharding_live import REPLICA, ROWS, Traffic, replicate, reshard, run
from tests.serving.test_sink_live import command as sink_command
from tests.serving.test_sink_live import commits, in_copy

MOVED = {"-40": ["-80"], "40-80": ["-80"], "80-c0": ["80-"], "c0-": ["80-"]}
"""New range → the one that it was part of."""


class Writers:
    """Commands that follow, each with the flag of one that ends. They are killed now and then, and started again."""

    def __init__(self, following: list[list[str]], ending: list[list[str]], said: Path) -> None:
        self.following, self.ending, self.said = following, ending, said
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """All, with the words of before."""
        with self.said.open("ab") as said:
            for words in self.following:
                self.running.append(subprocess.Popen(words, stderr=said, env=without_settings()))

    def kill(self) -> None:
        """Kill -9, wherever they are. All must have run until now: they wait for a front that is away."""
        codes = [process.poll() for process in self.running]
        self.end()
        assert codes == [None] * len(self.following), self.said.read_text()

    def end(self) -> None:
        """Leaves no process."""
        for process in self.running:
            process.kill()
            process.wait()
        self.running.clear()

    def finish(self) -> None:
        """Ends with all that is there."""
        for words in self.ending:
            ended = subprocess.run(
                words, capture_output=True, timeout=4 * PATIENCE_S, text=True, check=False, env=without_settings()
            )
            assert ended.returncode == 0, ended.stderr


def delete_neighbours(stack: ShardedStack) -> None:
    """The last step of a split: until then the source's rows can't be read as a whole table."""
    for text, server in stack.servers.items():
        others = [str(number) for number in range(ROWS) if stack.range_of("items", number) != text]
        run(server, f"DELETE FROM {stack.database}.items WHERE id IN ({', '.join(others)})")


@pytest.mark.nightly
def test_logs_and_a_copy_are_complete_through_a_split_of_each_shard(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Two shards become four while rows are written, and all are killed before, meanwhile and behind it."""
    suffix = uuid.uuid4().hex[:8]
    log, topic, choose = tmp_path / "log", f"log-{suffix}", random.Random(4)
    copy = f"sqlite:///{tmp_path}/copy.db"
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
            ending = [log_command(stack, *to) for to in (("--to", str(log)), ("--to-topic", topic))]
            following = [[*words, "--follow"] for words in ending]
            sink = sink_command(stack, copy, [f"{stack.database}.items"])
            writers = Writers([*following, sink], [*ending, [*sink, "--once"]], tmp_path / "said")
            writers.start()
            started.callback(writers.end)
            traffic.start()
            traffic.more(30)
            for text, olds in MOVED.items():
                replicate(after[text], *[before[old] for old in olds])
            writers.kill()
            begun = commits(copy)
            writers.start()
            eventually(
                lambda: commits(copy) > begun, what="a sink that has begun, since one that begins waits for no front"
            )
            traffic.more(choose.randint(5, 20))
            reshard(stack, traffic, after, MOVED, MOVED)
            delete_neighbours(stack)
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
    assert in_copy(copy, "items", "id, v") == set(traffic.rows.items())
    assert in_files == traffic.written
    assert in_topic == traffic.written
    assert shards == {f"{stack.keyspace}/{text}" for text in (*before, *after)}, "all shards were written"
