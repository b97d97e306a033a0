"""A keyspace whose shards are split and merged on real MariaDB servers, while it is written, read and followed."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from freshet.local.mariadb import MariaDBServer
from serving.client import ClientError, Session
from stream.changes.checkpoint import Checkpoint
from stream.changes.following import Follower
from stream.changes.items import RowEvent, Transaction
from stream.changes.start import Start
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import check_topics, events_topic
from tests.patience import PATIENCE_S
from tests.serving.sharded import PARTITIONS, ShardedStack, start_servers
from tests.serving.stack import eventually

ROWS = 24
REPLICA = {"log-slave-updates": "ON"}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, MariaDBServer]]:
    """The servers of both shards of before, and those of the shards to come, which have nothing yet."""
    with ExitStack() as stack:
        started = start_servers(stack, tmp_path, ("-80", "80-"))
        for number, text in enumerate(("-40", "40-80", "40-"), 3):
            directory = tmp_path / f"mariadb{number}"
            options: dict[str, Any] = {"server_id": number, "gtid_domain_id": number, "durable": False}
            started[text] = stack.enter_context(MariaDBServer(directory, **options, options=REPLICA))
        yield started


def replicate(server: MariaDBServer, *primaries: MariaDBServer) -> None:
    """Let a server have everything that these have, under the same GTIDs."""
    run(server, "RESET MASTER")
    for number, primary in enumerate(primaries):
        run(
            server,
            f"CHANGE MASTER 'p{number}' TO MASTER_HOST = '{primary.host}', MASTER_PORT = {primary.port},"
            f" MASTER_USER = '{primary.user}', MASTER_PASSWORD = '{primary.password}', MASTER_SSL = 0,"
            " MASTER_USE_GTID = slave_pos",
        )
    run(server, "START ALL SLAVES")
    await_all_of(server, *primaries)


def await_all_of(server: MariaDBServer, *primaries: MariaDBServer) -> None:
    """Until a replica has what its primaries have now."""
    for primary in primaries:
        end = run(primary, "SELECT @@gtid_binlog_pos")[0][0]
        state = "SHOW ALL SLAVES STATUS"
        assert run(server, f"SELECT MASTER_GTID_WAIT('{end}', {PATIENCE_S})")[0][0] == 0, run(server, state)


def promote(server: MariaDBServer, *primaries: MariaDBServer) -> None:
    """Once it has all of its primaries' transactions, a server is one itself."""
    await_all_of(server, *primaries)
    run(server, "STOP ALL SLAVES", "RESET SLAVE 'p0' ALL", *["RESET SLAVE 'p1' ALL"][: len(primaries) - 1])
    run(server, "SET GLOBAL gtid_slave_pos = ''")


def run(server: MariaDBServer, *statements: str) -> Any:
    """Statements; the rows of the last one."""
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall()


class Traffic(threading.Thread):
    """Writes rows where the keyspace's map says, and reads them back through the front, as one session."""

    def __init__(self, stack: ShardedStack, session: Session) -> None:
        super().__init__(daemon=True)
        self.stack, self.session, self.rng = stack, session, random.Random(11)
        self.pause = threading.Lock()
        """Held while the application is moved to other servers."""
        self.rows: dict[int, int] = {}
        self.written: Counter[tuple[int, int]] = Counter()
        self.connections: dict[str, Any] = {}
        self.served: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self.stopping = False

    def run(self) -> None:
        """Until it is stopped, or has seen what must not be."""
        try:
            while not self.stopping:
                with self.pause:
                    self.write(self.rng.randrange(ROWS))
                    self.read(self.rng.randrange(ROWS))
                    self.read(self.rng.choice([*self.rows]))
                time.sleep(0.005)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.failure = error

    def write(self, number: int) -> None:
        """One transaction in the key's shard, of a value that no other has."""
        v = sum(self.written.values()) + 1
        text = self.stack.range_of("items", number)
        if text not in self.connections:
            plain = self.stack.servers[text].connect(database=self.stack.database)
            self.connections[text] = self.session.wrap(plain, shard=f"{self.stack.keyspace}/{text}")
        with self.connections[text].cursor() as cursor:
            cursor.execute("REPLACE INTO items VALUES (%s, %s)", (number, v))
        self.connections[text].commit()
        self.rows[number] = v
        self.written[number, v] += 1

    def read(self, number: int) -> None:
        """The row as it was written last, proved; or a refusal."""
        try:
            row = self.session.get_row(self.stack.keyspace, "items", number, max_wait_ms=100)
        except ClientError as error:
            self.served[error.code] += 1
            return
        assert row.freshness == "fresh", row.why
        assert (row.value or {}).get("v") == self.rows.get(number), (number, row.why, row.served_from)
        self.served[row.served_from] += 1

    def check(self) -> None:
        """Raise what it has seen."""
        if self.failure is not None:
            raise self.failure

    def more(self, count: int) -> None:
        """Let it write this many times more."""
        until = sum(self.written.values()) + count
        eventually(lambda: self.failure is not None or sum(self.written.values()) >= until, what="traffic")
        self.check()


