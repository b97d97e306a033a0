"""Rows from a transaction that MySQL has committed to a proven answer, over real servers and processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pymysql.constants import CLIENT

from freshet.local.mariadb import MariaDBAddress
from serving.client import Row, Session
from stream.kafka.connection import KafkaCluster
from tests.serving.stack import ServingStack, eventually, settled
from tokens import Vector


@pytest.fixture
def stack(
    tmp_path: Path, kafka: KafkaCluster, mysql: MariaDBAddress, mysql_database: str, keyspace_name: str
) -> Iterator[ServingStack]:
    """A keyspace over MySQL, with a table that is read from the beginning."""
    with mysql.connect(autocommit=True, database=mysql_database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE docs (name VARCHAR(20), doc JSON, n INT, PRIMARY KEY (name), KEY (n))")
        cursor.execute("INSERT INTO docs VALUES ('old', '{\"a\": [1, 2.50]}', 1)")
    with ServingStack(
        tmp_path, kafka, mysql, keyspace_name, mysql_database, kind="mysql", backfill=["*"], indexes=["schema"]
    ) as made:
        yield made


def test_a_session_reads_what_it_has_written_to_mysql(stack: ServingStack) -> None:
    """Own writes are seen, with tags too; the cache answers once it is proved; absence and ranges come from it too."""
    with stack.client() as client:
        session: Session = client.session()
        inner = stack.connect(client_flag=CLIENT.SESSION_TRACK)
        with session.wrap(inner, shard=stack.shard) as connection, connection.cursor() as cursor:
            for number in range(12):
                cursor.execute(f"SET gtid_next = 'AUTOMATIC{':web' if number % 3 == 0 else ''}'")
                cursor.execute("REPLACE INTO docs VALUES ('own', %s, %s)", (f'{{"n": {number}}}', number))
                row = session.get_row(stack.keyspace, "docs", "own", max_wait_ms=(number % 2) * 2000)
                assert row.value == {"name": "own", "doc": f'{{"n": {number}}}', "n": number}
                assert row.freshness == "fresh"
            cursor.execute("SET gtid_next = 'AUTOMATIC'")
            cursor.execute("DELETE FROM docs WHERE name = 'own'")
            assert not session.get_row(stack.keyspace, "docs", "own").found
        session.adopt(settled(stack))

        def cached() -> Row | None:
            found = session.get_row(stack.keyspace, "docs", "old")
            return found if found.served_from == "cache" else None

        kept = eventually(cached, what="the row in the cache")
        assert kept is not None
        assert kept.value == {"name": "old", "doc": '{"a": [1, 2.5]}', "n": 1}
        assert kept.freshness == "fresh"
        found = Vector.parse(session.token).get(stack.shard)
        assert found is not None
        assert str(found.position).startswith("MySQL56/")
        page = session.find(stack.keyspace, "docs", {"n": 1})
        assert [each["name"] for each in page.rows] == ["old"]
        stale = session.get_row(stack.keyspace, "docs", "old", max_staleness_ms=5_000)
        assert stale.freshness == "fresh"
