"""The network's proxies: they carry every byte, and each condition does what its name says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from lab.faults.network import BOTH, Link, LinkConditions, Network
from tests.patience import PATIENCE_S

BIG = bytes(range(256)) * 4096


@pytest.fixture
def link() -> Iterator[Link]:
    """A link to a server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def echo(connected: socket.socket) -> None:
        with connected:
            try:
                while data := connected.recv(65536):
                    connected.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connected,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with Network() as network:
        yield network.link("echo", ("127.0.0.1", listener.getsockname()[1]))
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def connect(link: Link) -> socket.socket:
    """A client."""
    return socket.create_connection(("127.0.0.1", link.port), timeout=PATIENCE_S)


def ask_once(link: Link) -> None:
    """Connects and waits for a byte that never comes: the reset may hit the one or the other."""
    with connect(link) as client:
        client.recv(1)


def echoed(client: socket.socket, data: bytes) -> bytes:
    """What comes back."""
    threading.Thread(target=client.sendall, args=(data,), daemon=True).start()
    parts = bytearray()
    while len(parts) < len(data):
        part = client.recv(65536)
        assert part, "closed"
        parts += part
    return bytes(parts)


def test_every_byte_gets_through_unchanged(link: Link) -> None:
    """A megabyte there and back, and the client's end of stream reaches the server."""
    with connect(link) as client:
        assert echoed(client, BIG) == BIG
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    assert link.carried == {"up": len(BIG), "down": len(BIG)}


def test_latency_holds_bytes_without_limiting_how_many(link: Link) -> None:
    """A quarter of a second each way; a megabyte takes about as long as a byte."""
    link.set_conditions(LinkConditions(latency_s=0.25), BOTH)
    with connect(link) as client:
        began = time.monotonic()
        assert echoed(client, b"x") == b"x"
        assert time.monotonic() - began >= 0.5
        began = time.monotonic()
        assert echoed(client, BIG) == BIG
        assert time.monotonic() - began < 5


def test_bandwidth_limits_how_much_gets_through(link: Link) -> None:
    """100 kB at 200 kB/s take half a second in that direction."""
    link.set_conditions(LinkConditions(bytes_per_s=200_000), ("up",))
    with connect(link) as client:
        began = time.monotonic()
        echoed(client, BIG[:100_000])
        assert 0.4 < time.monotonic() - began < 5


def test_a_black_hole_in_one_direction_keeps_the_connection_and_the_bytes(link: Link) -> None:
    """The request arrives, the answer doesn't; it arrives when the link is cleared."""
    with connect(link) as client:
        assert echoed(client, b"before") == b"before"
        link.set_conditions(LinkConditions(blocked=True), ("down",))
        client.sendall(b"question")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(10)
        link.clear()
        client.settimeout(PATIENCE_S)
        assert client.recv(10) == b"question"


def test_answers_that_were_held_are_lost_with_a_reset(link: Link) -> None:
    """The server has executed the request, but its client gets no answer."""
    with connect(link) as client:
        assert echoed(client, b"before") == b"before"
        link.set_conditions(LinkConditions(blocked=True), ("down",))
        client.sendall(b"question")
        while link.carried["up"] < len(b"beforequestion"):
            time.sleep(0.01)
        link.reset()
        link.clear()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert link.carried["down"] == len(b"before")


def test_a_cut_resets_what_is_connected_and_what_tries(link: Link) -> None:
    """Until it is cleared; then new connections work."""
    with connect(link) as client:
        assert echoed(client, b"before") == b"before"
        link.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with pytest.raises(ConnectionResetError):
        ask_once(link)
    link.clear()
    with connect(link) as client:
        assert echoed(client, b"after") == b"after"


def test_a_server_that_is_gone_is_a_reset(link: Link) -> None:
    """The proxy does not hide an outage."""
    link.upstream = ("127.0.0.1", 1)
    with pytest.raises(ConnectionResetError):
        ask_once(link)
