"""What the byte cache counted, as Prometheus reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final

from prometheus_client import Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

BYTES: Final = tuple(4**i for i in range(6, 17))
"""4 KiB to 4 GiB."""
SECONDS: Final = tuple(4.0**i / 4_096 for i in range(9))
"""A quarter of a millisecond to sixteen seconds."""
CALLS: Final = 25
"""Calls of a disk are told apart up to 2 ** 24 µs."""


class BytesMetrics(Collector):
    """The counts that `show` was given last; none before. The label ``count`` has their names in the cache."""

    def __init__(self) -> None:
        self._tallies: Mapping[str, Any] = {}
        self._directories: list[Any] = []
        given = "Bytes of a request that were found here, and that were fetched."
        took = "From a request to its last byte; `source`: where a byte was fetched."
        self._bytes = Histogram("freshet_bytes_request_bytes", given, ["from"], registry=None, buckets=BYTES)
        self._seconds = Histogram("freshet_bytes_request_seconds", took, ["from"], registry=None, buckets=SECONDS)

    def answered(self, tally: Any, seconds: float) -> None:
        """A request was answered. ``tally``: of its reads."""
        if not tally.hits and not tally.misses:
            return  # no byte was wanted: HEAD, and what was refused
        self._bytes.labels("cache").observe(tally.hit_bytes)
        self._bytes.labels("source").observe(tally.miss_bytes)
        self._seconds.labels("source" if tally.misses else "cache").observe(seconds)

    def show(self, tallies: Mapping[str, Any], directories: list[Any]) -> None:
        """``tallies``: of this process's reads, by directory; ``directories``: what each of them tells of itself."""
        self._tallies, self._directories = tallies, directories

    def describe(self) -> Iterable[Metric]:
        """Nothing: there are no counts yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """A series for each count."""
        place = ["directory"]
        of = "Reads through the byte cache, by the directory that keeps the file; none: past all of them."
        reads = CounterMetricFamily("freshet_bytes_reads", of, labels=[*place, "count"])
        for directory, tally in self._tallies.items():
            for name, count in dataclasses.asdict(tally).items():
                reads.add_metric([directory, name], count)
        used = GaugeMetricFamily("freshet_bytes_directory_used_bytes", "On disk.", labels=place)
        quota = GaugeMetricFamily("freshet_bytes_directory_quota_bytes", "What it may take.", labels=place)
        entries = GaugeMetricFamily("freshet_bytes_directory_entries", "Extents that are here.", labels=place)
        values = GaugeMetricFamily("freshet_bytes_directory_value_bytes", "By value.", labels=[*place, "value"])
        since = "What happened since its owner opened it."
        counts = CounterMetricFamily("freshet_bytes_directory", since, labels=[*place, "count"])
        long = "Calls of the disk: reads of this process, writes and evictions of the owner."
        times = HistogramMetricFamily("freshet_bytes_directory_seconds", long, labels=[*place, "call"])
        for each in self._directories:
            used.add_metric([each.place], each.used)
            quota.add_metric([each.place], each.quota)
            entries.add_metric([each.place], each.entries)
            for name, cost in each.pools.items():
                values.add_metric([each.place, name], cost)
            for name, count in each.counts.items():
                counts.add_metric([each.place, name], count)
            for name, took in each.times.items():
                below = list(accumulate(took.counts))
                bounds = [(f"{2**i / 1e6:g}", below[i]) for i in range(CALLS)]
                times.add_metric([each.place, name], [*bounds, ("+Inf", below[-1])], took.seconds)
        yield from (
            reads,
            used,
            quota,
            entries,
            values,
            counts,
            times,
            *self._bytes.collect(),
            *self._seconds.collect(),
        )
