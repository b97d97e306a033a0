"""What the byte cache counted, as Prometheus reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


class BytesMetrics(Collector):
    """The counts that `show` was given last; none before. The label ``count`` has their names in the cache."""

    def __init__(self) -> None:
        self._tally: Any = None
        self._directories: list[Any] = []

    def show(self, tally: Any, directories: list[Any]) -> None:
        """``tally``: of this process's reads; ``directories``: what each of them tells of itself."""
        self._tally, self._directories = tally, directories

    def describe(self) -> Iterable[Metric]:
        """Nothing: there are no counts yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """A series for each count."""
        reads = CounterMetricFamily("freshet_bytes_reads", "Reads through the byte cache.", labels=["count"])
        for name, count in dataclasses.asdict(self._tally).items() if self._tally is not None else ():
            reads.add_metric([name], count)
        place = ["directory"]
        used = GaugeMetricFamily("freshet_bytes_directory_used_bytes", "On disk.", labels=place)
        quota = GaugeMetricFamily("freshet_bytes_directory_quota_bytes", "What it may take.", labels=place)
        entries = GaugeMetricFamily("freshet_bytes_directory_entries", "Extents that are here.", labels=place)
        values = GaugeMetricFamily("freshet_bytes_directory_value_bytes", "By value.", labels=[*place, "value"])
        since = "What happened since its owner opened it."
        counts = CounterMetricFamily("freshet_bytes_directory", since, labels=[*place, "count"])
        for each in self._directories:
            used.add_metric([each.place], each.used)
            quota.add_metric([each.place], each.quota)
            entries.add_metric([each.place], each.entries)
            for name, cost in each.pools.items():
                values.add_metric([each.place, name], cost)
            for name, count in each.counts.items():
                counts.add_metric([each.place, name], count)
        yield from (reads, used, quota, entries, values, counts)
