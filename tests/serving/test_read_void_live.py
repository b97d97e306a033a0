"""Rows whose image the log has not, read for the stream that asks for them, on real servers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from freshet.local.mariadb import MariaDBAddress
from serving.client import AsyncClient, BadRequest, StreamChange, StreamEvent
from serving.http.streaming.voided import ROWS_MAX
from stream.kafka.connection import KafkaCluster
from tests.patience import PATIENCE_S
from tests.servers.databases import own_database
from tests.serving.stack import ServingStack, eventually, is_complete, settled
from tests.serving.test_stream_live import write
from tokens import EventToken, Vector

LARGE = "REPEAT('x', 1000000)"
"""Above the wire's limit."""


@pytest.fixture(scope="module")
def stack(
    kafka: KafkaCluster, mariadb: MariaDBAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServingStack]:
    """A keyspace that only this module writes, with tables that are whole."""
    keyspace, directory = f"ks{uuid.uuid4().hex[:10]}", tmp_path_factory.mktemp("voided")
    tables = (
        "CREATE TABLE notes (id INT PRIMARY KEY, text LONGTEXT)",
        "CREATE TABLE names (name VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, code VARBINARY(4), "
        "text LONGTEXT, PRIMARY KEY (name, code))",
        "CREATE TABLE parents (id INT PRIMARY KEY)",
        "CREATE TABLE children (id INT PRIMARY KEY, parent INT, "
        "FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE CASCADE)",
        "CREATE TABLE dropped (id INT PRIMARY KEY, text LONGTEXT)",
    )
    with (
        own_database(mariadb, *tables) as database,
        ServingStack(directory, kafka, mariadb, keyspace, database, backfill=["*"]) as running,
    ):
        made = ("notes", "names", "parents", "children", "dropped")
        eventually(lambda: all(is_complete(running, table) for table in made), what="complete tables")
        yield running


def told(stack: ServingStack, since: str, table: str, **chosen: Any) -> list[tuple[StreamEvent, StreamChange]]:
    """The changes of a table's rows since a token, up to now."""
    settled(stack)
    asked: dict[str, Any] = {"include_rows": True, "read_void": True, **chosen}
    with stack.client() as client:
        events = list(client.stream(stack.keyspace, since, tables=[table], until="now", **asked))
    assert events[-1].kind == "end"
    return [(event, each) for event in events for each in event.changes if each.kind == "row"]


def has_event(change: StreamChange, event: StreamEvent) -> bool:
    """Whether a row was read at or past its event, as far as its token says."""
    token = EventToken.parse(event.token)
    component = Vector.parse(change.read_at).get(token.shard)
    return component is not None and token.position is not None and component.position.at_or_past(token.position)


def test_a_row_above_the_wires_limit_comes_as_it_is(stack: ServingStack) -> None:
    """Its image is read at or past the event; without the parameter it stays void, and other rows are not read."""
    since = settled(stack)
    write(stack, f"INSERT INTO notes VALUES (1, {LARGE}), (2, 'small')")
    [(event, large), (_, small)] = told(stack, since, "notes")
    assert (large.op, large.row) == ("value", {"id": 1, "text": "x" * 1_000_000})
    assert has_event(large, event)
    assert (small.op, small.row, small.read_at) == ("value", {"id": 2, "text": "small"}, "")
    [(_, plain), _] = told(stack, since, "notes", read_void=False)
    assert (plain.op, plain.row, plain.read_at) == ("void", None, "")


def test_a_reader_gets_of_a_row_that_was_read_what_it_chose(stack: ServingStack) -> None:
    """Columns and the predicate count for it as for others."""
    since = settled(stack)
    write(stack, f"INSERT INTO notes VALUES (11, {LARGE}), (12, {LARGE})")
    chosen = told(stack, since, "notes", columns=["id"], where={"id": 12})
    assert [(change.op, change.row) for _, change in chosen] == [("unmatched", None), ("value", {"id": 12})]
    [(_, only)] = told(stack, since, "notes", key=[12], columns=["id"])
    assert only.row == {"id": 12}


def test_a_row_may_be_newer_than_its_event_and_then_comes_again(stack: ServingStack) -> None:
    """A reader that is behind gets the row of now, or that there is none; never one of before the event."""
    since = settled(stack)
    write(stack, f"INSERT INTO notes VALUES (21, {LARGE}), (22, {LARGE})")
    write(stack, "UPDATE notes SET text = 'later' WHERE id = 21", "DELETE FROM notes WHERE id = 22")
    changes = told(stack, since, "notes")
    found = [(change.key[0], change.op, change.row and change.row["text"]) for _, change in changes]
    after = [(21, "value", "later"), (22, "deleted", None)]
    assert found == [*after, *after]
    assert [bool(change.read_at) for _, change in changes] == [True, True, False, False]


