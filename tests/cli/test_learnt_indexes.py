"""The indexes that a consumer learns when it starts, and what it does if the source does not tell them."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace

import pymysql
import pytest
from pydantic import ValidationError

from consumers.store.index import Index
from freshet.indexes import _keep, _kept, indexes_to_keep, learnt_at
from freshet.local.mariadb import MariaDBAddress
from freshet.local.process import free_ports
from freshet.settings import KeyspaceSettings, Settings
from stream.sources.learnt_indexes import LearntIndex
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError
from stream.sources.mariadb.schema import TableFilter


def settings(directory: Path, server: MariaDBAddress | None, database: str, *indexes: str) -> Settings:
    """A keyspace of one database. Without a server, of one that does not answer."""
    host, port = (server.host, server.port) if server is not None else ("127.0.0.1", free_ports(1)[0])
    user, password = (server.user, server.password) if server is not None else ("u", "p")
    source = {
        "kind": "mariadb",
        "databases": [database],
        "host": host,
        "port": port,
        "user": user,
        "password": password,
    }
    return Settings(data_dir=directory, keyspaces={"shop": {"indexes": list(indexes), "source": source}})  # type: ignore[dict-item]


@pytest.mark.integration
def test_what_was_learnt_is_kept_for_when_the_source_is_away(mariadb: MariaDBAddress, tmp_path: Path) -> None:
    """Else a consumer that starts meanwhile would lose the indexes of its stores. Named ones are kept in any case."""
    database = f"db_{uuid.uuid4().hex[:10]}"
    named = f"{database}.items(c)"
    with mariadb.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
        cursor.execute(
            f"CREATE TABLE {database}.items (a INT PRIMARY KEY, b INT UNIQUE, c DATE, name VARCHAR(9)"
            ", KEY (c, b), KEY (name)) CHARACTER SET utf8mb4"
        )
        found = indexes_to_keep(settings(tmp_path, mariadb, database, "schema", named), "shop")
        assert found == tuple(Index(f"{database}.items", columns) for columns in (("c",), ("b",), ("c", "b")))
        cursor.execute(f"DROP DATABASE {database}")
    away = settings(tmp_path, None, database, "schema", named)
    assert indexes_to_keep(away, "shop") == found
    (tmp_path / "shop.indexes").write_bytes(b"{")
    assert indexes_to_keep(away, "shop") == found[:1]
    assert indexes_to_keep(settings(tmp_path, None, database, named), "shop") == found[:1]


@pytest.mark.integration
def test_of_indexes_with_the_same_columns_all_choose_one(mariadb: MariaDBAddress, tmp_path: Path) -> None:
    """A consumer reads all tables and a front one: if they meant another order, the index would never be used."""
    database = f"db_{uuid.uuid4().hex[:10]}"
    with mariadb.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database}")
        for number in range(6):
            cursor.execute(
                f"CREATE TABLE {database}.t{number} (id INT PRIMARY KEY, a INT, b INT, c INT"
                ", KEY y (b, a), KEY x (a, b), KEY z (a, b, c), KEY w (c, b, a))"
            )
        found = indexes_to_keep(settings(tmp_path, mariadb, database, "schema"), "shop")
        assert {each.columns for each in found} == {("a", "b"), ("c", "b", "a")}
        assert len(found) == 12
        cursor.execute(f"DROP DATABASE {database}")


def test_the_word_schema_stands_for_the_indexes_of_the_source() -> None:
    """Alone or beside named ones; anything else must be an index."""
    assert KeyspaceSettings(indexes="schema").learns_indexes  # type: ignore[arg-type]
    both = KeyspaceSettings(indexes=["schema", "shop.items(b)"])
    assert (both.learns_indexes, both.row_indexes) == (True, (Index("shop.items", ("b",)),))
    assert not KeyspaceSettings(indexes=["shop.items(b)"]).learns_indexes
    with pytest.raises(ValidationError, match="is not an index"):
        KeyspaceSettings(indexes=["schemas"])
    connector = {
        "kind": "debezium",
        "databases": ["public"],
        "topic_prefix": "shop",
        "connect_url": "http://localhost:1",
    }
    postgres = connector | {"server": "postgres", "database": "shop"}
    KeyspaceSettings(indexes=["schema"], source=connector)  # type: ignore[arg-type]
    KeyspaceSettings(indexes=["public.items(b)"], source=postgres)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="of a PostgreSQL are not read"):
        KeyspaceSettings(indexes=["schema"], source=postgres)  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"{", b"[1]", b'[{"table": 1}]', b"\xff", None])
def test_a_file_that_can_not_be_read_keeps_nothing(content: bytes | None, tmp_path: Path) -> None:
    """A consumer starts without these indexes while the source is away; it must not end."""
    path = tmp_path / "shop.indexes"
    if content is not None:
        path.write_bytes(content)
    assert _kept(path) == []
    _keep(path, [LearntIndex("shop.t", "a", ("a",))])
    assert _kept(path) == [LearntIndex("shop.t", "a", ("a",))]


def test_a_source_that_breaks_off_keeps_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front asks again and again, and the server would have no session left for anybody."""
    closed: list[bool] = []

    def breaks_off(_: object) -> None:
        raise pymysql.err.OperationalError(2013, "Lost connection")

    monkeypatch.setattr("freshet.indexes.connect", lambda _: SimpleNamespace(close=lambda: closed.append(True)))
    monkeypatch.setattr("freshet.indexes.read_charsets", breaks_off)
    with pytest.raises(MariaDBError, match="Lost connection"):
        learnt_at(ConnectionSettings(), TableFilter(("shop",)))
    assert closed == [True]
