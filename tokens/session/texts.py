"""The formats of a session token as text: ``v2.``, which is written, and ``v1.``, which stays readable."""

from __future__ import annotations

import json
import re
from base64 import b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable
from zlib import crc32

from ..errors import TokenError
from ..integers import excerpt
from ..position import Position
from .packed import UNCHANGED, pack, unpack

V1, V2 = "v1.", "v2."
TOKENS_MAX = 1024
"""In one text."""
_CHECKSUM_BYTES = 4
_FORMAT = re.compile(r"(v[0-9]{1,4})\.")
_NEXT = re.compile(r",[ \t]*(?=v[0-9]{1,4}\.|time=)")
"""Between two tokens. A position in an event token has commas too, but no part of it begins like a token."""

Components = dict[str, tuple[int, Position]]


def is_token(text: str) -> bool:
    """Whether ``text`` is meant as a session token, of whatever format. The write-id list of a table ``v2.t`` begins
    like one, but has colons."""
    return _FORMAT.match(text) is not None and text.count(":") < 2


def is_newer(token: str) -> bool:
    """Whether a token has a format that this version cannot read."""
    found = _FORMAT.match(token)
    return found is not None and found[0] not in (V1, V2)


def is_sole(text: str) -> bool:
    """Whether ``text`` is one token as it was written, as in most requests: nothing stands before or after it."""
    return text.startswith(V2) and "," not in text and " " not in text and "\t" not in text


def split(text: str) -> list[str]:
    """The tokens in ``text``, which are separated by commas. Raises `TokenError` if there are too many."""
    found = [token for token in (part.strip(" \t,") for part in _NEXT.split(text)) if token]
    if len(found) > TOKENS_MAX:
        raise TokenError(f"{len(found)} tokens in one request", hint=f"at most {TOKENS_MAX}")
    return found


def write(components: Iterable[tuple[str, tuple[int, Position]]]) -> str:
    """The text of (shard, (epoch, position)) pairs, which are sorted by shard."""
    body = pack(components)
    return V2 + urlsafe_b64encode(body + _checksum(body)).rstrip(b"=").decode("ascii")


def read(text: str) -> tuple[Components, bool]:
    """The components in a token, and whether ``text`` is what `write` writes. Raises `TokenError`."""
    if text.startswith(V2):
        return _read_v2(text), True
    if text.startswith(V1):
        return _read_v1(text), False
    other = _FORMAT.match(text)
    if other is not None:
        raise TokenError(
            f"the token has format {other[1]}, but this version reads {V1[:-1]} and {V2[:-1]}",
            hint="a newer Freshet wrote it: ask that one, or begin without a token",
        )
    raise TokenError(f"{excerpt(text)} is not a Freshet token", hint=UNCHANGED)


def _read_v2(text: str) -> Components:
    raw = _decoded(text, V2)
    # Base64 has several texts for the same bytes: other alphabets, and bits at the end that count for nothing.
    if urlsafe_b64encode(raw).rstrip(b"=").decode("ascii") != text[len(V2) :]:
        raise _damaged(text)
    body, checksum = raw[:-_CHECKSUM_BYTES], raw[-_CHECKSUM_BYTES:]
    if checksum != _checksum(body):
        raise TokenError(f"token {excerpt(text)} is damaged: its checksum is wrong", hint=UNCHANGED)
    return unpack(body)


def _read_v1(text: str) -> Components:
    try:
        rows = json.loads(_decoded(text, V1))
    except (ValueError, RecursionError):
        raise _damaged(text) from None
    components: Components = {}
    for row in rows if isinstance(rows, list) else [rows]:
        match row:
            case [str(shard), int(epoch), str(position)] if type(epoch) is int and shard not in components:
                components[shard] = (epoch, Position.parse(position))
            case _:
                raise TokenError(f"component {excerpt(str(row))} of a token is not shard, epoch, position")
    return components


def _decoded(text: str, prefix: str) -> bytes:
    encoded = text[len(prefix) :]
    try:
        return b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except (Base64Error, ValueError):
        raise _damaged(text) from None


def _damaged(text: str) -> TokenError:
    return TokenError(f"token {excerpt(text)} is damaged", hint=UNCHANGED)


def _checksum(body: bytes) -> bytes:
    return crc32(body).to_bytes(_CHECKSUM_BYTES, "big")
