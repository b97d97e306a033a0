"""A keyspace over four real MariaDB servers: each read goes to the server of its key's shard, whichever are down."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from serving.client import ClientError, Session
from stream.kafka.connection import KafkaCluster
from tests.serving.sharded import PARTITIONS, ShardedStack, start_servers
from tests.serving.stack import eventually
from tokens import Vector

RANGES = ("-40", "40-80", "80-c0", "c0-")
ROWS = 60
CUSTOMERS = 8


@pytest.fixture(scope="module")
def shop(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedStack]:
    """Four servers with rows of before, and everything that caches them, whole tables and all."""
    directory, suffix = tmp_path_factory.mktemp("sharded"), uuid.uuid4().hex[:8]
    database = f"db_{suffix}"
    with ExitStack() as stack:
        servers = start_servers(stack, directory, RANGES)
        made = ShardedStack(
            directory,
            kafka,
            servers,
            f"ks{suffix}",
            database,
            backfill=["*"],
            key_prefix_columns={f"{database}.orders": 1},
        )
        made.run_everywhere(
            f"CREATE DATABASE {database}",
            f"CREATE TABLE {database}.items (id INT PRIMARY KEY, v INT NOT NULL) ENGINE=InnoDB",
            f"CREATE TABLE {database}.orders (customer INT, id INT, v INT, PRIMARY KEY (customer, id)) ENGINE=InnoDB",
        )
        for number in range(ROWS):
            insert(made, "items", (number,), number)
        for customer in range(CUSTOMERS):
            for number in range(5):
                insert(made, "orders", (customer, number), number, prefix=1)
        with made:
            made.settle()
            eventually(lambda: not incomplete(made), what="complete tables")
            yield made


def insert(stack: ShardedStack, table: str, pk: tuple[int, ...], v: int, *, prefix: int = 0) -> None:
    """A row in the server of its shard."""
    server = stack.servers[stack.range_of(table, *pk, prefix=prefix)]
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {stack.database}.{table} VALUES ({', '.join(map(str, (*pk, v)))})")


def lag(stack: ShardedStack) -> dict[str, Any]:
    """What `freshet lag --json` says."""
    line = [sys.executable, "-m", "freshet", "--config", str(stack.config), "lag", stack.keyspace, "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def incomplete(stack: ShardedStack) -> list[str]:
    """The tables that are not complete in each shard and partition."""
    told = [each["tables"] for each in lag(stack)["partitions"]]
    return [table for tables in told for table, is_whole in tables.items() if not is_whole] if all(told) else ["all"]


def names(stack: ShardedStack) -> set[str]:
    """The shards of the keyspace."""
    return {f"{stack.keyspace}/{text}" for text in RANGES}


def test_every_partition_follows_every_shard(shop: ShardedStack) -> None:
    """`freshet lag` shows each shard's watermark in each partition, and when a table is complete in all of them."""
    found = lag(shop)
    for partition in found["partitions"]:
        assert {each["shard"] for each in partition["shards"]} == names(shop)
        assert all(each["watermark"] for each in partition["shards"])
        assert partition["tables"] == {f"{shop.database}.items": True, f"{shop.database}.orders": True}
    assert len(found["partitions"]) == PARTITIONS


def test_rows_that_never_changed_and_absences_are_proved_by_the_keys_shard(shop: ShardedStack) -> None:
    """All of them from the cache: no partition is undecided because it holds four shards."""
    token = shop.settle()
    with shop.client() as client:
        session = client.session(token)
        rows = session.get_rows(shop.keyspace, [("items", [number]) for number in range(ROWS + 20)])
        for number, row in enumerate(rows):
            assert not isinstance(row, ClientError), row
            assert (row.served_from, row.freshness) == ("cache", "fresh"), row.why
            assert row.found == (number < ROWS)


def test_ranges_are_of_one_shard_or_of_all(shop: ShardedStack) -> None:
    """A customer's orders lie in one shard; the whole table is put together from four, at a position of each."""
    token = shop.settle()
    with shop.client() as client:
        session = client.session(token)
        for customer in range(CUSTOMERS):
            page = session.find(shop.keyspace, "orders", {"customer": customer})
            assert (page.served_from, page.freshness, len(page.rows)) == ("cache", "fresh", 5), page.why
        pages = list(session.scan(shop.keyspace, "items", limit=17))
        assert [row["id"] for page in pages for row in page.rows] == list(range(ROWS))
        assert {page.served_from for page in pages} == {"cache"}, pages[0].why
        assert session.count(shop.keyspace, "items") == ROWS


def test_a_row_that_lies_in_another_shard_is_not_seen(shop: ShardedStack) -> None:
    """A key's shard follows from the key: what another server has under it is no row of the keyspace."""
    number = 10_001
    own = shop.range_of("items", number)
    other = next(text for text in RANGES if text != own)
    with shop.servers[other].connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {shop.database}.items VALUES ({number}, 1)")
    token = shop.settle()
    with shop.client() as client:
        row = client.session(token).get_row(shop.keyspace, "items", number)
    assert (row.found, row.served_from) == (False, "cache")
    with shop.servers[other].connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {shop.database}.items WHERE id = {number}")
    assert "rows_of_another_shard" in shop.log_of(f"source-{other}")


