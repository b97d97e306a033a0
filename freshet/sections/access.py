"""Who may ask, and TLS, in the settings: the tokens of a listener, its certificate, and what our commands show."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from freshet.sections.values import Name, Section
from freshet.settings_errors import split_list
from stream.access.certificates import Certificates
from stream.access.grants import Access, Credential, Grant

Role = Literal["read", "fill", "admin", "metrics"]
File = Annotated[str, Field(max_length=1_000)]


def _in_utc(value: datetime | None) -> datetime | None:
    return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class TokenSettings(Section):
    """A credential: the ``hash`` of a secret (`freshet token new`), or the ``subject`` of client certificates.

    ``keyspaces`` empty: all. ``expires``: a moment, in UTC if it says nothing else; None: never.
    """

    hash: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    subject: str = Field(default="", max_length=1_000)
    roles: Annotated[list[Role], BeforeValidator(split_list), Field(min_length=1, max_length=4)] = Field(
        default_factory=lambda: ["read"]  # type: ignore[arg-type]
    )
    keyspaces: Annotated[list[Name], BeforeValidator(split_list), Field(max_length=1_000)] = Field(default_factory=list)
    expires: Annotated[datetime | None, AfterValidator(_in_utc)] = None

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenSettings:
        if bool(self.hash) == bool(self.subject):
            raise ValueError("a token has a hash (freshet token new) or a subject, one of both")
        return self

    def credential(self, name: str) -> Credential:
        """As listeners take it."""
        seen = frozenset(self.keyspaces) if self.keyspaces else None
        expiry = {"expires_s": self.expires.timestamp()} if self.expires is not None else {}
        return Credential(Grant(name, frozenset(self.roles), seen, **expiry), self.hash, self.subject)


Tokens = dict[Name, TokenSettings]


class OwnCertificate(Section):
    """Files in PEM; new ones are used from the next handshake on. ``key`` empty: it is in ``certificate``."""

    certificate: File = ""
    key: File = ""

    @property
    def files(self) -> Certificates:
        """As listeners and clients take them."""
        return Certificates(self.certificate, self.key)

    @model_validator(mode="after")
    def _key_has_a_certificate(self) -> Self:
        if self.key and not self.certificate:
            raise ValueError("a key needs its certificate")
        return self


class TlsSettings(OwnCertificate):
    """``ca``: who signs the certificates of the other side."""

    ca: File = ""

    @property
    def files(self) -> Certificates:
        """As listeners and clients take them."""
        return Certificates(self.certificate, self.key, self.ca)


class ClientSettings(Section):
    """What commands of this machine show to the front: a ``token``, or the certificate in ``tls``."""

    token: SecretStr | None = None
    tls: TlsSettings = TlsSettings()


def credentials(tokens: Mapping[str, TokenSettings], old: SecretStr | None, name: str) -> list[Credential]:
    """Those of a listener. ``old``: the one secret that may do everything, called ``name``.

    Unless it is one of ``tokens`` too, as in a file that a front shares with its owners: then it may do what that may.
    """
    sole = Access.of_secret(old.get_secret_value() if old is not None else "", name).credentials
    named = [each.credential(key) for key, each in tokens.items()]
    return [*(each for each in sole if each.digest not in {one.digest for one in named}), *named]
