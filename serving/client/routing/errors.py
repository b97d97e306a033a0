"""The base class of the location cache's errors, in the client's wheel: there `_locations` is a folder beside this."""

from __future__ import annotations

from ..errors import ClientError


class ReadError(ClientError):
    """As `serving.errors.ReadError`, of which it takes the place."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code=code)