def told(stack: ShardedStack, kafka: KafkaCluster, wanted: Counter[tuple[int, int]]) -> Counter[tuple[int, int]]:
    """What a change stream of the whole topic tells of ``items``: (id, v) of each row, as often as it is told.

    It ends once all of ``wanted`` was told and nothing more comes.
    """
    topic = check_topics(kafka, stack.keyspace, PARTITIONS)
    assert topic.name == events_topic(kafka, stack.keyspace)
    found: Counter[tuple[int, int]] = Counter()
    begin = Start(Checkpoint(stack.keyspace, topic.topic_id, (0,) * PARTITIONS, {}))
    with Follower(kafka, topic, begin) as follower:
        quiet = time.monotonic() + PATIENCE_S
        while time.monotonic() < quiet:
            for item in follower.poll():
                if isinstance(item, Transaction):
                    for event in item.events:
                        if isinstance(event, RowEvent) and event.image:
                            row = json.loads(event.image)
                            found[row["id"], row["v"]] += 1
                    quiet = time.monotonic() + (2 if wanted <= found else PATIENCE_S)
    return found


def test_shards_are_split_and_merged_under_load(
    servers: dict[str, MariaDBServer], kafka: KafkaCluster, tmp_path: Path
) -> None:
    """Two shards become three, and two again. The sessions' tokens hold all the time, and each row is told once."""
    suffix = uuid.uuid4().hex[:8]
    before = {text: servers[text] for text in ("-80", "80-")}
    stack = ShardedStack(tmp_path, kafka, before, f"ks{suffix}", f"db_{suffix}")
    stack.run_everywhere(
        f"CREATE DATABASE IF NOT EXISTS {stack.database}",
        f"CREATE TABLE IF NOT EXISTS {stack.database}.items (id INT PRIMARY KEY, v INT NOT NULL)",
    )
    with stack, stack.client() as client:
        traffic = Traffic(stack, client.session(stack.settle()))
        traffic.start()
        traffic.more(30)
        with traffic.pause:
            stack.settle()
            at_first = sum(traffic.written.values())
            of_before = next(client.stream(stack.keyspace)).checkpoint
        for text in ("-40", "40-80"):
            replicate(servers[text], servers["-80"])
        split = {text: servers[text] for text in ("-40", "40-80", "80-")}
        succeeds = {"-40": ["-80"], "40-80": ["-80"]}
        reshard(stack, traffic, split, succeeds, succeeds, late="-40")
        traffic.more(30)
        replicate(servers["40-"], servers["40-80"], servers["80-"])
        merged = {text: servers[text] for text in ("-40", "40-")}
        succeeds = {"-40": ["-80"], "40-": ["40-80", "80-"]}
        reshard(stack, traffic, merged, succeeds, {"40-": ["40-80", "80-"]})
        traffic.more(30)
        traffic.stopping = True
        traffic.join()
        traffic.check()
        stack.settle()
        served = Counter(traffic.served)
        for number in traffic.rows:
            traffic.read(number)
        traffic.check()
        cached = traffic.served["cache"] - served["cache"]
        found = told(stack, kafka, traffic.written)
        later = told_since(stack, of_before)
    assert found == traffic.written
    assert later == Counter({(number, v): 1 for number, v in traffic.written if v > at_first}), "a checkpoint of before"
    assert served["cache"] > 0
    assert cached >= len(traffic.rows) // 2, "rows that changed since are cached again"


def told_since(stack: ShardedStack, checkpoint: str) -> Counter[tuple[int, int]]:
    """What the front tells of ``items`` from a checkpoint on, as `told` does."""
    with stack.client() as client:
        events = list(client.stream(stack.keyspace, checkpoint, tables=["items"], include_rows=True, until="now"))
    assert events[-1].kind == "end"
    return Counter((each.row["id"], each.row["v"]) for event in events for each in event.changes if each.row)


def not_ready(stack: ShardedStack) -> str:
    """Why the front says that it is not ready; "" while it does not answer."""
    try:
        answer = stack.get("/readyz")
    except httpx2.HTTPError:
        return ""
    assert answer.status_code == httpx2.codes.SERVICE_UNAVAILABLE, "the front is ready without a shard of its map"
    return answer.text


def reshard(
    stack: ShardedStack,
    traffic: Traffic,
    after: dict[str, MariaDBServer],
    succeeds: dict[str, list[str]],
    moved: dict[str, list[str]],
    late: str = "",
) -> None:
    """As docs/operating/running.md says. ``moved``: new range → the old ones whose servers its server replicates.

    ``late``: a new shard whose source begins only after the front was started again, which is not ready before.
    """
    before = dict(stack.servers)
    stack.configure(after, succeeds)
    for text in after.keys() - {late}:
        if text in before:
            stack.stop(f"source-{text}")
        stack.start(f"source-{text}")  # ends the ancestors, which are still written
    for text in before.keys() - after.keys():
        stack.await_log(f"source-{text}", "shard_handed_over")
    traffic.more(10)
    with traffic.pause:
        for text, olds in moved.items():
            promote(after[text], *[before[old] for old in olds])
        stack.stop("serve")
        stack.start("serve")
        if late:
            lacks = f"has nothing of {stack.keyspace}/{late} yet"
            eventually(lambda: lacks in not_ready(stack), what=f"a front that {lacks}")
            stack.start(f"source-{late}")
        stack.move_to(after)
        stack.wait_ready("serve")
