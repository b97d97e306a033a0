"""The location cache's metrics, for Prometheus: computed when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from serving.locations.cache import AGES_S
from serving.locations.refreshing import WAITS_S, Locations


class LocationMetrics(Collector):
    """Events by name, entries, queues, and instances that do not answer."""

    def __init__(self, locations: Locations) -> None:
        self._locations = locations

    def collect(self) -> Iterator[Metric]:
        """What Prometheus scrapes."""
        cache = self._locations.cache
        events = CounterMetricFamily(
            "freshet_serve_locations_events", "What the cache of locations did, counted by event.", labels=["event"]
        )
        for name, count in sorted(cache.counts.items()):
            events.add_metric([name], count)
        yield events
        queued = GaugeMetricFamily(
            "freshet_serve_locations_queued", "Locations that wait in the queues to be refreshed.", labels=["priority"]
        )
        for priority, count in cache.queues.depths().items():
            queued.add_metric([priority], count)
        yield queued
        yield GaugeMetricFamily(
            "freshet_serve_locations_known",
            "Locations of partitions and others that the front knows.",
            value=len(cache),
        )
        yield GaugeMetricFamily(
            "freshet_serve_locations_absent",
            "Entities that are known not to exist by those who were asked.",
            value=len(cache.absences),
        )
        yield GaugeMetricFamily(
            "freshet_serve_instances_down",
            "Instances of announced locations that do not answer requests.",
            value=len(cache.down),
        )
        waits = self._locations.waits_s
        yield HistogramMetricFamily(
            "freshet_serve_locations_wait_seconds",
            "The longest that a location of a batch has waited to be refreshed.",
            buckets=_buckets(WAITS_S, [waits[each] for each in WAITS_S]),
            sum_value=self._locations.waited_s,
        )
        yield HistogramMetricFamily(
            "freshet_serve_locations_age_seconds",
            "How long before it was told a location was last confirmed.",
            buckets=_buckets(AGES_S, cache.ages),
            sum_value=None,  # what an earlier process kept is of no known age
        )


def _buckets(bounds: Sequence[float], counts: Iterable[int]) -> list[tuple[str, float]]:
    return list(zip(map(floatToGoString, bounds), accumulate(counts), strict=True))
