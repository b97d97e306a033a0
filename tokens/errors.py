"""The one root of every error a user can meet.

An error is part of the interface: a stable ``code``, one clear line (``str(error)``) that says what was
wrong and where, and a ``hint`` that says what to do about it.
"""

from __future__ import annotations


class FreshetError(Exception):
    """Base of all errors that Freshet raises on purpose.

    ``code`` is stable and machine-readable (``snake_case``); ``hint`` is one line for a person.
    """

    code: str = "freshet_error"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if code is not None:
            self.code = code


class TokenError(FreshetError, ValueError):
    """A token, position, vector or write-id list that cannot be parsed; names the offending part."""

    code = "bad_token"
