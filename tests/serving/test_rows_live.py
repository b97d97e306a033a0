"""Rows from a committed transaction to a proven answer, over real servers and processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from freshet.local.mariadb import MariaDBServer
from serving.client import (
    AsyncClient,
    BadRequest,
    HistoryLost,
    NotFoundError,
    Row,
    Session,
    Unavailable,
    Unreachable,
)
from stream.kafka.connection import KafkaCluster
from tests.serving.stack import ServingStack, eventually, settled
from tokens import EventToken, Position, Vector


def from_cache(row: Row) -> Row | None:
    """``row`` if the cache answered it."""
    return row if row.served_from == "cache" else None


def test_a_session_reads_its_own_writes(stack: ServingStack, session: Session) -> None:
    """A read after an explicit commit sees the insert, each update and the delete, fresh."""
    connection = session.wrap(stack.connect(autocommit=False), shard=stack.shard)
    with connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO accounts VALUES (1, 10.5, 'Jürgen')")
        connection.commit()
        row = session.get_row(stack.keyspace, "accounts", 1)
        assert row.value == {"id": 1, "balance": "10.50", "name": "Jürgen"}
        assert row.freshness == "fresh"
        for amount in range(20):
            cursor.execute("UPDATE accounts SET balance = %s WHERE id = 1", (amount,))
            connection.commit()
            found = session.get_row(stack.keyspace, f"{stack.database}.accounts", 1)
            assert found.value is not None
            assert found.value["balance"] == f"{amount}.00"
            assert found.freshness == "fresh"
        cursor.execute("DELETE FROM accounts WHERE id = 1")
        connection.commit()
        gone = session.get_row(stack.keyspace, "accounts", 1)
        assert (gone.found, gone.freshness) == (False, "fresh")


def test_autocommit_is_followed(stack: ServingStack, session: Session) -> None:
    """With autocommit each statement is a commit, and its GTID is in the next demand."""
    connection = session.wrap(stack.connect(autocommit=True), shard=stack.shard)
    with connection, connection.cursor() as cursor:
        for number in range(10):
            assert cursor.execute("REPLACE INTO accounts VALUES (2, %s, 'auto')", (number,)) >= 1
            found = session.get_row(stack.keyspace, "accounts", 2)
            assert found.value is not None
            assert found.value["balance"] == f"{number}.00"
        cursor.execute("BEGIN")
        cursor.execute("UPDATE accounts SET balance = 99 WHERE id = 2")
        before = session.get_row(stack.keyspace, "accounts", 2)
        assert before.value is not None
        assert before.value["balance"] == "9.00"
        cursor.execute("COMMIT")
        after = session.get_row(stack.keyspace, "accounts", 2)
        assert after.value is not None
        assert after.value["balance"] == "99.00"


def test_a_demand_waits_for_the_cache(stack: ServingStack, session: Session) -> None:
    """With max_wait_ms the owner waits for the position: the answer comes from the cache, and is fresh."""
    stack.run("REPLACE INTO accounts VALUES (3, 1, 'before')")
    session.adopt(settled(stack))
    with session.wrap(stack.connect(), shard=stack.shard) as connection, connection.cursor() as cursor:
        cursor.execute("REPLACE INTO accounts VALUES (3, 1, 'waits')")
        row = session.get_row(stack.keyspace, "accounts", 3, max_wait_ms=10_000)
    assert (row.served_from, row.freshness) == ("cache", "fresh")
    assert row.value is not None
    assert row.value["name"] == "waits"


def test_a_bounded_staleness_is_proved_by_the_cache_or_the_source(stack: ServingStack, session: Session) -> None:
    """Without a token: the source's clock in a marker proves a minute; of this very moment only the source is sure."""
    stack.run("REPLACE INTO accounts VALUES (4, 1, 'timed')")
    settled(stack)
    path = f"/v1/rows/{stack.keyspace}/accounts/4"

    def is_cached() -> bool:
        answer = stack.get(path, max_staleness_ms="60000").json()
        assert answer["freshness"] == "fresh", answer
        return bool(answer["served_from"] == "cache")

    assert eventually(is_cached, what="a marker with the source's clock")
    stack.run("UPDATE accounts SET name = 'now' WHERE id = 4")
    now = session.get_row(stack.keyspace, "accounts", 4, max_staleness_ms=0, max_wait_ms=0)
    assert now.value is not None
    assert (now.served_from, now.freshness, now.value["name"]) == ("source", "fresh", "now")
    [row] = session.get_rows(stack.keyspace, [("accounts", [4])], max_staleness_ms=60_000)
    assert row.freshness == "fresh"


