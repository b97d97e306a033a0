"""The change stream on real servers: from now, a second, a position and a checkpoint; filters; restarts; bad input."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx2
import msgspec
import pytest

from freshet.local.mariadb import MariaDBAddress
from serving.client import AsyncClient, BadRequest, ClientError, StreamEvent
from stream.changes.checkpoint import Checkpoint
from stream.kafka.connection import KafkaCluster
from tests.patience import PATIENCE_S
from tests.servers.databases import own_database
from tests.serving.stack import ServingStack, settled
from tokens import EventToken, Order, Position, Vector, order


@pytest.fixture(scope="module")
def stack(
    kafka: KafkaCluster, mariadb: MariaDBAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServingStack]:
    """A keyspace of three partitions that only this module writes."""
    keyspace, directory = f"ks{uuid.uuid4().hex[:10]}", tmp_path_factory.mktemp("stream")
    tables = (
        "CREATE TABLE accounts (id INT PRIMARY KEY, owner VARCHAR(40), balance INT)",
        "CREATE TABLE notes (id INT PRIMARY KEY, text LONGTEXT)",
    )
    with (
        own_database(mariadb, *tables) as database,
        ServingStack(directory, kafka, mariadb, keyspace, database, partitions=3) as running,
    ):
        yield running


class Listener:
    """A stream that is read up to what a test waits for."""

    def __init__(self, stack: ServingStack, begin: str | int = "now", **chosen: Any) -> None:
        self.client = stack.client()
        self.events = self.client.stream(stack.keyspace, begin, **chosen)
        self.seen: list[StreamEvent] = [next(self.events)]

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        with closing(self.events):  # type: ignore[type-var]  # a generator
            self.client.close()

    def until(self, gtid: str) -> list[StreamEvent]:
        """The transactions since the last call, up to one that has this GTID."""
        deadline, found = time.monotonic() + PATIENCE_S, []
        for event in self.events:
            self.seen.append(event)
            if event.kind == "transaction":
                found.append(event)
                if event.gtid == gtid:
                    return found
            assert time.monotonic() < deadline, f"{gtid} did not come; there were {found}"
        raise AssertionError("the stream has ended")

    def until_reached(self, gtid: str) -> list[StreamEvent]:
        """The transactions since the last call, up to a watermark at or past this GTID."""
        deadline, found = time.monotonic() + PATIENCE_S, []
        position = Position.parse(gtid)
        for event in self.events:
            self.seen.append(event)
            if event.kind == "transaction":
                found.append(event)
            elif event.token:
                [(_, mark)] = Vector.parse(event.token).items()
                if mark.position.at_or_past(position):
                    return found
            assert time.monotonic() < deadline, f"{gtid} was not reached; there were {found}"
        raise AssertionError("the stream has ended")


def write(stack: ServingStack, *statements: str) -> str:
    """One transaction; its GTID."""
    with stack.connect(autocommit=False) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()
        cursor.execute("SELECT @@last_gtid")
        return f"MariaDB/{cursor.fetchone()[0]}"


def rows_of(event: StreamEvent) -> list[tuple[str, list[Any], str, Any]]:
    """(table without database, key, op, image) of a transaction's rows, by key."""
    found = [(each.table.rpartition(".")[2], each.key, each.op, each.row) for each in event.changes]
    return sorted(found, key=lambda row: (row[0], row[1]))


def test_a_transaction_comes_whole_from_all_partitions(stack: ServingStack) -> None:
    """Rows of one transaction lie in three partitions, and come as one event, with a token that orders it."""
    with Listener(stack, include_rows=True) as listener:
        first = write(stack, "INSERT INTO accounts SELECT seq, 'ann', seq FROM seq_1_to_30")
        last = write(stack, "UPDATE accounts SET balance = 0 WHERE id = 7", "DELETE FROM accounts WHERE id = 8")
        one, two = [event for event in listener.until(last) if event.gtid in (first, last)]
    assert (one.gtid, two.gtid) == (first, last)
    assert [row[1] for row in rows_of(one)] == [[number] for number in range(1, 31)]
    assert rows_of(two) == [
        ("accounts", [7], "value", {"id": 7, "owner": "ann", "balance": 0}),
        ("accounts", [8], "deleted", None),
    ]
    assert order(EventToken.parse(two.token), EventToken.parse(one.token)) is Order.NEWER


