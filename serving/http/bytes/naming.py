"""Which URIs are served: those below a configured root, by their text alone. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from serving.errors import ReadError

_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://[^/].*|(file):///.*", re.DOTALL)
_DECODED_MAX: Final = 4
"""So often a store may decode a path again; what is encoded more often is refused."""


def scheme_of(uri: str) -> str:
    """``s3`` of ``s3://bucket/key``; "" for what is no URI of a store."""
    found = _SCHEME.fullmatch(uri)
    return (found[1] or found[2]) if found else ""


def root_of(uri: str, roots: Sequence[str]) -> str:
    """The root that ``uri`` is below. Raises `ReadError` ``not_served``.

    What could mean another place for the store than its text says is refused: ``..`` and the like, also encoded or with
    a parameter (``..;x``, which servers in Java take for ``..``), a chain of file systems, and where the store is an
    HTTP server a query.
    """
    if scheme_of(uri) and not _is_ambiguous(uri):
        for root in roots:
            if uri.startswith(root.rstrip("/") + "/") and uri.rstrip("/") != root.rstrip("/"):
                return root
    raise ReadError("not_served", "this URI is below no root of the settings")


def _is_ambiguous(uri: str) -> bool:
    scheme, _, path = uri.partition("://")
    if "::" in uri or (scheme in ("http", "https") and ("?" in path or "#" in path)):
        return True
    for _ in range(_DECODED_MAX):
        if "\\" in path or any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
            return True
        if any(segment.partition(";")[0] in (".", "..", "~") for segment in path.split("/")):
            return True
        decoded = unquote(path)
        if decoded == path:
            return False
        path = decoded
    return True