def test_a_row_older_than_the_topic_is_read_once_then_cached(stack: ServingStack, session: Session) -> None:
    """Read-through fills the overlay, which then answers, proved by its own position."""
    session.adopt(settled(stack))
    first = session.get_row(stack.keyspace, "accounts", 1000)
    assert (first.served_from, first.freshness) == ("source", "fresh")
    cached: Row | None = eventually(
        lambda: from_cache(session.get_row(stack.keyspace, "accounts", 1000)),
        what="the fill",
    )
    assert cached is not None
    assert cached.value == first.value == {"id": 1000, "balance": "7.50", "name": "older than the topic"}
    assert cached.freshness == "fresh"
    stack.run("UPDATE accounts SET balance = 8 WHERE id = 1000")
    session.adopt(settled(stack))
    moved = session.get_row(stack.keyspace, "accounts", 1000)
    assert moved.value is not None
    assert (moved.value["balance"], moved.served_from) == ("8.00", "cache")


def test_a_token_of_another_kind_of_server_is_refused(stack: ServingStack) -> None:
    """A position that the shard cannot have is 400 with and without a wait, not an error of the front."""
    known = Vector.parse(settled(stack)).get(stack.shard)
    assert known is not None
    for position in ("MySQL56/3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5", "HiveEvent/190", "FilePos/bin.000001:4"):
        token = str(Vector({stack.shard: (known.epoch, Position.parse(position))}))
        for wait in ("0", "50"):
            answer = stack.get(f"/v1/rows/{stack.keyspace}/accounts/1000", token=token, max_wait_ms=wait)
            assert (answer.status_code, answer.json()["code"]) == (400, "bad_token")


def test_a_session_that_has_seen_nothing_gets_no_proof(stack: ServingStack) -> None:
    """An empty token of any format demands nothing, so its answer is eventual."""
    for token in ("v1.W10", str(Vector()), ""):
        answer = stack.get(f"/v1/rows/{stack.keyspace}/accounts/1000", token=token).json()
        assert answer["freshness"] == "eventual"


def test_absence_is_404_with_proof_and_token(stack: ServingStack) -> None:
    """A missing row is a fresh 404 with a token, first from the source and then from the cache."""
    token = settled(stack)
    path = f"/v1/rows/{stack.keyspace}/accounts/424242"
    answer = stack.get(path, token=token)
    body = answer.json()
    assert (answer.status_code, body["code"], body["found"], body["row"]) == (404, "not_found", False, None)
    assert (body["served_from"], body["freshness"]) == ("source", "fresh")
    assert Vector.parse(body["token"])
    eventually(lambda: stack.get(path, token=token).json()["served_from"] == "cache", what="the fill")
    stack.run("INSERT INTO accounts VALUES (424242, 0, 'now it is')")
    assert stack.get(path, token=settled(stack)).json()["row"]["name"] == "now it is"


