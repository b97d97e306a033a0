"""What the doctor says of a server's parts, one by one: what a source would refuse or leave out, and nothing more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from freshet.checks import kafka, postgres, source
from freshet.checks.finding import Check
from freshet.commands.doctor import _of_source
from freshet.settings import Settings
from freshet.settings_errors import SettingsError
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import Topic
from stream.sources.debezium.connector import Connector
from stream.sources.mariadb.cascades.foreign_keys import Cascades
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError, MariaDBUnreachable
from stream.sources.mariadb.schema import TableFilter, TableInfo
from stream.sources.postgres.server import Slot
from tokens.errors import FreshetError

SERVER = ConnectionSettings("127.0.0.1", 1, "u", "p")
NOBODY: Any = None
"""A connection that is not used: what it would answer is stood in for."""
CONNECTOR = Connector("pre", (r"public\.t,public\.keyless", ""), slot="its_slot")


def table(name: str, problem: str = "") -> TableInfo:
    """One of a PostgreSQL's."""
    schema, _, own = name.partition(".")
    return TableInfo(schema, own, (), (), problem=problem)


@pytest.mark.parametrize(
    ("is_read", "is_reserved", "status", "said"),
    [
        (True, True, "ok", "its_slot is 3.0 MB behind the end of the log"),
        (True, False, "warning", "of which the server may soon drop some"),
        (False, True, "warning", "nobody reads it"),
        (False, False, "warning", "nobody reads it"),
    ],
)
def test_a_slot_that_falls_behind_is_a_warning(
    is_read: bool, is_reserved: bool, status: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the log is dropped that it has not read, all must be published anew."""
    monkeypatch.setattr(postgres, "slot_of", lambda *_: Slot(2_000_000, is_read, is_reserved))
    monkeypatch.setattr(postgres, "read_state", lambda _: SimpleNamespace(end=SimpleNamespace(lsn=5_000_000)))
    [check] = postgres._slot(NOBODY, CONNECTOR)
    assert check.status == status
    assert said in check.found


def test_tables_that_the_connector_leaves_out_are_not_said_to_be_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their changes would never come. What is wrong with a table itself is told before that."""
    known = {
        each.name: each
        for each in (table("public.t"), table("public.other"), table("public.keyless", "it has no primary key"))
    }
    chosen = TableFilter(("public", "nowhere"))
    monkeypatch.setattr(postgres, "read_tables", lambda *_: SimpleNamespace(tables=known))
    monkeypatch.setattr(postgres, "schemas_of", lambda _: {"public"})
    monkeypatch.setattr(postgres, "held_tables", lambda *_: {"public.t": "a prepared transaction"})
    monkeypatch.setattr(postgres, "fetch_all", lambda *_: [(name, True, False) for name in known])
    told = [(each.name, each.status, each.found) for each in postgres._tables(NOBODY, chosen, CONNECTOR)]
    reason = "the connector's configuration leaves it out"
    assert ("choice", "missing", "schema nowhere: not there") in told
    assert ("prepared", "warning", "public.t: a prepared transaction") in told
    assert [found.partition(";")[0] for name, _, found in told if name == "not cached"] == [
        "public.keyless: it has no primary key",
        f"public.other: {reason}",
    ]
    assert ("cached", "ok", "1 table") in told


@pytest.mark.parametrize("kind", ["on_delete", "on_update"])
def test_rows_that_the_server_changes_by_itself_are_told(kind: str) -> None:
    """By a DELETE or an UPDATE; of tables that are published, and not of others."""
    rules = {"shop.orders": frozenset({"shop.lines", "shop.notes"}), "bank.t": frozenset({"bank.u"})}
    none: dict[str, frozenset[str]] = {}
    found = Cascades(rules, none) if kind == "on_delete" else Cascades(none, rules)
    [check] = source._cascades(found, {"shop.orders": table("shop.orders")})
    assert check.status == "warning"
    assert "of keys in shop.orders voids what refers to them in shop.lines, shop.notes" in check.found
    assert [*source._cascades(found, {"shop.lines": table("shop.lines")})] == []


@pytest.mark.parametrize(
    ("error", "is_right"), [(None, True), (MariaDBError("denied", code="mariadb_access_denied"), False)]
)
def test_a_table_that_may_not_be_read_is_named(
    error: MariaDBError | None, is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that goes away meanwhile has not refused anything."""

    def fetch(_: object, sql: str) -> list[Any]:
        if error is not None and "`t`" in sql:
            raise error
        return []

    monkeypatch.setattr(source, "fetch_all", fetch)
    [check] = source._select_grant(NOBODY, SERVER, [table("shop.s"), table("shop.t")])
    assert (check.status, "shop.t" in check.found) == (("ok", False) if is_right else ("missing", True))
    assert "shop.s" not in check.found

    def lost(*_: object) -> None:
        raise MariaDBUnreachable("it is gone")

    monkeypatch.setattr(source, "fetch_all", lost)
    with pytest.raises(MariaDBUnreachable):
        [*source._select_grant(NOBODY, SERVER, [table("shop.s")])]


@pytest.mark.parametrize(
    ("code", "status"),
    [("", "ok"), ("topic_missing", "ok"), ("topic_mismatch", "missing"), ("kafka_denied", "missing")],
)
def test_only_a_topic_that_is_not_there_yet_is_no_problem(
    code: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source makes it as it must be; what is there and wrong stops all of them."""

    def checked(*_: object) -> Topic:
        if code:
            raise FreshetError("it has 3 partitions", hint="set it to 3", code=code)
        return Topic("f.shop.events", "id", 2, 1)

    monkeypatch.setattr(kafka, "check_topics", checked)
    known: Any = SimpleNamespace(topics={})
    monkeypatch.setattr(kafka, "advise", lambda *_: [])
    [check] = kafka._of_keyspace(KafkaCluster("kafka:1", prefix="f"), "shop", 2, 1, known)
    assert check.status == status


@pytest.mark.parametrize("kind", ["rows of one", "rows of two", "connector", "catalog"])
def test_each_server_of_a_keyspace_is_examined_as_what_it_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own login; of several it is told which one is meant."""
    rows = {"kind": "mariadb", "databases": ["shop"], "user": "u"}
    connect = {"server": "postgres", "database": "d", "topic_prefix": "pre", "connect_url": "http://connect:8083"}
    keyspaces: dict[str, dict[str, Any]] = {
        "rows of one": {"source": rows},
        "rows of two": {"source": rows, "shards": {"-80": {"host": "a"}, "80-": {"host": "b", "user": "v"}}},
        "connector": {"source": rows | {"kind": "debezium"} | connect},
        "catalog": {"kind": "catalog", "source": {"kind": "hive"}},
    }
    settings = Settings.model_validate({"keyspaces": {"k": keyspaces[kind]}})
    monkeypatch.setattr(source, "examine_source", lambda at, *_: [Check("login", "ok", at.name)])
    monkeypatch.setattr(postgres, "examine_postgres", lambda at, *_: [Check("postgres", "ok", at.name)])
    if kind == "catalog":
        with pytest.raises(SettingsError, match="no source that reads a database's log"):
            [*_of_source(settings, "k")]
        return
    assert [(each.name, each.found) for each in _of_source(settings, "k")] == {
        "rows of one": [("login", "u@127.0.0.1:3306")],
        "rows of two": [("k/-80 login", "u@a:3306"), ("k/80- login", "v@b:3306")],
        "connector": [("postgres", "u@127.0.0.1:5432")],
    }[kind]
