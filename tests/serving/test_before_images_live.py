"""What rows were before, told by streams and logs of a keyspace that publishes it, on real servers."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from freshet.local.mariadb import MariaDBAddress
from serving.client import StreamChange, StreamEvent
from stream.kafka.connection import KafkaCluster
from tests.servers.databases import own_database
from tests.serving.logs import finished
from tests.serving.stack import ServingStack, settled
from tests.serving.test_log_topic import records
from tests.serving.test_stream_live import write

KEYS = 12


@pytest.fixture(scope="module")
def stack(
    kafka: KafkaCluster, mariadb: MariaDBAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServingStack]:
    """A keyspace with images of before, that only this module writes."""
    keyspace, directory = f"ks{uuid.uuid4().hex[:10]}", tmp_path_factory.mktemp("before")
    tables = (
        "CREATE TABLE items (id INT PRIMARY KEY, v INT, note VARCHAR(40))",
        "INSERT INTO items SELECT seq, seq, 'of before' FROM seq_1_to_6",
        "CREATE TABLE notes (id INT PRIMARY KEY, text LONGTEXT)",
        "CREATE TABLE parents (id INT PRIMARY KEY)",
        "CREATE TABLE children (id INT PRIMARY KEY, parent INT, "
        "FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE)",
    )
    with (
        own_database(mariadb, *tables) as database,
        ServingStack(directory, kafka, mariadb, keyspace, database, partitions=3, before_images=True) as running,
    ):
        yield running


def told(stack: ServingStack, since: str, table: str, **chosen: Any) -> list[StreamChange]:
    """The changes of a table's rows since a token, up to now, in order."""
    settled(stack)
    asked: dict[str, Any] = {"include_rows": True, "include_before": True, **chosen}
    with stack.client() as client:
        events: list[StreamEvent] = list(
            client.stream(stack.keyspace, since, tables=[table], until="now", **asked)
        )
    return [each for event in events for each in event.changes if each.kind == "row"]


def test_each_change_has_what_there_was_before_it(stack: ServingStack) -> None:
    """Of random transactions, while the source is killed and started: never another image than the source had."""
    choose, since = random.Random(11), settled(stack)
    state: dict[int, dict[str, Any]] = {key: {"id": key, "v": key, "note": "of before"} for key in range(1, 7)}
    wanted: list[list[tuple[int, dict[str, Any] | None, dict[str, Any] | None]]] = []
    for number in range(60):
        before, statements = dict(state), []
        for _ in range(choose.randint(1, 5)):
            key, other = choose.randint(1, KEYS), choose.randint(1, KEYS)
            if key not in state or choose.random() < 0.3:
                state[key] = {"id": key, "v": number, "note": f"n{number}"}
                statements.append(f"REPLACE INTO items VALUES ({key}, {number}, 'n{number}')")
            elif choose.random() < 0.4:
                state[key] = {**state[key], "v": state[key]["v"] + 100}
                statements.append(f"UPDATE items SET v = v + 100 WHERE id = {key}")
            elif other not in state:
                state[other] = {**state.pop(key), "id": other}
                statements.append(f"UPDATE items SET id = {other} WHERE id = {key}")
            else:
                del state[key]
                statements.append(f"DELETE FROM items WHERE id = {key}")
        write(stack, *statements)
        keys = sorted({*before, *state}, key=lambda each: f"[{each}]")
        wanted.append([(key, before.get(key), state.get(key)) for key in keys if before.get(key) != state.get(key)])
        if number % 20 == 10:
            stack.kill("source")
            stack.start("source")
    found = told(stack, since, "items")
    changed = [(each.key[0], each.before, each.row) for each in found if (each.was, each.op) != ("absent", "deleted")]
    assert [each for each in changed if each[1] != each[2]] == [each for one in wanted for each in one]
    assert {each.was for each in found} == {"value", "absent"}
    assert all((each.was == "value") == (each.before is not None) for each in found)


def test_what_a_reader_chose_counts_for_before_too(stack: ServingStack) -> None:
    """So a row that leaves a predicate is told with what it was, and one that comes with that it did not match."""
    since = settled(stack)
    write(stack, "REPLACE INTO items VALUES (101, 1, 'in'), (102, 1, 'out')")
    write(stack, "UPDATE items SET note = IF(id = 101, 'out', 'in') WHERE id IN (101, 102)")
    found = told(stack, since, "items", columns=["id", "note"], where={"note": "in"})
    left, came = found[-2:]
    assert (left.op, left.was, left.before) == ("unmatched", "value", {"id": 101, "note": "in"})
    assert (came.op, came.was, came.before, came.row) == ("value", "unmatched", None, {"id": 102, "note": "in"})
    plain = told(stack, since, "items", include_before=False)
    assert {(each.was, each.before) for each in plain} == {("", None)}


def test_what_nobody_knows_is_not_told(stack: ServingStack) -> None:
    """A row above the wire's limit, one that is read from the beginning, one that a cascade takes away."""
    since = settled(stack)
    write(stack, "INSERT INTO notes VALUES (1, REPEAT('x', 1000000)), (2, 'small')")
    write(stack, "UPDATE notes SET text = CONCAT(id, 'later')")
    found = [(each.key[0], each.op, each.was, each.before) for each in told(stack, since, "notes")]
    assert found == [
        (1, "void", "absent", None),
        (2, "value", "absent", None),
        (1, "value", "", None),
        (2, "value", "value", {"id": 2, "text": "small"}),
    ]


def test_logs_have_it_too(stack: ServingStack, kafka: KafkaCluster, topic: str) -> None:
    """Printed and in a topic, with --before; without it nothing is told of before."""
    since = settled(stack)
    write(stack, "REPLACE INTO items VALUES (201, 1, 'a')")
    write(stack, "UPDATE items SET v = 2 WHERE id = 201")
    settled(stack)
    words = ("--table", f"{stack.database}.items", "--from", since)
    printed = finished(stack, *words, "--before")
    assert printed.returncode == 0, printed.stderr
    events = [msgspec.json.decode(line, type=StreamEvent) for line in printed.stdout.splitlines()]
    rows = [(c.was, c.before) for event in events for c in event.changes if c.kind == "row" and c.key == [201]]
    before = {"id": 201, "v": 1, "note": "a"}
    assert rows == [("absent", None), ("value", before)]
    logged = finished(stack, *words, "--before", "--to-topic", topic)
    assert logged.returncode == 0, logged.stderr
    changes = [c for name, fields in records(kafka, topic) if name == "Transaction" for c in fields["changes"]]
    assert [(c["was"], c["before"]) for c in changes if c["key"] == [201]] == rows
    without = finished(stack, *words)
    assert '"was"' not in without.stdout
    assert "201" in without.stdout
