"""Logins that show a database's password as it is: no server gets it that anybody may have put there."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError, connect
from stream.sources.postgres.connection import connect as connect_postgres
from tests.patience import PATIENCE_S

ELSEWHERE = "database.internal"
SECRET = b"s3cret"
PROTOCOL_41, SECURE, PLUGINS = 0x200, 0x8000, 0x80000
NO_TLS, NO_GSS = 80877103, 80877104
"""What PostgreSQL's driver asks for first."""


def mysql_packet(number: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body


def ask_as_mysql(plugin: bytes) -> Callable[[socket.socket], None]:
    """As a server that has a user log in by a plugin which shows the password."""
    can = PROTOCOL_41 | SECURE | PLUGINS
    ends = struct.pack("<HBHHB", can & 0xFFFF, 33, 2, can >> 16, 21) + bytes(10)
    greeting = b"\x0a11.4.5-MariaDB\0" + bytes(4) + b"a" * 8 + b"\0" + ends + b"b" * 12 + b"\0mysql_native_password\0"
    prompt = b"\x05Password: " if plugin == b"dialog" else b""

    def ask(client: socket.socket) -> None:
        client.sendall(mysql_packet(0, greeting))
        client.recv(4_096)
        client.sendall(mysql_packet(2, b"\xfe" + plugin + b"\0" + prompt))

    return ask


def ask_as_postgres(client: socket.socket) -> None:
    """As a server whose method is ``password``."""
    while True:
        body = client.recv(int.from_bytes(client.recv(4), "big") - 4)
        if int.from_bytes(body[:4], "big") not in (NO_TLS, NO_GSS):
            break
        client.sendall(b"N")
    client.sendall(b"R" + struct.pack(">II", 8, 3))


@contextmanager
def answering(ask: Callable[[socket.socket], None]) -> Iterator[tuple[int, list[bytes]]]:
    """A port where one client is asked for its password, and what it says then."""
    said: list[bytes] = []

    def serve() -> None:
        client, _ = listener.accept()
        with client, suppress(ConnectionError):
            client.settimeout(PATIENCE_S)
            ask(client)
            said.append(client.recv(4_096))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], said
        thread.join(PATIENCE_S)


def settings_of(host: str, port: int, **more: Any) -> ConnectionSettings:
    return ConnectionSettings(host, port, "u", SECRET.decode(), **more)


@pytest.fixture(autouse=True)
def _every_name_leads_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where somebody answers in a server's place."""
    connected = socket.create_connection

    def here(address: tuple[str, int], *more: Any, **options: Any) -> socket.socket:
        return connected(("127.0.0.1", address[1]), *more, **options)

    monkeypatch.setattr(pymysql.connections.socket, "create_connection", here)
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")


@pytest.mark.parametrize("plugin", [b"mysql_clear_password", b"dialog"])
def test_a_password_is_shown_to_no_server_that_is_not_known(plugin: bytes) -> None:
    """PyMySQL shows it to whoever asks for it. On this machine it is shown: PAM works there without TLS."""
    with answering(ask_as_mysql(plugin)) as (port, said):
        with pytest.raises(MariaDBError) as refused:
            connect(settings_of(ELSEWHERE, port))
        assert (refused.value.code, "ssl_ca" in refused.value.hint) == ("mariadb_access_denied", True)
    assert said in ([], [b""])
    with answering(ask_as_mysql(plugin)) as (port, said), pytest.raises(MariaDBError):
        connect(settings_of("127.0.0.1", port))
    assert SECRET in said[0]


def test_a_password_is_shown_to_no_postgresql_that_is_not_known() -> None:
    """The same of PostgreSQL's driver."""
    more = {"product": "PostgreSQL", "database": "d"}
    with answering(ask_as_postgres) as (port, said):
        with pytest.raises(MariaDBError) as refused:
            connect_postgres(settings_of(ELSEWHERE, port, **more))
        assert (refused.value.code, "ssl_ca" in refused.value.hint) == ("postgres_access_denied", True)
    assert said in ([], [b""])
    with answering(ask_as_postgres) as (port, said), pytest.raises(MariaDBError):
        connect_postgres(settings_of("127.0.0.1", port, **more))
    assert SECRET in said[0]


def test_a_verified_server_may_have_it_as_it_is() -> None:
    """Users of PAM and LDAP log in over TLS as before, and so do those of a socket."""
    at = settings_of(ELSEWHERE, 3306)
    assert "auth_plugin_map" in at.pymysql_arguments()
    for known in (replace(at, ssl_ca="ca.pem"), replace(at, unix_socket="/run/mysqld.sock"), replace(at, host="::1")):
        assert "auth_plugin_map" not in known.pymysql_arguments()
