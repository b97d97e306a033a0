"""Heads that a proxy and a front could read in two ways: the front reads none of them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from freshet.local.process import free_ports
from tests.fuzz.targets.http import start_front
from tests.patience import PATIENCE_S

POST = b"POST /v1/rows/shop:batch HTTP/1.1\r\nHost: localhost\r\n"
SECOND = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""What would be smuggled past a proxy that takes it for the body of the first."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Of a front that is a process of its own, without owners."""
    [port] = free_ports(1)
    process = start_front(port)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.mark.integration
@pytest.mark.parametrize(
    "head",
    [
        POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\n0;a\n\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n\r\n",
        POST + b"Content-Length: 0\r\nContent-Length: 35\r\n\r\n",
        POST + b"Content-Length: 0, 0\r\n\r\n",
        POST + b"Content-Length: +0\r\n\r\n",
        POST + b"Content-Length: 0x0\r\n\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"A: b\r\n Transfer-Encoding: chunked\r\n\r\n",
        POST + b"A: b\rTransfer-Encoding: chunked\r\n\r\n",
        POST + b"A: b\0c\r\n\r\n",
        b"GET /v1/status HTTP/1.1\nHost: localhost\n\n",
        b"CONNECT example.org:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_could_be_read_in_two_ways_ends_the_connection(port: int, head: bytes) -> None:
    """One answer, 400, and nothing that comes after it on the connection."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        connection.sendall(head + SECOND)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b'"status":"ok"' not in answer
