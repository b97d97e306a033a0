"""Requests that a web page has a browser send to a front that asks for no credential (`stream.access.asked_as`).

What pages send to our address they can't read, but it could change something.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.types import Scope

from serving.errors import ReadError
from stream.access.asked_as import foreign_name

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
    if asked := foreign_name(host, names):
        hint = "ask by its address, or localhost; else give it tokens ([serve.tokens.NAME]), or the name to serve.hosts"
        return ReadError("forbidden", f"a front without tokens is not asked by the name {asked}", hint=hint)
    if site in _OTHER_SITES and scope.get("method", "GET") not in _SAFE:
        return ReadError("forbidden", "a page of another site has sent this", hint="give the front tokens")
    return None
