"""Requests that a web page has a browser send to a front that asks for no credential.

Such a front trusts whoever reaches it from this machine. A browser does, and pages of anywhere have it send requests.
What they ask by a name of their own that leads here (DNS rebinding) is of their own site to the browser: they could
read the answer. What they send to our address they can't read, but it could change something.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from functools import lru_cache
from typing import Final

from starlette.types import Scope

from serving.errors import ReadError

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OTHER_SITES: Final = frozenset({b"cross-site", b"same-site"})


def refusal(scope: Scope, names: Collection[str]) -> ReadError | None:
    """Why such a request is refused; None: it is not one. ``names``: by which the front is asked besides its own."""
    host = site = b""
    for name, value in scope["headers"]:
        if name == b"host":
            host = value
        elif name == b"sec-fetch-site":  # set by browsers; a page can't
            site = value
    if not _is_own(host) and (asked := _name_in(host)) not in names:
        hint = "ask by its address, or localhost; else give it tokens ([serve.tokens.NAME]), or the name to serve.hosts"
        return ReadError("forbidden", f"a front without tokens is not asked by the name {asked}", hint=hint)
    if site in _OTHER_SITES and scope.get("method", "GET") not in _SAFE:
        return ReadError("forbidden", "a page of another site has sent this", hint="give the front tokens")
    return None


def _name_in(host: bytes) -> str:
    """Of a header ``Host``, without the port."""
    name = host.decode("latin-1").lower()
    return name.partition("]")[0].removeprefix("[") if name.startswith("[") else name.partition(":")[0].rstrip(".")


@lru_cache(1_024)
def _is_own(host: bytes) -> bool:
    """Whether no name service elsewhere says where ``host`` leads: none at all, an address, a name without a dot."""
    name = _name_in(host)
    if "." not in name or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
