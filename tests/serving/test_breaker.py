"""A source that does not answer is left alone, and tried again by one read at a time."""

from __future__ import annotations

import pytest

from serving.errors import ReadError
from serving.sources.breaker import FAILURES_MAX, REST_S, Breaker


def test_after_failures_in_a_row_reads_end_at_once() -> None:
    """Only failures in a row count; after the rest one read tries, and its answer closes the circuit."""
    now_s = [0.0]
    breaker = Breaker("it", lambda: now_s[0])
    for _ in range(FAILURES_MAX - 1):
        breaker.failed("no")
    breaker.succeeded()
    for _ in range(FAILURES_MAX):
        breaker.check()
        breaker.failed("connection refused")
    with pytest.raises(ReadError, match="connection refused") as caught:
        breaker.check()
    assert caught.value.code == "source_unreachable"
    now_s[0] = REST_S
    breaker.check()
    with pytest.raises(ReadError):
        breaker.check()  # one read tries; the others don't wait for it
    breaker.succeeded()
    breaker.check()
