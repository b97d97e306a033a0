"""The schema registry in the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, SecretStr, model_validator

from freshet.sections.access import TlsSettings
from freshet.sections.values import HttpUrl, Section

if TYPE_CHECKING:
    from serving.changelog.registry import SchemaRegistry


class SchemaRegistrySettings(Section):
    """A registry with Confluent's interface, for change logs in topics. Without ``url`` there is none.

    ``tls``: ``ca`` signs the registry's certificate; ``certificate`` is what it is shown.
    """

    url: HttpUrl = ""
    user: str = Field(default="", max_length=1_000)
    password: SecretStr | None = None
    tls: TlsSettings = TlsSettings()

    @property
    def registry(self) -> SchemaRegistry | None:
        """The registry; None without ``url``."""
        # Not above: only a log in a topic needs it.
        from serving.changelog.registry import SchemaRegistry

        password = self.password.get_secret_value() if self.password is not None else ""
        return SchemaRegistry(self.url, self.user, password, self.tls.files) if self.url else None

    @model_validator(mode="after")
    def _password_has_a_user(self) -> SchemaRegistrySettings:
        if self.password is not None and not self.user:
            raise ValueError("a password needs its user")
        return self
