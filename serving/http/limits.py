"""The bounds of a request, all in one place: what is beyond them is refused with a code, never held or waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEAD_BYTES_MAX: Final = 128 << 10
"""Request line and headers; trailers of a chunked body likewise. One read of the socket more may be held."""
HEAD_TIMEOUT_S: Final = 30.0
"""For a request's head, from the connection or the last answer on."""
BODY_TIMEOUT_S: Final = 30.0
"""Between two pieces of a request's body: who waits for one holds a place among those in flight."""
QUERY_FIELDS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bytes, counts, milliseconds. A request may ask for a longer wait than ``wait_ms_max``; it gets that one."""

    in_flight_max: int = 512
    body_bytes_max: int = 1 << 20
    url_bytes_max: int = 64 << 10
    batch_keys_max: int = 1000
    wait_ms_max: int = 10_000
