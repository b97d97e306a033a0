"""The bounds of a request. A request beyond one of them is refused with a code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEAD_BYTES_MAX: Final = 128 << 10
"""Of request line and headers, and of a chunked body's trailers. One more read of the socket may be held."""
HEAD_TIMEOUT_S: Final = 30.0
"""For a request's head, from the connection or the last answer on."""
BODY_TIMEOUT_S: Final = 30.0
"""Between two pieces of a request's body, since a request that waits counts as in flight."""
QUERY_FIELDS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Configurable bounds. A request that asks for a longer wait than ``wait_ms_max`` waits that long.

    ``wait_ms_default``: of a request that says nothing of waiting. A source that is read moves the session past the
    watermark, so without a wait the next read of a cached row would go to the source as well.
    """

    in_flight_max: int = 512
    body_bytes_max: int = 1 << 20
    url_bytes_max: int = 64 << 10
    batch_keys_max: int = 1000
    wait_ms_max: int = 10_000
    wait_ms_default: int = 100
