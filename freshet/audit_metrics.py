"""What a standing audit shows on ``/metrics``: when the live state was last proved, and what was found."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from freshet import DISTRIBUTION
from freshet.auditing import Audited
from stream.monitoring import serve_monitoring
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

LABELS = ("keyspace",)


class AuditMetrics:
    """The metrics of one keyspace's audit. It is ready once an audit has ended with a verdict."""

    def __init__(self, keyspace: str) -> None:
        self._keyspace = keyspace
        self._ended = False
        self._registry = registry = CollectorRegistry()
        self._last = Gauge(
            "freshet_verify_last_verified_timestamp_seconds",
            "When the last audit began that found all equal; not there until there is one.",
            LABELS,
            registry=registry,
        )
        self._started = Gauge(
            "freshet_verify_started_timestamp_seconds", "When this process began.", LABELS, registry=registry
        )
        self._keys = Gauge("freshet_verify_keys", "Keys that the last audit compared.", LABELS, registry=registry)
        self._differences = Gauge(
            "freshet_verify_differences", "Keys that differed in the last audit.", LABELS, registry=registry
        )
        self._seconds = Gauge("freshet_verify_seconds", "Duration of the last audit.", LABELS, registry=registry)
        self._failures = Counter(
            "freshet_verify_failures", "Audits that ended without a verdict.", LABELS, registry=registry
        )
        self._failures.labels(keyspace)
        self._started.labels(keyspace).set_to_current_time()  # for the alert, while the last success is not there

    def note(self, outcome: Audited | FreshetError, seconds: float) -> None:
        """An audit that took so long has ended."""
        if isinstance(outcome, FreshetError):
            self._failures.labels(self._keyspace).inc()
            return
        self._ended = True
        self._seconds.labels(self._keyspace).set(seconds)
        self._keys.labels(self._keyspace).set(outcome.verdict.items)
        self._differences.labels(self._keyspace).set(outcome.verdict.differences)
        if outcome.verdict.equal:
            self._last.labels(self._keyspace).set(time.time() - seconds)

    @contextmanager
    def served(self, port: int | None) -> Iterator[None]:
        """Serves them on this machine while the block runs; not at all without a port. Raises ``OSError``."""
        if port is None:
            yield
            return
        version = importlib.metadata.version(DISTRIBUTION)
        server = serve_monitoring(("127.0.0.1", port), self._registry, self._not_ready, version=version)
        log.info("metrics", address=f"127.0.0.1:{server.server_address[1]}")
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()

    def _not_ready(self) -> str:
        return "" if self._ended else "no audit has ended yet"
