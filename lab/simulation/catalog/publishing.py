"""The catalog's publisher: the real translator and framer, reading the model's log."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

from lab.simulation.catalog.source import MetastoreSnapshot, SimulatedMetastore
from lab.simulation.memo import decoded, kept
from lab.simulation.models.topic import SimulatedTopic
from lab.simulation.rows.publishing import Ending, PublisherDied, collect
from lab.workload.events import WorkloadTranslator, bootstrap, name_bindings
from lab.workload.log import event_id_of
from lab.workload.run import resumed_bindings
from stream.publish.resume import resume_point
from stream.wire.batch import Batch, BatchLimits, Framer
from stream.wire.events import Change, OpenTransaction, ResumePoint, SourceTransaction, TableImage

SHARD: Final = "d/0"
LIMITS: Final = (
    BatchLimits(batch_bytes=4_000),
    BatchLimits(batch_bytes=300, open_map_every=3, open_map_small=0),
    BatchLimits(batch_bytes=4_000, table_image_bytes_max=20),
)
"""Batches of several events; batches of one event, so that a CREATE is split and the map of open transactions is
published as deltas; a bound that some images exceed, so that they are not published."""


class FirstRun(NamedTuple):
    """The result of a publisher's first run that ended well. It depends only on what happened before."""

    read: int
    batches: list[Batch]
    resume: ResumePoint
    timestamp_max: int
    opened: list[OpenTransaction]


