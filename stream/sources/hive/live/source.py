"""The Hive source's process: publishes a catalog from a metastore's log until it is stopped. Crash-only.

Where it goes on is in the topic: the position, the open transactions, the names, and in the cursor which tables are
still to be fetched. If the log no longer continues what was published, a new epoch begins and all is fetched again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

import structlog

from stream.kafka.connection import KafkaUnreachable
from stream.publish.publisher import PublisherLost
from stream.sources.hive.live.following import Following, FollowOptions
from stream.sources.hive.live.metastore import Metastore, Transactions
from stream.sources.hive.live.notification_log import HiveHistoryLost, check_event, event_id_of
from stream.sources.hive.live.object_calls import DEFAULT_CATALOG
from stream.sources.hive.messages import FLAVOR
from stream.sources.hive.progress import Progress
from stream.sources.hive.rpc.connection import MetastoreError, MetastoreRefused
from stream.sources.hive.structs import ThriftError
from stream.sources.status import SourceStatus
from stream.wire.events import ResumePoint, SourceTransaction
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0


class UnknownCatalog(FreshetError):
    """The metastore has no such catalog; code ``unknown_catalog``."""

    code = "unknown_catalog"


class PublisherLike(Protocol):
    """What is used of a `stream.publish.publisher.Publisher`."""

    def open(self, start_if_new: Callable[[], tuple[str, int]]) -> ResumePoint:
        """See there."""

    def publish(self, txn: SourceTransaction) -> None:
        """See there."""

    def stamp(self, as_of_ms: int) -> None:
        """See there."""

    def flush(self) -> None:
        """See there."""

    def start_new_epoch(self, position: str, timestamp: int, reason: str) -> ResumePoint:
        """See there."""

    def close(self) -> None:
        """See there."""

    def abandon(self) -> None:
        """See there."""


class CatalogChanged(FreshetError):
    """The topic has another catalog, of which nothing would be told any more; code ``catalog_changed``."""

    code = "catalog_changed"


class HiveSource:
    """Publishes one metastore's catalog until it is stopped. Call `run` in one thread, `stop` from any thread."""

    def __init__(
        self,
        options: FollowOptions,
        new_publisher: Callable[[], PublisherLike],
        on_ready: Callable[[str], None] = lambda _: None,
        *,
        new_epoch: bool = False,
    ) -> None:
        self._options = options
        self._new_publisher = new_publisher
        self._on_ready = on_ready
        self._stopping = threading.Event()
        self._new_epoch_for = "asked_for" if new_epoch else ""
        self._backoff_s = BACKOFF_FIRST_S
        self.status = SourceStatus()

    def stop(self) -> None:
        """End `run` gracefully. Safe in any thread."""
        self._stopping.set()

    def run(self) -> None:
        """Publish until `stop`. Outages of Kafka and of the metastore are waited out. Other errors are raised.

        So is `UnknownCatalog`, but only where nothing was published: a catalog may be dropped later.
        """
        with Metastore(self._options.settings) as metastore:
            while not self._stopping.is_set():
                try:
                    self._publish(metastore)
                except (PublisherLost, KafkaUnreachable) as error:
                    self._wait("publisher lost" if isinstance(error, PublisherLost) else "Kafka is unreachable", error)
                except (MetastoreError, ThriftError) as error:
                    self._wait("the metastore does not answer", error)

    def _publish(self, metastore: Metastore) -> None:
        """Run with one publisher, until stopped."""
        metastore.last_event()  # before the shard is taken over: a source that can't work must not stop one that does
        publisher = self._new_publisher()
        begun: list[Transactions] = []

        def begin() -> tuple[str, int]:
            position, timestamp = end_of_log(metastore)
            begun.append(metastore.transactions())
            return position, timestamp

        def begin_first() -> tuple[str, int]:
            check_catalog(metastore)
            return begin()

        try:
            resume = publisher.open(begin_first)
            if not begun:
                self._check_resumable(metastore, resume)
            while not self._stopping.is_set():
                if self._new_epoch_for and not begun:
                    resume = publisher.start_new_epoch(*begin(), self._new_epoch_for)
                self._new_epoch_for = ""
                try:
                    self._follow(publisher, metastore, resume, begun.pop() if begun else None)
                except HiveHistoryLost as lost:
                    self._lose_history(lost)
            publisher.close()
        except BaseException:
            publisher.abandon()
            raise

    def _check_resumable(self, metastore: Metastore, resume: ResumePoint) -> None:
        """Whether the log still holds what was published last; else a new epoch is due. Raises `CatalogChanged`."""
        published, catalog = Progress(resume.cursor).catalog, self._options.settings.catalog
        if published not in ("", catalog) and not self._new_epoch_for:
            raise CatalogChanged(
                f"the topic has the catalog {published}, and {catalog} is to be published",
                hint=f"set catalog to {published} again, or start it with --new-epoch: that voids what is published",
            )
        at = event_id_of(resume.position)
        end = metastore.last_event()
        if resume.partial_gtid:
            # The names and ids that it was translated with may be others by now.
            log.warning("a transaction was partly published", shard=resume.shard, gtid=resume.partial_gtid)
            self._new_epoch_for = self._new_epoch_for or "partly_published"
            return
        if end < at:
            self._lose_history(HiveHistoryLost(f"the log ends at event {end}, and event {at} was published"))
        try:
            check_event(metastore, at, resume.checksum)
        except HiveHistoryLost as lost:
            self._lose_history(lost)

    def _lose_history(self, lost: HiveHistoryLost) -> None:
        log.error("history lost", shard=self._options.shard, reason=str(lost))
        self._new_epoch_for = "history_lost"

    def _follow(
        self, publisher: PublisherLike, metastore: Metastore, resume: ResumePoint, begun: Transactions | None
    ) -> None:
        """Follow the log until stopped. Outages of the metastore are waited out. Raises `HiveHistoryLost`."""
        self.status.epoch, self.status.timestamp = resume.epoch, resume.timestamp
        following = Following(self._options, publisher, metastore, resume, self.status, begun)
        try:
            self._report_ready(resume.position)
            while not self._stopping.is_set():
                try:
                    if not following.step():
                        following.wait(self._stopping, self._options.poll_s)
                except (MetastoreError, ThriftError) as error:
                    publisher.flush()  # raises if the publisher was lost meanwhile
                    self._wait("the metastore does not answer", error)
                else:
                    if self.status.outage:
                        self._report_ready(self.status.position)
        finally:
            following.close()

    def _report_ready(self, position: str) -> None:
        if self.status.outage:
            log.info("connected again", shard=self._options.shard, position=position)
        self._backoff_s = BACKOFF_FIRST_S
        self.status.ready(position)
        self._on_ready(position)

    def _wait(self, what: str, error: FreshetError) -> None:
        """Log ``what`` once for each outage, and wait with exponential backoff."""
        if self.status.outage != what:
            log.warning(what, shard=self._options.shard, code=error.code, reason=str(error), hint=error.hint)
        self.status.waits(what)
        self._stopping.wait(self._backoff_s)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)


def check_catalog(metastore: Metastore) -> None:
    """A metastore shows a catalog that it does not have as an empty one. Raises `UnknownCatalog`, `MetastoreError`."""
    with suppress(MetastoreRefused):
        if metastore.catalog_object() is None:
            raise UnknownCatalog(
                f"the metastore has no catalog {metastore.catalog}",
                hint=f'set catalog = "{DEFAULT_CATALOG}", or another one, in its source: else it is the keyspace',
            )


def end_of_log(metastore: Metastore) -> tuple[str, int]:
    """The position of the last event, and its time in seconds (0: the log does not hold it)."""
    end = metastore.last_event()
    rows = metastore.events(end - 1, 1) if end else []
    return f"{FLAVOR}/{end}", int(rows[0]["eventTime"]) if rows else 0
