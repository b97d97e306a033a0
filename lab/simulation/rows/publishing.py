"""A shard's publisher process: it resumes, reads, collects and commits, and may die at any commit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

from lab.simulation.memo import decoded, kept
from lab.simulation.models.topic import SimulatedTopic
from lab.simulation.rows.backfilling import FramedBackfill
from lab.simulation.rows.source import CHOICES, SimulatedBinlogReader, SimulatedSource
from stream.publish.publisher import Publisher as RealPublisher
from stream.publish.resume import resume_point
from stream.sources.mariadb.binlog.progress import UNREPEATABLE, Progress
from stream.sources.mariadb.connection import SourceHistoryLost
from stream.sources.mariadb.position import check_in_history
from stream.wire.batch import PARTLY, Batch, BatchLimits, Framer
from stream.wire.declarations import Declarations
from stream.wire.events import ResumePoint, SingleRows, SourceTransaction, Topology

CHOICE: Final = 7
"""A stand-in for the fingerprint of the first choice of tables; the others follow."""
LIMITS: Final = (
    BatchLimits(rows_max=2, batch_bytes=2_000),
    BatchLimits(rows_max=1, batch_bytes=90),
    BatchLimits(rows_max=1, batch_bytes=2_000),
)
"""Frames of two rows and batches of several transactions; batches of a row or two, so that transactions are split;
single-row frames, many in a batch."""


class Ending(IntEnum):
    """How a commit ends."""

    WELL = 0
    LOST_ACK = 1
    """The commit takes effect, but the publisher dies before it gets the ack."""
    NOT_DONE = 2
    """The publisher dies before the commit takes effect."""
    LATER = 3
    """No commit: what was read stays collected."""


class PublisherDied(Exception):
    """The publisher's process has died."""


class PublisherRun(NamedTuple):
    """The memoized result of a run that ended well: what it wrote, and the publisher's state after it."""

    read: int
    batches: list[Batch]
    resume: ResumePoint
    timestamp_max: int
    progress: Progress


def _copied(progress: Progress) -> Progress:
    made = Progress.__new__(Progress)
    made.__dict__.update(progress.__dict__)  # its values are replaced, never changed in place
    return made


