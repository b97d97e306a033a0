"""Where our own connections may lead: networks that addresses, announced by others, must be in."""

from __future__ import annotations

import ipaddress
import socket
from asyncio import AbstractEventLoop
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    """``10.0.0.0/8``, ``fd00::/8``, ``10.1.2.3``. Raises ``ValueError``."""
    return tuple(ipaddress.ip_network(text.strip()) for text in texts)


def is_within(address: str, networks: Iterable[Network]) -> bool:
    """Whether an IP address is in one of the networks. An IPv4 address written as IPv6 is the former."""
    found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in network for network in networks)


def leads_within(url: str, networks: Iterable[Network]) -> bool:
    """Whether a URL has an address in one of the networks. One with a name does not: it may lead anywhere by then."""
    try:
        return is_within(urlsplit(url).hostname or "", networks)
    except ValueError:
        return False


async def resolve_within(loop: AbstractEventLoop, host: str, port: int, networks: tuple[Network, ...]) -> list[str]:
    """The IP addresses of the host in the networks, in the order in which they are to be tried.

    The caller connects to these: a name that is resolved again may lead elsewhere by then. Raises ``OSError``.
    """
    return _within(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM), networks)


def resolved_within(host: str, port: int, networks: tuple[Network, ...]) -> list[str]:
    """As `resolve_within`, for who may block."""
    return _within(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), networks)


def _within(found: Iterable[tuple[Any, ...]], networks: tuple[Network, ...]) -> list[str]:
    addresses = (str(each[4][0]) for each in found)
    return [address for address in addresses if is_within(address, networks)]
