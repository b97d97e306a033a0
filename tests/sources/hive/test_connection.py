"""Connections to a metastore: each call ends by its deadline, and the next one is not disturbed by what went before."""

from __future__ import annotations

import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from freshet.local.hive.server import HiveServer
from freshet.local.process import free_ports
from stream.sources.hive.rpc.connection import (
    MetastoreConnection,
    MetastoreRefused,
    MetastoreTimeout,
    MetastoreTimeUp,
    MetastoreUnreachable,
)
from stream.sources.hive.rpc.thrift import long, message, record, text
from stream.sources.hive.structs import ThriftError
from tests.patience import PATIENCE_S

Answer = Callable[[socket.socket, bytes], None]


@contextmanager
def listening(answer: Answer, ended: threading.Event | None = None) -> Iterator[tuple[str, int]]:
    """A TCP server that reads what arrives first on each connection, and lets ``answer`` say what follows.

    ``ended``: set when it has closed a connection.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = server.accept()
                except OSError:
                    return
                with accepted:
                    answer(accepted, accepted.recv(65536))
                if ended is not None:
                    ended.set()

        threading.Thread(target=serve, daemon=True).start()
        yield "127.0.0.1", server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def reply(sequence: int, name: str = "f") -> bytes:
    """An answer with the value 5."""
    sent = bytearray(message(name, sequence, {0: long(5)}))
    sent[3] = 2  # a REPLY, not a CALL
    return bytes(sent)


def test_a_call_that_hangs_ends_by_its_deadline() -> None:
    """A metastore that trickles bytes for ever does not hold its caller: the deadline is of the whole call."""

    def trickle(accepted: socket.socket, _: bytes) -> None:
        try:
            for byte in reply(1)[:-1]:
                accepted.sendall(bytes([byte]))
                time.sleep(0.05)  # the slowness that is tested, not a wait for a condition
        except OSError:
            return

    with listening(trickle) as address, MetastoreConnection((address,), timeout_s=0.3) as connection:
        began = time.monotonic()
        with pytest.raises(MetastoreTimeout) as caught:
            connection.call("f", {})
        assert time.monotonic() - began < PATIENCE_S / 2
        assert caught.value.code == "metastore_timeout"


def test_the_next_address_is_tried() -> None:
    """Where the first metastore is down or ends amid a call, the next call goes to the second one."""
    [closed] = free_ports(1)
    ended = threading.Event()

    def answer(accepted: socket.socket, request: bytes) -> None:
        accepted.sendall(reply(struct.unpack(">i", request[9:13])[0]))

    with (
        listening(lambda accepted, _: accepted.sendall(b"\x80\x01")) as broken,
        listening(answer, ended) as good,
        MetastoreConnection((("127.0.0.1", closed), broken, good)) as connection,
    ):
        with pytest.raises(MetastoreUnreachable, match="amid an answer"):
            connection.call("f", {})
        assert connection.call("f", {}) == 5
        assert ended.wait(PATIENCE_S)
        assert connection.call("f", {}) == 5, "the connection was closed meanwhile: it is opened again"


def test_nobody_answers() -> None:
    """Without any metastore the error names the addresses."""
    [closed] = free_ports(1)
    with MetastoreConnection((("127.0.0.1", closed),)) as connection, pytest.raises(MetastoreUnreachable) as caught:
        connection.call("f", {})
    assert f"127.0.0.1:{closed}" in str(caught.value)


@pytest.mark.parametrize("sent", [reply(7), reply(1, "g"), b"220 mail.example ESMTP\r\n"])
def test_an_answer_to_something_else_is_not_taken(sent: bytes) -> None:
    """A late answer, or another protocol, is an error, and the connection that it came over is not used again."""
    with (
        listening(lambda accepted, _: accepted.sendall(sent)) as address,
        MetastoreConnection((address,)) as connection,
        pytest.raises(ThriftError),
    ):
        connection.call("f", {})


def test_a_real_metastore_refuses_and_goes_on(hive: tuple[str, int]) -> None:
    """A declared exception says which one it is; an unknown function is an error; the connection stays usable."""
    with MetastoreConnection((hive,)) as connection:
        with pytest.raises(MetastoreRefused, match="table not found") as caught:
            connection.call("get_table_req", {1: record({1: text("default"), 2: text("no_such")})})
        assert caught.value.number == 2
        with pytest.raises(MetastoreRefused, match="does not know this call"):
            connection.call("no_such_function", {})
        assert "default" in connection.call("get_databases", {1: text("@hive#")})


def test_a_connection_survives_a_restart_of_the_metastore(new_hive: Callable[..., HiveServer]) -> None:
    """After a kill the call fails, or finds that the connection has ended; after the restart it works again."""
    server = new_hive()
    with MetastoreConnection(((server.host, server.port),)) as connection:
        connection.call("create_database", {1: record({1: text("kept")})})
        before = connection.call("get_current_notificationEventId", {})
        server.kill()
        with pytest.raises(MetastoreUnreachable):
            connection.call("get_current_notificationEventId", {})
        server.restart()
        assert connection.call("get_current_notificationEventId", {}) == before
        assert "kept" in connection.call("get_databases", {1: text("@hive#")})


def test_no_call_lasts_beyond_the_moment_that_is_set() -> None:
    """Whatever time a call has by itself: who waits for several has less."""

    def answer(accepted: socket.socket, request: bytes) -> None:
        accepted.sendall(reply(struct.unpack(">i", request[9:13])[0]))

    with listening(answer) as address, MetastoreConnection((address,)) as connection:
        connection.until_s = time.monotonic()
        with pytest.raises(MetastoreTimeout):
            connection.call("f", {})
        connection.until_s = math.inf
        assert connection.call("f", {}) == 5


def test_the_end_of_the_time_of_several_calls_is_told_from_a_call_that_is_not_answered() -> None:
    """Who has answered calls is not away, however little time was left for the next one."""

    def answer_once(accepted: socket.socket, request: bytes) -> None:
        accepted.sendall(reply(struct.unpack(">i", request[9:13])[0]))
        while accepted.recv(65536):  # until the client gives up
            pass

    def ends(connection: MetastoreConnection, timeout_s: float = 0.0) -> type[MetastoreTimeout]:
        with pytest.raises(MetastoreTimeout) as caught:
            connection.call("f", {}, timeout_s=timeout_s)
        return caught.type

    with listening(answer_once) as address, MetastoreConnection((address,)) as connection:
        connection.limit(PATIENCE_S)
        assert connection.call("f", {}) == 5
        assert ends(connection, timeout_s=0.1) is MetastoreTimeout, "it had all its own time"
        assert connection.call("f", {}) == 5
        connection.until_s = time.monotonic() + 0.1
        assert ends(connection) is MetastoreTimeUp
        assert ends(connection) is MetastoreTimeUp, "nothing is left for a connection either"
        connection.limit(0.0)
        assert ends(connection) is MetastoreTimeout, "nothing was answered"
