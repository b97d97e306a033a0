"""Rules, and words of the product's answers, that judges of readers share."""

from __future__ import annotations

from typing import Final

EXPLAINS: Final = "explanation true"
NEVER_RAISES: Final = "never raises"
DURABLE: Final = "what is durable is a prefix"
NO_EPOCH: Final = "no owner has named the epoch"
"""In the reason of an answer that the session's token cannot include."""
FROM_SOURCE: Final = "read from the source at"
DEFECTS: Final = frozenset({"internal", "bad_answer", "bad_token", "bad_parameter", "bad_body", "method_not_allowed"})
"""Codes that no reader gets who does nothing wrong."""
LOG_IS_ANOTHER: Final = frozenset({"tail lost", "commit record lost", "topic replaced", "beginning lost"})
"""Faults after which the log does not have what was folded or told."""