class Publishing:
    """A shard's publisher process and its successors."""

    def __init__(
        self, topic: SimulatedTopic, source: SimulatedSource, limits: BatchLimits, shards: tuple[str, ...] = ()
    ) -> None:
        """``shards``: all of the keyspace, if there are several."""
        self.topic = topic
        self._shards = shards
        self._limits = limits
        self.source = source
        self.framer: Framer | None = None
        self.choice = 0
        """Which of `CHOICES` the process is told to publish."""
        self._openings = 0
        self.published = 0
        """The last commit that is wholly in the topic."""
        self.history_of_epoch: dict[int, int] = {}
        self.epoch_start: dict[int, int] = {}
        self.backfills = False
        """Whether its processes are told to publish tables from the beginning."""
        self._backfill: FramedBackfill | None = None
        self._progress: Progress | None = None
        self._connected = False
        self._transactions: Iterator[SourceTransaction | None] | None = None
        """The reader of the current connection; None until something was read."""
        self._written: list[Batch] | None = None
        """Batches of a run that will be memoized."""
        self._endings: list[Ending] = []
        self._read = 0

    @property
    def position(self) -> str:
        """The position up to which the publisher has read."""
        self.ensure()
        assert self._progress is not None
        return self._progress.position

    @property
    def collected(self) -> bool:
        """Whether something was read that is not in the topic yet."""
        return self.framer is not None and not self.framer.is_empty

    @property
    def split(self) -> bool:
        """Whether a transaction is partly in the topic."""
        states = self.topic.states.get(self.source.name)
        return states is not None and bool(decoded(states[-1])[1]["partial_gtid"])

    def die(self) -> None:
        """The process is killed."""
        self._openings += 1
        self.framer = self._progress = self._backfill = None
        self.cut()

    def recount(self) -> None:
        """Finds again what is published, after the topic has lost its end."""
        states = self.topic.states.get(self.source.name)
        if states:
            reached = self.source.history.index_of.get(decoded(states[-1])[1]["position"])
            self.published = reached if reached is not None else self.published

    def excludes(self, table: str) -> bool:
        """Whether the process is told not to publish ``table``."""
        return table not in CHOICES[self.choice].include

    def cut(self) -> None:
        """The connection to the server breaks."""
        self._connected = False
        self._transactions = None

    def ensure(self) -> None:
        """Starts and connects the process if needed, and checks the server's history as the real one does."""
        if self.framer is None:
            self._start()
        if not self._connected:
            self._connect()

    def _framer(self, point: ResumePoint | None) -> Framer:
        framer = Framer(self.source.name, self.topic.layout, point, self._limits, nonce=self._openings)
        if self._shards or self.backfills:
            shards = self._shards or (self.source.name,)
            framer._speaker._topology = Topology(shards)  # without the schemas, which no history needs
        return framer

    def backfill(self, chunks: int, *, behind: int) -> int:
        """Goes on with the backfill: reads up to so many chunks, as `SimulatedReading.read`, which returns how many."""
        self.ensure()
        framer = self.framer
        assert framer is not None
        if not self.backfills:
            self.backfills = True
            if not self._shards:
                framer._speaker.declared = Declarations(self.source.name, framer.resume.epoch)  # a memo has none
                framer._speaker._topology = Topology((self.source.name,))
                framer._say(framer._speaker.introductions(framer.resume.ordinal))
        if self._backfill is None:
            self._backfill = self._new_backfill(framer)
        self._step()
        read = self._backfill.read(chunks, behind=behind)
        self._step()
        return read

    def _new_backfill(self, framer: Framer) -> FramedBackfill:
        self._transactions = None  # its reader knows nothing of the family
        home = self.topic.partitions[self.topic.layout.home_partition(self.source.name)]
        return FramedBackfill(self.source, framer, home, self.choice, self._collect)

    def _step(self) -> None:
        progress = self._progress
        if self._backfill is not None and progress is not None and not progress.partial_gtid:
            self._backfill.step(progress.position, progress.timestamp)

    def _start(self) -> None:
        source, topic = self.source, self.topic
        states = topic.states.get(source.name)
        point = resume_point([decoded(value)[1] for value in states]) if states else None
        self.framer = framer = self._framer(point)
        if point is None:
            at = source.history.positions[source.engine]
            framer.start_epoch(at, source.timestamps[source.engine], "first_start", 1)
            self._note_epoch(framer.resume)
            self._commit()
        self._progress = Progress(framer.resume)
        if self.backfills:
            self._backfill = self._new_backfill(framer)

    def _connect(self) -> None:
        source, progress = self.source, self._progress
        assert progress is not None
        try:
            check_in_history(source.state, progress.position, source.history.positions[-1])
        except SourceHistoryLost:
            self._begin_epoch()
        if self._backfill is not None:
            self._backfill.run.reconnect()
        if progress.may_describe:
            self._describe()
        self._connected = True

    def _begin_epoch(self) -> None:
        source, progress, framer = self.source, self._progress, self.framer
        assert progress is not None
        assert framer is not None
        if not framer.is_empty:
            self._commit()
        framer.start_epoch(source.history.positions[source.engine], source.timestamps[source.engine], "history_lost")
        self._note_epoch(framer.resume)
        progress.begin(framer.resume)
        if self._backfill is not None:
            self._backfill.begin_epoch(framer.resume)
        self._commit()

    def meet_lower_sequence(self) -> None:
        """Reads the next transaction, whose sequence went back: an epoch begins after it."""
        try:
            self._next()
        except SourceHistoryLost:
            self.cut()
            self._begin_epoch()
            self._connect()
        else:
            self._commit()

    def _note_epoch(self, resume: ResumePoint) -> None:
        self.history_of_epoch[resume.epoch] = self.source.history.number
        self.epoch_start[resume.epoch] = self.source.engine

    def _describe(self) -> None:
        """As `MariaDBSource._describe`: describes the tables once for each choice of tables."""
        progress = self._progress
        assert progress is not None
        number, chosen = CHOICE + self.choice, CHOICES[self.choice]
        if progress.table_choice == number:
            return
        self._publish(progress.description(chosen.include, chosen.described.values(), number))
        progress.mark_described(number)

    def run(self, transactions: int, ending: Ending, at: int) -> tuple[int, bool]:
        """Reads up to ``transactions`` and commits. The commit with index ``at`` ends with ``ending``.

        Returns (transactions read, whether the publisher survived). With 0 transactions it publishes idle markers.
        """
        if ending is Ending.WELL and kept.on and not self.backfills:
            return self._run_memoized(transactions), True
        return self._run(transactions, ending, at)

    def _run_memoized(self, transactions: int) -> int:
        """A run that ends well, memoized: it depends only on the publisher, the server, and what is read."""
        first = self.framer is None and self.source.name not in self.topic.states
        if not first:
            self.ensure()
        place = self._memo_key(transactions, first=first)
        known: PublisherRun | None = kept.get(place) if place is not None else None
        if known is None:
            written: list[Batch] = []
            self._written = written
            read, _ = self._run(transactions, Ending.WELL, 0)
            self._written = None
            if place is not None:
                assert self.framer is not None
                assert self._progress is not None
                made = PublisherRun(
                    read, written, self.framer.resume, self.framer._timestamp_max, _copied(self._progress)
                )
                kept.put(place, made)
            return read
        if first:
            self.framer = self._framer(None)
            self._note_epoch(known.resume)
        assert self.framer is not None
        self.framer._at, self.framer._timestamp_max = known.resume.copy(), known.timestamp_max
        self.framer._map_due = False
        self._progress, self._connected, self._transactions = _copied(known.progress), True, None
        for batch in known.batches:
            self._append(batch)
        return known.read

    def _memo_key(self, transactions: int, *, first: bool) -> Hashable | None:
        """Everything that a run depends on; None if that is too much for a key."""
        source, framer, progress = self.source, self.framer, self._progress
        same = (
            source.name,
            self._openings,
            self.choice,
            self._shards,
            self.topic.layout.partitions,
            id(self._limits),
        )  # one of the three in LIMITS
        if first:
            at = source.engine
            where: tuple[Any, ...] = (source.history.positions[at], source.timestamps[at])
        else:
            assert framer is not None
            assert progress is not None
            at = source.history.index_of[progress.position]
            if not framer.is_empty or (transactions and at == len(source.binlog) - 1):
                return None
            point = framer._at
            where = (
                point.epoch,
                point.ordinal,
                point.position,
                point.timestamp,
                point.low_water,
                point.partial_gtid,
                point.partial_events,
                point.sequence,
                point.table_choice,
                point.annotations.get(UNREPEATABLE),
                point.annotations.get(PARTLY),
                point.continuity,
                framer._timestamp_max,
                framer._map_due,
                progress.position,
                progress.timestamp,
                progress.partial_gtid,
                progress.partial_events,
                progress.unrepeatable,
                progress.partly,
                progress.is_new,
                progress.table_choice,
            )
        return same, where, tuple(source.binlog[at + 1 : at + 1 + transactions])

    def _run(self, transactions: int, ending: Ending, at: int) -> tuple[int, bool]:
        self._endings = [Ending.WELL] * at + [ending] if ending in (Ending.LOST_ACK, Ending.NOT_DONE) else []
        read = 0
        try:
            self.ensure()
            while read < transactions and self._next():
                read += 1
            if ending is not Ending.LATER:
                if read or not transactions or self.collected:
                    self._commit()
                while self._endings and self._endings[0] is not Ending.WELL:
                    self._commit()
        except PublisherDied:
            self.die()
            return read, False
        finally:
            self._endings = []
        return read, True

    def _next(self) -> bool:
        progress = self._progress
        assert progress is not None
        at = self.source.history.index_of[progress.position]
        if at >= len(self.source.binlog) - 1:
            return False
        transaction = self._transaction(progress.position, at)
        partly_out = bool(progress.partial_gtid)
        given = progress.aligned(transaction, CHOICE + self.choice) if partly_out else transaction
        if words := progress.repeatable(given):
            assert self.framer is not None
            self.framer.annotate(words)
        self._publish(given)
        progress.position, progress.timestamp = transaction.position, transaction.timestamp
        if partly_out:
            progress.partial_gtid = ""
            self._describe()
        self._step()
        return True

    def _transaction(self, position: str, at: int) -> SourceTransaction:
        """The transaction after commit ``at``. A reader between transactions does not depend on earlier ones."""
        place = position, self.source.binlog[at + 1], self.choice
        family = None if self._backfill is None else self._backfill.family
        known: SourceTransaction | None = None if family else kept.get(place)
        if known is not None:
            self._transactions = None
            return known
        if self._transactions is None:
            dump = cast("Any", SimpleNamespace(read=self.source.events_after(at).__next__, arrived=list))
            reader = SimulatedBinlogReader(dump, CHOICES[self.choice], position, family=family)
            self._transactions = reader.transactions()
        transaction = next(self._transactions)
        assert transaction is not None
        if family is None:
            kept.put(place, transaction)
        return transaction

    def _publish(self, transaction: SourceTransaction) -> None:
        if self._backfill is not None:
            self._backfill.run.notice(transaction)
        self._collect(transaction)

    def _collect(self, transaction: SourceTransaction) -> None:
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
            self._append(batch)
        if ending is not Ending.WELL:
            raise PublisherDied

    def _append(self, batch: Batch) -> None:
        self.topic.commit(self.source.name, batch)
        reached = self.source.history.index_of.get(batch.resume.position)
        self.published = reached if reached is not None else self.published


def collect(framer: Framer, transaction: SourceTransaction, commit: Callable[[], None]) -> None:
    """As `Publisher.publish`, but calls ``commit`` when the batch is full instead of waiting."""
    if type(transaction) is SingleRows:
        if framer.takes(transaction):
            framer.add_run(transaction)
            return
        for each in transaction.each():
            collect(framer, each, commit)
        return
    start = RealPublisher._already_out(cast("Any", None), framer, transaction)
    while True:
        end = framer.room(transaction, start)
        if end < 0:
            commit()
            continue
        framer.add(transaction, start, end)
        if end == len(transaction.changes):
            return
        start = end
