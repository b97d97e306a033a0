"""What a session has seen as signed text, for cookies and headers. Writing it needs no call to a front.

The text is ``s1.``, base64url of JSON, ``.``, base64url of HMAC-SHA256 over all before. The JSON is an object: ``t``
the token; ``p`` shard → position of writes whose epoch is not known yet; ``d`` shard → [server, Unix time] of doubts.
It is signed because its reader demands what it says: if anybody could write it, each read might go to the source.
Text of another format, or with another signature, says nothing. A new format must be read one version before it is
written.

A browser sends several requests at a time, and their answers arrive in any order: one cookie would lose what all but
the last had seen. So each answer sets a cookie of a name of its own, and takes away those that its request brought,
whose content is in it. The next request merges all it brings (decision 0082).
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from http.cookies import Morsel
from typing import Final, Literal, NamedTuple

import msgspec

from .._tokens import TokenError
from ..errors import ClientError
from ..session import Carried, Doubt, SessionState

HEADER: Final = "Freshet-Session"
"""Whoever sends it, empty or not, is answered in it, and gets no cookies."""
COOKIE_BYTES_MAX: Final = 3_800
"""Browsers drop a cookie whose name, value and attributes have more than 4,096 bytes."""
MAX_AGE_S: Final = 3_600
_VERSION: Final = "s1"
_log = logging.getLogger("freshet_client")


class _Payload(msgspec.Struct, omit_defaults=True):
    t: str = ""
    p: dict[str, str] = {}
    d: dict[str, tuple[int, float]] = {}


_payload = msgspec.json.Decoder(_Payload)


class Carrier:
    """Writes a session as text, and reads it in any other process that has the secret.

    ``secret``: at least 16 bytes. Of several the first writes, and all read: so a secret is replaced. ``max_age_s``:
    how long a doubt is carried. ``clock``: Unix time in seconds.
    """

    def __init__(
        self,
        secret: str | bytes | Sequence[str | bytes],
        max_age_s: int = MAX_AGE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        given = [secret] if isinstance(secret, (str, bytes)) else list(secret)
        self._keys = [each.encode() if isinstance(each, str) else each for each in given]
        if not self._keys or any(len(key) < 16 for key in self._keys):
            raise ClientError("the secret has less than 16 bytes", hint="openssl rand -hex 32", code="weak_secret")
        self.max_age_s, self._clock = max_age_s, clock

    def carry(self, session: SessionState) -> str:
        """All that ``session`` has seen and written. "" if that is nothing."""
        carried = session.carried
        if carried == Carried("", {}, {}):
            return ""
        since = self._clock() - self.max_age_s
        doubts = {shard: (doubt.server, doubt.since) for shard, doubt in carried.doubts.items() if doubt.since > since}
        payload = msgspec.json.encode(_Payload(carried.token, carried.unplaced, doubts), order="deterministic")
        signed = f"{_VERSION}.{_encoded(payload)}"
        return f"{signed}.{_signature(self._keys[0], signed)}"

    def take(self, session: SessionState, text: str) -> bool:
        """Adds to ``session`` what `carry` wrote. False if the text can't be read or is not ours: it says nothing."""
        signed, _, signature = text.rpartition(".")
        if not any(hmac.compare_digest(_signature(key, signed).encode(), signature.encode()) for key in self._keys):
            if text:
                _log.info("a session was passed over: it is not signed with a secret of this service")
            return False
        version, _, payload = signed.partition(".")
        if version != _VERSION:
            return False
        try:
            found = _payload.decode(_decoded(payload))
            session.adopt(found.t)
            for shard, position in found.p.items():
                session.observe(shard, position)
        except (msgspec.MsgspecError, ValueError, TokenError):
            _log.warning("a session was passed over: it is signed and can't be read")
            return False
        for shard, (server, since) in found.d.items():
            if since > self._clock() - self.max_age_s:
                session.doubt(shard, Doubt(server, since))
        return True


class CookieSettings(NamedTuple):
    """How cookies are set. ``secure``: over HTTPS only. ``domain``: several services of one domain share a session."""

    prefix: str = "freshet"
    secure: bool = True
    domain: str = ""
    path: str = "/"
    same_site: Literal["Lax", "Strict", "None"] = "Lax"


class Exchange:
    """One request's session: taken from its headers, and given back in the answer's."""

    def __init__(self, carrier: Carrier, cookies: CookieSettings, session: SessionState) -> None:
        self.session = session
        self._carrier, self._cookies = carrier, cookies
        self._brought: dict[str, str] = {}
        self._by_header = False

    def begin(self, header: str | None, cookie_headers: Iterable[str]) -> None:
        """Takes what the request brought: ``header`` is `HEADER`'s value, None without one."""
        if header is not None:
            self._by_header = True
            self._carrier.take(self.session, header)
            return
        ours = re.compile(f"{re.escape(self._cookies.prefix)}-[0-9a-f]{{8}}")
        for name, value in _cookies(cookie_headers):
            if ours.fullmatch(name) and self._carrier.take(self.session, value):
                self._brought[name] = value

    def end(self) -> list[tuple[str, str]]:
        """The headers to add to the answer. Raises `ClientError` ``session_too_long``."""
        text = self._carrier.carry(self.session)
        if self._by_header:
            return [(HEADER, text)]
        if not text or list(self._brought.values()) == [text]:
            return []
        if len(text) > COOKIE_BYTES_MAX:
            raise ClientError(
                f"the session has {len(text)} bytes, and a cookie {COOKIE_BYTES_MAX} at most",
                hint=f"carry it in the header {HEADER}",
                code="session_too_long",
            )
        name = f"{self._cookies.prefix}-{secrets.token_hex(4)}"
        gone = [("Set-Cookie", self._set(each, "", 0)) for each in self._brought]
        return [*gone, ("Set-Cookie", self._set(name, text, self._carrier.max_age_s))]

    def _set(self, name: str, value: str, max_age_s: int) -> str:
        morsel = Morsel[str]()
        morsel.set(name, value, value)
        morsel.update({"path": self._cookies.path, "max-age": str(max_age_s), "samesite": self._cookies.same_site})
        morsel["httponly"] = True
        if self._cookies.secure:
            morsel["secure"] = True
        if self._cookies.domain:
            morsel["domain"] = self._cookies.domain
        return morsel.OutputString()


def _cookies(headers: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Names and values. Read leniently: a foreign cookie that is malformed must not hide ours."""
    for header in headers:
        for pair in header.split(";"):
            name, _, value = pair.strip().partition("=")
            yield name, value


def _signature(key: bytes, signed: str) -> str:
    return _encoded(hmac.new(key, signed.encode(), hashlib.sha256).digest())


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