class CatalogPublishing:
    """The publisher's process."""

    def __init__(self, topic: SimulatedTopic, store: SimulatedMetastore, limits: BatchLimits) -> None:
        self.topic = topic
        self.store = store
        self.limits = limits
        self.framer: Framer | None = None
        self._translator: WorkloadTranslator | None = None
        self._next = 0
        self.began = 0
        """The event at which the whole catalog was published."""
        self.epoch = 0
        self._endings: list[Ending] = []
        self._written: list[Batch] | None = None
        """Batches of a first run that will be memoized."""

    def die(self) -> None:
        """The process is killed."""
        self.framer = self._translator = None

    @property
    def split(self) -> bool:
        """Whether a transaction is partly in the topic."""
        states = self.topic.states.get(SHARD)
        return states is not None and bool(decoded(states[-1])[1]["partial_gtid"])

    def run(self, events: int, ending: Ending, at: int) -> int:
        """Reads up to ``events`` events and commits. The commit with index ``at`` ends with ``ending``.

        With 0 events it publishes idle markers. Returns the number of events read, or -1 if the publisher died.
        """
        first = self.framer is None and SHARD not in self.topic.states
        if not (first and ending is Ending.WELL and kept.on) or self.store.cleaned:
            return self._run(events, ending, at)
        place = (self.topic.layout.partitions, id(self.limits), self.store.undoes, events, *self.store.story)
        known: FirstRun | None = kept.get(place)
        if known is None:
            written: list[Batch] = []
            self._written = written
            read = self._run(events, ending, at)
            self._written = None
            assert self.framer is not None
            assert self._translator is not None
            opened = list(self._translator._open.values())
            kept.put(place, FirstRun(read, written, self.framer.resume, self.framer._timestamp_max, opened))
            return read
        self.framer = Framer(SHARD, self.topic.layout, None, self.limits)
        self.framer._at, self.framer._timestamp_max = known.resume.copy(), known.timestamp_max
        self.framer._map_due = False
        self._translator = WorkloadTranslator(self.store.pairs_of, known.opened)
        self.began, self.epoch, self._next = self.store.end, known.resume.epoch, self.store.end
        for batch in known.batches:
            self.topic.commit(SHARD, batch)
        return known.read

    def _run(self, events: int, ending: Ending, at: int) -> int:
        try:
            self._ensure()
            self._endings = [Ending.WELL] * at + [ending] if ending in (Ending.LOST_ACK, Ending.NOT_DONE) else []
            read = 0
            while read < events and self._next < self.store.end:
                assert self._translator is not None
                row = self.store.log[self._next]
                self._publish(self._as_published(self._translator.translate(row), row.event_type))
                self._next += 1
                read += 1
            if ending is not Ending.LATER:
                if read or not events or (self.framer is not None and not self.framer.is_empty):
                    self._commit()
                while self._endings and self._endings[0] is not Ending.WELL:
                    self._commit()
        except PublisherDied:
            self.die()
            return -1
        finally:
            self._endings = []
        return read

    def _ensure(self) -> None:
        if self.framer is not None:
            return
        states = self.topic.states.get(SHARD)
        point = resume_point([decoded(value)[1] for value in states]) if states else None
        self.framer = framer = Framer(SHARD, self.topic.layout, point, self.limits)
        if point is None:
            self._begin(framer, "first_start")
        self._follow(framer, point is None)

    def start_new_epoch(self) -> None:
        """As `lab.workload.run._start_new_epoch`: publishes the whole catalog again, in a new epoch."""
        try:
            self._ensure()
            assert self.framer is not None
            if not self.framer.is_empty:
                self._commit()
            self._begin(self.framer, "history_lost")
            self._follow(self.framer, True)
        except PublisherDied:
            self.die()

    def _begin(self, framer: Framer, reason: str) -> None:
        found = bootstrap(cast("Any", MetastoreSnapshot(self.store)))
        framer.start_epoch(found.position, found.timestamp, reason)
        self.began, self.epoch = self.store.end, framer.resume.epoch
        self._publish(found.transaction)
        self._commit()

    def _follow(self, framer: Framer, is_new: bool) -> None:
        resume = framer.resume
        self._translator = WorkloadTranslator(self.store.pairs_of, resume.open_transactions.values())
        self._next = event_id_of(resume.position)
        cut = resume.partial_gtid == resume.position
        if not is_new and (cut or (self._next == self.store.end and not resume.partial_gtid)):
            bindings = resumed_bindings(
                name_bindings(cast("Any", MetastoreSnapshot(self.store))), resume.partial_events if cut else 0
            )
            self._publish(SourceTransaction(resume.position, resume.position, resume.timestamp, bindings))

    def _as_published(self, transaction: SourceTransaction, kind: str) -> SourceTransaction:
        """If ABORT does not undo writes: the transaction without staging, and with new images after an ABORT."""
        if self.store.undoes:
            return transaction
        wrote: set[int] = set()
        changes: list[Change] = []
        for change in transaction.changes:
            if isinstance(change, TableImage):
                change.staged = False
                if change.change == "written" and event_id_of(transaction.position) % 3 == 0:
                    change.txn = change.write_id = 0  # as Hive's ALTER_TABLE, which names no transaction
            changes.append(change)
        if kind == "ABORT":
            txn = self.store.log[self._next].txn
            wrote = {
                row.table_id for row in self.store.log[: self._next] if row.event_type == "WRITE" and row.txn == txn
            }
        for table_id in sorted(wrote):
            image, name, kind_of = self._image_at(table_id, transaction.position)
            if image is not None:
                at = transaction.position
                changes.append(TableImage(table_id, name, kind_of, "image", image=image, lo=at, hi=at))
        transaction.changes = changes
        return transaction

    def _image_at(self, table_id: int, position: str) -> tuple[bytes | None, str, str]:
        table, event = self.store.by_id[table_id], event_id_of(position)
        image = self.store.history.state(table_id, event)
        name = table.name
        for row in self.store.log[:event]:
            if row.table_id == table_id and row.event_type in ("CREATE", "RENAME"):
                name = row.fields["name"]
        return image, name, table.kind

    def _publish(self, transaction: SourceTransaction) -> None:
        assert self.framer is not None
        collect(self.framer, transaction, self._commit)

    def _commit(self) -> None:
        framer = self.framer
        assert framer is not None
        ending = self._endings.pop(0) if self._endings else Ending.WELL
        batch = framer.take()
        if ending is not Ending.NOT_DONE:
            if self._written is not None:
                self._written.append(batch)
            self.topic.commit(SHARD, batch)
        if ending is not Ending.WELL:
            raise PublisherDied
