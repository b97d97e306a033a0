"""Encrypted metastores, and metastores that ask for a name and password: who gets in, and who is told why not."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificate

from freshet.local.hive.server import HiveServer
from stream.sources.hive.rpc import transport
from stream.sources.hive.rpc.connection import (
    MetastoreConnection,
    MetastoreDenied,
    MetastoreError,
    MetastoreUnreachable,
)
from stream.sources.hive.rpc.thrift import message, text
from stream.sources.hive.rpc.transport import FRAME_BYTES_MAX, OPEN, Access, Transport
from tests.patience import PATIENCE_S
from tests.sources.hive.test_connection import listening, reply

USER, PASSWORD = "freshet", "s3cret \N{SNOWMAN}"
NAMED = Access(user=USER, password=PASSWORD)
ASCII = "s3cret <&> 'quoted'"
"""Hive 4.0.1 takes each byte of a password for a character."""
COMPLETE = b"\5\0\0\0\0"


def scripted(*pieces: bytes, verdict: bytes = COMPLETE) -> Callable[[socket.socket, bytes], None]:
    """Accepts who says the right name and password, then sends ``pieces`` after a request."""

    def answer(accepted: socket.socket, begun: bytes) -> None:
        wanted = b"\1\0\0\0\5PLAIN\2" + (2 + len(f"{USER}{PASSWORD}".encode())).to_bytes(4, "big")
        wanted += f"\0{USER}\0{PASSWORD}".encode()
        while len(begun) < len(wanted):
            begun += accepted.recv(65536)
        assert begun == wanted
        accepted.sendall(verdict)
        if verdict == COMPLETE:
            framed = accepted.recv(65536)
            assert framed[4:] == message("f", 1, {})
            assert int.from_bytes(framed[:4], "big") == len(framed) - 4
        with contextlib.suppress(ConnectionError):  # a client that has enough closes
            for piece in pieces:
                accepted.sendall(piece)
        _until_closed(accepted)

    return answer


def _until_closed(accepted: socket.socket) -> None:
    with contextlib.suppress(ConnectionError):
        while accepted.recv(65536):
            pass


def frame(content: bytes) -> bytes:
    """As it goes over the wire after the negotiation."""
    return len(content).to_bytes(4, "big") + content


@pytest.mark.parametrize("cut", range(1, len(reply(1)) + 8))
def test_an_answer_may_come_in_any_frames_and_pieces(cut: int) -> None:
    """Frames are the transport's; where they are cut means nothing, and an empty one is nothing."""
    whole, at = frame(b"") + frame(reply(1)), min(cut, len(reply(1)))
    two = frame(reply(1)[:at]) + frame(reply(1)[at:])
    for sent in ((whole[:cut], whole[cut:]), (two[:cut], two[cut:])):
        with listening(scripted(*sent)) as address, MetastoreConnection((address,), access=NAMED) as connection:
            assert connection.call("f", {}) == 5


@pytest.mark.parametrize(
    ("verdict", "kind", "said"),
    [
        (b"\3\0\0\0\7no such", MetastoreDenied, "does not accept the user 'freshet': no such"),
        (b"\4\0\0\0\0", MetastoreDenied, "no reason given"),
        (b"\2\0\0\0\0", MetastoreDenied, "no reason given"),
        (b"\x80\1\0\2\0", MetastoreUnreachable, "does not ask for a name and password"),
        (b"\5\x7f\xff\xff\xff", MetastoreUnreachable, "does not ask for a name and password"),
        (b"\3\0", MetastoreUnreachable, "ended amid an answer"),
    ],
)
def test_who_is_not_accepted_is_told(verdict: bytes, kind: type[MetastoreError], said: str) -> None:
    """Refused, or not asked at all; the message has the server's words, and never the password."""

    def answer(accepted: socket.socket, begun: bytes) -> None:
        del begun
        accepted.sendall(verdict)
        accepted.shutdown(socket.SHUT_WR)
        _until_closed(accepted)

    with (
        listening(answer) as address,
        MetastoreConnection((address,), access=NAMED) as connection,
        pytest.raises(kind, match=said) as caught,
    ):
        connection.call("f", {})
    assert PASSWORD not in repr(caught.value)
    assert PASSWORD not in repr(NAMED)


