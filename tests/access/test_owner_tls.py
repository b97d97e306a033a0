"""Mutual TLS of the owner protocol, and TLS of metrics: our own on both sides, and whoever is not."""

from __future__ import annotations

import asyncio
import socket
import ssl
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from prometheus_client import CollectorRegistry

from consumers.owner import connection, server
from consumers.owner.client import Identity, OwnerClient, OwnerConnection
from consumers.owner.protocol import OwnerError
from consumers.owner.server import OwnerServer
from stream.access.certificates import Certificates
from stream.access.grants import Access, Credential, Grant
from stream.monitoring import serve_monitoring
from tests.access.certifying import write
from tests.consumers.histories import key, marker, start, value
from tests.consumers.owning import KEYSPACE, Owner, vector
from tests.patience import PATIENCE_S

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The first bytes of TLS."""
FRONT = Grant("front", frozenset({"read", "fill"}))


@pytest.fixture
def authority() -> trustme.CA:
    """Freshet's own."""
    return trustme.CA()


def secured(place: Path, files: Certificates, access: Access | None = None) -> Owner:
    """An owner that wants certificates of the authority of ``files``."""
    owner = Owner(place / "store")
    owner.server = OwnerServer(owner.ownership, owner._checkpoints, access=access, files=files)
    owner.fold(start(), value(1, b"{}", 1), marker(1))
    return owner


async def ask(address: str, files: Certificates | None) -> str:
    """The code of the refusal; "" if a read is answered."""
    client = OwnerClient(address, identity=Identity(files=files), request_timeout_s=3)
    try:
        [row] = await client.get(KEYSPACE, 0, [key(1)], vector(1))
        return "" if row.served else "not served"
    except OwnerError as error:
        return error.code
    finally:
        await client.close()


def test_only_certificates_of_our_authority_reach_an_owner(tmp_path: Path, authority: trustme.CA) -> None:
    """Plain TCP, no certificate, another authority's, an expired one: none gets as far as a hello."""
    files = write(authority, tmp_path, "owner", "127.0.0.1")
    front = write(authority, tmp_path, "front", "front.internal")
    expired = write(authority, tmp_path, "expired", "front.internal", expired=True)
    foreign = write(trustme.CA(), tmp_path, "foreign", "front.internal")
    mixed = Certificates(foreign.certificate, "", files.ca)
    owner = secured(tmp_path, files)

    async def main() -> None:
        address = ":".join(map(str, await owner.server.start()))
        assert await ask(address, front) == ""
        refused = [None, Certificates(ca=files.ca), mixed, foreign, expired]
        assert [await ask(address, each) for each in refused] == ["owner_unreachable"] * len(refused)
        assert await ask(address.replace("127.0.0.1", "localhost"), front) == "owner_unreachable"  # another host
        found = await asyncio.to_thread(_status, address, front)
        assert found == 1
        await owner.server.stop()
        owner.partition.store.close(commit=False)

    asyncio.run(main())


def _status(address: str, files: Certificates) -> int:
    with OwnerConnection(address, identity=Identity(files=files)) as connection:
        return len(connection.status().partitions)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("begun", [b"", HELLO], ids=["nothing", "half a hello"])
