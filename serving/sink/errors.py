"""What ends a sink."""

from __future__ import annotations

from tokens.errors import FreshetError


class SinkError(FreshetError):
    """The copy can't be kept up to date; codes ``sink_refused``, ``sink_schema_changed``, ``sink_failed``, …"""

    code = "sink_refused"
