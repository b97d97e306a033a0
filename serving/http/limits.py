"""The bounds of a request, and of what one caller may take. A request beyond one of them is refused with a code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEAD_BYTES_MAX: Final = 128 << 10
"""Of request line and headers, and of a chunked body's trailers. One more read of the socket may be held."""
HEAD_TIMEOUT_S: Final = 30.0
"""For a request's head, from the connection or its first byte on; and for a reader to take what an answer left."""
KEEP_ALIVE_S: Final = 75
"""For the next request to begin, after an answer. Longer than clients and load balancers keep idle connections (mostly
60 s at most): else they send a request on one that is just being closed."""
BATCH_COMPONENTS_MAX: Final = 100_000
"""Elements of a batch, times the shards in its token: each element's answer has a token, which is as long."""
PIPELINED_MAX: Final = 16
"""Requests of a connection that wait for the answer to one before them; one more ends the connection."""
BODY_TIMEOUT_S: Final = 30.0
"""Between two pieces of a request's body, since a request that waits counts as in flight."""
LONG_BODY_BYTES: Final = 64 << 10
"""A longer one takes a turn of its own: it is decoded in one go, a whole one in some milliseconds."""
QUERY_FIELDS_MAX: Final = 32
SOURCE_COST: Final = 10.0
"""What a row or table costs a caller that the source had to be asked for; of the cache it costs 1."""
REFUSAL_S: Final = 0.2
"""After which a refusal by the rate is answered, so that who asks again at once takes little of what others need.

``Retry-After`` says longer, and to read a batch's body costs as much as ten answers from the cache.
"""
ANSWER_BYTES: Final = 256 << 10
"""Of an answer, for which a caller pays 1 more."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Configurable bounds. A request that asks for a longer wait than ``wait_ms_max`` waits that long.

    ``wait_ms_default``: of a request that says nothing of waiting. A source that is read moves the session past the
    watermark, so without a wait the next read of a cached row would go to the source as well.
    ``request_s_max``: of a request but a stream or a file, from its head to its answer.
    """

    in_flight_max: int = 512
    body_bytes_max: int = 1 << 20
    url_bytes_max: int = 64 << 10
    batch_keys_max: int = 1000
    wait_ms_max: int = 10_000
    wait_ms_default: int = 100
    request_s_max: float = 60.0


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """What one caller may take: a token, or without one an address. Half of what there is for all, by default.

    ``rate_per_s``: what it may spend a second (0: as it likes); ``burst``: and at once after a pause (0: that of two
    seconds). ``in_flight``, ``streams``, ``files``: at a time.
    """

    rate_per_s: float = 0.0
    burst: float = 0.0
    in_flight: int = 256
    streams: int = 256
    files: int = 32


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections a front holds, and how many of one address. One more is closed at once."""

    all: int = 8_192
    of_address: int = 4_096
