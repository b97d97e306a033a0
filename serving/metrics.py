"""The front's metrics, for Prometheus."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from stream import spans

# A second series for each counter that says only when the counting began. The library has one switch for all of them.
disable_created_metrics()  # type: ignore[no-untyped-call]

_READ_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class FrontMetrics:
    """All metrics of one front; each front has its own registry, so that two can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._answers = Counter(
            "freshet_serve_answers",
            "Reads answered, by kind (row, range, table), where the answer came from (cache, source), and freshness.",
            ["kind", "served_from", "freshness"],
            registry=self.registry,
        )
        self._refused = Counter(
            "freshet_serve_refused",
            "Requests that got an error instead of an answer, by the error's code.",
            ["code"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "freshet_serve_request_seconds",
            "Time from a request's arrival to its answer, including the wait for freshness.",
            buckets=_READ_BUCKETS,
            registry=self.registry,
        )
        self._fills = Counter(
            "freshet_serve_fills",
            "Answers of the source offered to the cache: accepted, refused by the owner, failed, dropped (too many).",
            ["outcome"],
            registry=self.registry,
        )
        self.engine_calls = Counter(
            "freshet_serve_engine_calls",
            "Calls of engines, by the call (other: no cache answers it) and who answered (cache, metastore).",
            ["catalog", "call", "served_from"],
            registry=self.registry,
        )
        self.engine_connections = Gauge(
            "freshet_serve_engine_connections",
            "Open connections of engines, each with one to the metastore.",
            ["catalog"],
            registry=self.registry,
        )
        self.streams = Gauge(
            "freshet_serve_streams",
            "Open change streams: shared have caught up and read one reader's ring, own read Kafka for themselves.",
            ["place"],
            registry=self.registry,
        )
        self.follower_answers = Counter(
            "freshet_serve_follower_answers",
            "Questions that a follower answered in the place of the owner.",
            registry=self.registry,
        )
        self.source_reads = Counter(
            "freshet_serve_source_reads",
            "Reads that went to the source of truth because the cache could not prove its answer.",
            registry=self.registry,
        )
        self._misses = Counter(
            "freshet_serve_misses",
            "Reads that the cache did not answer, by kind and by why.",
            ["kind", "reason"],
            registry=self.registry,
        )
        self.source_snapshots = Counter(
            "freshet_serve_source_snapshots",
            "Snapshots of the source that those reads took. The misses of a batch share one.",
            registry=self.registry,
        )
        self.source_shared = Counter(
            "freshet_serve_source_reads_shared",
            "Reads that were answered by another reader's read of the source (single flight).",
            registry=self.registry,
        )
        self.source_failures = Counter(
            "freshet_serve_source_failures", "Reads of the source that failed.", registry=self.registry
        )
        self.owner_failures = Counter(
            "freshet_serve_owner_failures",
            "Requests that the owner of a partition did not answer (away, restarting, moved).",
            registry=self.registry,
        )
        self.ready = Gauge(
            "freshet_serve_ready",
            "1 if every partition has had an owner that was caught up with a source; asked anew at each scrape.",
            registry=self.registry,
        )
        self.away = Gauge(
            "freshet_serve_partitions_away",
            "Partitions without an owner that answered when they were looked at last. Followers may answer for them.",
            ["keyspace"],
            registry=self.registry,
        )
        self._answer_children: dict[tuple[str, str, str], Counter] = {}

    def answered(self, kind: str, served_from: str, freshness: str, count: int = 1) -> None:
        """Counts ``count`` answers."""
        labels = (kind, served_from, freshness)
        child = self._answer_children.get(labels)
        if child is None:
            child = self._answer_children[labels] = self._answers.labels(*labels)
        child.inc(count)
        if spans.is_on:
            spans.note_answer(kind, served_from, freshness)

    def totals(self) -> tuple[int, int, int]:
        """Answers from the cache, answers from the source, and errors, since the front began."""
        found = {"cache": 0.0, "source": 0.0}
        for metric in (*self._answers.collect(), *self._refused.collect()):
            for sample in metric.samples:
                place = sample.labels.get("served_from", "refused")
                found[place] = found.get(place, 0.0) + sample.value
        return int(found["cache"]), int(found["source"]), int(found.get("refused", 0))

    def missed(self, kind: str, reason: str, count: int = 1) -> None:
        """Counts reads that the cache did not answer. ``reason``: one of `serving.misses`."""
        self._misses.labels(kind, reason).inc(count)
        if spans.is_on:
            spans.note_miss(reason)

    def misses(self) -> dict[str, int]:
        """Reason → reads that the cache did not answer, since the front began."""
        found: dict[str, int] = {}
        for metric in self._misses.collect():
            for sample in metric.samples:
                reason = sample.labels["reason"]
                found[reason] = found.get(reason, 0) + int(sample.value)
        return found

    def refused(self, code: str) -> None:
        """Counts one error answer."""
        self._refused.labels(code).inc()
        if spans.is_on:
            spans.note_error(code)

    def fill(self, outcome: str, count: int = 1) -> None:
        """Counts fills: accepted, refused, failed, dropped."""
        self._fills.labels(outcome).inc(count)

    def finished(self, seconds: float) -> None:
        """Records the duration of one request."""
        self._seconds.observe(seconds)

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)
