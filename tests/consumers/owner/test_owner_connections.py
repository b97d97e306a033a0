"""Connections of the owner protocol: the hello, bad requests, silence, and coming back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from consumers.owner import client, connection
from consumers.owner.client import OwnerClient
from consumers.owner.connection import FrontConnection
from consumers.owner.framing import FRAME_BYTES_MAX, FrameBuffer, decode_answer, encode_frame
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
from stream.access.grants import Access
from stream.access.listening import OpenListenRefused
from stream.access.who import asking
from tests.consumers.histories import key, marker, start, value
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


def test_requests_that_wait_do_not_hold_up_those_that_need_not(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers share a front's connection: beyond so many that wait the next don't, and others are answered."""
    monkeypatch.setattr(connection, "CONNECTION_WAITING_MAX", 20)

    async def use(client: OwnerClient) -> None:
        await client.greet()
        never = [asyncio.create_task(client.get(KEYSPACE, 0, [key(1)], vector(8), 60_000)) for _ in range(30)]
        await asyncio.sleep(0)
        [row] = await client.get(KEYSPACE, 0, [key(1)])
        assert row.image == b'{"id":1}'
        assert [(await each)[0].served for each in never[20:]] == [False] * 10
        reached = await asyncio.gather(*(client.wait(KEYSPACE, 0, vector(3), 0) for _ in range(30)))
        assert all(each.reached for each in reached)  # they take a task each, and are not refused for that
        assert not any(each.done() for each in never[:20])
        owner.fold(marker(8))
        assert all([(await each)[0].served for each in never[:20]])

    owner.run(use)


def test_of_one_caller_no_more_than_half_waits(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next requests are answered with what is there; those of another caller, and of nobody, wait as they like."""
    assert 2 * client.WAITING_OF_CALLER_MAX == connection.CONNECTION_WAITING_MAX
    monkeypatch.setattr(client, "WAITING_OF_CALLER_MAX", 3)

    async def ask(who: str, asked: OwnerClient) -> bool:
        asking.set(who)
        return (await asked.get(KEYSPACE, 0, [key(1)], vector(8), 60_000))[0].served

    async def use(asked: OwnerClient) -> None:
        much = [asyncio.create_task(ask("much", asked)) for _ in range(5)]
        others = [asyncio.create_task(ask(who, asked)) for who in ("other", "", "", "", "")]
        assert [await each for each in much[3:]] == [False, False]
        assert not any(each.done() for each in (*much[:3], *others))
        owner.fold(marker(8))
        assert await asyncio.gather(*much[:3], *others) == [True] * 8
        assert await ask("much", asked)

    owner.run(use)


def test_who_does_not_greet_makes_room(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent connections take no more files than those; who greets comes in past them, and stays."""
    monkeypatch.setattr(connection, "UNGREETED_MAX", 4)

    async def use(client: OwnerClient) -> None:
        await client.greet()
        host, _, port = client.address.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(12)]
        later = OwnerClient(client.address)
        await later.greet()
        for reader, _ in silent[:8]:
            assert await reader.read() == b""
        assert len(owner.server.connections) <= 6
        assert [(await each.get(KEYSPACE, 0, [key(1)]))[0].image for each in (client, later)] == [b'{"id":1}'] * 2
        await later.close()
        for _, writer in silent:
            writer.close()

    owner.run(use)


class Untaken(asyncio.Transport):
    """A transport whose other side takes nothing: once it is closed it only ends when it is aborted."""

    def __init__(self, connection: FrontConnection) -> None:
        super().__init__()
        self.written = b""
        self._connection, self._closing = connection, False
        connection.connection_made(self)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """All is kept."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    def abort(self) -> None:
        self._closing = True
        asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


@pytest.mark.parametrize(
    "first", [b"\0" * 250_000, encode_frame(Hello(1, token="wrong")) * 9, b"GET / HTTP/1.1\r\n" * 9]
)
def test_of_what_comes_without_a_greeting_one_frame_is_answered(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    """One read of a socket holds sixty thousand: they held up all others. Who takes no answer is ended in time."""
    monkeypatch.setattr(connection, "HELLO_TIMEOUT_S", 0.05)
    owner.server.access.replace(Access.of_secret("secret").credentials)

    async def use(_: OwnerClient) -> None:
        refused = Untaken(FrontConnection(owner.server))
        for each in (first, first, first):  # TLS may give what has arrived before it was closed
            refused._connection.data_received(each)
        [body] = FrameBuffer().feed(refused.written)
        assert isinstance(decode_answer(body), Failure)
        assert [*owner.server.ungreeted] == [refused._connection]
        while owner.server.connections:  # noqa: ASYNC110 - what is waited for is in this thread
            await asyncio.sleep(0.01)
        assert owner.server.ungreeted == {}

    owner.run(use)


def test_who_takes_no_refusal_makes_room(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has ended it counts: each would keep its file and its memory, and the next ones theirs."""
    monkeypatch.setattr(connection, "UNGREETED_MAX", 4)

    async def use(client: OwnerClient) -> None:
        await client.greet()
        for _ in range(20):
            Untaken(FrontConnection(owner.server))._connection.data_received(b"\0\0\0\0")
        await asyncio.sleep(0)
        assert len(owner.server.ungreeted) == 4
        assert len(owner.server.connections) == 5
        assert (await client.get(KEYSPACE, 0, [key(1)]))[0].image == b'{"id":1}'

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


