"""The owner protocol: frames, requests and answers, and a running server whose other connections stay served."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from consumers.owner.client import OwnerClient
from consumers.owner.framing import (
    HELLO_BYTES_MAX,
    FrameBuffer,
    decode_answer,
    decode_request,
    encode_frame,
)
from consumers.owner.protocol import (
    OLDEST,
    VERSION,
    Answer,
    Checkpoints,
    Describe,
    Failure,
    Fill,
    FillTable,
    Get,
    GetRange,
    GetTable,
    Hello,
    OwnerError,
    Request,
    Rows,
    Status,
    Wait,
    Welcome,
)
from consumers.owner.rows import Stamp, encode_stamp
from stream.wire.events import VALUE
from tests.consumers.histories import SHARD, frame, gtid, key, marker, start, value
from tests.consumers.owning import Owner, schema, vector
from tests.fuzz.engine import Case, Misbehaved, Target, refused
from tests.fuzz.mutate import Rng, integer, some_bytes, some_text, some_tree

ANSWER_TIMEOUT_S = 30.0
QUIET_S = 0.02
"""How long more answers are waited for."""

STAMP = encode_stamp(Stamp(SHARD, 1, 2))
REQUESTS: tuple[Request, ...] = (
    Hello(1, VERSION, "", OLDEST),
    Get(2, "shop", 0, [key(1), key(2), key(77)], vector(3), 0, {"shop.items": b"meaning1"}),
    GetTable(3, "shop", "d.t", "d.t:5:5:5:", 7, vector(3), 0),
    Wait(4, "shop", 0, vector(3), 5),
    Fill(5, "shop", 0, key(77), b"{}", gtid(9), gtid(9), 1, STAMP, b"meaning1"),
    FillTable(6, "shop", 0, 7, "d.t", "transactional", b"{}", "d.t:5:5:5:", gtid(9), gtid(9), b"x"),
    Status(7, "shop"),
    Describe(8, "shop", "shop.items"),
    GetRange(9, "shop", 0, 1, b"shop.items\0", 0, key(1), limit=5, vector=vector(3), meaning=b"meaning1"),
)
ANSWERS: tuple[Answer, ...] = (
    Welcome(1, VERSION, "me"),
    Rows(2, []),
    Failure(3, "bad_request", "m", "h"),
    Checkpoints(4, []),
)


def _odd(rng: Rng) -> Any:
    """What msgpack can hold, extreme."""
    return rng.choice(
        (
            integer(rng) % 2**63,
            -1,
            b"",
            rng.randbytes(9),
            "shop.items\0[1]",
            None,
            True,
            1.5,
            [],
            [b"\xff\0[1]"] * 3,
            some_text(rng, [vector(3), gtid(3), "d.t:5:5:5:", "shop"]).encode("utf-8", "replace").decode()[:5_000],
            "\0",
        )
    )


def _body(rng: Rng, bodies: list[bytes]) -> bytes:
    """A frame's body: a good one changed by fields, or by bytes."""
    if rng.random() < 0.5:
        tree = msgspec.msgpack.decode(rng.choice(bodies))
        try:
            return msgspec.msgpack.encode(some_tree(rng, tree, _odd))
        except (OverflowError, UnicodeEncodeError, RecursionError, TypeError):
            pass  # msgpack has no such number, text or depth
    return some_bytes(rng, [*bodies, b"\xdd\xff\xff\xff\xff", b"\x91" * 5_000, b"\xc6\xff\xff\xff\xff"])


def _bodies(messages: tuple[Any, ...]) -> list[bytes]:
    return [encode_frame(each)[4:] for each in messages]


def _frames() -> Case:
    bodies = _bodies((*REQUESTS, *ANSWERS))

    def draw(rng: Rng) -> list[bytes]:
        stream = b"".join(len(body).to_bytes(4, "big") + body for body in (_body(rng, bodies) for _ in range(3)))
        stream = stream if rng.random() < 0.5 else some_bytes(rng, [stream])
        cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.choice((0, 1, 3))))
        return [stream[at:end] for at, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    def run(parts: list[bytes]) -> None:
        buffer = FrameBuffer(HELLO_BYTES_MAX)
        for part in parts:
            found = refused(OwnerError, buffer.feed, part)
            if found is None:
                return  # the connection is closed
            for body in found:
                refused(msgspec.DecodeError, decode_request, body)
                refused(msgspec.DecodeError, decode_answer, body)
        if len(buffer._data) > HELLO_BYTES_MAX + max(map(len, parts)) + 4:
            raise Misbehaved(f"{len(buffer._data)} bytes are kept")

    return Case(draw, run)


class _Server:
    """A real owner on a real port, and a client that behaves."""

    def __init__(self) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="freshet-fuzz-")
        self.owner = Owner(Path(self.directory.name))
        rows = [frame([(key(1, "shop.other"), VALUE, b"{}", 9)])]
        self.owner.fold(start(), schema(2), value(1, b'{"id":1}', 3), value(2, b'{"id":2}', 4), *rows, marker(9))
        self.runner = asyncio.Runner()
        self.host, self.port = self.runner.run(self.owner.server.start())
        self.client = OwnerClient(f"{self.host}:{self.port}")

    def close(self) -> None:
        self.runner.run(self.client.close())
        self.runner.run(self.owner.server.stop())
        self.runner.close()
        self.owner.partition.store.close(commit=False)
        self.directory.cleanup()

    async def attack(self, payload: bytes, *, hang_up: bool) -> bytes:
        """Sends ``payload`` and reads what comes back; the other connection is answered meanwhile."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(payload)
            if hang_up:
                return b""
            answers = asyncio.create_task(self._drain(reader))
            await asyncio.wait_for(self.good(), ANSWER_TIMEOUT_S)
            return await answers
        finally:
            writer.transport.abort()

    async def _drain(self, reader: asyncio.StreamReader) -> bytes:
        found = b""
        try:
            while part := await asyncio.wait_for(reader.read(1 << 20), QUIET_S):
                found += part
        except (TimeoutError, ConnectionError):
            pass
        return found

    async def good(self) -> None:
        [row] = await self.client.get("shop", 0, [key(1)], vector(3), 0)
        if (row.image, row.freshness) != (b'{"id":1}', "fresh"):
            raise Misbehaved(f"another connection was answered {row}")


def _socket() -> Case:
    server = _Server()
    bodies = _bodies(REQUESTS)
    hello = encode_frame(REQUESTS[0])

    def draw(rng: Rng) -> tuple[bytes, bool]:
        payload = hello if rng.random() < 0.8 else b""
        for _ in range(rng.choice((1, 1, 3, 20))):
            body = _body(rng, bodies)
            payload += (len(body) if rng.random() < 0.9 else integer(rng) % 2**32).to_bytes(4, "big") + body
        return payload, rng.random() < 0.3

    def run(drawn: tuple[bytes, bool]) -> None:
        payload, hang_up = drawn
        got = server.runner.run(server.attack(payload, hang_up=hang_up))
        for body in FrameBuffer().feed(got):
            answer = decode_answer(body)
            if isinstance(answer, Failure) and answer.code == "internal":
                raise Misbehaved(f"internal: {answer.message}")

    return Case(draw, run, server.close)


TARGETS = (
    Target("frames", "frames, requests and answers of the owner protocol", _frames),
    Target("owner_socket", "a running owner, garbage on one connection, good requests on another", _socket, 0.05),
)
