"""Who may ask what: credentials, the roles that they give, and the keyspaces for which they give them.

The front, the owner protocol and the metrics ports each ask an `Access`. A credential is a random secret, of which
only the SHA-256 is kept, or a name in a client's certificate. Where there is no credential at all, everybody may do
everything: such a listener is on loopback only (`stream.access.listening`).
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Final

from tokens.errors import FreshetError

READ: Final = "read"
"""Rows, tables, streams, files, locations, status."""
FILL: Final = "fill"
"""Values that the application or a front offers to the cache."""
ADMIN: Final = "admin"
"""Checkpoints and all the rest; whoever has it has every role."""
METRICS: Final = "metrics"
ANY: Final = "any"
"""What any valid credential may: no role that can be given."""

SECRET_PREFIX: Final = "freshet_"
"""So that scanners of repositories find a secret that was left there."""
SECRET_BYTES: Final = 32
SECRET_BYTES_MAX: Final = 1_024
"""A longer one is no secret of ours, and is not hashed."""
HASH_PREFIX: Final = "sha256:"


class AccessRefused(FreshetError):
    """A credential that is missing, unknown or expired; code ``unauthorized``."""

    code = "unauthorized"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a credential gives. ``keyspaces`` None: of all. ``expires_s``: seconds since 1970."""

    name: str
    roles: frozenset[str]
    keyspaces: frozenset[str] | None = None
    expires_s: float = inf

    def may(self, role: str) -> bool:
        """Whether it has the role. Metrics are of all keyspaces together, so a reader of all of them sees them."""
        if role in self.roles or ADMIN in self.roles or role == ANY:
            return True
        return role == METRICS and READ in self.roles and self.keyspaces is None

    def covers(self, other: Grant) -> bool:
        """Whether it gives the same holder all that ``other`` gives, for however long."""
        roles = ADMIN in self.roles or other.roles <= self.roles
        keyspaces = self.keyspaces is None or (other.keyspaces is not None and other.keyspaces <= self.keyspaces)
        return self.name == other.name and roles and keyspaces

    def sees(self, keyspace: str) -> bool:
        """Whether the keyspace exists for its holder."""
        return self.keyspaces is None or keyspace in self.keyspaces


ANYONE: Final = Grant("anyone", frozenset({ADMIN}))
"""Of a listener that asks for no credential."""
NOBODY: Final = Grant("nobody", frozenset(), frozenset())
"""Of a probe that brought none."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A grant, and by what it is recognised: the ``digest`` of a secret, or a certificate's ``subject``."""

    grant: Grant
    digest: str = ""
    subject: str = ""


class Access:
    """The credentials that a listener accepts. They can be replaced while it runs; every request sees the new ones."""

    def __init__(
        self,
        credentials: Iterable[Credential] = (),
        *,
        names: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``names``: by which a front without credentials is asked, besides those that are this machine's."""
        self._clock = clock
        self.names = frozenset(name.lower() for name in names)
        self.replace(credentials)

    @classmethod
    def of_secret(cls, secret: str, name: str = "secret") -> Access:
        """One secret that may do everything; "" none."""
        return cls([Credential(Grant(name, frozenset({ADMIN})), digest_of(secret.encode()))] if secret else ())

    def renew(self, credentials: Iterable[Credential]) -> None:
        """As `replace`, but never opens a listener that asks for credentials. Raises `AccessRefused`."""
        found = tuple(credentials)
        if not found and not self.is_open:
            raise AccessRefused("no token is left", hint="a restart without tokens opens a listener, a change does not")
        self.replace(found)

    def replace(self, credentials: Iterable[Credential]) -> None:
        """Accepts these from now on, and no others."""
        self.credentials = tuple(credentials)
        by_digest = {each.digest: each.grant for each in self.credentials if each.digest}
        by_subject = {each.subject: each.grant for each in self.credentials if each.subject}
        self._by_digest, self._by_subject = by_digest, by_subject

    @property
    def is_open(self) -> bool:
        """Whether no credential is asked for."""
        return not self.credentials

    def of(self, secret: bytes, subjects: Iterable[str] = ()) -> Grant:
        """The grant of a caller. ``secret`` b"": none. ``subjects``: names in its verified certificate.

        Raises `AccessRefused`. A secret that is wrong refuses, whatever the certificate says.
        """
        return ANYONE if self.is_open else self.of_shown(shown(secret), subjects)

    def of_shown(self, digest: str, subjects: Iterable[str] = ()) -> Grant:
        """As `of`, for a connection that keeps what `shown` said of its secret."""
        if self.is_open:
            return ANYONE
        if digest:
            # Found by its hash: how long that takes says nothing of the secrets whose hashes are here.
            grant = self._by_digest.get(digest)
            if grant is None:
                raise AccessRefused("the request carries no valid bearer token")
        else:
            grant = next((found for name in subjects if (found := self._by_subject.get(name)) is not None), None)
            if grant is None:
                raise AccessRefused("the request carries no valid bearer token, nor a certificate that is known here")
        if grant.expires_s <= self._clock():
            raise AccessRefused(
                f"{grant.name} expired at {moment(grant.expires_s)}; the clock here says {moment(self._clock())}",
                hint="make a new one with `freshet token new`, or set the clock",
            )
        return grant


def moment(seconds: float) -> str:
    """Seconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def new_secret() -> str:
    """A random secret of 256 bits."""
    return SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def digest_of(secret: bytes) -> str:
    """What is kept of a secret. It is random and long, so one round of SHA-256 is enough."""
    return HASH_PREFIX + hashlib.sha256(secret).hexdigest()


def shown(secret: bytes) -> str:
    """What is looked up of a secret: "" of none, and of one too long for ours what no hash is."""
    if not secret:
        return ""
    return digest_of(secret) if len(secret) <= SECRET_BYTES_MAX else "too long"


def bearer_of(header: bytes) -> bytes:
    """The secret in an ``Authorization`` header; what has no such form is no secret of ours. RFC 6750, 9110."""
    scheme, _, secret = header.partition(b" ")
    return secret.strip() if scheme.lower() == b"bearer" and secret.strip() else header and b"\0"
