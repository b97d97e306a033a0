"""The Thrift front's metrics, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class ThriftMetrics:
    """Of one catalog's listener. A call that no cache answers counts as ``other``."""

    def __init__(self, catalog: str, calls: Counter, connections: Gauge) -> None:
        self._catalog = catalog
        self._calls = calls
        self.connections = connections.labels(catalog)

    def answered(self, call: str) -> None:
        """A call was answered from the cache."""
        self._calls.labels(self._catalog, call, "cache").inc()

    def passed_on(self, call: str) -> None:
        """A call was passed on to the metastore."""
        self._calls.labels(self._catalog, call or "other", "metastore").inc()


def thrift_metrics(registry: CollectorRegistry) -> tuple[Counter, Gauge]:
    """What the listeners of a front count."""
    calls = Counter(
        "freshet_thrift_calls",
        "Calls of engines, by the call (other: no cache answers it) and who answered (cache, metastore).",
        ["catalog", "call", "served_from"],
        registry=registry,
    )
    connections = Gauge("freshet_thrift_connections", "Open connections of engines.", ["catalog"], registry=registry)
    return calls, connections