def test_a_stream_goes_on_exactly_after_any_checkpoint(stack: ServingStack) -> None:
    """Whichever event's checkpoint a reader kept, the next stream begins with the event after it."""
    with Listener(stack) as listener:
        gtids = [write(stack, f"UPDATE accounts SET balance = balance + {step} WHERE id < 12") for step in range(1, 6)]
        events = listener.until(gtids[-1])
    assert [event.gtid for event in events] == gtids
    for number, event in enumerate(events[:-1]):
        with Listener(stack, event.checkpoint) as again:
            assert [each.gtid for each in again.until(gtids[-1])] == gtids[number + 1 :]
    with Listener(stack, events[-1].checkpoint) as again:
        after = write(stack, "UPDATE accounts SET balance = 100 WHERE id = 1")
        assert [each.gtid for each in again.until(after)] == [after]


def test_a_stream_begins_after_the_token_of_a_read(stack: ServingStack) -> None:
    """A session that read a row follows on from there: what it has seen does not come, all that follows does."""
    write(stack, "UPDATE accounts SET balance = 41 WHERE id = 2")
    token = settled(stack)
    gtids = [write(stack, f"UPDATE accounts SET balance = {n} WHERE id = 2") for n in range(3)]
    with Listener(stack, token) as listener:
        assert [each.gtid for each in listener.until(gtids[-1])] == gtids
    other = Vector.parse(token).merge(Vector.parse("time=0;shard=elsewhere/0;epoch=1;position=MariaDB/0-1-9"))
    with Listener(stack, str(other)) as listener:  # a session has components of other keyspaces
        assert [each.gtid for each in listener.until(gtids[-1])] == gtids


def test_a_stream_begins_with_the_first_transaction_of_a_second(stack: ServingStack) -> None:
    """The second before it is left out, and nothing after."""
    before = write(stack, "UPDATE accounts SET balance = 51 WHERE id = 3")
    with Listener(stack, include_rows=True) as listener:
        second = 0
        while True:  # until the next second has begun
            gtid = write(stack, "UPDATE accounts SET balance = balance + 1 WHERE id = 3")
            event = listener.until(gtid)[-1]
            second = second or event.timestamp
            if event.timestamp > second:
                break
            time.sleep(0.05)
    with Listener(stack, event.timestamp) as listener:
        found = listener.until(write(stack, "UPDATE accounts SET balance = 0 WHERE id = 3"))
    assert found[0].gtid == gtid
    assert before not in [each.gtid for each in found]


def test_a_reader_gets_what_it_chose(stack: ServingStack) -> None:
    """Tables, columns, a predicate, a range of keys; two halves of the keys are all of them."""
    chosen: dict[str, Any] = {"tables": ["accounts"], "columns": ["id", "owner"], "where": {"owner": "bob"}}
    with (
        Listener(stack, **chosen) as some,
        Listener(stack, key_range="-80") as low,
        Listener(stack, key_range="80-") as high,
    ):
        write(stack, "INSERT INTO notes VALUES (1, 'x')")
        last = write(stack, "INSERT INTO accounts SELECT 100 + seq, IF(seq = 5, 'bob', 'eve'), 1 FROM seq_1_to_40")
        [event] = some.until(last)
        halves = [listener.until(last)[-1] for listener in (low, high)]
    found = {row[1][0]: row[2:] for row in rows_of(event)}
    assert found.pop(105) == ("value", {"id": 105, "owner": "bob"})
    assert set(found.values()) == {("unmatched", None)}
    keys = [[change.key[0] for change in half.changes] for half in halves]
    assert sorted(keys[0] + keys[1]) == list(range(101, 141))
    assert all(keys)


