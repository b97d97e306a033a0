"""A consuming process's port for operators: Prometheus metrics, computed at each scrape, and health endpoints."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from consumers.fold.backfills import backfilled_tables
from consumers.owner.partitions import Ownership, Partition
from consumers.owner.server import OwnerServer
from consumers.process.loop import Consumption
from stream.monitoring import serve_monitoring

_PLACE = ("keyspace", "partition")
_COMMIT_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)

_GAUGES = (
    ("freshet_consumer_offset", "Next offset to fold: what readers see.", lambda p: p.store.visible.offset),
    ("freshet_consumer_committed_offset", "Offset to continue from after a crash.", lambda p: p.store.committed_offset),
    ("freshet_consumer_end_offset", "End of the topic, as last reported by the broker; none before it has.",
     lambda p: p.end if p.end >= 0 else None),
    ("freshet_consumer_silence_seconds", "Time since a message was last folded; above 10 the source may be down.",
     lambda p: p.silent_seconds),
    ("freshet_consumer_paused", "1 while folding of the partition is stopped; `freshet lag` shows the reason.",
     lambda p: int(p.is_paused)),
    ("freshet_store_entries", "Estimated entries in the store.", lambda p: p.store.estimated_entries()),
    ("freshet_store_pending_rows", "Entries folded but not yet durable.", lambda p: p.store.pending_rows),
    ("freshet_store_disk_bytes", "Bytes of the store's directory.", lambda p: p.store.disk_bytes()),
    ("freshet_overlay_entries", "Fills in the overlay.", lambda p: len(p.overlay)),
    ("freshet_overlay_bytes", "Bytes of the fills in the overlay.", lambda p: p.overlay.bytes),
    ("freshet_reads_waiting", "Reads waiting for the watermark.", lambda p: len(p.waiters)),
)  # fmt: skip
_COUNTERS = (
    ("freshet_consumer_messages", "Messages folded since the start.", lambda p: p.events),
    (
        "freshet_consumer_dead_letters",
        "Messages, or parts of them, that could not be folded.",
        lambda p: p.dead_letters,
    ),
    ("freshet_store_commits", "Commits of state and offset.", lambda p: p.commits),
    ("freshet_store_rows_committed", "Entries written by commits.", lambda p: p.rows_committed),
    ("freshet_store_bytes_committed", "Bytes written by commits.", lambda p: p.bytes_committed),
    ("freshet_overlay_evictions", "Fills dropped because the overlay was full.", lambda p: p.overlay.evictions),
)


class ConsumerCollector:
    """Collects from a `Consumption` and its `OwnerServer`."""

    def __init__(self, consumption: Consumption, server: OwnerServer) -> None:
        self._consumption = consumption
        self._server = server

    def describe(self) -> list[Metric]:
        """Empty, so that registration collects nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families, as of now."""
        ownership = self._consumption.ownership
        partitions = list(ownership)
        for name, text, take in _GAUGES:
            yield _by_partition(GaugeMetricFamily(name, text, labels=_PLACE), partitions, take)
        for name, text, take in _COUNTERS:
            yield _by_partition(CounterMetricFamily(name, text, labels=_PLACE), partitions, take)
        yield _ready(ownership)
        yield from _lags(partitions)
        yield _tables(partitions)
        yield CounterMetricFamily(
            "freshet_store_rebuilds", "Stores set aside and rebuilt since the start.", self._consumption.rebuilds
        )
        answers = CounterMetricFamily(
            "freshet_owner_answers", "Rows and tables answered, by decision.", labels=("freshness",)
        )
        for freshness, count in sorted(self._server.answered.items()):
            answers.add_metric([freshness], count)
        yield answers


def _by_partition(family: Any, partitions: list[Partition], take: Any) -> Any:
    for each in partitions:
        if (value := take(each)) is not None:
            family.add_metric([each.keyspace, str(each.number)], value)
    return family


def _ready(ownership: Ownership) -> Metric:
    """Of partitions whose stores are not open, too: nobody else would tell that they are given and not answered."""
    text = "1 once the partition has caught up since its take-over; 0 also while its store is not open."
    family = GaugeMetricFamily("freshet_consumer_ready", text, labels=_PLACE)
    owned = {(each.keyspace, each.number): int(each.ready) for each in ownership}
    for (keyspace, number), value in (dict.fromkeys(ownership.unopened, 0) | owned).items():
        family.add_metric([keyspace, str(number)], value)
    return family


def _lags(partitions: list[Partition]) -> Iterator[Metric]:
    now = time.time()
    labels = (*_PLACE, "shard")
    lag = GaugeMetricFamily("freshet_consumer_lag_seconds", "Source time by which readers are behind.", labels=labels)
    mark = GaugeMetricFamily(
        "freshet_consumer_watermark_timestamp_seconds", "Source time of the last marker folded.", labels=labels
    )
    epoch = GaugeMetricFamily("freshet_consumer_epoch", "The epoch that is being folded.", labels=labels)
    silence = GaugeMetricFamily(
        "freshet_consumer_shard_silence_seconds",
        "Time since anything of the shard was last folded; above 10 its source may be down.",
        labels=labels,
    )
    for each in partitions:
        for shard, lineage in each.store.visible.lineages.items():
            values = [each.keyspace, str(each.number), shard]
            lag.add_metric(values, each.lag_seconds(now, shard, lineage))
            mark.add_metric(values, lineage.watermark_timestamp)
            epoch.add_metric(values, lineage.epoch)
            if (silent_s := each.shard_silent_seconds(shard, lineage)) >= 0:
                silence.add_metric(values, silent_s)
    yield lag
    yield mark
    yield epoch
    yield silence


def _tables(partitions: list[Partition]) -> Metric:
    text = "1 if all of the table is in the partition; of tables that are published from the beginning."
    family = GaugeMetricFamily("freshet_consumer_table_complete", text, labels=(*_PLACE, "table"))
    for each in partitions:
        for table, is_whole in backfilled_tables(each.store.visible).items():
            family.add_metric([each.keyspace, str(each.number), table], int(is_whole))
    return family


def serve_metrics(
    consumption: Consumption, server: OwnerServer, place: tuple[str, int], **options: Any
) -> ThreadingHTTPServer:
    """Serves metrics and health on ``place``, with the ``options`` of `serve_monitoring`, and raises as it does."""
    registry = CollectorRegistry()
    registry.register(ConsumerCollector(consumption, server))
    commits = Histogram(
        "freshet_store_commit_seconds",
        "Duration of a commit; folding and reads go on meanwhile.",
        buckets=_COMMIT_BUCKETS,
        registry=registry,
    )
    consumption.commit_seconds.append(commits.observe)

    return serve_monitoring(place, registry, lambda: consumption.ownership.not_ready, **options)
