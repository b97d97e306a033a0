"""One partition's log: offsets, producers, transactions, leader epochs, and how a part of it gets lost."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Final, NamedTuple

from confluent_kafka import KafkaError

Header = tuple[str, bytes | None]
BATCHES_KNOWN: Final = 5
"""So many batches of a producer are recognized when they are sent again, as in Kafka."""
_offset_of: Final = attrgetter("offset")


class Refused(Exception):
    """A broker's error: ``code`` is one of KafkaError's."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class Kind(Enum):
    """What a record is. Control records take an offset, and no reader sees them."""

    DATA = "data"
    COMMIT = "commit"
    ABORT = "abort"


class Draft(NamedTuple):
    """A record that has no offset yet."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int

    @property
    def size(self) -> int:
        """Bytes, about as Kafka counts them."""
        head = sum(len(name) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + head + 70


@dataclass(slots=True)
class Record:
    """A record in the log. ``producer_id`` -1: of no producer with an id."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    leader_epoch: int
    producer_id: int = -1
    kind: Kind = Kind.DATA
    is_transactional: bool = False
    was_aborted: bool = False


@dataclass(slots=True)
class ProducerState:
    """What a partition knows of one producer. ``batches``: first sequence number → (end of numbers, offset)."""

    epoch: int
    batches: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def next_sequence(self) -> int:
        """The number that its next record must have; -1 if it has written none."""
        return max((end for end, _ in self.batches.values()), default=-1)