def test_what_has_no_image_in_the_log_is_told_as_such(stack: ServingStack) -> None:
    """A DDL voids its table and describes it anew; a row above the wire's limit comes without its image."""
    with Listener(stack, include_rows=True) as listener:
        large = write(stack, "INSERT INTO notes VALUES (2, REPEAT('x', 1000000))")
        [event] = listener.until(large)
        assert rows_of(event) == [("notes", [2], "void", None)]
        stack.run("ALTER TABLE notes ADD COLUMN author INT")
        last = write(stack, "INSERT INTO notes VALUES (3, 'y', 4)")
        events = listener.until(last)
    changes = [change for event in events for change in event.changes]
    assert [change.kind for change in changes if change.table.endswith(".notes")] == ["void", "schema", "row"]
    described = next(change for change in changes if change.kind == "schema")
    assert ([each.name for each in described.columns], described.primary_key) == (["id", "text", "author"], ["id"])
    assert changes[-1].row == {"id": 3, "text": "y", "author": 4}


def test_a_stream_of_tables_that_are_quiet_still_moves_its_checkpoint(stack: ServingStack) -> None:
    """A reader of a quiet table must not fall out of retention: watermarks move its checkpoint past the others."""
    with Listener(stack, tables=["notes"], heartbeat_ms=100) as listener:
        gtid = write(stack, "UPDATE accounts SET balance = 71 WHERE id = 4")
        assert listener.until_reached(gtid) == []
        checkpoint = listener.seen[-1].checkpoint
    with Listener(stack, checkpoint) as listener:
        last = write(stack, "UPDATE accounts SET balance = 72 WHERE id = 4")
        assert [each.gtid for each in listener.until(last)] == [last]


def test_a_client_goes_on_over_a_restart_of_the_front(stack: ServingStack) -> None:
    """The front is stopped, and another one is killed: the iterator connects again, and misses and repeats nothing."""
    with Listener(stack) as listener:
        gtids = [write(stack, "UPDATE accounts SET balance = 81 WHERE id = 5")]
        found = listener.until(gtids[-1])
        assert stack.stop("serve") == 0
        gtids.append(write(stack, "UPDATE accounts SET balance = 82 WHERE id = 5"))
        stack.start("serve")
        found += listener.until(gtids[-1])
        stack.kill("serve")
        gtids.append(write(stack, "UPDATE accounts SET balance = 83 WHERE id = 5"))
        stack.start("serve")
        found += listener.until(gtids[-1])
    stack.wait_ready()
    assert [event.gtid for event in found] == gtids


def test_the_asyncio_client_follows_too(stack: ServingStack) -> None:
    """The same events, over asyncio."""

    async def story() -> tuple[str, str]:
        async with AsyncClient(stack.url) as client:
            events = client.stream(stack.keyspace)
            assert (await anext(events)).kind == "watermark"
            gtid = await asyncio.to_thread(write, stack, "UPDATE accounts SET balance = 95 WHERE id = 6")
            async with asyncio.timeout(PATIENCE_S):
                async for event in events:
                    if event.kind == "transaction":
                        return event.gtid, gtid
        raise AssertionError("the stream has ended")

    told, written = asyncio.run(story())
    assert told == written


def test_server_sent_events_carry_the_same(stack: ServingStack) -> None:
    """A browser's EventSource gets kinds as event names and checkpoints as ids, and resumes by Last-Event-ID."""
    path = f"{stack.url}/v1/stream"
    params = {"keyspace": stack.keyspace}
    headers = {"accept": "text/event-stream"}
    with httpx2.stream("GET", path, params=params, headers=headers, timeout=PATIENCE_S) as response:
        assert response.headers["content-type"] == "text/event-stream"
        lines = response.iter_lines()
        first = [next(lines) for _ in range(4)]
        gtid = write(stack, "UPDATE accounts SET balance = 91 WHERE id = 6")
        identity, line = "", ""
        for line in lines:
            identity = line.removeprefix("id: ") if line.startswith("id: ") else identity
            if line.startswith("data: ") and gtid in line:
                break
    assert [line.partition(":")[0] for line in first] == ["id", "event", "data", ""]
    assert first[1] == "event: watermark"
    assert msgspec.json.decode(line.removeprefix("data: "))["checkpoint"] == identity
    last = write(stack, "UPDATE accounts SET balance = 92 WHERE id = 6")
    headers["last-event-id"] = identity
    with httpx2.stream("GET", path, params=params, headers=headers, timeout=PATIENCE_S) as response:
        gtids = []
        for line in response.iter_lines():
            if line.startswith("data: ") and "gtid" in line:
                gtids.append(msgspec.json.decode(line.removeprefix("data: "))["gtid"])
                if gtids[-1] == last:
                    break
    assert gtids == [last]


