"""What a client and its owner keep of requests and connections that are over: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from consumers.owner.client import OwnerClient
from consumers.owner.framing import encode_frame
from consumers.owner.protocol import VERSION, Get, OwnerError, Rows, Welcome
from stream.access.who import asking
from tests.consumers.histories import key, marker
from tests.consumers.owning import KEYSPACE, Owner, vector


def test_a_request_whose_time_was_up_is_forgotten(owner: Owner) -> None:
    """An owner that is slow for hours gets a request each moment: no answer would ever take them away."""

    async def use(client: OwnerClient) -> None:
        await client.greet()
        client._timeout_s = 0.01
        with pytest.raises(OwnerError) as caught:
            await client.request(Get(0, KEYSPACE, 0, [key(1)], vector(8), 10_000))
        assert caught.value.code == "owner_timeout"
        assert client._connection is not None
        assert client._connection.pending == {}
        client._timeout_s = 10
        owner.fold(marker(8))
        assert (await client.get(KEYSPACE, 0, [key(1)], vector(8)))[0].served

    owner.run(use)


def test_a_caller_that_waits_no_more_is_forgotten(owner: Owner) -> None:
    """Callers come and go, each with a name of its own."""

    async def ask(who: str, client: OwnerClient) -> None:
        asking.set(who)
        await client.answers([Get(0, KEYSPACE, 0, [key(1)], vector(8), 60_000) for _ in range(2)], Rows)

    async def use(client: OwnerClient) -> None:
        waiting = [asyncio.create_task(ask(who, client)) for who in ("one", "one", "other")]
        while not owner.partition.waiters:  # noqa: ASYNC110 - what is waited for is in this thread
            await asyncio.sleep(0)
        assert client._waiting == {"one": 4, "other": 2}
        owner.fold(marker(8))
        await asyncio.gather(*waiting)
        assert client._waiting == {}
        assert len(client._waiting) == 0

    owner.run(use)


class Slow:
    """An owner that answers a greeting when it is told to, and sees how its one connection ends."""

    def __init__(self) -> None:
        self.begun, self.greets, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def greet() -> None:
            await self.greets.wait()
            writer.write(encode_frame(Welcome(1, VERSION, "slow")))

        greeting = asyncio.create_task(greet())
        await reader.readexactly(1)
        self.begun.set()
        with suppress(ConnectionError):
            await reader.read()
        self.ended.set()
        greeting.cancel()
        writer.close()

    def run(self, use: Callable[[OwnerClient], Awaitable[None]]) -> None:
        """Serves while ``use`` runs, and then until the connection has ended."""

        async def main() -> None:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            await use(OwnerClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}"))
            await asyncio.wait_for(self.ended.wait(), 5)
            server.close()

        asyncio.run(main())


def test_a_caller_that_goes_while_its_client_connects_leaves_no_connection() -> None:
    """Its request is cancelled before the owner has greeted: nobody else knows of the connection."""
    owner = Slow()

    async def use(client: OwnerClient) -> None:
        asked = asyncio.create_task(client.status())
        await owner.begun.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    owner.run(use)


def test_a_client_that_is_closed_while_it_connects_leaves_no_connection() -> None:
    """A front forgets owners that are named no more, perhaps before they have greeted: nobody closes them again."""
    owner = Slow()

    async def use(client: OwnerClient) -> None:
        asked = [asyncio.create_task(client.status()) for _ in range(3)]
        await owner.begun.wait()
        await client.close()
        owner.greets.set()
        for each in asked:
            with pytest.raises(OwnerError) as caught:
                await asyncio.wait_for(each, 5)
            assert caught.value.code == "owner_unreachable"

    owner.run(use)


def test_who_leaves_without_a_greeting_takes_no_room(owner: Owner) -> None:
    """A probe of the port connects and goes: it must not count among those that are awaited."""

    async def use(client: OwnerClient) -> None:
        await client.greet()
        host, _, port = client.address.rpartition(":")
        for _ in range(3):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.close()
        while len(owner.server.connections) > 1:  # noqa: ASYNC110 - what is waited for is in this thread
            await asyncio.sleep(0)
        await client.greet()
        assert owner.server.ungreeted == {}

    owner.run(use)