class PartitionLog:
    """The log as its leader has it."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.leader_epoch = 0
        self._records: list[Record] = []
        self._epochs: list[tuple[int, int]] = [(0, 0)]
        """(leader epoch, first offset of it), ascending."""
        self._open: dict[int, int] = {}
        """Producer id → first offset of its unfinished transaction."""
        self._producers: dict[int, ProducerState] = {}

    @property
    def stable(self) -> int:
        """The last stable offset: a read_committed reader gets nothing from there on."""
        return min(self._open.values()) if self._open else self.end

    @property
    def ends_with_a_commit(self) -> bool:
        """Whether the last record is a commit's."""
        return bool(self._records) and self._records[-1].kind is Kind.COMMIT

    # --- writing ---

    def append(
        self,
        drafts: Sequence[Draft],
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        sequence: int = -1,
        is_transactional: bool = False,
    ) -> int:
        """Appends a batch; its first offset. A batch that was sent again is recognized by its first ``sequence``."""
        if producer_id >= 0:
            known = self._producer(producer_id, producer_epoch)
            if sequence in known.batches:
                return known.batches[sequence][1]
            if known.next_sequence not in (-1, sequence):
                raise Refused(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
            known.batches[sequence] = sequence + len(drafts), self.end
            if len(known.batches) > BATCHES_KNOWN:
                del known.batches[next(iter(known.batches))]
        base = self.end
        for number, draft in enumerate(drafts):
            record = Record(
                base + number, draft.timestamp_ms, draft.key, draft.value, draft.headers, self.leader_epoch, producer_id
            )
            record.is_transactional = is_transactional
            self._records.append(record)
        if is_transactional:
            self._open.setdefault(producer_id, base)
        self.end += len(drafts)
        return base

    def end_transaction(self, producer_id: int, producer_epoch: int, timestamp_ms: int, *, commit: bool) -> None:
        """Writes the control record. Everything that the producer has written since its last one shares its fate."""
        self._producer(producer_id, producer_epoch)
        first = self._open.pop(producer_id, self.end)
        if not commit:
            for record in self._records[self._index(first) :]:
                record.was_aborted |= record.producer_id == producer_id and record.is_transactional
        kind = Kind.COMMIT if commit else Kind.ABORT
        place = self.end, timestamp_ms, None, None, (), self.leader_epoch, producer_id
        self._records.append(Record(*place, kind, is_transactional=True))
        self.end += 1

    def _producer(self, producer_id: int, epoch: int) -> ProducerState:
        known = self._producers.get(producer_id)
        if known is not None and epoch < known.epoch:
            raise Refused(KafkaError.INVALID_PRODUCER_EPOCH)
        if known is None or epoch > known.epoch:
            known = self._producers[producer_id] = ProducerState(epoch)
        return known

    # --- reading ---

    def read(self, offset: int, end: int, records_max: int) -> list[Record]:
        """Up to ``records_max`` records of all kinds with ``offset`` <= their offset < ``end``."""
        first = self._index(offset)
        return self._records[first : min(self._index(end), first + records_max)]

    def committed(self, begin: int, end: int) -> list[Record]:
        """The records from ``begin`` to ``end`` that a read_committed reader is given."""
        return [each for each in self.read(begin, end, end) if each.kind is Kind.DATA and not each.was_aborted]

    def offset_at(self, timestamp_ms: int) -> tuple[int, int]:
        """(offset, timestamp) of the first record with this or a later timestamp; -1 each if there is none."""
        for record in self._records:
            if record.timestamp_ms >= timestamp_ms:
                return record.offset, record.timestamp_ms
        return -1, -1

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(the last leader epoch up to ``epoch``, where it ends); -1 each if that is not known (KIP-101)."""
        if epoch == self._epochs[-1][0]:
            return epoch, self.end
        later = [start for known, start in self._epochs if known > epoch]
        if not later:
            return -1, -1
        earlier = [known for known, _ in self._epochs if known <= epoch]
        return (earlier[-1] if earlier else epoch), later[0]

    def whole_until(self, offset: int) -> int:
        """The last place up to ``offset`` at which no transaction is open."""
        whole, opened = self.start, set[int]()
        for record in self._records[: self._index(offset)]:
            if record.is_transactional:
                opened.add(record.producer_id)
            if record.kind is not Kind.DATA:
                opened.discard(record.producer_id)
            whole = whole if opened else record.offset + 1
        return whole

    def _index(self, offset: int) -> int:
        return bisect_left(self._records, offset, key=_offset_of)

    # --- what happens to a log ---

    def elect(self) -> None:
        """Another leader, with another epoch."""
        self.leader_epoch += 1
        kept = [(epoch, start) for epoch, start in self._epochs if start < self.end]
        self._epochs = [*kept, (self.leader_epoch, self.end)]

    def truncate(self, end: int) -> None:
        """An unclean election: the new leader has nothing from ``end`` on. What it knows is what it can still read."""
        end = max(min(end, self.end), self.start)
        del self._records[self._index(end) :]
        self.end = end
        self.elect()
        self._open.clear()
        for known in self._producers.values():
            known.batches = {first: place for first, place in known.batches.items() if place[1] < end}
        for record in self._records:
            record.was_aborted = False
        for record in list(self._records):
            if record.kind is not Kind.DATA:
                self._close_again(record)
            elif record.is_transactional:
                self._open.setdefault(record.producer_id, record.offset)

    def _close_again(self, end: Record) -> None:
        first = self._open.pop(end.producer_id, end.offset)
        for record in self._records[self._index(first) : self._index(end.offset)]:
            record.was_aborted |= end.kind is Kind.ABORT and record.producer_id == end.producer_id

    def delete_before(self, offset: int) -> None:
        """Retention, or a request to delete records."""
        self.start = max(self.start, min(offset, self.end))
        del self._records[: self._index(self.start)]
        kept = [(epoch, max(start, self.start)) for epoch, start in self._epochs]
        self._epochs = [
            each for each, later in zip(kept, [*kept[1:], None], strict=True) if later is None or later[1] > each[1]
        ]

    def compact(self) -> None:
        """Keeps the last record of each key, and what has none."""
        last = {record.key: record.offset for record in self._records if record.key is not None}
        self._records = [each for each in self._records if each.key is None or last[each.key] == each.offset]
