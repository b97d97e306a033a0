"""The owner protocol between versions: negotiation, kept frames, and messages that have more or fewer fields."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from consumers.owner import protocol
from consumers.owner.client import OwnerClient, OwnerConnection
from consumers.owner.framing import (
    PREFIX_BYTES,
    FrameBuffer,
    decode_answer,
    decode_request,
    encode_frame,
)
from consumers.owner.protocol import (
    OLDEST,
    VERSION,
    Answer,
    Failure,
    Hello,
    OwnerError,
    Request,
    Status,
    Statuses,
    Welcome,
)
from tests.consumers.owner.frames import ANSWERS, REQUESTS
from tests.consumers.owning import Owner

KEPT = Path(__file__).with_name("frames.json")
"""Version → name → hex of the frame's body, written once (`python -m tests.consumers.owner.frames`)."""


def body(message: Request | Answer) -> bytes:
    """A message as a frame's body."""
    return encode_frame(message)[PREFIX_BYTES:]


def longer(value: Any) -> Any:
    """A message as a newer version could write it: each struct in it has two more fields at its end."""
    if isinstance(value, msgspec.Struct):
        tag = [value.__struct_config__.tag] if value.__struct_config__.tag else []
        fields = [longer(getattr(value, name)) for name in value.__struct_fields__]
        return [*tag, *fields, None, {"new": [1, b"x"]}]
    if isinstance(value, list | tuple):
        return [longer(each) for each in value]
    return value


@pytest.mark.parametrize(
    ("oldest", "newest", "chosen"),
    [(0, VERSION, VERSION), (OLDEST, VERSION + 7, VERSION), (1, OLDEST, OLDEST), (VERSION, VERSION, VERSION)],
)
def test_the_newest_common_version_is_chosen(tmp_path: Path, oldest: int, newest: int, chosen: int) -> None:
    """A newer front names its range, and the owner takes what it knows."""
    owner = Owner(tmp_path)

    async def use(client: OwnerClient) -> None:
        answer = await client.request(Hello(0, newest, "", oldest))
        assert isinstance(answer, Welcome)
        reader, writer = await asyncio.open_connection(*client.address.rsplit(":", 1))
        writer.write(encode_frame(Hello(1, newest, "", oldest)))
        length = int.from_bytes(await reader.readexactly(PREFIX_BYTES), "big")
        assert decode_answer(await reader.readexactly(length)) == Welcome(1, chosen, owner.server.instance)
        writer.close()

    owner.run(use)


@pytest.mark.parametrize(("oldest", "newest"), [(0, VERSION + 1), (VERSION + 1, VERSION + 3), (1, OLDEST - 1), (0, 1)])
def test_without_a_common_version_the_owner_says_which_it_speaks(tmp_path: Path, oldest: int, newest: int) -> None:
    """Neither side guesses. A version-1 front, whose hello ends after the token, is told so too."""
    owner = Owner(tmp_path)

    async def use(client: OwnerClient) -> None:
        reader, writer = await asyncio.open_connection(*client.address.rsplit(":", 1))
        writer.write(encode_frame(Hello(1, newest, "", oldest)))
        length = int.from_bytes(await reader.readexactly(PREFIX_BYTES), "big")
        answer = decode_answer(await reader.readexactly(length))
        assert isinstance(answer, Failure)
        assert (answer.id, answer.code) == (1, "version_mismatch")
        assert f"speaks {OLDEST} to {VERSION}" in answer.message
        writer.close()

    owner.run(use)


def test_a_request_that_the_owner_does_not_know_is_refused_and_the_connection_stays(tmp_path: Path) -> None:
    """So a newer front can fall back to what this owner knows."""
    owner = Owner(tmp_path)

    async def use(client: OwnerClient) -> None:
        reader, writer = await asyncio.open_connection(*client.address.rsplit(":", 1))
        unknown = msgspec.msgpack.encode(["scan", 2, "shop", {"limit": 5}])
        writer.write(encode_frame(Hello(1, VERSION + 1, "", OLDEST)) + len(unknown).to_bytes(4, "big") + unknown)
        writer.write(encode_frame(Status(3)))
        buffer, bodies = FrameBuffer(), list[bytes]()
        while len(bodies) < 3:
            bodies += buffer.feed(await reader.read(1 << 16))
        welcome, refused, status = map(decode_answer, bodies)
        assert isinstance(welcome, Welcome)
        assert isinstance(refused, Failure)
        assert (refused.id, refused.code) == (2, "bad_request")
        assert isinstance(status, Statuses)
        writer.close()

    owner.run(use)


def test_every_message_is_among_the_samples() -> None:
    """A new message gets a sample, and so a kept frame."""
    assert {type(each) for each in REQUESTS} == set(get_args(protocol.Request))
    assert {type(each) for each in ANSWERS} == set(get_args(protocol.Answer))