def test_handshakes_that_are_only_begun_make_room(
    tmp_path: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, loop: Any, begun: bytes
) -> None:
    """They count as those that have not greeted, and have as long: a crowd of them takes few files, and keeps none."""
    monkeypatch.setattr(connection, "UNGREETED_MAX", 4)
    files = write(authority, tmp_path, "owner", "127.0.0.1")
    owner = secured(tmp_path, files)

    async def main() -> None:
        host, port = await owner.server.start()

        async def crowd(number: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
            found = [await asyncio.open_connection(host, port) for _ in range(number)]
            for _, writer in found:
                writer.write(begun)
            return found

        async with asyncio.timeout(PATIENCE_S):
            many = await crowd(12)
            await ended(many[:8])
            assert await ask(f"{host}:{port}", files) == ""
            assert len(owner.server.ungreeted) <= 4
            assert len(owner.server.connections) <= 5
            monkeypatch.setattr(server, "HELLO_TIMEOUT_S", 0.1)
            await ended(await crowd(3))
            await ended(many[:11])
            many[11][1].close()
            while owner.server.connections:  # noqa: ASYNC110 - what is waited for is in this thread
                await asyncio.sleep(0.01)
        assert owner.server.ungreeted == {}
        await owner.server.stop()
        owner.partition.store.close(commit=False)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


async def ended(connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    """The owner has ended them, without a word of an owner."""
    for reader, writer in connections:
        with suppress(ConnectionError):
            assert b"unauthorized" not in await reader.read()
        writer.close()


def test_an_owner_that_stops_ends_handshakes_too(tmp_path: Path, authority: trustme.CA) -> None:
    """Nobody else would: whoever has begun one waits for its end."""
    owner = secured(tmp_path, write(authority, tmp_path, "owner", "127.0.0.1"))

    async def main() -> None:
        reader, writer = await asyncio.open_connection(*await owner.server.start())
        async with asyncio.timeout(PATIENCE_S):
            while not owner.server.connections:  # noqa: ASYNC110 - what is waited for is in this thread
                await asyncio.sleep(0)
            await owner.server.stop()
            await ended([(reader, writer)])
        owner.partition.store.close(commit=False)

    asyncio.run(main())


def test_a_certificates_name_gives_its_roles_and_no_others(tmp_path: Path, authority: trustme.CA) -> None:
    """Where owners have tokens, a certificate of the authority alone is not enough."""
    files = write(authority, tmp_path, "owner", "127.0.0.1")
    front = write(authority, tmp_path, "front", "front.internal")
    other = write(authority, tmp_path, "other", "other.internal")
    owner = secured(tmp_path, files, Access([Credential(FRONT, subject="front.internal")]))

    async def main() -> None:
        address = ":".join(map(str, await owner.server.start()))
        assert await ask(address, front) == ""
        assert await ask(address, other) == "unauthorized"
        client = OwnerClient(address, identity=Identity(files=front))
        with pytest.raises(OwnerError) as caught:
            await client.checkpoint(KEYSPACE)
        assert caught.value.code == "forbidden"
        await client.close()
        await owner.server.stop()
        owner.partition.store.close(commit=False)

    asyncio.run(main())


def test_tls_at_a_plain_owner_is_refused(tmp_path: Path, authority: trustme.CA) -> None:
    """And the owner goes on: a hello of another kind ends one connection."""
    files = write(authority, tmp_path, "owner", "127.0.0.1")
    owner = secured(tmp_path, Certificates())

    async def main() -> None:
        address = ":".join(map(str, await owner.server.start()))
        assert await ask(address, files) == "owner_unreachable"
        assert await ask(address, None) == ""
        await owner.server.stop()
        owner.partition.store.close(commit=False)

    asyncio.run(main())


def test_metrics_over_tls_need_the_token(tmp_path: Path, authority: trustme.CA) -> None:
    """A slow handshake holds nobody up: it is the connection's own thread that waits."""
    files = write(authority, tmp_path, "owner", "127.0.0.1")
    access = Access.of_secret("s3cret")
    server = serve_monitoring(
        ("127.0.0.1", 0), CollectorRegistry(), str, version="1", access=access, files=Certificates(files.certificate)
    )
    url = f"https://127.0.0.1:{server.server_address[1]}/metrics"
    trusted = ssl.create_default_context(cafile=files.ca)
    try:
        with socket.create_connection(("127.0.0.1", server.server_address[1])):  # says nothing
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url, timeout=10, context=trusted)
            refused.value.close()
            request = urllib.request.Request(url, headers={"Authorization": "Bearer s3cret"})
            with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:
                assert b"freshet_build_info" in answer.read()
        assert refused.value.code == 401
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(url, timeout=10, context=ssl.create_default_context())
    finally:
        server.shutdown()
        server.server_close()