@pytest.mark.parametrize("is_first_cancelled", [False, True])
def test_all_who_wait_for_a_connection_share_its_failure(*, is_first_cancelled: bool) -> None:
    """In turn each would wait for an owner that does not answer. One whose caller has gone has not failed."""

    async def main() -> None:
        connected = asyncio.Semaphore(0)
        attempts: list[asyncio.StreamWriter] = []

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            attempts.append(writer)
            connected.release()
            with suppress(ConnectionError):
                await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        client = OwnerClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", request_timeout_s=0.2)
        asked = [asyncio.create_task(client.status()) for _ in range(20)]
        await connected.acquire()
        if is_first_cancelled:
            asked[0].cancel()
        found = await asyncio.gather(*asked, return_exceptions=True)
        failed = found[is_first_cancelled:]
        assert [isinstance(each, OwnerError) and each.code for each in failed] == ["owner_timeout"] * len(failed)
        assert (len(set(map(id, failed))), len(attempts)) == (len(failed), 1 + is_first_cancelled)
        with pytest.raises(OwnerError):
            await client.status()
        assert len(attempts) == 2 + is_first_cancelled
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
    with pytest.raises(OpenListenRefused, match="without a token"):
        asyncio.run(owner.server.start(host, 0))
    owner.partition.store.close(commit=False)


class Cutting:
    """Between a client and an owner: of what the owner says after its greeting, only so many bytes pass."""

    def __init__(self, host: str, port: int) -> None:
        self._owner = host, port
        self.passing: int | None = None
        self.passed = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        from_owner, to_owner = await asyncio.open_connection(*self._owner)

        async def ask() -> None:
            while data := await reader.read(1 << 16):
                to_owner.write(data)

        asking = asyncio.create_task(ask())
        head = await from_owner.readexactly(4)
        writer.write(head + await from_owner.readexactly(int.from_bytes(head, "big")))
        self.passed = 0
        while data := await from_owner.read(1 << 16):
            if self.passing is not None and self.passed + len(data) > self.passing:
                writer.write(data[: self.passing - self.passed])
                self.passing = None
                break
            self.passed += len(data)
            writer.write(data)
        asking.cancel()
        to_owner.close()
        with suppress(ConnectionError):
            await writer.drain()
            writer.close()


def test_an_owner_that_answers_half_fails_who_waits_and_nobody_else(tmp_path: Path) -> None:
    """Wherever in its answers an owner breaks off: the whole ones count, the others fail, and the next read works."""

    async def main() -> None:
        owner = Owner(tmp_path)
        owner.fold(start(), value(1, b"{}", 1), value(2, b"{}", 2), marker(2))
        cutting = Cutting(*await owner.server.start())
        server = await asyncio.start_server(cutting.serve, "127.0.0.1", 0)
        client = OwnerClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")

        async def ask(number: int) -> bool | str:
            try:
                [row] = await client.get(KEYSPACE, 0, [key(number)], vector(1))
            except OwnerError as error:
                return error.code
            return row.image is not None

        assert list(await asyncio.gather(ask(1), ask(2))) == [True, True]
        whole = cutting.passed
        assert whole > 100
        ends: set[tuple[bool | str, ...]] = set()
        for passing in range(whole):
            cutting.passing = passing
            await client.close()
            ends.add(tuple(await asyncio.gather(ask(1), ask(2))))
            assert await ask(1) is True
        assert ends == {("owner_unreachable", "owner_unreachable"), (True, "owner_unreachable")}
        await client.close()
        server.close()
        await owner.server.stop()
        owner.partition.store.close(commit=False)

    asyncio.run(main())


def test_a_connection_with_much_to_work_on_is_read_on_when_that_is_done(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next requests are only held back: nobody would tell the front that they are never looked at."""
    monkeypatch.setattr(connection, "CONNECTION_WAITING_MAX", 1)

    async def use(client: OwnerClient) -> None:
        for _ in range(2):
            reached = await asyncio.gather(*(client.wait(KEYSPACE, 0, vector(3), 0) for _ in range(9)))
            assert all(each.reached for each in reached)

    owner.run(use)


def test_who_has_greeted_makes_no_room_for_silent_ones(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client comes back by itself, but what it waits for would fail."""
    monkeypatch.setattr(connection, "UNGREETED_MAX", 2)

    async def use(client: OwnerClient) -> None:
        await client.greet()
        waiting = asyncio.create_task(client.get(KEYSPACE, 0, [key(1)], vector(8), 60_000))
        host, _, port = client.address.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(6)]
        assert await silent[0][0].read() == b""
        owner.fold(marker(8))
        assert (await waiting)[0].served
        for _, writer in silent:
            writer.close()

    owner.run(use)