@pytest.mark.parametrize("first", ["is silent", "denies"])
def test_another_metastore_is_asked_if_the_first_does_not_let_us_in(first: str) -> None:
    """One whose directory of names hangs, or is away, must not keep a healthy one from being asked."""

    def answer(accepted: socket.socket, begun: bytes) -> None:
        del begun
        if first == "denies":
            accepted.sendall(b"\3\0\0\0\4away")
        _until_closed(accepted)

    with (
        listening(answer) as bad,
        listening(scripted(frame(reply(1)))) as good,
        MetastoreConnection((bad, good), timeout_s=4, access=NAMED) as connection,
    ):
        assert connection.call("f", {}) == 5
        assert connection.address.endswith(str(good[1]))


def test_the_time_to_connect_is_not_that_of_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is kept for hours: it would end, amid a call, with what one address had to let us in."""
    now_s = [0.0]
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    with listening(lambda accepted, _: _until_closed(accepted)) as address:
        opened = Transport.connect(address, OPEN, lambda: PATIENCE_S, PATIENCE_S)
        now_s[0] += 3_600
        opened.send(b"a request")
        opened.close()


def test_a_frame_longer_than_any_answer_is_not_waited_for() -> None:
    """Something else is at the port; nothing of that size is read."""
    with (
        listening(scripted((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))) as address,
        MetastoreConnection((address,), access=NAMED) as connection,
        pytest.raises(MetastoreUnreachable, match="longer than any answer"),
    ):
        connection.call("f", {})


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """The one that signs the metastore's certificate."""
    return trustme.CA()


@pytest.fixture
def secured(authority: trustme.CA, tmp_path: Path, new_hive: Callable[..., HiveServer]) -> tuple[HiveServer, Access]:
    """A real metastore behind TLS and SASL PLAIN, and what lets a client in."""
    made = authority.issue_cert("127.0.0.1")
    [chain, *_] = made.cert_chain_pems
    bundle = serialize_key_and_certificates(
        b"metastore",
        load_pem_private_key(made.private_key_pem.bytes(), None),  # type: ignore[arg-type]
        load_pem_x509_certificate(chain.bytes()),
        None,
        BestAvailableEncryption(b"keystore"),
    )
    (tmp_path / "keystore.p12").write_bytes(bundle)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    access = Access(str(tmp_path / "ca.pem"), user=USER, password=ASCII)
    settings = {
        "metastore.use.SSL": "true",
        "metastore.keystore.path": str(tmp_path / "keystore.p12"),
        "metastore.keystore.password": "keystore",
        "metastore.keystore.type": "PKCS12",
        "metastore.authentication": "CONFIG",
        "metastore.execute.setugi": "false",  # a metastore with passwords wants it so
        "metastore.authentication.config.username": USER,
        "metastore.authentication.config.password": ASCII,
    }
    return new_hive(settings=settings, access=access), access


def test_a_secured_metastore_answers_who_has_access_and_nobody_else(
    secured: tuple[HiveServer, Access], tmp_path: Path
) -> None:
    """Many calls and a restart over TLS and SASL; a wrong password, authority, host or door is an error."""
    server, access = secured
    at = (server.host, server.port)
    with MetastoreConnection((at,), access=access) as connection:
        for number in range(50):
            assert "default" in connection.call("get_databases", {1: text("@hive#")}), number
        assert connection.opened == 1
        server.kill()
        with pytest.raises(MetastoreUnreachable):
            connection.call("get_databases", {1: text("@hive#")})
        server.restart()
        assert "default" in connection.call("get_databases", {1: text("@hive#")})
    other = trustme.CA()
    other.cert_pem.write_to_path(tmp_path / "other.pem")
    refused: list[tuple[str, Access, type[MetastoreError], str]] = [
        (server.host, replace(access, password="wrong"), MetastoreDenied, "does not accept the user"),
        (server.host, replace(access, ssl_ca=str(tmp_path / "other.pem")), MetastoreUnreachable, "certificate verify"),
        ("localhost", access, MetastoreUnreachable, "certificate verify failed"),
        (server.host, replace(access, ssl_ca=""), MetastoreUnreachable, "does not ask for a name|amid an answer"),
        (server.host, replace(access, user=""), MetastoreUnreachable, "amid an answer|closed the connection|in time"),
        (server.host, replace(access, ssl_ca=str(tmp_path / "none.pem")), MetastoreUnreachable, "No such file"),
    ]
    for host, wrong, kind, said in refused:
        with MetastoreConnection(((host, server.port),), timeout_s=20, access=wrong) as connection:
            with pytest.raises(kind, match=said) as caught:
                connection.call("get_databases", {1: text("@hive#")})
            assert ASCII not in str(caught.value) + caught.value.hint
    with MetastoreConnection((at,), access=access) as connection:
        assert "default" in connection.call("get_databases", {1: text("@hive#")}), "it goes on"
