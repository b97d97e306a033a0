"""What a real server's catalog and locks say of tables that are about to be others, or that once had children."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.snapshot import SnapshotRead
from stream.sources.postgres.connection import session
from stream.sources.postgres.snapshot import PostgresSnapshotReader
from stream.sources.postgres.tables import Found, definition_of, read_tables

CHOSEN = TableFilter(("app", "next"))


@pytest.fixture
def sql(empty: ConnectionSettings) -> Iterator[psycopg.Connection[Any]]:
    """A session of a database with two schemas, each with a table of one name."""
    made = psycopg.connect(
        host=empty.host, port=empty.port, user=empty.user, password=empty.password, dbname=empty.database
    )
    with made, made.cursor() as cursor:
        for schema, value in (("app", 1), ("next", 2)):
            cursor.execute(f"CREATE SCHEMA {schema}".encode())
            cursor.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v INT)".encode())
            cursor.execute(f"INSERT INTO {schema}.t VALUES (1, {value})".encode())
        cursor.execute("CREATE PUBLICATION p FOR TABLE app.t, next.t")
        made.commit()
        yield made


def found(settings: ConnectionSettings) -> Found:
    """What a source would find now."""
    with session(settings) as asked:
        return read_tables(asked, CHOSEN, "p")


@pytest.mark.parametrize(
    ("statement", "locks"),
    [
        ("ALTER SCHEMA app RENAME TO old", True),
        ("ALTER PUBLICATION p DROP TABLE app.t", True),
        ("DROP PUBLICATION p", True),
        ("CREATE SCHEMA other", False),
        ("COMMENT ON SCHEMA app IS 'x'", False),
        ("INSERT INTO app.t VALUES (2, 2)", False),
    ],
)
def test_who_renames_a_schema_or_changes_a_publication_has_locked_the_tables(
    empty: ConnectionSettings, sql: psycopg.Connection[Any], statement: str, locks: bool
) -> None:
    """No lock of theirs is held, and the log tells it: the position would pass what the catalog does not show yet."""
    sql.execute(statement.encode())
    assert {"app.t", "next.t"} & found(empty).locked == ({"app.t", "next.t"} if locks else set())
    sql.rollback()
    assert not found(empty).locked


def test_a_read_before_a_swap_of_schemas_is_seen_proves_no_more_than_what_was_before(
    empty: ConnectionSettings, sql: psycopg.Connection[Any]
) -> None:
    """It is in the log, and waits for a standby: then the name is another table's, of whose rows none is marked."""
    reader = PostgresSnapshotReader(empty)

    def read() -> SnapshotRead[Any]:
        found = reader.read({"app.t": [[1]]})["app.t"]
        assert isinstance(found, SnapshotRead), found
        return found

    try:
        before = read()
        assert (before.position, before.untouched) == (before.end, frozenset({0}))
        sql.execute("ALTER SCHEMA app RENAME TO old")
        sql.execute("ALTER SCHEMA next RENAME TO app")
        amid = read()
        assert amid.untouched == frozenset()
        assert not GtidPosition.parse(amid.position).covers(GtidPosition.parse(amid.end))
        sql.commit()
        after = read()
        assert after.rows[0].image == b'{"id":1,"v":2}'
        assert after.position == after.end
    finally:
        reader.close()


def test_a_table_that_has_no_children_any_more_is_cached_again(
    empty: ConnectionSettings, sql: psycopg.Connection[Any]
) -> None:
    """The server remembers that it had some (``relhassubclass``), until an ANALYZE of it."""
    definitions = []
    for statement in (None, "CREATE TABLE next.child () INHERITS (app.t)", "DROP TABLE next.child"):
        if statement:
            sql.execute(statement.encode())
            sql.commit()
        info = found(empty).tables["app.t"]
        assert info.cacheable is (statement is None or statement.startswith("DROP")), info.problem
        with session(empty) as asked:
            definitions.append(definition_of(asked, "app", "t"))
    assert definitions[0] == definitions[2] != definitions[1]