def test_the_frames_of_each_version_are_still_read() -> None:
    """Frames that were kept when a version was made mean today what they meant then."""
    kept = json.loads(KEPT.read_text())
    assert str(VERSION) in kept, "keep the frames of a new version: python -m tests.consumers.owner.frames"
    for version in kept:
        assert int(version) <= VERSION
    for message in (*REQUESTS, *ANSWERS):
        frame = bytes.fromhex(kept[str(VERSION)][type(message).__name__])
        read = decode_request(frame) if isinstance(message, get_args(protocol.Request)) else decode_answer(frame)
        assert read == message
        assert body(message) == frame, "the version's frames have changed: add fields at the end, with defaults"


@pytest.mark.parametrize("message", [*REQUESTS, *ANSWERS], ids=lambda each: type(each).__name__)
def test_fields_that_a_newer_side_adds_are_ignored(message: Request | Answer) -> None:
    """At the end of the message, and of each struct in it."""
    decode: Any = decode_request if isinstance(message, get_args(protocol.Request)) else decode_answer
    assert decode(msgspec.msgpack.encode(longer(message))) == message


@pytest.mark.parametrize("message", [*REQUESTS, *ANSWERS], ids=lambda each: type(each).__name__)
def test_a_field_that_a_newer_version_adds_may_be_missing(message: Request | Answer) -> None:
    """This version's message, read by a newer one whose structs have a further field with a default."""
    kind = type(message)
    newer: Any = msgspec.defstruct(
        f"Newer{kind.__name__}",
        [("added", dict[str, int], msgspec.field(default_factory=dict))],
        bases=(kind,),
        array_like=True,
        tag=kind.__struct_config__.tag,
    )
    read = msgspec.msgpack.decode(body(message), type=newer)
    assert read.added == {}
    assert {name: getattr(read, name) for name in kind.__struct_fields__} == msgspec.structs.asdict(message)
    read.added = {"x": 1}
    decode: Any = decode_request if isinstance(message, get_args(protocol.Request)) else decode_answer
    assert decode(msgspec.msgpack.encode(read)) == message


async def _serve(script: Any) -> tuple[asyncio.Server, str]:
    server = await asyncio.start_server(script, "127.0.0.1", 0)
    return server, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_an_answer_that_cannot_be_read_fails_its_own_request_only() -> None:
    """A newer owner's answer of a kind that this front does not know."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer = FrameBuffer()
        while data := await reader.read(1 << 16):
            for each in buffer.feed(data):
                request = decode_request(each)
                if isinstance(request, Hello):
                    writer.write(encode_frame(Welcome(request.id, VERSION, "me")))
                elif isinstance(request, Status) and request.keyspace == "odd":
                    odd = msgspec.msgpack.encode(["streamed", request.id, []])
                    writer.write(len(odd).to_bytes(4, "big") + odd)
                else:
                    writer.write(encode_frame(Statuses(request.id, True, "me", [])))

    async def main() -> None:
        server, address = await _serve(script)
        client = OwnerClient(address)
        odd, good = await asyncio.gather(client.status("odd"), client.status(), return_exceptions=True)
        assert isinstance(odd, OwnerError)
        assert odd.code == "bad_answer"
        assert isinstance(good, Statuses)
        await client.close()
        server.close()

    asyncio.run(main())


def test_a_late_answer_is_not_taken_for_the_next_one() -> None:
    """A blocking client whose time was up compares the ids of what comes then."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer, asked = FrameBuffer(), list[Any]()
        while data := await reader.read(1 << 16):
            for each in buffer.feed(data):
                request = decode_request(each)
                if isinstance(request, Hello):
                    writer.write(encode_frame(Welcome(request.id, VERSION, "me")))
                    continue
                asked.append(request)
                if len(asked) == 1:
                    writer.write(encode_frame(Statuses(request.id, True, "first", []))[:9])
                else:
                    writer.write(encode_frame(Statuses(asked[0].id, True, "first", []))[9:])
                    writer.write(encode_frame(Statuses(request.id, True, "second", [])))

    def use(address: str) -> None:
        with OwnerConnection(address, timeout_s=2.0) as connection:
            with pytest.raises(OwnerError) as late:
                connection.status()
            assert late.value.code == "owner_unreachable"
            assert connection.status().instance == "second"

    async def main() -> None:
        server, address = await _serve(script)
        await asyncio.to_thread(use, address)
        server.close()

    asyncio.run(main())


def test_a_connection_whose_hello_fails_is_closed() -> None:
    """A refused client leaves no open socket behind, even while its error is kept."""

    async def main() -> None:
        closed = asyncio.Event()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1 << 16)
            writer.write(encode_frame(Failure(1, "unauthorized", "wrong owner token", "")))
            assert await reader.read() == b""
            closed.set()

        server, address = await _serve(script)
        with pytest.raises(OwnerError, match="wrong owner token"):
            await asyncio.to_thread(OwnerConnection, address)
        await asyncio.wait_for(closed.wait(), 5)
        server.close()

    asyncio.run(main())
