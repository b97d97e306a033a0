"""A schema registry as a change log needs it: one request that registers a schema and gives its id.

The interface is Confluent's, which Karapace and Apicurio have, too. Their own Python client would bring five more
packages for this request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from serving.client.sending.requests import DIRECT
from stream.access.certificates import Certificates
from tokens.errors import FreshetError, one_line

TIMEOUT_S: Final = 30.0
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_DENIED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_REFUSED: Final = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


class RegistryError(FreshetError):
    """The registry gives no ids; codes ``registry_unreachable``, ``registry_denied``, ``registry_refused``."""

    code = "registry_unreachable"


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """Where a registry is, and what it is shown."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    certificates: Certificates = field(default_factory=Certificates)

    def register(self, schemas: Mapping[str, str]) -> dict[str, int]:
        """Subject → the id of its schema, which is registered if it is new. Raises `RegistryError`."""
        import httpx2

        auth = (self.user, self.password) if self.user else None
        verify = self.certificates.client() or True
        try:
            with httpx2.Client(timeout=TIMEOUT_S, auth=auth, verify=verify, mounts=DIRECT) as http:
                return {subject: self._id(http, subject, text) for subject, text in schemas.items()}
        except httpx2.HTTPError as error:
            raise RegistryError(
                one_line(f"the schema registry at {self.url} does not answer: {error or type(error).__name__}"),
                hint="check that it runs, schema_registry.url, and the certificates in schema_registry.tls",
            ) from error

    def _id(self, http: Any, subject: str, text: str) -> int:
        path = f"{self.url.rstrip('/')}/subjects/{quote(subject, safe='')}/versions"
        answer = http.post(path, json={"schema": text}, headers={"content-type": _MEDIA_TYPE})
        try:
            said = answer.json()
        except ValueError:
            said = {}
        if answer.status_code == HTTPStatus.OK and isinstance(said, dict) and isinstance(said.get("id"), int):
            return int(said["id"])
        told = said.get("message") if isinstance(said, dict) else None
        raise self._error(answer.status_code, subject, str(told or answer.text[:200]))

    def _error(self, status: int, subject: str, told: str) -> RegistryError:
        said = one_line(f"{status} {told}")[:500]
        if status in _DENIED:
            return RegistryError(
                f"the schema registry at {self.url} denies {subject}: {said}",
                hint="set schema_registry.user and schema_registry.password (or password_file); the user must be"
                " allowed to register schemas",
                code="registry_denied",
            )
        if status in _REFUSED:
            return RegistryError(
                f"the schema registry refuses the schema of {subject}: {said}",
                hint="the subject has another program's schema, or a newer Freshet's: log into another topic, or go on"
                " with that version",
                code="registry_refused",
            )
        return RegistryError(
            f"{self.url} answers {said}, not as a schema registry does",
            hint="schema_registry.url is the root of Confluent's interface; Apicurio has it at /apis/ccompat/v7",
        )
