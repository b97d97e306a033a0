"""The workload source's process: publishes the catalog's log to its keyspace's topic until it is stopped.

It is crash-only. A start takes over the shard, continues after what is in the topic, and publishes all names again. The
first start publishes the whole catalog at the position of one snapshot. If that was interrupted, or the log was lost, a
new epoch starts with it. See docs/internals/catalog.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import structlog

from lab.workload.catalog import WorkloadCatalog
from lab.workload.events import Bootstrap, WorkloadTranslator, bootstrap, name_bindings
from lab.workload.log import WorkloadLog, WorkloadLogLost, event_id_of
from stream.kafka.connection import KafkaUnreachable
from stream.publish.publisher import Publisher, PublisherLost
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBUnreachable
from stream.wire.events import EVERY_TABLE, Change, ResumePoint, SourceTransaction, VoidTable

log = structlog.get_logger(__name__)

NewPublisher = Callable[[], Publisher]
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 5.0


@dataclass(frozen=True, slots=True)
class WorkloadSource:
    """What to publish. ``poll_interval_s``: pause at the log's end. ``rows_max``: most rows per read of the log."""

    settings: ConnectionSettings
    database: str
    poll_interval_s: float = 0.01
    rows_max: int = 500
    new_epoch: bool = False
    """Start a new epoch: void what was published, and publish the whole catalog."""


def run(source: WorkloadSource, new_publisher: NewPublisher, stop: threading.Event) -> None:
    """Publishes until ``stop`` is set. Retries lost servers, and raises errors that a retry cannot fix.

    ``new_publisher`` makes a `Publisher` that is not open yet; each attempt needs a new one.
    """
    wait_s = RETRY_FIRST_S
    asked = {"asked_for"} if source.new_epoch else set()
    while not stop.is_set():
        try:
            _publish(source, new_publisher, stop, asked)
            return
        except (PublisherLost, KafkaUnreachable, MariaDBUnreachable) as error:
            log.warning("source interrupted", error=str(error), code=error.code, again_in_s=wait_s)
            stop.wait(wait_s)
            wait_s = min(wait_s * 2, RETRY_MAX_S)


def _publish(source: WorkloadSource, new_publisher: NewPublisher, stop: threading.Event, asked: set[str]) -> None:
    """One attempt: takes over the shard and publishes until ``stop``. ``asked``: why a new epoch is wanted; emptied
    once it has started.

    It connects to MariaDB before it takes over the shard, so a failed login does not fence the running publisher.
    """
    with WorkloadCatalog(source.settings, source.database) as catalog, new_publisher() as publisher:
        catalog.create_schema()
        resume = _open(publisher, catalog, asked)
        while True:
            with WorkloadLog(source.settings, source.database, event_id_of(resume.position)) as tail:
                try:
                    tail.check_time(resume.timestamp)
                    _follow(source, publisher, tail, catalog, resume, stop)
                    return
                except WorkloadLogLost as lost:
                    log.error("history lost", error=str(lost), shard=publisher.shard)
                    resume = _start_new_epoch(publisher, catalog, "history_lost")


def _open(publisher: Publisher, catalog: WorkloadCatalog, asked: set[str]) -> ResumePoint:
    """Takes over the shard, and publishes the whole catalog unless the topic already has it."""
    with ExitStack() as stack:
        begun: list[Bootstrap] = []

        def start() -> tuple[str, int]:
            begun.append(bootstrap(stack.enter_context(catalog.snapshot())))
            return begun[0].position, begun[0].timestamp

        resume = publisher.open(start)
    if begun:
        asked.clear()
        return _bootstrap(publisher, resume, begun[0])
    if asked:
        return _start_new_epoch(publisher, catalog, asked.pop())
    if resume.ordinal - resume.partial_events > 1:
        return resume
    with catalog.snapshot() as read:
        found = bootstrap(read)
    if not resume.partial_gtid and found.position == resume.position:
        return _bootstrap(publisher, resume, found)
    return _start_new_epoch(publisher, catalog, "bootstrap_restarted")


def _start_new_epoch(publisher: Publisher, catalog: WorkloadCatalog, reason: str) -> ResumePoint:
    with catalog.snapshot() as read:
        found = bootstrap(read)
    resume = publisher.start_new_epoch(found.position, found.timestamp, reason)
    return _bootstrap(publisher, resume, found)


def _bootstrap(publisher: Publisher, resume: ResumePoint, found: Bootstrap) -> ResumePoint:
    """Publishes the first transaction of an epoch, at the epoch's own position."""
    publisher.publish(found.transaction)
    log.info("catalog published", position=found.position, events=len(found.transaction.changes))
    resume.open_transactions = {opened.txn: opened for opened in found.transaction.opened}
    return resume


def resumed_bindings(bindings: list[Change], events_out: int) -> list[Change]:
    """All bindings, after ``events_out`` fillers for the events that are already out, which will be skipped.

    Not empty if any events are out.
    """
    filler = VoidTable(EVERY_TABLE, "names were partly published, and there is none any more")
    return [*(bindings[:1] or [filler]) * events_out, *bindings]


def _follow(
    source: WorkloadSource,
    publisher: Publisher,
    tail: WorkloadLog,
    catalog: WorkloadCatalog,
    resume: ResumePoint,
    stop: threading.Event,
) -> None:
    translator = WorkloadTranslator(tail.pairs_of, resume.open_transactions.values())
    with catalog.snapshot() as read:
        bindings, (names_at, timestamp) = name_bindings(read), read.position()
    due = event_id_of(names_at)
    if resume.partial_gtid == resume.position:
        # The run before was interrupted among its names: the events of this position that are out are skipped.
        bindings = resumed_bindings(bindings, resume.partial_events)
        due = tail.event_id
    log.info("ready", shard=publisher.shard, position=resume.position, log_end=names_at)
    while not stop.is_set():
        if tail.event_id == due and bindings:
            position = resume.position if resume.partial_gtid == resume.position else names_at
            publisher.publish(SourceTransaction(position, position, timestamp, bindings))
            bindings = []
        rows_max = min(source.rows_max, due - tail.event_id) if bindings and due > tail.event_id else source.rows_max
        rows = tail.read(rows_max)
        for row in rows:
            publisher.publish(translator.translate(row))
        if not rows:
            publisher.flush()  # raises if the publisher was lost meanwhile
            stop.wait(source.poll_interval_s)
    publisher.flush()
