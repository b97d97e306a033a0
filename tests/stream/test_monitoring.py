"""Metrics and health of a source process, over HTTP."""

from __future__ import annotations

import socket
import ssl
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client import CollectorRegistry

from stream import monitoring
from stream.access.grants import Access
from stream.monitoring import serve_monitoring
from stream.sources.metrics import SourceCollector
from stream.sources.status import SourceStatus
from tests.access.certifying import write
from tests.serving.stack import eventually, is_closed

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def ask(port: int, path: str, token: str = "", **headers: str) -> tuple[int, str]:
    """Status and body of a GET."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_source_shows_whether_it_reads_how_far_and_how_late() -> None:
    """Ready only while it reads; an outage says what is missing; metrics follow the status."""
    now = [100.0]
    status = SourceStatus(lambda: now[0], lambda: now[0])
    registry = CollectorRegistry()
    registry.register(SourceCollector("shop", "shop/0", status))
    server = serve_monitoring(("127.0.0.1", 0), registry, lambda: status.not_ready, version="1.2")
    port = server.server_address[1]
    try:
        assert ask(port, "/healthz") == (200, "alive\n")
        assert ask(port, "/readyz") == (503, "it has not begun to read\n")
        assert 'freshet_source_lag_seconds{keyspace="shop",shard="shop/0"} -1.0' in ask(port, "/metrics")[1]
        status.ready("MariaDB/0-1-7,3-2-9")
        status.caught_up(102_500)
        now[0] += 4
        assert ask(port, "/readyz") == (200, "ready\n")
        text = ask(port, "/metrics")[1]
        assert 'freshet_source_sequence{domain="3",keyspace="shop",shard="shop/0"} 9.0' in text
        assert 'freshet_source_lag_seconds{keyspace="shop",shard="shop/0"} 4.0' in text
        assert 'freshet_source_clock_ahead_seconds{keyspace="shop",shard="shop/0"} 2.5' in text
        assert 'freshet_build_info{version="1.2"} 1.0' in text
        assert "_created" not in text
        for _ in range(3):
            status.waits("MariaDB is unreachable")
        assert ask(port, "/readyz") == (503, "MariaDB is unreachable\n")
        assert 'freshet_source_outages_total{keyspace="shop",shard="shop/0"} 1.0' in ask(port, "/metrics")[1]
        status.ready("MariaDB/0-1-8")
        status.waits("MariaDB is unreachable")
        assert 'freshet_source_outages_total{keyspace="shop",shard="shop/0"} 2.0' in ask(port, "/metrics")[1]
        assert ask(port, "/else")[0] == 404
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("position", "domains"),
    [
        ("MariaDB/0-1-7,3-2-9", {"0": 7.0, "3": 9.0}),
        (f"MySQL56/{UUID}:1", {}),
        (f"MySQL56/{UUID}:1-5:8", {}),
        (f"MySQL56/{UUID}:1-5:maint:1-3,4{UUID[1:]}:3", {}),
        ("Postgres/2:16/B374D848", {}),
        ("", {}),
    ],
)
def test_metrics_are_told_at_any_position(position: str, domains: dict[str, float]) -> None:
    """Those of a MySQL with a gap in its GTIDs could not be asked for at all. It has no domains."""
    status = SourceStatus()
    status.ready(position)
    families = list(SourceCollector("shop", "shop/0", status).collect())
    assert {each.labels["domain"]: each.value for each in families[-1].samples} == domains
    assert families[-1].name == "freshet_source_sequence"


def test_metrics_need_the_token_and_health_does_not() -> None:
    """Whoever restarts a process has no secret; metrics name tables and shards."""
    server = serve_monitoring(
        ("127.0.0.1", 0), CollectorRegistry(), str, version="1.2", access=Access.of_secret("s3cret")
    )
    port = server.server_address[1]
    try:
        assert ask(port, "/readyz") == (200, "ready\n")
        assert ask(port, "/metrics")[0] == 401
        assert ask(port, "/metrics", "wrong")[0] == 401
        assert 'freshet_build_info{version="1.2"} 1.0' in ask(port, "/metrics", "s3cret")[1]
    finally:
        server.shutdown()
        server.server_close()


def test_a_page_of_elsewhere_reads_no_metrics() -> None:
    """By a name that leads here it could; with a token it has none to show, and any name will do."""
    for access, token in ((None, ""), (Access.of_secret("s3cret"), "s3cret")):
        server = serve_monitoring(("127.0.0.1", 0), CollectorRegistry(), str, version="1.2", access=access)
        port = server.server_address[1]
        try:
            assert ask(port, "/metrics", token, Host="localhost:9470")[0] == 200
            assert ask(port, "/metrics", token, Host="node-7:9470")[0] == 200
            assert ask(port, "/metrics", token, Host="rebound.example.org")[0] == (200 if token else 403)
            assert ask(port, "/readyz", token, Host="rebound.example.org")[0] == 200
        finally:
            server.shutdown()
            server.server_close()


def test_a_crowd_of_connections_takes_no_more_than_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest makes room, so that a scrape gets its answer, and the process keeps its memory and its files."""
    monkeypatch.setattr(monitoring, "CONNECTIONS_MAX", 8)
    monkeypatch.setattr(monitoring, "REQUEST_TIMEOUT_S", 600.0)  # so that it is not their time that ends them
    server = serve_monitoring(("127.0.0.1", 0), CollectorRegistry(), str, version="1.2")
    port = server.server_address[1]
    before = threading.active_count()
    try:
        with ExitStack() as held:
            crowd = [held.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(100)]
            assert ask(port, "/readyz") == (200, "ready\n")
            eventually(lambda: sum(map(is_closed, crowd)) >= 92 and threading.active_count() - before <= 8)
            assert not all(map(is_closed, crowd))
    finally:
        server.shutdown()
        server.server_close()


def test_a_byte_now_and_then_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them comes in time, but the request has a time of its own."""
    monkeypatch.setattr(monitoring, "REQUEST_TIMEOUT_S", 1.0)
    server = serve_monitoring(("127.0.0.1", 0), CollectorRegistry(), str, version="1.2")
    try:
        with socket.create_connection(("127.0.0.1", server.server_address[1]), 30) as slow:

            def ended() -> bool:
                with suppress(OSError):
                    slow.sendall(b"G")
                return is_closed(slow)

            eventually(ended, what="the end of the slow one")
    finally:
        server.shutdown()
        server.server_close()


def test_a_connection_with_tls_has_a_time_of_its_own_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the handshake it is another socket than the one that was accepted."""
    now = 1_000.0
    monkeypatch.setattr(monitoring, "monotonic", lambda: now)
    monkeypatch.setattr(monitoring, "REQUEST_TIMEOUT_S", 600.0)  # so that the socket's own time does not end it
    files = write(trustme.CA(), tmp_path, "server", "127.0.0.1")
    server: Any = serve_monitoring(("127.0.0.1", 0), CollectorRegistry(), str, version="1.2", files=files)
    asking = ssl.create_default_context(cafile=files.ca)
    try:
        with (
            socket.create_connection(server.server_address, 30) as plain,
            asking.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            now += 601
            server.service_actions()
            with suppress(ssl.SSLError, ConnectionError):
                assert connection.recv(1) == b""
    finally:
        server.shutdown()
        server.server_close()
