"""Errors of local servers."""

from __future__ import annotations

from tokens.errors import FreshetError


class LocalServerError(FreshetError):
    """A local server that did not start, answer or stop."""

    code = "local_server"


class ArtifactError(FreshetError):
    """Server files that could not be fetched or do not match their pins."""

    code = "artifact_unavailable"


class JavaError(FreshetError):
    """No Java runtime that the servers can use."""

    code = "java_not_found"