def test_a_row_that_a_cascade_took_away_is_deleted(stack: ServingStack) -> None:
    """The log names no row of a cascade. The source finds which they are, and the stream reads that there is none."""
    whole = f"{stack.database}.children"
    stack.run("INSERT INTO parents VALUES (1), (2)", "INSERT INTO children VALUES (10, 1), (20, 2)")
    since = settled(stack)
    eventually(lambda: "complete" in str(_backfills(stack, whole)), what="a whole table of children")
    write(stack, "DELETE FROM parents WHERE id = 1")
    (event, first), *_ = told(stack, since, "children")
    assert (first.key, first.op) == ([10], "deleted")
    assert has_event(first, event)


def _backfills(stack: ServingStack, table: str) -> list[str]:
    """What was told of the reading of a table."""
    with stack.client() as client:
        events = list(client.stream(stack.keyspace, "earliest", tables=[table], until="now"))
    told = [change for event in events for change in event.changes if change.kind == "backfill"]
    return ["complete" if change.complete else "begun" for change in told]


def test_a_row_that_another_spelling_finds_stays_void(stack: ServingStack) -> None:
    """Its key is one of a collation and of bytes: the row that is found has another key, under which it is told."""
    since = settled(stack)
    write(stack, f"INSERT INTO names VALUES ('ann', X'00FF', {LARGE}), ('bob', X'2C', {LARGE})")
    both = {tuple(map(str, change.key)): change for _, change in told(stack, since, "names", columns=["name"])}
    assert [change.row for change in both.values()] == [{"name": "ann"}, {"name": "bob"}]
    write(stack, "UPDATE names SET name = 'Ann' WHERE name = 'ann'")
    first = told(stack, since, "names", columns=["name"])[0][1]
    assert (first.key[0], first.op, first.read_at) == ("ann", "void", "")


def test_what_nobody_can_read_stays_void(stack: ServingStack) -> None:
    """Of a table that is gone, and beyond the rows of a transaction that are read: the stream goes on."""
    since = settled(stack)
    write(stack, f"INSERT INTO dropped VALUES (1, {LARGE})")
    stack.run("DROP TABLE dropped")
    [(_, change)] = told(stack, since, "dropped")
    assert (change.op, change.read_at) == ("void", "")


def test_of_a_large_transaction_only_so_many_rows_are_read(stack: ServingStack) -> None:
    """A cascade over very many rows costs the source a bounded number of reads, and the rest is told as it is."""
    stack.run(
        "INSERT INTO parents VALUES (3)", f"INSERT INTO children SELECT 1000 + seq, 3 FROM seq_1_to_{ROWS_MAX + 5}"
    )
    since = settled(stack)
    gtid = write(stack, "DELETE FROM parents WHERE id = 3")

    def all_that_may_be() -> bool:
        found = [change for event, change in told(stack, since, "children") if event.gtid == gtid]
        read = [change for change in found if change.read_at]
        left = [change for change in found if change.op == "void"]
        assert len(read) + len(left) == ROWS_MAX + 5
        assert len(read) <= ROWS_MAX
        assert {change.op for change in read} <= {"deleted"}
        return len(read) == ROWS_MAX

    # the source reads all of them again, at this position, and on a slow machine not within the seconds that it has
    eventually(all_that_may_be, what="as many rows as may be read")


def test_the_asyncio_client_reads_them_too(stack: ServingStack) -> None:
    """The same parameter, over asyncio, of a stream that has caught up."""

    async def story() -> tuple[StreamEvent, str]:
        async with AsyncClient(stack.url) as client:
            events = client.stream(stack.keyspace, tables=["notes"], include_rows=True, read_void=True)
            assert (await anext(events)).kind == "watermark"
            gtid = await asyncio.to_thread(write, stack, f"REPLACE INTO notes VALUES (31, {LARGE})")
            async with asyncio.timeout(PATIENCE_S):
                async for event in events:
                    if event.kind == "transaction":
                        return event, gtid
        raise AssertionError("the stream has ended")

    event, written = asyncio.run(story())
    [change] = event.changes
    assert (event.gtid, change.op) == (written, "value")
    assert has_event(change, event)


def test_rows_are_read_only_for_who_gets_rows(stack: ServingStack) -> None:
    """A read whose answer is not told would cost the source for nothing."""
    with stack.client() as client, pytest.raises(BadRequest) as refused:
        next(client.stream(stack.keyspace, read_void=True))
    assert refused.value.code == "bad_parameter"
    assert "include_rows" in refused.value.hint
