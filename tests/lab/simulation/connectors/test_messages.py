"""The model of a connector writes what real connectors have written: the same fields, forms and names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any, cast

import pytest

from lab.simulation.connectors.committed import Replay
from lab.simulation.connectors.messages import Told, Writer
from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.mariadb.connections import SimulatedDriver
from lab.simulation.mariadb.server import SimulatedServer
from tests.sources.debezium.samples import SERVERS, story, typed

COLUMNS = (
    "id BIGINT PRIMARY KEY, i INT, bi BIGINT, d1 DECIMAL(10,2), db DOUBLE, v VARCHAR(100), dt DATE, dtm DATETIME,"
    " dtm3 DATETIME(3), dtm6 DATETIME(6), ts TIMESTAMP NULL, ts6 TIMESTAMP(6) NULL"
)
STATEMENTS = (
    "CREATE DATABASE shop",
    f"CREATE TABLE shop.typed ({COLUMNS})",
    "CREATE TABLE shop.one (id INT PRIMARY KEY)",
    "CREATE TABLE shop.two (id INT PRIMARY KEY)",
    "INSERT INTO shop.typed (id, i, d1, dtm, ts6) VALUES (3, 5, 1.5, '2020-01-02 03:04:05', '2020-01-02 03:04:05.5')",
    "UPDATE shop.typed SET i = 6",
    "DELETE FROM shop.typed",
    "RENAME TABLE shop.one TO shop.x, shop.two TO shop.one",
    "TRUNCATE TABLE shop.typed",
)
"""Besides `log_statement`, each form of message that the model writes."""


@pytest.fixture(params=SERVERS)
def written(request: pytest.FixtureRequest) -> tuple[str, list[Told]]:
    """The kind of a server, and the messages of a session there."""
    server = SimulatedServer(kernel := Kernel(Random(1)))
    connection = SimulatedDriver({("server", 1): server}, kernel).connect(
        host="server", port=1, user="root", autocommit=True
    )
    for statement in STATEMENTS:
        connection.query(statement)
    tables = Replay()
    writer = Writer("binlog.000001", server.uuid if request.param == "mysql" else "")
    found = []
    for commit in server.history:
        changed = tables.take(commit)
        found += writer.commit(tables.count, commit, changed, 0)
    return str(request.param), found


def shapes(messages: Iterator[tuple[str, dict[str, Any]]]) -> dict[str, set[str]]:
    """Kind of message → the names in its payload and in its source. ``messages``: (topic, payload)."""
    found: dict[str, set[str]] = {}
    for topic, payload in messages:
        if str(payload.get("source", {}).get("snapshot")) not in ("false", "None"):
            continue
        name = "ddl" if not topic else payload["status"] if topic == ".transaction" else payload["op"]
        names = {*payload, *(f"source.{each}" for each in payload.get("source", ()))}
        found.setdefault(name, set()).update(names)
    return found


def test_messages_have_the_fields_of_real_ones(written: tuple[str, list[Told]]) -> None:
    """A reader that looks at a field finds it in both, or in neither."""
    kind, told = written
    mine = shapes((each.topic, json.loads(each.value)["payload"]) for each in told)
    real = shapes((each.topic, json.loads(each.value)["payload"]) for each in story(kind))
    assert mine.keys() == {"BEGIN", "END", "c", "u", "d", "t", "ddl"}
    for name, names in mine.items():
        assert names <= real[name], name


def test_transactions_are_named_as_by_real_connectors(written: tuple[str, list[Told]]) -> None:
    """Rows and ends have the GTID of their transaction; on MySQL a TRUNCATE and DDL begin none."""
    kind, told = written
    payloads = [(each.topic, json.loads(each.value)["payload"]) for each in told]
    begun = [payload["id"] for topic, payload in payloads if topic == ".transaction" and payload["status"] == "BEGIN"]
    ended = [payload for topic, payload in payloads if topic == ".transaction" and payload["status"] == "END"]
    rows = [payload for _, payload in payloads if payload.get("op") in ("c", "u", "d")]
    assert [row["transaction"]["id"] for row in rows] == [end["id"] for end in ended]
    assert [end["event_count"] for end in ended] == [1, 1, 1]
    assert len(begun) == (3 if kind == "mysql" else len(STATEMENTS))
    [truncated] = [payload for _, payload in payloads if payload.get("op") == "t"]
    assert truncated["transaction" if "transaction" in truncated else "before"] is None


def test_columns_have_the_forms_of_real_ones(written: tuple[str, list[Told]]) -> None:
    """The schema beside a row says of each type what a real one says."""
    kind, told = written
    schema, _ = typed(kind)
    [real] = [each["fields"] for each in json.loads(schema)["fields"] if each["field"] == "after"]
    by_name = {field["field"]: field for field in real}
    row = next(each for each in told if each.topic == ".shop.typed" and each.is_row)
    fields = cast("list[dict[str, Any]]", json.loads(row.value)["schema"]["fields"][1]["fields"])
    assert len(fields) == 12
    for field in fields:
        other = by_name[field["field"]]
        assert {name: other.get(name) for name in field if name != "parameters"} == {
            name: value for name, value in field.items() if name != "parameters"
        }
        assert field["parameters"].items() <= other["parameters"].items()
