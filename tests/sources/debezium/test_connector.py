"""Which connectors can be a source."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

from stream.access.certificates import Certificates
from stream.sources.debezium.connector import CLASSES, CONVERTER, Connector, KafkaConnect, checked, find_connector
from stream.sources.debezium.errors import ConnectUnreachable, DebeziumError
from stream.sources.debezium.places import Places, read_places
from tests.access.certifying import write

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
        *(
            (name, None)
            for name in GOOD
            if name not in ("topic.prefix", "connector.class", "provide.transaction.metadata")
        ),
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


@pytest.mark.parametrize(("heartbeats", "is_taken"), [("", False), ("0", False), (" 00 ", False), ("1000", True)])
def test_a_connector_that_tells_no_ends_needs_heartbeats(heartbeats: str, is_taken: bool) -> None:
    """How far it has told everything is all that is known of it. Its epoch is not that of one that tells ends."""
    config = {**GOOD, "provide.transaction.metadata": "false", "heartbeat.interval.ms": heartbeats}
    if is_taken:
        found = checked("c", config, "MySQL")
        assert not found.tells_ends
        assert found.fingerprint != checked("c", GOOD, "MySQL").fingerprint
        return
    with pytest.raises(DebeziumError, match=r"heartbeat\.interval\.ms") as refused:
        checked("c", config, "MySQL")
    assert refused.value.code == "debezium_bad_connector"


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
    endless = checked(
        "c",
        {
            **GOOD,
            "provide.transaction.metadata": "false",
            "heartbeat.interval.ms": "1000",
            "table.include.list": r"shop\.a.*, Other[.]b",
        },
        "MySQL",
    )
    assert (chosen.tells_ends, endless.tells_ends) == (True, False)
    assert endless.fingerprint != chosen.fingerprint
    with pytest.raises(DebeziumError, match="not understood"):
        checked("c", {**GOOD, "table.include.list": "(shop"}, "MySQL")


def test_places_are_read_as_they_were_written() -> None:
    """A source that begins again finds them in its own state."""
    places = Places(5, {("pre", 0): 7, ("pre.shop.a", 0): 3, ("pre.shop.a", 1): 4}, "binlog.000002:7")
    assert read_places(places.words("pre"), "pre") == places
    for other in ("", "{}", places.words("pre").replace('"version":1', '"version":2')):
        assert read_places(other, "pre") is None
    few, several = (
        Places(5, {(f"pre.shop.table_{number}", 0): number for number in range(count)}) for count in (300, 900)
    )
    assert few.words("pre").startswith("{")  # an older version reads them, too
    words = several.words("pre")
    assert len(words) < 8_000
    assert read_places(words, "pre") == several
    for other in (words[:-9], words + "é", "zlib:", "zlib:0"):
        assert read_places(other, "pre") is None


@contextmanager
def answering(files: Certificates | None = None) -> Iterator[tuple[str, dict[str, bytes]]]:
    """An address that answers what a test puts in: Connect's own answers are those of the live tests.

    ``files``: over TLS, to who shows a certificate.
    """
    given: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given["shown"] = self.headers.get("Authorization", "").encode()
            self.send_response(int(given.get("status", b"200")))
            if "elsewhere" in given:
                self.send_header("Location", given["elsewhere"].decode())
            self.end_headers()
            self.wfile.write(given["body"])

        def log_message(self, *_: object) -> None:
            pass

    class Server(HTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that does not trust us goes away."""

        def finish_request(self, request: Any, client_address: Any) -> None:
            secured = files.server(demand=True) if files is not None else None
            super().finish_request(
                secured.wrap_socket(request, server_side=True) if secured else request, client_address
            )

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http{'s' if files else ''}://127.0.0.1:{server.server_address[1]}", given
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def answers() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Such an address, in plain."""
    with answering() as found:
        yield found


def test_the_connector_is_found_by_its_prefix(answers: tuple[str, dict[str, bytes]]) -> None:
    """Two with the same prefix would write into the same topics. None: a worker that starts has not read them yet."""
    url, given = answers
    others = {"a": {"info": {"config": {**GOOD, "topic.prefix": "other"}}}, "b": {"info": {"config": GOOD}}}
    given["body"] = json.dumps(others).encode()
    assert find_connector(KafkaConnect(url + "/"), "pre", "MySQL").name == "b"
    with pytest.raises(ConnectUnreachable) as missing:
        find_connector(KafkaConnect(url), "none", "MySQL")
    assert missing.value.code == "debezium_no_connector"
    given["body"] = json.dumps({**others, "c": others["b"]}).encode()
    with pytest.raises(DebeziumError, match="2 connectors"):
        find_connector(KafkaConnect(url), "pre", "MySQL")


def test_what_is_not_connect_is_told_from_what_does_not_answer(answers: tuple[str, dict[str, bytes]]) -> None:
    """The one is a wrong address, the other passes."""
    url, given = answers
    for body in (b"<html>", b"[]", b'{"a":{}}'):
        given["body"] = body
        with pytest.raises(DebeziumError, match="not Kafka Connect"):
            find_connector(KafkaConnect(url), "pre", "MySQL")
    given["status"] = b"503"
    with pytest.raises(ConnectUnreachable, match="503"):
        find_connector(KafkaConnect(url), "pre", "MySQL")
    with pytest.raises(ConnectUnreachable):
        find_connector(KafkaConnect("http://127.0.0.1:1"), "pre", "MySQL")


def test_a_password_is_shown_to_connect_and_to_nobody_else(answers: tuple[str, dict[str, bytes]]) -> None:
    """Who refuses it is told by a hint; no error has it, nor is it passed on to where an answer leads."""
    url, given = answers
    given["body"] = json.dumps({"b": {"info": {"config": GOOD}}}).encode()
    connect = KafkaConnect(url, "u", "hunter2")
    assert find_connector(connect, "pre", "MySQL").name == "b"
    assert given["shown"] == b"Basic " + b64encode(b"u:hunter2")
    for status in (b"401", b"403"):
        given["status"] = status
        with pytest.raises(ConnectUnreachable) as refused:
            find_connector(connect, "pre", "MySQL")
        assert "connect_password" in refused.value.hint
        assert "hunter2" not in f"{refused.value!r} {connect!r}"
    given |= {"status": b"302", "elsewhere": f"{url}/again".encode()}
    with pytest.raises(ConnectUnreachable):
        find_connector(connect, "pre", "MySQL")
    assert given["shown"] == b""


def test_connect_is_verified_and_shown_a_certificate(tmp_path: Path) -> None:
    """Over TLS: of our authority and for its host, else it is not asked; and it may ask for ours."""
    authority = trustme.CA()
    own = write(authority, tmp_path, "own", "source.internal")
    foreign = write(trustme.CA(), tmp_path, "foreign", "127.0.0.1")
    with answering(write(authority, tmp_path, "connect", "127.0.0.1")) as (url, given):
        given["body"] = json.dumps({"b": {"info": {"config": GOOD}}}).encode()
        assert find_connector(KafkaConnect(url, certificates=own), "pre", "MySQL").name == "b"
        elsewhere = url.replace("127.0.0.1", "localhost")
        for wrong in (
            KafkaConnect(url),
            KafkaConnect(url, certificates=foreign),
            KafkaConnect(url, certificates=Certificates(ca=own.ca)),
            KafkaConnect(elsewhere, certificates=own),
        ):
            with pytest.raises(ConnectUnreachable):
                find_connector(wrong, "pre", "MySQL")
        with pytest.raises(ConnectUnreachable) as unknown:
            find_connector(KafkaConnect(url, certificates=foreign), "pre", "MySQL")
        assert "connect_tls" in unknown.value.hint
        with pytest.raises(DebeziumError, match="certificate can't be used"):
            find_connector(KafkaConnect(url, certificates=Certificates(ca=str(tmp_path / "gone"))), "pre", "MySQL")