def test_a_key_in_another_spelling_is_answered_and_never_cached(stack: ServingStack, session: Session) -> None:
    """A row found by collation is cached only under its own key, not under the requested spelling."""
    session.adopt(settled(stack))
    for _ in range(3):
        row = session.get_row(stack.keyspace, "words", "fruh")
        assert (row.served_from, row.freshness) == ("source", "fresh")
        assert row.value == {"word": "Früh", "n": 1}
    eventually(lambda: session.get_row(stack.keyspace, "words", "Früh").served_from == "cache", what="the fill")
    stack.run("DELETE FROM words WHERE word = 'Früh'", "INSERT INTO words VALUES ('FRÜH', 2)")
    session.adopt(settled(stack))
    row = session.get_row(stack.keyspace, "words", "Früh")
    assert (row.value, row.served_from) == ({"word": "FRÜH", "n": 2}, "source")


def test_a_decimal_key_is_found_however_it_is_spelt(stack: ServingStack, session: Session) -> None:
    """A decimal key is found with or without trailing zeros, and its absence is not cached."""
    stack.run("INSERT INTO prices VALUES (1.5, 1)")
    session.adopt(settled(stack))
    assert session.get_row(stack.keyspace, "prices", "1.5").found
    assert session.get_row(stack.keyspace, "prices", "1.50").found
    assert not session.get_row(stack.keyspace, "prices", "2.5").found
    stack.run("INSERT INTO prices VALUES (2.5, 1)")
    session.adopt(settled(stack))
    assert session.get_row(stack.keyspace, "prices", "2.5").found


def test_composite_and_binary_keys(stack: ServingStack, session: Session) -> None:
    """A composite key with a binary column is found through the client."""
    with session.wrap(stack.connect(), shard=stack.shard) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO `lines` VALUES (1, %s, 'a,b')", (b"x,\x00\xff",))
    row = session.get_row(stack.keyspace, "lines", 1, b"x,\x00\xff", max_wait_ms=5_000)
    assert row.value is not None
    assert row.value["note"] == "a,b"


def test_a_table_that_cannot_be_cached_is_read_through(stack: ServingStack, session: Session) -> None:
    """A table whose engine has no snapshots is always read from the source, and the answer says why."""
    session.adopt(settled(stack))
    stack.run("INSERT INTO plain VALUES (1, 1)")
    for value in range(3):
        stack.run(f"UPDATE plain SET v = {value}")
        row = session.get_row(stack.keyspace, "plain", 1)
        assert (row.served_from, row.value) == ("source", {"id": 1, "v": value})
        assert "MyISAM" in row.why


def test_no_token_is_eventual_from_either_side(stack: ServingStack) -> None:
    """An answer without a demand is ``eventual``, from the cache and from the source."""
    stack.run("REPLACE INTO accounts VALUES (4, 1, 'x')", "REPLACE INTO accounts VALUES (5, 1, 'x')")
    settled(stack)
    with stack.client() as client:
        row = client.get_row(stack.keyspace, "accounts", 4)
        assert (row.served_from, row.freshness) == ("cache", "eventual")
        assert client.get_row(stack.keyspace, "accounts", 777).freshness == "eventual"
        assert Vector.parse(row.token).get(stack.shard) is not None


def test_asynchronous_sessions_read_their_writes(stack: ServingStack) -> None:
    """Asynchronous sessions of one client read their own writes and raise the blocking client's errors."""

    async def follow(client: AsyncClient, number: int) -> None:
        session = client.session()
        with stack.connect() as connection, connection.cursor() as cursor:
            for step in range(5):
                cursor.execute("REPLACE INTO accounts VALUES (%s, %s, 'async')", (500 + number, step))
                cursor.execute("SELECT @@last_gtid")
                session.observe(stack.shard, f"MariaDB/{cursor.fetchone()[0]}")
                row = await session.get_row(stack.keyspace, "accounts", 500 + number, max_wait_ms=50)
                assert row.value is not None
                assert (row.value["balance"], row.freshness) == (f"{step}.00", "fresh")
        rows = await session.get_rows(stack.keyspace, [("accounts", (500 + number,)), ("accounts", (999999,))])
        assert [each.found for each in rows] == [True, False]
        continued = client.session(await session.token())
        assert (await continued.get_row(stack.keyspace, "accounts", 500 + number)).freshness == "fresh"
        with pytest.raises(BadRequest):
            await session.get_row(stack.keyspace, "accounts", "x")

    async def story() -> None:
        async with AsyncClient(stack.url) as client:
            await asyncio.gather(*(follow(client, number) for number in range(8)))
            assert (await client.get_row(stack.keyspace, "accounts", 500)).freshness == "eventual"
        async with AsyncClient("http://127.0.0.1:1") as unreachable:
            with pytest.raises(Unreachable):
                await unreachable.session().get_row(stack.keyspace, "accounts", 1)

    asyncio.run(story())


