"""`freshet serve` under callers that want all of it: a real process, real connections from several addresses."""

from __future__ import annotations

import http.client
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import trustme

from freshet.local.process import ServerProcess, free_ports
from stream.access.certificates import Certificates
from stream.access.grants import digest_of, new_secret
from tests.access.certifying import write
from tests.serving.stack import eventually, is_closed

OF_ADDRESS = 200
ATTACKER, READER = "127.0.0.2", "127.0.0.3"
"""Loopback has them all on Linux."""


class Crowded:
    """A front with few places and without Kafka, and the secret of a reader."""

    def __init__(self, place: Path, files: Certificates | None = None, **limits: float) -> None:
        self.trusted = ssl.create_default_context(cafile=files.ca) if files else None
        self.secret = new_secret()
        self.port, gone = free_ports(2)
        settings = {
            "kafka": {"bootstrap": f"127.0.0.1:{gone}"},
            "keyspaces": {"shop": {}},
            "serve": {
                "port": self.port,
                "limits": limits,
                "tls": {"certificate": files.certificate} if files else {},
                "tokens": {"reader": {"hash": digest_of(self.secret.encode())}},
            },
        }
        config = place / "freshet.toml"
        config.write_text(tomli_w.dumps(settings))
        command = [sys.executable, "-m", "freshet", "--config", str(config), "serve"]
        self.process = ServerProcess("serve", command, log_file=place / "serve.log", cwd=Path(__file__).parents[2])

    def connect(self, address: str) -> socket.socket:
        """A connection from an address."""
        return socket.create_connection(("127.0.0.1", self.port), 10, source_address=(address, 0))

    def ask(self, path: str = "/v1/status", secret: str | None = None) -> int:
        """The status of a reader's request, on a connection of its own."""
        make = (
            partial(http.client.HTTPSConnection, context=self.trusted) if self.trusted else http.client.HTTPConnection
        )
        connection = make("127.0.0.1", self.port, timeout=20, source_address=(READER, 0))
        try:
            connection.request("GET", path, headers={"authorization": f"Bearer {secret or self.secret}"})
            return connection.getresponse().status
        finally:
            connection.close()


@contextmanager
def crowded(place: Path, files: Certificates | None = None, **limits: float) -> Iterator[Crowded]:
    """A front that is up; ``files``: with TLS."""
    found = Crowded(place, files, **limits)
    try:
        eventually(lambda: answers(found), what="the front")
        yield found
    finally:
        found.process.stop()


def answers(front: Crowded) -> bool:
    """Whether it is up."""
    assert front.process.running(), front.process.log_tail()
    try:
        return front.ask("/healthz") == 200
    except OSError:
        return False


@pytest.mark.integration
def test_others_read_on_under_a_flood_of_slow_connections(tmp_path: Path) -> None:
    """Of an address that opens many connections, and sends a byte now and then, half of the places are taken at most.

    A reader from elsewhere gets connections and answers all the while; nothing of it is left when the flood is over.
    The rate of the settings holds for each token and address by itself, and is no matter for probes.
    """
    limits: dict[str, Any] = {
        "connections": 2 * OF_ADDRESS,
        "connections_of_address": OF_ADDRESS,
        "rate_per_s": 0.0001,  # so that however long it takes, no more than the burst is left
        "burst": 31,
    }
    with crowded(tmp_path, **limits) as front, ExitStack() as held:
        flood = [held.enter_context(front.connect(ATTACKER)) for _ in range(3 * OF_ADDRESS)]
        eventually(lambda: sum(map(is_closed, flood)) >= 2 * OF_ADDRESS, what="the end of what is too much")
        open_now = [each for each in flood if not is_closed(each)]
        assert len(open_now) == OF_ADDRESS
        request = b"GET /v1/status HTTP/1.1\r\nhost: a\r\n"
        for number in range(30):
            for each in open_now:
                each.sendall(request[number : number + 1])
            assert front.ask() == 200
        for each in flood:
            each.close()
        eventually(lambda: not is_closed(held.enter_context(front.connect(ATTACKER))), what="room again")
        assert [front.ask() for _ in range(2)] == [200, 429]
        assert [front.ask(secret="wrong") for _ in range(32)] == [401] * 31 + [429]
        assert answers(front)
        log = front.process.log()
        assert '"outcome": "rate_limited"' in log
        assert front.secret not in log


@pytest.mark.integration
def test_half_a_handshake_has_a_place_too(tmp_path: Path) -> None:
    """Of TLS connections that were only begun, one address holds half of the places at most, and others get theirs."""
    files = write(trustme.CA(), tmp_path, "server", "127.0.0.1")
    limits: dict[str, Any] = {"connections": 2 * OF_ADDRESS, "connections_of_address": OF_ADDRESS}
    with crowded(tmp_path, files, **limits) as front, ExitStack() as held:
        flood = [held.enter_context(front.connect(ATTACKER)) for _ in range(3 * OF_ADDRESS)]
        for each in flood[::2]:  # the head of a ClientHello that does not follow
            with suppress(OSError):
                each.sendall(b"\x16\x03\x01\x02\x00")
        eventually(lambda: sum(map(is_closed, flood)) >= 2 * OF_ADDRESS, what="the end of what is too much")
        assert sum(map(is_closed, flood)) == 2 * OF_ADDRESS
        assert [front.ask() for _ in range(20)] == [200] * 20
        for each in flood:
            each.close()
        eventually(lambda: not is_closed(held.enter_context(front.connect(ATTACKER))), what="room again")
        assert not any(word in front.process.log() for word in ("Traceback", "exception"))
