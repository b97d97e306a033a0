"""The location cache's metrics, for Prometheus: computed when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.locations.refreshing import Locations

_NAME: Final = "freshet_serve_locations"


class LocationMetrics(Collector):
    """Events by name, entries, queues, and instances that do not answer."""

    def __init__(self, locations: Locations) -> None:
        self._locations = locations

    def collect(self) -> Iterator[Metric]:
        """What Prometheus scrapes."""
        cache = self._locations.cache
        events = CounterMetricFamily(_NAME + "_events", "What the location cache did, by event.", labels=["event"])
        for name, count in sorted(cache.counts.items()):
            events.add_metric([name], count)
        yield events
        queued = GaugeMetricFamily(_NAME + "_queued", "Locations that wait to be refreshed.", labels=["priority"])
        for priority, count in cache.queues.depths().items():
            queued.add_metric([priority], count)
        yield queued
        yield GaugeMetricFamily(_NAME + "_entries", "Locations that are known.", value=len(cache))
        yield GaugeMetricFamily(_NAME + "_absent", "Entities that are known not to exist.", value=len(cache.absences))
        yield GaugeMetricFamily(_NAME + "_down", "Instances that do not answer.", value=len(cache.down))
        waited = "The longest that a location has waited to be refreshed, in the last batch, in seconds."
        yield GaugeMetricFamily(_NAME + "_waited_seconds", waited, value=self._locations.waited_s)
