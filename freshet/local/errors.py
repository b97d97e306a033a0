"""What can go wrong with local servers, said to a person."""

from __future__ import annotations

from tokens.errors import FreshetError


class LocalServerError(FreshetError):
    """A local server that did not start, answer or stop."""

    code = "local_server"


class ArtifactError(FreshetError):
    """A server's files that could not be had, or that are not the pinned ones."""

    code = "artifact_unavailable"


class JavaError(FreshetError):
    """No Java runtime that the servers can use."""

    code = "java_not_found"
