"""What a listener for engines counts."""

from __future__ import annotations

from serving.metrics import FrontMetrics


class ThriftMetrics:
    """Of one catalog's listener. A call that no cache answers counts as ``other``."""

    def __init__(self, catalog: str, metrics: FrontMetrics) -> None:
        self._catalog = catalog
        self._calls = metrics.engine_calls
        self.connections = metrics.engine_connections.labels(catalog)

    def answered(self, call: str) -> None:
        """A call was answered from the cache."""
        self._calls.labels(self._catalog, call, "cache").inc()

    def passed_on(self, call: str) -> None:
        """A call was passed on to the metastore."""
        self._calls.labels(self._catalog, call or "other", "metastore").inc()
