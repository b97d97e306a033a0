"""Which connectors can be a source."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from stream.sources.debezium.connector import CLASSES, CONVERTER, Connector, checked, find_connector
from stream.sources.debezium.errors import ConnectUnreachable, DebeziumError
from stream.sources.debezium.places import Places, read_places

GOOD = {
    "connector.class": CLASSES["MySQL"],
    "topic.prefix": "pre",
    "provide.transaction.metadata": "true",
    "exactly.once.support": "required",
    "column.propagate.source.type": ".*",
    "skipped.operations": "none",
    "enable.time.adjuster": "false",
    "value.converter": CONVERTER,
    "value.converter.replace.null.with.default": "false",
    "event.converting.failure.handling.mode": "fail",
}


def test_a_connector_with_the_needed_settings_is_taken() -> None:
    """All others may have their defaults."""
    assert checked("c", GOOD, "MySQL") == Connector("c", ("", ""))
    assert checked("c", {**GOOD, "connector.class": "MySqlConnector", "transforms": " "}, "MySQL").name == "c"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *((name, None) for name in GOOD if name not in ("topic.prefix", "connector.class")),
        ("decimal.handling.mode", "double"),
        ("binary.handling.mode", "hex"),
        ("time.precision.mode", "connect"),
        ("include.schema.changes", "false"),
        ("transforms", "unwrap"),
        ("column.mask.with.5.chars", "shop.t.c"),
        ("column.exclude.list", "shop.t.c"),
        ("database.include.list", "shop"),
        ("gtid.source.excludes", ".*"),
        ("schema.history.internal.skip.unparseable.ddl", "true"),
        ("tasks.max", "2"),
        ("errors.tolerance", "all"),
        ("value.converter.schemas.enable", "false"),
    ],
)
def test_a_connector_that_hides_or_bends_changes_is_refused(setting: str, value: str | None) -> None:
    """Its messages look like any others."""
    config = {**GOOD, setting: value} if value is not None else {k: v for k, v in GOOD.items() if k != setting}
    with pytest.raises(DebeziumError, match=setting.replace(".", r"\.")) as refused:
        checked("c", {k: v for k, v in config.items() if v is not None}, "MySQL")
    assert refused.value.code == "debezium_bad_connector"
    assert setting in refused.value.hint


def test_another_kind_of_connector_is_refused() -> None:
    """PostgreSQL's has other positions, and the other server's other GTIDs."""
    for name in ("io.debezium.connector.postgresql.PostgresConnector", CLASSES["MariaDB"], ""):
        with pytest.raises(DebeziumError, match="not Debezium") as refused:
            checked("c", {**GOOD, "connector.class": name}, "MySQL")
        assert refused.value.code == "debezium_unsupported"


def test_tables_are_captured_as_debezium_chooses_them() -> None:
    """Regular expressions for whole names, in any case of letters."""
    chosen = checked("c", {**GOOD, "table.include.list": r"shop\.a.*, Other[.]b"}, "MySQL")
    assert [chosen.captures(name) for name in ("shop.a", "shop.ab", "other.b", "shop.b", "xshop.a")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    left_out = checked("c", {**GOOD, "table.exclude.list": "shop.secret"}, "MySQL")
    assert (left_out.captures("shop.a"), left_out.captures("shop.secret")) == (True, False)
    assert chosen.fingerprint != left_out.fingerprint
    with pytest.raises(DebeziumError, match="not understood"):
        checked("c", {**GOOD, "table.include.list": "(shop"}, "MySQL")


def test_places_are_read_as_they_were_written() -> None:
    """A source that begins again finds them in its own state."""
    places = Places(5, {("pre", 0): 7, ("pre.shop.a", 0): 3, ("pre.shop.a", 1): 4}, "binlog.000002:7")
    assert read_places(places.words("pre"), "pre") == places
    for other in ("", "{}", places.words("pre").replace('"version":1', '"version":2')):
        assert read_places(other, "pre") is None


@pytest.fixture
def answers() -> Iterator[tuple[str, dict[str, bytes]]]:
    """An address that answers what a test puts in: Connect's own answers are those of the live tests."""
    given: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(given.get("status", b"200")))
            self.end_headers()
            self.wfile.write(given["body"])

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", given
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_connector_is_found_by_its_prefix(answers: tuple[str, dict[str, bytes]]) -> None:
    """Two with the same prefix would write into the same topics. None: a worker that starts has not read them yet."""
    url, given = answers
    others = {"a": {"info": {"config": {**GOOD, "topic.prefix": "other"}}}, "b": {"info": {"config": GOOD}}}
    given["body"] = json.dumps(others).encode()
    assert find_connector(url + "/", "pre", "MySQL").name == "b"
    with pytest.raises(ConnectUnreachable) as missing:
        find_connector(url, "none", "MySQL")
    assert missing.value.code == "debezium_no_connector"
    given["body"] = json.dumps({**others, "c": others["b"]}).encode()
    with pytest.raises(DebeziumError, match="2 connectors"):
        find_connector(url, "pre", "MySQL")


def test_what_is_not_connect_is_told_from_what_does_not_answer(answers: tuple[str, dict[str, bytes]]) -> None:
    """The one is a wrong address, the other passes."""
    url, given = answers
    for body in (b"<html>", b"[]", b'{"a":{}}'):
        given["body"] = body
        with pytest.raises(DebeziumError, match="not Kafka Connect"):
            find_connector(url, "pre", "MySQL")
    given["status"] = b"503"
    with pytest.raises(ConnectUnreachable, match="503"):
        find_connector(url, "pre", "MySQL")
    with pytest.raises(ConnectUnreachable):
        find_connector("http://127.0.0.1:1", "pre", "MySQL")