def test_event_tokens_are_given_and_compared(stack: ServingStack) -> None:
    """include_event_token says where the row stands in history; compare_event_token whether it is as new."""
    path = f"/v1/rows/{stack.keyspace}/accounts/50"
    tokens = []
    for name in ("first", "second"):
        stack.run(f"REPLACE INTO accounts VALUES (50, 1, '{name}')")
        body = stack.get(path, token=settled(stack), include_event_token="true").json()
        assert body["row"]["name"] == name
        tokens.append(body["event_token"])
    parsed = [EventToken.parse(token) for token in tokens]
    assert parsed[1].shard == stack.shard
    assert stack.get(path, compare_event_token=tokens[0]).json()["fresher"] is True
    assert stack.get(path, compare_event_token=tokens[1]).json()["fresher"] is True
    assert parsed[1].position is not None
    later = EventToken(0, stack.shard, Position.parse("MariaDB/0-1-99999999"), epoch=parsed[1].epoch)
    assert stack.get(path, compare_event_token=str(later)).json()["fresher"] is False
    foreign = EventToken(0, "elsewhere/0", parsed[1].position)
    assert "fresher" not in stack.get(path, compare_event_token=str(foreign)).json()


def test_wrong_input_is_refused_with_the_reason(stack: ServingStack, session: Session) -> None:
    """Every kind of wrong key or table gets its own error code."""
    keyspace = stack.keyspace
    for table, pk, kind, code in [
        ("accounts", ("x",), BadRequest, "bad_key"),
        ("accounts", (1, 2), BadRequest, "bad_key"),
        ("lines", (1,), BadRequest, "bad_key"),
        ("keyless", (1,), BadRequest, "bad_key"),
        ("nowhere", (1,), NotFoundError, "unknown_table"),
        ("mysql.user", ("root",), NotFoundError, "unknown_table"),
        ("information_schema.TABLES", (1,), NotFoundError, "unknown_table"),
    ]:
        with pytest.raises(kind) as caught:
            session.get_row(keyspace, table, *pk)
        assert caught.value.code == code, (table, pk)


def test_a_demand_beyond_the_source_is_refused_not_guessed(stack: ServingStack, session: Session) -> None:
    """A demand beyond the source's position is answered 503, never with an older row."""
    known = Vector.parse(settled(stack)).get(stack.shard)
    assert known is not None
    session.adopt(str(Vector({stack.shard: (known.epoch, Position.parse("MariaDB/0-1-99999999"))})))
    with pytest.raises(Unavailable) as caught:
        session.get_row(stack.keyspace, "accounts", 1000, max_wait_ms=200)
    assert caught.value.code == "source_behind"


def test_a_demand_of_a_lost_history_gets_a_new_token(stack: ServingStack, session: Session) -> None:
    """A demand of an older epoch raises `HistoryLost`, and the session continues with the new token."""
    known = Vector.parse(settled(stack)).get(stack.shard)
    assert known is not None
    assert known.epoch >= 1
    session.adopt(str(Vector({stack.shard: (known.epoch - 1, known.position)})))
    for table_id in (4, 1000, 987654):
        session.adopt(str(Vector({stack.shard: (known.epoch - 1, known.position)})))
        lost = Session(session._send, Vector({stack.shard: (known.epoch - 1, known.position)}))
        with pytest.raises(HistoryLost):
            lost.get_row(stack.keyspace, "accounts", table_id)
        after = lost.vector.get(stack.shard)
        assert after is not None
        assert after.epoch == known.epoch
        lost.get_row(stack.keyspace, "accounts", table_id)


