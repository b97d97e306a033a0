"""How a browser brings the bearer token: it asks its user for name and password, and sends both as Basic (RFC 7617)."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error
from typing import Final

CHALLENGE: Final = b'Bearer, Basic realm="Freshet: the token is the password", charset="UTF-8"'


def as_bearer(authorization: bytes, method: str) -> bytes:
    """An ``Authorization`` header; one of a browser as the bearer token that is its password. The name is not read.

    Browsers add it to requests of other sites' pages, too, so it counts for what changes nothing only.
    """
    scheme, _, encoded = authorization.partition(b" ")
    if scheme.lower() != b"basic" or method not in ("GET", "HEAD"):
        return authorization
    try:
        _, colon, password = b64decode(encoded.strip(), validate=True).partition(b":")
    except Error:
        return authorization
    return b"Bearer " + password if colon and password else authorization
