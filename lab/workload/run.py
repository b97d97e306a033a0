"""The workload source's process: from the catalog's log into its keyspace's topic, until told to stop.

Crash-only. A start takes the shard over, continues after what the topic says is out, and rereads the names. At the
first start everything there is is published at the position of one snapshot; if that was cut off, or the log was lost,
a new epoch starts with it. See docs/internals/catalog.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import structlog

from lab.workload.catalog import WorkloadCatalog
from lab.workload.events import EVERY_TABLE, Bootstrap, WorkloadTranslator, bootstrap, name_bindings
from lab.workload.log import WorkloadLog, WorkloadLogLost, event_id_of
from stream.kafka.connection import KafkaUnreachable
from stream.publish.publisher import Publisher, PublisherLost
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBUnreachable
from stream.wire.events import Change, ResumePoint, SourceTransaction, VoidTable

log = structlog.get_logger(__name__)

NewPublisher = Callable[[], Publisher]
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 5.0


@dataclass(frozen=True, slots=True)
class WorkloadSource:
    """What to publish. ``poll_interval_s``: how often the log's end is asked for more; ``rows_max``: rows a time."""

    settings: ConnectionSettings
    database: str
    poll_interval_s: float = 0.01
    rows_max: int = 500
    new_epoch: bool = False
    """Void what was published, and publish everything there is, once."""


def run(source: WorkloadSource, new_publisher: NewPublisher, stop: threading.Event) -> None:
    """Publishes until ``stop`` is set; lost servers are tried again, what can't be mended is raised.

    ``new_publisher`` makes a `Publisher` that is not open yet: each attempt takes a new one.
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
    """One attempt: from taking the shard over to ``stop``. ``asked``: why an epoch has to end; empty once it has.

    The server is asked before the shard is taken over: one that can't log in, or reaches no server, fences nobody.
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
    """Takes the shard over; publishes everything there is if the topic hasn't got all of that yet."""
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
    """The first transaction of an epoch: it stands at the epoch's own position."""
    publisher.publish(found.transaction)
    log.info("catalog published", position=found.position, events=len(found.transaction.changes))
    resume.open_transactions = {opened.txn: opened for opened in found.transaction.opened}
    return resume


def resumed_bindings(bindings: list[Change], events_out: int) -> list[Change]:
    """All bindings, after as many events as are out already, which will be skipped. Never empty if any are out."""
    nothing = VoidTable(EVERY_TABLE, "names were partly published, and there is none any more")
    return [*(bindings[:1] or [nothing]) * events_out, *bindings]


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
        # A run before was cut off among its names: so many events of this very position are skipped.
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
            stop.wait(source.poll_interval_s)
    publisher.flush()
