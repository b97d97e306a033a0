"""`FreshetError`, the base class of every error that a user can see.

An error is part of the interface: a stable ``code``, one clear line (``str(error)``) that says what was
wrong and where, and a ``hint`` that says what to do about it.
"""

from __future__ import annotations

from typing import Final

LINE_CHARS_MAX: Final = 1_000
"""Longer messages are cut in the middle: they may quote up to 64 KiB of a request."""


def one_line(text: str) -> str:
    """``text`` as one printable line for a terminal, a log or a JSON answer; `LINE_CHARS_MAX` bounds it."""
    if len(text) > LINE_CHARS_MAX:
        half = LINE_CHARS_MAX // 2
        text = f"{text[:half]}…{text[-half:]}"
    return printable(text)


def printable(text: str) -> str:
    """``text`` without what a terminal would obey, or take for the end of a line: it is written as in Python."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class FreshetError(Exception):
    """Base class of all errors that Freshet raises on purpose.

    ``code`` is stable and machine-readable (``snake_case``); ``hint`` is one line for a person.
    """

    code: str = "freshet_error"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(one_line(message))
        self.hint = one_line(hint)
        if code is not None:
            self.code = code


class TokenError(FreshetError, ValueError):
    """A token, position, vector or write-id list that cannot be parsed. The message names the offending part."""

    code = "bad_token"
