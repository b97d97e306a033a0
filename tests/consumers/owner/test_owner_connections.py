"""Connections of the owner protocol: the hello, bad requests, silence, and coming back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from consumers.owner.client import OwnerClient
from consumers.owner.framing import FRAME_BYTES_MAX, decode_answer, encode_frame
from consumers.owner.protocol import (
    KEYS_MAX,
    Failure,
    Get,
    Hello,
    OwnerError,
    Status,
    Welcome,
)
from consumers.owner.server import OwnerServer
from tests.consumers.histories import key, marker, start
from tests.consumers.owning import KEYSPACE, Owner, vector


def test_requests_pipeline_and_each_gets_its_own_answer(owner: Owner) -> None:
    """A waiting request does not delay those behind it on the same connection."""

    async def use(client: OwnerClient) -> None:
        slow = asyncio.create_task(client.get(KEYSPACE, 0, [key(1)], vector(8), 10_000))
        rows = await asyncio.gather(*(client.get(KEYSPACE, 0, [key(1)] * n) for n in range(1, 200)))
        assert [len(each) for each in rows] == list(range(1, 200))
        assert not slow.done()
        owner.fold(marker(8))
        assert (await slow)[0].served

    owner.run(use)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Get(1, "other", 0, [b"a\0[1]"]), "not_owner"),
        (Get(1, KEYSPACE, 5, [b"a\0[1]"]), "not_owner"),
        (Get(1, KEYSPACE, 0, [b"a\0[1]"] * (KEYS_MAX + 1)), "bad_request"),
        (Get(1, KEYSPACE, 0, [b"\xff\0[1]"]), "bad_request"),
        (Get(1, KEYSPACE, 0, [b"a\0[1]"], "nonsense"), "bad_token"),
    ],
)
def test_an_invalid_request_is_answered_with_a_code(owner: Owner, request_: Get, code: str) -> None:
    """Bad requests get one clear line and leave the connection usable."""

    async def use(client: OwnerClient) -> None:
        answer = await client.request(request_)
        assert isinstance(answer, Failure)
        assert answer.code == code
        assert (await client.status()).partitions

    owner.run(use)


@pytest.mark.parametrize(
    "first",
    [
        encode_frame(Status(1)),
        encode_frame(Hello(1, newest=1)),
        encode_frame(Hello(1, token="wrong")),
        b"\0\0\0\3abc",
        (FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_a_connection_without_a_valid_hello_is_refused(tmp_path: Path, first: bytes) -> None:
    """Without a valid hello a connection gets one failure and is closed."""
    owner = Owner(tmp_path, token="secret")

    async def use(client: OwnerClient) -> None:
        reader, writer = await asyncio.open_connection(*client.address.rsplit(":", 1))
        writer.write(first)
        length = int.from_bytes(await reader.readexactly(4), "big")
        answer = decode_answer(await reader.readexactly(length))
        assert isinstance(answer, Failure)
        assert await reader.read() == b""
        writer.close()
        assert isinstance(await client.request(Hello(0, token="secret")), Welcome)

    owner.run(use)


def test_an_owner_that_never_greets_leaks_no_connection() -> None:
    """A suspended owner accepts but never answers; each failed attempt closes its connection."""

    async def main() -> None:
        ended = asyncio.Semaphore(0)

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                await reader.read()
            ended.release()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = OwnerClient(f"127.0.0.1:{port}", request_timeout_s=0.02)
        for _ in range(3):
            with pytest.raises(OwnerError) as caught:
                await client.status()
            assert caught.value.code == "owner_timeout"
        async with asyncio.timeout(10):
            for _ in range(3):
                await ended.acquire()
        server.close()

    asyncio.run(main())


def test_the_client_connects_again_after_its_owner_came_back(tmp_path: Path) -> None:
    """A client survives the restart of an owner at the same address."""

    async def main() -> None:
        owner = Owner(tmp_path)
        owner.fold(start(), marker(1))
        host, port = await owner.server.start()
        client = OwnerClient(f"{host}:{port}")
        assert (await client.status()).partitions
        await owner.server.stop()
        with pytest.raises(OwnerError) as caught:
            await client.status()
        assert caught.value.code == "owner_unreachable"
        again = OwnerServer(owner.ownership, owner._checkpoints)
        await again.start(host, port)
        assert (await client.status()).partitions
        await client.close()
        await again.stop()
        owner.partition.store.close(commit=False)

    asyncio.run(main())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org", "localhost.example.org", ""])
def test_it_listens_beyond_this_machine_only_with_a_token(tmp_path: Path, host: str) -> None:
    """An open port without a token is refused; a name other than localhost counts as open."""
    owner = Owner(tmp_path)
    with pytest.raises(OwnerError, match="without a token"):
        asyncio.run(owner.server.start(host, 0))
    owner.partition.store.close(commit=False)
