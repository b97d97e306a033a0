"""HTTP: malformed requests on raw sockets to a running server, which goes on to answer others."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from freshet.local.process import free_ports
from tests.fuzz.engine import Case, Misbehaved, Target
from tests.fuzz.mutate import Rng, some_bytes
from tests.fuzz.targets.serving import PATHS, _body, _query_string, judge
from tests.patience import PATIENCE_S

QUIET_S = 0.03
ANSWER_TIMEOUT_S = 30.0
PIECES = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b"\r\n\r\n",
        b" HTTP/1.1",
        b"HTTP/9.9",
        b"GET ",
        b"CONNECT ",
        b"PRI * HTTP/2.0\r\n",
    ),
    *(
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: -1\r\n",
        b"\xff\xfe",
        b"Expect: 100-",
    ),
    *(b"Content-Length: 99999999999999999999\r\n", b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"Host: \r\n"),
    *(b"ffffffffffffffff\r\n", b"-1\r\n", b"0\r\n\r\n", b"http://x/", b"//", b"?", b"#", b"%", b"*", b"x:" * 3_000),
    *(b"A: " + b"b" * 60_000 + b"\r\n", b"A: b\r\n" * 3_000, b"/" + b"a" * 70_000),
)


def requests(rng: Rng) -> bytes:
    """One request or a few on one connection, mostly well formed before they are mutated."""
    found = b""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        path = rng.choice(PATHS).encode() + (b"?" + _query_string(rng) if rng.random() < 0.5 else b"")
        body = _body(rng) if rng.random() < 0.4 else b""
        method = b"POST" if body else rng.choice((b"GET", b"GET", b"PUT", b"OPTIONS", b"CONNECT"))
        head = method + b" " + path + b" HTTP/1.1\r\nHost: x\r\n" + rng.choice((b"", b"Connection: close\r\n"))
        if body and rng.random() < 0.3:
            half = len(body) // 2
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part)
            found += head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        elif body:
            found += head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        else:
            found += head + b"\r\n"
    return found


def mutated(rng: Rng) -> bytes:
    """Requests with bytes changed, and pieces of HTTP put where they do not belong."""
    data = requests(rng)
    if rng.random() < 0.5:
        data = some_bytes(rng, [data, *PIECES]) if rng.random() < 0.5 else some_bytes(rng, [data])
    for _ in range(rng.choice((0, 0, 1, 2))):
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.choice(PIECES) + data[at:]
    return data


def attack(address: tuple[str, int], payload: bytes) -> None:
    """Sends ``payload`` and checks that only documented answers and refusals come back, never a 500."""
    got = b""
    with contextlib.suppress(ConnectionError), socket.create_connection(address, timeout=ANSWER_TIMEOUT_S) as sock:
        sock.sendall(payload)
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        sock.settimeout(QUIET_S)
        with contextlib.suppress(TimeoutError):
            while part := sock.recv(1 << 20):
                got += part
    _judge_all(got)


def _judge_all(got: bytes) -> None:
    while got.startswith(b"HTTP/1."):
        head, _, rest = got.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        status = int(first.split(b" ")[1])
        headers = {name.lower(): content.strip() for name, _, content in (line.partition(b":") for line in lines)}
        size = int(headers.get(b"content-length", b"0"))
        if status >= 200 and len(rest) >= size:
            judge(status, headers, rest[:size])
        got = rest[size:] if status >= 200 else rest


def good(address: tuple[str, int]) -> None:
    """Checks that a good request is answered."""
    connection = http.client.HTTPConnection(*address, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        if (answer.status, answer.read()) != (200, b'{"status":"ok"}'):
            raise Misbehaved(f"/healthz is answered with {answer.status}")
    finally:
        connection.close()


def start_front(port: int, command: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """The front as a process; returns when it answers."""
    root = Path(__file__).parents[3]
    process = subprocess.Popen([*(command or (sys.executable, "-m", "tests.fuzz.front_process", str(port)))], cwd=root)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            good(("127.0.0.1", port))
            return process
        except OSError:
            if time.monotonic() > deadline or process.poll() is not None:
                process.kill()
                raise
            time.sleep(0.02)


def _http() -> Case:
    [port] = free_ports(1)
    process = start_front(port)
    address = ("127.0.0.1", port)
    served = 0

    def run(payload: bytes) -> None:
        nonlocal served
        attack(address, payload)
        served += 1
        if served % 10 == 0:
            good(address)

    def close() -> None:
        process.terminate()
        process.wait(PATIENCE_S)

    return Case(mutated, run, close)


TARGETS = (Target("http", "malformed requests on raw sockets to a running server", _http, 0.05),)