@pytest.mark.parametrize(
    ("begin", "chosen", "code"),
    [
        ("yesterday", {}, "bad_token"),
        ("c1.AAAA", {}, "bad_checkpoint"),
        (1_000_000_000, {}, "stream_too_old"),
        ("now", {"key_range": "80-40"}, "bad_parameter"),
        ("now", {"where": {"owner": 1}}, "bad_parameter"),
        ("now", {"tables": ["accounts"], "columns": ["colour"]}, "unknown_column"),
        ("now", {"tables": ["nothing"], "columns": ["id"]}, "unknown_table"),
        ("now", {"heartbeat_ms": 1}, "bad_parameter"),
    ],
)
def test_a_stream_that_cannot_begin_says_why(
    stack: ServingStack, begin: str | int, chosen: dict[str, Any], code: str
) -> None:
    """An error before the first event, with a code and a hint; one that is too old says how far back it can start."""
    with pytest.raises(ClientError) as refused:
        Listener(stack, begin, **chosen)
    assert refused.value.code == code, refused.value
    assert refused.value.hint
    if code == "stream_too_old":
        earliest = int(refused.value.hint.partition("second ")[2].partition(";")[0])
        with Listener(stack, earliest + 1):
            pass


def test_a_checkpoint_of_another_keyspace_is_refused(stack: ServingStack) -> None:
    """It would silently begin somewhere else."""
    with pytest.raises(BadRequest) as refused:
        Listener(stack, str(Checkpoint("other", "id", (0, 0, 0))))
    assert refused.value.code == "bad_checkpoint"
    assert "other" in str(refused.value)


def history(stack: ServingStack, second: int, key: list[Any]) -> list[StreamEvent]:
    """All that is told of a row's history."""
    with stack.client() as client:
        return list(client.stream(stack.keyspace, second, tables=["accounts"], key=key, include_rows=True, until="now"))


def test_the_history_of_a_row_ends_with_what_is_there(stack: ServingStack) -> None:
    """Each change of it comes in order and once, none of another row, and then the end, past the last one."""
    second = int(time.time())
    write(stack, "REPLACE INTO accounts VALUES (500, 'eve', 0), (501, 'fay', 0)")
    for step in range(1, 4):
        write(stack, f"UPDATE accounts SET balance = {step} WHERE id IN (500, 501)")
    last = write(stack, "DELETE FROM accounts WHERE id = 500")
    settled(stack)
    *told, end = history(stack, second, [500])
    rows = [change for event in told if event.kind == "transaction" for change in event.changes]
    assert [change.key for change in rows] == [[500]] * 5
    assert [change.row["balance"] if change.row else change.op for change in rows] == [0, 1, 2, 3, "deleted"]
    assert end.kind == "end"
    [(_, mark)] = Vector.parse(end.token).items()
    assert mark.position.at_or_past(Position.parse(last))
    with stack.client() as client:
        nothing = list(client.stream(stack.keyspace, end.checkpoint, tables=["accounts"], key=[500], until="now"))
    assert {event.kind for event in nothing} == {"watermark", "end"}


def test_a_history_that_cannot_be_told_is_refused(stack: ServingStack) -> None:
    """A key needs its one table and must fit it; a stream can only end now."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"key": [1]}, "bad_parameter"),
        ({"key": [1], "tables": ["accounts", "notes"]}, "bad_parameter"),
        ({"key": ["x"], "tables": ["accounts"]}, "bad_key"),
        ({"key": [""], "tables": ["accounts"]}, "bad_key"),
        ({"key": [1, 2], "tables": ["accounts"]}, "bad_key"),
        ({"until": "tomorrow"}, "bad_parameter"),
    ]
    with stack.client() as client:
        for chosen, code in wrong:
            with pytest.raises(ClientError) as refused:
                next(client.stream(stack.keyspace, **chosen))
            assert refused.value.code == code, chosen
