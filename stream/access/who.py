"""Who asks, by name: a token, or an address. Limits are counted and the audit is written under it."""

from __future__ import annotations

import ipaddress
from contextvars import ContextVar
from typing import Final

from stream.access.grants import ANYONE, NOBODY, Grant

_IPV6_NETWORK_BITS: Final = 64
"""One host may have all addresses of such a network."""
asking: Final[ContextVar[str]] = ContextVar("freshet_asking", default="")
"""On whose behalf this task runs, as `caller_name`; "" on nobody's. Set for each request, and read where callers share
what is scarce: so it need not be handed through all that is between."""


def caller_name(grant: Grant, address: str) -> str:
    """Who pays for a request. ``address``: of the other end of the connection."""
    return address_name(address) if grant in (ANYONE, NOBODY) else f"token {grant.name}"


def address_name(address: str) -> str:
    """An address as a caller. Of IPv6 the network counts."""
    if ":" in address:
        try:
            found = ipaddress.IPv6Address(address.partition("%")[0])
        except ValueError:
            return address
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(found), _IPV6_NETWORK_BITS), strict=False))
    return address or "an unknown address"
