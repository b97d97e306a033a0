"""What a client shows to the front: a bearer token that may change while the client lives, and TLS."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

Token: TypeAlias = "str | os.PathLike[str] | Callable[[], str] | None"
"""The token itself, a file that holds it, or a function that returns it."""
RENEWALS_MAX: Final = 3
"""In one call: it may last while secrets are exchanged again, and a function may give another one each time."""


class Tls(NamedTuple):
    """Files in PEM. ``ca``: who signs the front's certificate, if the machine does not trust it anyway.

    ``certificate`` and ``key``: the client's own, where the front knows clients by their certificates.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """Verifies the front's certificate and host. Raises ``OSError``."""
        found = ssl.create_default_context(cafile=self.ca or None)
        found.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate:
            found.load_cert_chain(self.certificate, self.key or None)
        return found


class Bearer:
    """The token as last read. Threads may share it."""

    def __init__(self, token: Token) -> None:
        self._given = token
        self._secret = self._read()

    def headers(self) -> dict[str, str]:
        """Of a request."""
        return {"authorization": f"Bearer {self._secret}"} if self._secret else {}

    def renew(self, refused: Mapping[str, str]) -> bool:
        """Reads it again; whether it is another one than a request with the headers ``refused`` had.

        Another thread may have read it meanwhile, so the last one that was read says nothing.
        """
        self._secret = self._read()
        return self.headers().get("authorization", "") != refused.get("authorization", "")

    def _read(self) -> str:
        if isinstance(self._given, os.PathLike):
            return Path(self._given).read_text(encoding="utf-8").strip()
        return (self._given() if callable(self._given) else self._given) or ""
