"""Rows from a transaction that PostgreSQL has committed to a proven answer, over real servers and processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from serving.client import Row, Session
from tests.serving.stack import ServingStack, eventually
from tests.sources.postgres.conftest import Database, database, empty

__all__ = ["database", "empty"]

TABLES = (
    "CREATE TABLE docs (name VARCHAR(20) PRIMARY KEY, doc JSONB, n INT)",
    """INSERT INTO docs VALUES ('old', '{"a": [1, 2.50]}', 1), ('other', NULL, 2)""",
    "CREATE TABLE lists (id INT PRIMARY KEY, words TEXT[])",
    "INSERT INTO lists VALUES (1, '{a,b}')",
)


@pytest.fixture
def stack(tmp_path: Path, database: Database, keyspace_name: str) -> Iterator[ServingStack]:
    """A keyspace over PostgreSQL, with tables that had rows before."""
    database.run(*TABLES)
    database.create()
    with ServingStack(
        tmp_path, database.kafka, None, keyspace_name, "", kind="debezium", source=database.source_settings
    ) as made:
        yield made


def test_a_session_reads_what_it_has_written_to_postgresql(stack: ServingStack, database: Database) -> None:
    """What was there before is read through, own writes are seen at once, and the cache answers once it is proved."""
    with stack.client() as client:
        session: Session = client.session()
        old = session.get_row(stack.keyspace, "docs", "old")
        assert old.served_from == "source"
        assert old.value == {"name": "old", "doc": '{"a": [1, 2.50]}', "n": 1}
        assert session.get_row(stack.keyspace, "lists", 1).value == {"id": 1, "words": "{a,b}"}, "it is never cached"
        for number in range(12):
            database.run(
                f"INSERT INTO docs VALUES ('own', NULL, {number}) ON CONFLICT (name) DO UPDATE SET n = {number}"
            )
            session.observe(stack.shard, database.position())
            row = session.get_row(stack.keyspace, "docs", "own", max_wait_ms=(number % 2) * 2000)
            assert row.value == {"name": "own", "doc": None, "n": number}
            assert row.freshness == "fresh"
        database.run("DELETE FROM docs WHERE name = 'own'")
        session.observe(stack.shard, database.position())
        assert not session.get_row(stack.keyspace, "docs", "own").found

        def cached(name: str) -> Row | None:
            found = session.get_row(stack.keyspace, "docs", name, max_wait_ms=2_000)
            assert found.freshness == "fresh"
            return found if found.served_from == "cache" else None

        for name in ("old", "other"):
            kept = eventually(partial(cached, name), what="a row that a read brought in the cache")
            assert kept is not None
            assert kept.why
        gone = eventually(lambda: cached("own"), what="the absence in the cache")
        assert gone is not None
        assert not gone.found
        page = session.find(stack.keyspace, "docs", {}, limit=1)
        assert [each["name"] for each in page.rows] == ["old"]
        batch = session.get_rows(stack.keyspace, [("docs", (name,)) for name in ("old", "nobody", "other")])
        assert [each.found for each in batch] == [True, False, True]


def test_a_wrapped_connection_needs_no_word_of_the_application(stack: ServingStack, database: Database) -> None:
    """psycopg's own connection tells the session what it commits, and its reads are fresh."""
    with stack.client() as client, psycopg.connect(database.conninfo) as connection:
        session: Session = client.session()
        session.wrap(connection, stack.shard)
        for number in range(6):
            connection.execute(
                "INSERT INTO docs VALUES ('own', NULL, %(n)s) ON CONFLICT (name) DO UPDATE SET n = %(n)s", {"n": number}
            )
            connection.commit()
            row = session.get_row(stack.keyspace, "docs", "own")
            assert row.value == {"name": "own", "doc": None, "n": number}
            assert row.freshness == "fresh"
            assert not session.carried.doubts
