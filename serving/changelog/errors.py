"""What ends a change log."""

from __future__ import annotations

from tokens.errors import FreshetError


class ChangeLogError(FreshetError):
    """The log can't be written; codes ``log_refused``, ``log_taken``, ``log_failed``."""

    code = "log_refused"
