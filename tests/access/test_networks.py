"""Announced addresses: fronts and commands connect to those in their networks, and to no others."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.owner.client import Identity, OwnerClient, OwnerConnection
from consumers.owner.protocol import OwnerError
from freshet.settings import load_settings
from freshet.settings_errors import SettingsError
from stream.access.certificates import Certificates
from stream.access.networks import is_within, networks_of, resolve_within
from tests.access.test_owner_roles import code_of, owner_of


@pytest.mark.parametrize(
    ("address", "networks", "within"),
    [
        ("10.1.2.3", ["10.0.0.0/8"], True),
        ("11.1.2.3", ["10.0.0.0/8", "fd00::/8"], False),
        ("::ffff:10.1.2.3", ["10.0.0.0/8"], True),
        ("::ffff:169.254.169.254", ["10.0.0.0/8"], False),
        ("fd12::1%eth0", ["fd00::/8"], True),
        ("::1", ["127.0.0.0/8"], False),
        ("10.1.2.3", ["10.1.2.3"], True),
    ],
)
def test_an_address_is_in_a_network(address: str, networks: list[str], within: bool) -> None:
    """Of both families, also where one is written as the other."""
    assert is_within(address, networks_of(networks)) is within


@pytest.mark.parametrize("blocks", [False, True], ids=["a front", "a command"])
def test_an_owner_elsewhere_is_not_asked(*, blocks: bool) -> None:
    """No connection is made: neither to an address, nor to a name that leads there, and the error says why."""

    async def greet(address: str, identity: Identity) -> None:
        if blocks:
            await asyncio.to_thread(OwnerConnection, address, identity=identity)
        else:
            await OwnerClient(address, identity=identity).greet()

    identity = Identity(lambda: "secret", None, networks_of(["10.0.0.0/8"]))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "localhost", "127.1"):
            with pytest.raises(OwnerError) as refused:
                asyncio.run(greet(f"{host}:{port}", identity))
            assert refused.value.code == "owner_unreachable"
            assert "consumer.networks" in str(refused.value)
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.parametrize(
    ("addresses", "asked"),
    [
        (["11.1.1.1", "10.1.2.3"], ["10.1.2.3"]),
        (["10.1.2.4", "10.1.2.3"], ["10.1.2.4", "10.1.2.3"]),
        (["11.1.1.1"], []),
        ([], []),
    ],
)
def test_of_the_addresses_of_a_name_those_within_are_asked(addresses: list[str], asked: list[str]) -> None:
    """Others may come before them: a machine has one in each of its networks."""

    async def getaddrinfo(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(None, None, None, "", (address, 1)) for address in addresses]

    loop: Any = SimpleNamespace(getaddrinfo=getaddrinfo)
    assert asyncio.run(resolve_within(loop, "owner", 1, networks_of(["10.0.0.0/8"]))) == asked


def test_an_owner_within_is_asked(tmp_path: Path) -> None:
    """By its address, as without networks."""
    owner = owner_of(tmp_path)

    def connect(address: str) -> str:
        with OwnerConnection(address, identity=identity) as connection:
            return connection.status().instance

    async def use(client: OwnerClient) -> None:
        assert await code_of(client, "get") == ""
        assert await asyncio.to_thread(connect, client.address.replace("127.0.0.1", "localhost"))

    identity = Identity(networks=networks_of(["127.0.0.0/8"]))
    owner.run(use, identity=identity)


def test_an_owner_is_asked_at_each_of_its_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name has one of IPv6 too, which comes first, and nobody listens there: the owner was "not running"."""
    owner = owner_of(tmp_path)
    identity = Identity(networks=networks_of(["127.0.0.0/8", "::1"]))
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *more: Any, **named: Any) -> list[Any]:
        if host != "owner":
            return resolve(host, port, *more, **named)
        return [(None, None, None, "", (address, port)) for address in ("::1", "127.0.0.2", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    def connect(address: str) -> str:
        with OwnerConnection(address, identity=identity) as connection:
            return connection.status().instance

    async def use(client: OwnerClient) -> None:
        address = client.address.replace("127.0.0.1", "owner")
        assert await asyncio.to_thread(connect, address)
        named = OwnerClient(address, identity=identity)
        try:
            await named.greet()
        finally:
            await named.close()
        with pytest.raises(OwnerError, match=r"refused|Connect call failed"):
            await OwnerClient("owner:1", identity=identity).greet()
        with pytest.raises(OwnerError, match="refused"):
            await asyncio.to_thread(connect, "owner:1")

    owner.run(use, identity=identity)


def test_the_settings_take_networks_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They reach what fronts show to owners; a host's bits in a network are a slip, and refused."""
    monkeypatch.chdir(tmp_path)
    found = load_settings(flags={"consumer": {"networks": ["10.0.0.0/8", "fd00::/8"]}})
    assert found.consumer.identity.networks == networks_of(["10.0.0.0/8", "fd00::/8"])
    with pytest.raises(SettingsError):
        load_settings(flags={"consumer": {"networks": ["10.0.0.1/8"]}})


def test_a_client_without_its_certificate_has_an_error_of_its_own(tmp_path: Path) -> None:
    """A file that is gone is told as an error of the owner's client, which its callers handle."""

    async def ask() -> Any:
        client = OwnerClient("127.0.0.1:1", identity=Identity(str, Certificates(str(tmp_path / "gone.pem"))))
        with pytest.raises(OwnerError) as refused:
            await client.greet()
        return refused.value

    assert asyncio.run(ask()).code == "bad_certificate"