class Traffic:
    """Writes rows in all shards, and reads them back: each read must see the last write of its key."""

    def __init__(self, stack: ShardedStack, session: Session, rng: random.Random) -> None:
        self.stack, self.session, self.rng = stack, session, rng
        self.rows: dict[int, int | None] = {number: number for number in range(ROWS)}
        self.connections: dict[str, Any] = {}
        self.served: dict[str, int] = {"cache": 0, "source": 0}
        self.refused: set[str] = set()

    def _connection(self, text: str) -> Any:
        if text not in self.connections:
            plain = self.stack.servers[text].connect(database=self.stack.database)
            self.connections[text] = self.session.wrap(plain, shard=f"{self.stack.keyspace}/{text}")
        return self.connections[text]

    def write(self, number: int) -> None:
        """One transaction in the key's shard."""
        connection = self._connection(self.stack.range_of("items", number))
        v = self.rng.randrange(10**6) if self.rng.random() < 0.8 else None
        with connection.cursor() as cursor:
            if v is None:
                cursor.execute("DELETE FROM items WHERE id = %s", (number,))
            else:
                cursor.execute("REPLACE INTO items VALUES (%s, %s)", (number, v))
        connection.commit()
        self.rows[number] = v

    def read(self, number: int) -> None:
        """The row as it was written last, proved; or a refusal."""
        try:
            row = self.session.get_row(self.stack.keyspace, "items", number, max_wait_ms=10_000)
        except ClientError as error:
            self.refused.add(error.code)
            return
        assert row.freshness == "fresh", row.why
        self.served[row.served_from] += 1
        expected = self.rows[number]
        assert row.found == (expected is not None), (number, row.why)
        assert expected is None or (row.value is not None and row.value["v"] == expected), (number, row.why)

    def go(self, steps: int, without: str = "") -> None:
        """Some writes and reads, of keys that are not of the shard ``without``."""
        numbers = [each for each in self.rows if self.stack.range_of("items", each) != without]
        for _ in range(steps):
            self.write(self.rng.choice(numbers))
            for _ in range(2):
                self.read(self.rng.choice(numbers))


def test_the_others_stay_fresh_while_a_shard_is_down(shop: ShardedStack) -> None:
    """Its server, then its source are killed. No read of another shard's key misses a write, or is refused."""
    down = RANGES[1]
    with shop.client() as client:
        traffic = Traffic(shop, client.session(shop.settle()), random.Random(7))
        traffic.go(60)
        shop.settle()  # else the session has seen what the source has not read when the server goes
        shop.servers[down].kill()
        traffic.connections.pop(down)
        seen = shop.settle(*(text for text in RANGES if text != down))
        traffic.go(60, without=down)
        assert (traffic.refused, traffic.served["source"] <= 30) == (set(), True), traffic.served
        own = next(each for each in traffic.rows if shop.range_of("items", each) == down)
        traffic.read(own)  # what is cached of it is still proved for this session
        assert traffic.refused == set()
        shop.kill(f"source-{down}")
        traffic.go(20, without=down)
        shop.servers[down].restart()
        shop.start(f"source-{down}")
        traffic.go(40)
        assert traffic.refused == set()
        shop.settle()
        for number in traffic.rows:
            traffic.read(number)
    assert seen
    assert traffic.served["cache"] > 200


def test_a_change_stream_tells_all_shards_and_goes_on_in_each(shop: ShardedStack) -> None:
    """One stream has the transactions of every shard, watermarks of all, and begins after a token that names them."""
    token, written = shop.settle(), dict.fromkeys(RANGES, 0)
    number = 10_000
    while 0 in written.values():
        number += 1
        if not written[shop.range_of("items", number)]:
            written[shop.range_of("items", number)] = number
            insert(shop, "items", (number,), number)
    wanted = {f"{shop.keyspace}/{text}": [key] for text, key in written.items()}
    with shop.client() as client:
        found: dict[str, list[int]] = {}
        checkpoint, covered = "", set[str]()
        for event in client.stream(shop.keyspace, token, tables=["items"]):
            checkpoint = event.checkpoint
            for change in event.changes:
                if change.key and change.key[0] > 10_000:  # backfilled rows have the token's position: they may come
                    found.setdefault(event.shard, []).append(change.key[0])
            covered = set(Vector.parse(event.token)) if event.kind == "watermark" and event.token else covered
            if found.keys() == wanted.keys() and covered == names(shop):
                break
        assert found == wanted
        insert(shop, "items", (number + 1,), 0)
        after = next(event for event in client.stream(shop.keyspace, checkpoint, tables=["items"]) if event.changes)
        assert [change.key for change in after.changes] == [[number + 1]]
