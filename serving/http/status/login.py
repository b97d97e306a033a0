"""How a browser brings the bearer token: it asks its user for name and password, and sends both as Basic (RFC 7617)."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error
from typing import Final

from serving.errors import ReadError
from stream.access.grants import ANYONE, Grant

CHALLENGE: Final = b'Bearer, Basic realm="Freshet: the token is the password", charset="UTF-8"'
FORMS: Final = frozenset({"/dead-letters/retry", "/dead-letters/dismiss"})
"""Where a page of the front sends what its user decides. Their routes ask `check_form`."""


def as_bearer(authorization: bytes, method: str, path: str) -> bytes:
    """An ``Authorization`` header; one of a browser as the bearer token that is its password. The name is not read.

    Browsers add it to requests of other sites' pages, too, so it counts for what changes nothing, and for `FORMS`.
    """
    scheme, _, encoded = authorization.partition(b" ")
    if scheme.lower() != b"basic" or not (method in ("GET", "HEAD") or path in FORMS):
        return authorization
    try:
        _, colon, password = b64decode(encoded.strip(), validate=True).partition(b":")
    except Error:
        return authorization
    return b"Bearer " + password if colon and password else authorization


def check_form(caller: Grant, site: str) -> None:
    """Raises `ReadError` ``forbidden`` unless a page of this front sent the form, for somebody who showed a credential.

    ``site``: the header ``Sec-Fetch-Site``, which a browser sets, and a page can't. Without a credential a name that is
    made to lead here would be the same site (DNS rebinding).
    """
    if caller is ANYONE:
        hint = "give the front tokens ([serve.tokens.NAME]), or use the command on a terminal"
        raise ReadError("forbidden", "a form counts only where a token is asked for", hint=hint)
    if site != "same-origin":
        hint = "open the front's own page, by https or at a loopback address: else a browser does not tell its site"
        raise ReadError("forbidden", f"a form must come from a page of this front, not {site or 'unknown'}", hint=hint)
