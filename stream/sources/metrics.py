"""Prometheus metrics of a source process, computed from its status at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from stream.sources.status import SourceStatus, TableReading
from tokens import Position
from tokens.mariadb import MariadbPosition

_PLACE = ("keyspace", "shard")
_GAUGES = (
    ("freshet_source_ready", "1 while the source reads; 0 while it waits out an outage.", lambda s: int(s.is_ready)),
    (
        "freshet_source_lag_seconds",
        "Age of the newest moment up to which everything the server committed is read; -1: not known yet.",
        lambda s: s.lag_seconds,
    ),
    (
        "freshet_source_clock_ahead_seconds",
        "By how much at least the server's clock is ahead of the source's machine: bounded staleness is wrong by that.",
        lambda s: s.clock_ahead_s,
    ),
    ("freshet_source_epoch", "The epoch that is published.", lambda s: s.epoch),
    ("freshet_source_tables_complete", "Tables whose backfill is complete.", lambda s: s.tables_complete),
    (
        "freshet_source_tables_held",
        "Tables whose backfill waits for a prepared transaction, which somebody has to end.",
        lambda s: len(s.tables_held),
    ),
    ("freshet_source_timestamp_seconds", "Source time of the last transaction read.", lambda s: s.timestamp),
)
_COUNTERS = (
    ("freshet_source_transactions", "Transactions published since the start.", lambda s: s.transactions),
    ("freshet_source_backfilled_rows", "Rows read by backfills since the start.", lambda s: s.backfilled_rows),
    (
        "freshet_source_commits_looked_up",
        "Commits of catalog transactions whose beginning was not seen: lists were fetched.",
        lambda s: s.commits_looked_up,
    ),
    ("freshet_source_outages", "Outages of the server or of Kafka since the start.", lambda s: s.outages),
)


class SourceCollector:
    """Collects from a `SourceStatus`."""

    def __init__(self, keyspace: str, shard: str, status: SourceStatus) -> None:
        self._place = [keyspace, shard]
        self._status = status

    def describe(self) -> list[Metric]:
        """Empty, so that registration collects nothing."""
        return []

    def _backfill(self, reading: TableReading) -> Iterator[Metric]:
        """Of the table that is read now, if there is one."""
        for name, text, value in (
            ("freshet_source_backfill_table_rows", "Rows read of the table that is backfilled now.", reading.rows),
            (
                "freshet_source_backfill_table_rows_estimated",
                "About how many rows that table has; 0: unknown.",
                reading.estimated_rows,
            ),
            (
                "freshet_source_backfill_eta_seconds",
                "About when that table is complete; -1: not known.",
                reading.eta_s,
            ),
            ("freshet_source_backfill_paused", "1 while the source is too far behind to go on.", bool(reading.paused)),
        ):
            gauge = GaugeMetricFamily(name, text, labels=(*_PLACE, "table"))
            if reading.table:
                gauge.add_metric([*self._place, reading.table], value)
            yield gauge

    def collect(self) -> Iterator[Metric]:
        """All families, as of now."""
        status = self._status
        for name, text, take in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=_PLACE)
            gauge.add_metric(self._place, take(status))
            yield gauge
        yield from self._backfill(status.backfill)
        for name, text, take in _COUNTERS:
            counter = CounterMetricFamily(name, text, labels=_PLACE)
            counter.add_metric(self._place, take(status))
            yield counter
        place = GaugeMetricFamily(
            "freshet_source_sequence",
            "Sequence of the last transaction read, by MariaDB's GTID domain.",
            labels=(*_PLACE, "domain"),
        )
        position = Position.parse(status.position)
        if isinstance(position, MariadbPosition):
            for domain, (_, sequence) in position.domains.items():
                place.add_metric([*self._place, str(domain)], sequence)
        yield place
