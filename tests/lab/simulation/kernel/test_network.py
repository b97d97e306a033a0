"""The network of the kernel: what is written arrives in order, or the connection breaks."""

from __future__ import annotations

import asyncio

from lab.simulation.kernel.network import End
from lab.simulation.kernel.scheduler import Kernel


class Ended(asyncio.Protocol):
    """Keeps what it receives, and how the connection ended."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.reads = 0
        self.ended: list[Exception | None] = []
        self.transport: End
        self.events: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, End)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.reads += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.append(exc)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


def connected(kernel: Kernel) -> tuple[Ended, Ended]:
    """A client's and a server's end."""
    server, client = Ended(), Ended()
    port = list[int]()

    async def listen() -> None:
        listener = await kernel.loop.create_server(lambda: server, "127.0.0.1")
        port.append(listener.sockets[0].getsockname()[1])

    async def connect() -> None:
        await kernel.loop.create_connection(lambda: client, "127.0.0.1", port[0])

    kernel.run_task("server", listen)
    kernel.run_until(lambda: bool(port), 1)
    kernel.run_task("client", connect)
    assert kernel.run_until(lambda: hasattr(server, "transport") and hasattr(client, "transport"), 1)
    return client, server


def test_bytes_arrive_in_order_and_some_in_pieces(kernel: Kernel) -> None:
    """A stream has no message boundaries: a reader that counts on them is found out."""
    client, server = connected(kernel)
    sent = [bytes([number]) * 10 for number in range(100)]
    for each in sent:
        client.transport.write(each)
    assert kernel.run_until(lambda: len(server.received) == 1000, 1)
    assert bytes(server.received) == b"".join(sent)
    assert server.reads > 100


def test_a_close_arrives_behind_what_was_written(kernel: Kernel) -> None:
    """The other end reads everything, then its connection ends too, without an error."""
    client, server = connected(kernel)
    client.transport.write(b"bye")
    client.transport.close()
    assert client.transport.is_closing()
    assert kernel.run_until(lambda: bool(server.ended), 1)
    assert (bytes(server.received), server.ended, client.ended) == (b"bye", [None], [None])


def test_a_killed_process_closes_its_connections_and_listens_no_more(kernel: Kernel) -> None:
    """The operating system closes what a process leaves behind; a new connection is refused."""
    client, server = connected(kernel)
    kernel.kill("server")
    assert kernel.run_until(lambda: bool(client.ended), 1)
    assert server.ended == []
    refused = list[str]()

    async def connect() -> None:
        try:
            await kernel.loop.create_connection(Ended, "127.0.0.1", 20_001)
        except ConnectionRefusedError:
            refused.append("refused")

    kernel.run_task("client", connect)
    assert kernel.run_until(lambda: bool(refused), 1)


def test_a_cut_is_silence_until_it_heals(kernel: Kernel) -> None:
    """Nobody is told, nothing is lost, and what was sent meanwhile arrives afterwards."""
    client, server = connected(kernel)
    kernel.network.cut("client", "server")
    client.transport.write(b"hello")
    kernel.run_until(lambda: False, 60)
    assert (bytes(server.received), server.ended, client.ended) == (b"", [], [])
    kernel.network.heal()
    assert kernel.run_until(lambda: bytes(server.received) == b"hello", 1)


def test_a_reset_breaks_both_ends(kernel: Kernel) -> None:
    """Both protocols get the error, and what was under way is lost."""
    client, server = connected(kernel)
    client.transport.write(b"hello")
    assert kernel.network.reset("client", "server") == 1
    kernel.run_until(lambda: False, 1)
    assert [type(each) for each in (*client.ended, *server.ended)] == [ConnectionResetError] * 2
    assert bytes(server.received) == b""


def test_a_reader_that_pauses_holds_the_writer(kernel: Kernel) -> None:
    """Back-pressure: the writer is told at its limit, and again when enough was read."""
    client, server = connected(kernel)
    client.transport.set_write_buffer_limits(high=100)
    server.transport.pause_reading()
    client.transport.write(b"x" * 101)
    kernel.run_until(lambda: False, 1)
    assert (bytes(server.received), client.events) == (b"", ["pause"])
    server.transport.resume_reading()
    kernel.run_until(lambda: False, 1)
    assert (len(server.received), client.events) == (101, ["pause", "resume"])