def test_concurrent_followers_never_miss_their_writes(stack: ServingStack) -> None:
    """Each of many concurrent sessions sees at least its own last write."""
    problems: list[str] = []

    def follow(number: int) -> None:
        with stack.client() as client:
            session = client.session()
            with session.wrap(stack.connect(), shard=stack.shard) as connection, connection.cursor() as cursor:
                for step in range(25):
                    cursor.execute(
                        "INSERT INTO accounts VALUES (60, 1, '') ON DUPLICATE KEY UPDATE balance = balance + 1"
                    )
                    cursor.execute("SELECT balance FROM accounts WHERE id = 60")
                    least = float(cursor.fetchone()[0]) if step % 2 else 0.0
                    row = session.get_row(stack.keyspace, "accounts", 60, max_wait_ms=(0, 50)[step % 2])
                    if row.value is None or row.freshness != "fresh":
                        problems.append(f"{number}/{step}: {row}")
                    elif float(row.value["balance"]) < step + 1:
                        problems.append(f"{number}/{step}: {row} after {step + 1} own writes, {least} seen")

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_without_its_owner_the_source_answers(stack: ServingStack, session: Session) -> None:
    """While the owner is down the source gives fresh answers; after its return the cache does again."""
    stack.run("REPLACE INTO accounts VALUES (70, 1, 'before')")
    session.adopt(settled(stack))
    assert session.get_row(stack.keyspace, "accounts", 70).served_from == "cache"
    stack.kill("consume")
    try:
        with session.wrap(stack.connect(), shard=stack.shard) as connection, connection.cursor() as cursor:
            cursor.execute("REPLACE INTO accounts VALUES (70, 1, 'while it is away')")
        row = session.get_row(stack.keyspace, "accounts", 70)
        assert (row.served_from, row.freshness) == ("source", "fresh")
        assert row.value is not None
        assert row.value["name"] == "while it is away"
    finally:
        stack.start("consume")
    back: Row | None = eventually(
        lambda: from_cache(session.get_row(stack.keyspace, "accounts", 70)),
        what="the owner's return",
    )
    assert back is not None
    assert back.value is not None
    assert back.value["name"] == "while it is away"


def test_without_its_source_the_cache_answers_what_it_can_prove(
    kafka: KafkaCluster, new_mariadb: Callable[[], MariaDBServer], tmp_path: Path, keyspace_name: str
) -> None:
    """While MariaDB is down the cache gives the answers it can prove; other reads are 503."""
    server = new_mariadb()
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.t (id INT PRIMARY KEY, v INT)")
    with ServingStack(tmp_path, kafka, server.address, keyspace_name, "shop") as stack, stack.client() as client:
        session = client.session()
        with session.wrap(stack.connect(), shard=stack.shard) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (1, 1)")
        eventually(lambda: from_cache(session.get_row(keyspace_name, "t", 1)), what="folding")
        server.kill()
        row = session.get_row(keyspace_name, "t", 1)
        assert (row.served_from, row.freshness, row.value) == ("cache", "fresh", {"id": 1, "v": 1})
        with pytest.raises(Unavailable) as caught:
            session.get_row(keyspace_name, "t", 2)
        assert caught.value.code == "source_unreachable"
        server.restart()
        eventually(lambda: not session.get_row(keyspace_name, "t", 2).found, what="the source's return")
        assert stack.stop("serve") == 0
        assert "Traceback" not in stack.log_of("serve")
