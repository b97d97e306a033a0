"""What rows were before, and rows without a key, told by streams and logs of a keyspace that publishes both."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from freshet.local.mariadb import MariaDBAddress
from serving.client import BadRequest, StreamChange, StreamEvent
from spark_jobs.source.cut import parse_as_of
from spark_jobs.source.reading import change_batches, plan
from stream.kafka.connection import KafkaCluster
from tests.servers.databases import own_database
from tests.serving.logs import finished
from tests.serving.stack import ServingStack, settled
from tests.serving.test_log_topic import records
from tests.serving.test_stream_live import write
from tokens import EventToken, Position

KEYS = 12
PUBLISHED = {"before_images": True, "keyless_rows": True}


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
        "CREATE TABLE events (at INT, what VARCHAR(40))",
        "CREATE TABLE parents (id INT PRIMARY KEY)",
        "CREATE TABLE below (of INT, FOREIGN KEY (of) REFERENCES parents (id) ON DELETE CASCADE)",
    )
    with (
        own_database(mariadb, *tables) as database,
        ServingStack(directory, kafka, mariadb, keyspace, database, partitions=3, published=PUBLISHED) as running,
    ):
        yield running


def events_of(stack: ServingStack, since: str, table: str, **chosen: Any) -> list[StreamEvent]:
    """What a stream tells of a table since a token, up to now, with its rows."""
    settled(stack)
    with stack.client() as client:
        return list(client.stream(stack.keyspace, since, tables=[table], until="now", include_rows=True, **chosen))


def told(stack: ServingStack, since: str, table: str, **chosen: Any) -> list[StreamChange]:
    """The changes of a table's rows since a token, up to now, in order."""
    events = events_of(stack, since, table, **{"include_before": True, **chosen})
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


def keyless(stack: ServingStack, since: str, table: str, **chosen: Any) -> list[StreamEvent]:
    """The transactions of a table without a key, up to now."""
    events = events_of(stack, since, table, **{"include_keyless": True, **chosen})
    return [event for event in events if event.kind == "transaction"]


def test_rows_without_a_key_are_told_as_what_happened_to_them(stack: ServingStack) -> None:
    """Each of them, with both images, in their order and in their transaction; equal rows as often as there are."""
    since = settled(stack)
    write(stack, "INSERT INTO events VALUES (1, 'a'), (1, 'a'), (2, NULL)", "REPLACE INTO items VALUES (301, 1, 'k')")
    stack.kill("source")
    stack.start("source")
    last = write(stack, "UPDATE events SET what = 'b' WHERE at = 2", "DELETE FROM events WHERE at = 1 LIMIT 1")
    with stack.client() as client:
        settled(stack)
        both = list(client.stream(stack.keyspace, since, until="now", include_rows=True, include_keyless=True))
    one, two = [event for event in both if any(change.kind == "keyless" for change in event.changes)]
    assert one.changes[0].table == f"{stack.database}.items", "rows with a key come first"
    found = [(c.op, c.before, c.row) for event in (one, two) for c in event.changes if c.kind == "keyless"]
    a: dict[str, Any] = {"at": 1, "what": "a"}
    assert found == [
        ("inserted", None, a),
        ("inserted", None, a),
        ("inserted", None, {"at": 2, "what": None}),
        ("updated", {"at": 2, "what": None}, {"at": 2, "what": "b"}),
        ("deleted", a, None),
    ]
    assert two.gtid == last
    assert EventToken.parse(two.token).position == Position.parse(last)


def test_analysts_read_rows_without_a_key_too(stack: ServingStack, kafka: KafkaCluster) -> None:
    """Spark's data source and exports have each image as a typed row, in the order of the log."""
    of_row = (
        "INSERT INTO events VALUES (5, 'x')",
        "UPDATE events SET at = 6 WHERE at = 5",
        "DELETE FROM events WHERE at = 6",
    )
    gtid = write(stack, *of_row)
    settled(stack)
    planned = plan(kafka, stack.keyspace, f"{stack.database}.events", parse_as_of(""))
    rows = [
        row
        for partition, end in planned.end.items()
        for batch in change_batches(planned, partition, planned.start[partition], end, [])
        for row in batch.to_pylist()
        if row["_gtid"] == gtid
    ]
    assert [(row["_kind"], row["at"], row["what"]) for row in rows] == [
        ("keyless_inserted", 5, "x"),
        ("keyless_before", 5, "x"),
        ("keyless_updated", 6, "x"),
        ("keyless_deleted", 6, "x"),
    ]


def test_rows_without_a_key_are_chosen_by_what_they_have(stack: ServingStack) -> None:
    """By table, columns and a predicate on either image; nobody gets them who did not ask, nor by a key."""
    since = settled(stack)
    write(stack, "INSERT INTO events VALUES (7, 'in'), (8, 'out')", "UPDATE events SET what = 'out' WHERE at = 7")
    chosen = keyless(stack, since, "events", columns=["at", "what"], where={"what": "in"})
    assert [(c.op, c.before, c.row) for event in chosen for c in event.changes] == [
        ("inserted", None, {"at": 7, "what": "in"}),
        ("updated", {"at": 7, "what": "in"}, {"at": 7, "what": "out"}),
    ]
    assert keyless(stack, since, "items") == []
    assert keyless(stack, since, "events", include_keyless=False) == []
    with stack.client() as client, pytest.raises(BadRequest) as refused:
        next(client.stream(stack.keyspace, include_keyless=True, key_range="-80"))
    assert refused.value.code == "bad_parameter"


def test_what_a_cascade_does_to_rows_without_a_key_is_told_as_a_void(stack: ServingStack) -> None:
    """The log has none of them: that any may have changed is what is known."""
    write(stack, "INSERT INTO parents VALUES (1)", "INSERT INTO below VALUES (1), (1)")
    since = settled(stack)
    write(stack, "DELETE FROM parents WHERE id = 1")
    [event] = keyless(stack, since, "below")
    assert [(change.kind, change.table) for change in event.changes] == [("void", f"{stack.database}.below")]


@pytest.mark.nightly
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
    write(stack, "INSERT INTO events VALUES (9, 'logged')")
    settled(stack)
    events_of = ("--table", f"{stack.database}.events", "--from", since, "--keyless")
    other = f"{topic}-keyless"
    kept = finished(stack, *events_of, "--to-topic", other)
    assert kept.returncode == 0, kept.stderr
    rows_of = [c for name, fields in records(kafka, other) if name == "Transaction" for c in fields["changes"]]
    assert [(c["kind"], c["op"], c["row"]) for c in rows_of] == [("keyless", "inserted", {"at": 9, "what": "logged"})]
    without = finished(stack, *words)
    assert '"was"' not in without.stdout
    assert "201" in without.stdout
