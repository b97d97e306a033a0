"""The transaction coordinator: producer ids and their epochs, what is open, and the control records that end it.

As Kafka's: a commit is decided at once, and the partitions learn of it a little later, each for itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Final

from confluent_kafka import KafkaError

from lab.simulation.kafka.brokers import Brokers
from lab.simulation.kafka.log import Refused

MARKER_S: Final = 0.005
"""A partition has the control record after at most this time."""
CLEANING_S: Final = 10.0
"""How often the coordinator looks for transactions that have taken too long (Kafka's default)."""
Place = tuple[str, int]


class State(Enum):
    """Of one transactional id."""

    EMPTY = "empty"
    OPEN = "open"
    ENDING = "ending"
    """Decided; some partition lacks the control record."""
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass
class Transaction:
    """The coordinator's entry of one transactional id."""

    producer_id: int
    timeout_s: float
    epoch: int = -1
    state: State = State.EMPTY
    places: set[Place] = field(default_factory=set)
    number: int = 0
    """Of the transaction that is or was open last."""


class Transactions:
    """All transactional ids of a cluster."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._known: dict[str, Transaction] = {}
        self._producer_ids = count(1000)

    def new_producer(self) -> tuple[int, int]:
        """(producer id, epoch) for a producer without a transactional id."""
        return next(self._producer_ids), 0

    def initialize(self, transactional_id: str, timeout_s: float) -> tuple[int, int]:
        """(producer id, epoch) of the id's new producer; fences those before. What they left open is aborted first."""
        known = self._known.get(transactional_id)
        if known is None:
            known = self._known[transactional_id] = Transaction(next(self._producer_ids), timeout_s)
        if known.state is State.OPEN:
            known.epoch += 1
            self._end(known, commit=False)
        if known.state is State.ENDING:
            raise Refused(KafkaError.CONCURRENT_TRANSACTIONS)
        known.epoch += 1
        known.timeout_s = timeout_s
        known.state = State.EMPTY
        return known.producer_id, known.epoch

    def add(self, transactional_id: str, producer: tuple[int, int], places: set[Place]) -> None:
        """Lets the producer write to ``places`` in its transaction, which is open from now on."""
        known = self._entry(transactional_id, producer)
        if known.state is State.ENDING:
            raise Refused(KafkaError.CONCURRENT_TRANSACTIONS)
        for place in places:
            self._brokers.log(*place)
        if known.state is not State.OPEN:
            known.state, known.places = State.OPEN, set()
            known.number += 1
            number = known.number
            late_s = known.timeout_s + self._brokers.rng.uniform(0, CLEANING_S)
            self._brokers.after(late_s, lambda: self._time_out(known, number))
        known.places |= places

    def end(self, transactional_id: str, producer: tuple[int, int], *, commit: bool) -> None:
        """Decides the open transaction. Asked again, it says the same."""
        known = self._entry(transactional_id, producer)
        wanted = State.COMMITTED if commit else State.ABORTED
        if known.state is wanted:
            return
        if known.state is State.ENDING:
            raise Refused(KafkaError.CONCURRENT_TRANSACTIONS)
        if known.state is not State.OPEN:
            raise Refused(KafkaError.INVALID_TXN_STATE)
        self._end(known, commit=commit)

    def _entry(self, transactional_id: str, producer: tuple[int, int]) -> Transaction:
        known = self._known.get(transactional_id)
        if known is None or known.producer_id != producer[0]:
            raise Refused(KafkaError.INVALID_PRODUCER_ID_MAPPING)
        if known.epoch != producer[1]:
            raise Refused(KafkaError.PRODUCER_FENCED)
        return known

    def _end(self, known: Transaction, *, commit: bool) -> None:
        known.state = State.ENDING
        epoch = known.epoch
        for place in sorted(known.places):
            delay_s = self._brokers.rng.uniform(0, MARKER_S) + self._brokers.slow_s
            self._brokers.after(delay_s, lambda place=place: self._mark(known, place, epoch, commit=commit))  # type: ignore[misc]
        if not known.places:
            known.state = State.COMMITTED if commit else State.ABORTED

    def _mark(self, known: Transaction, place: Place, epoch: int, *, commit: bool) -> None:
        """Writes one control record, as soon as there is a broker for it."""
        if self._brokers.down:
            self._brokers.after(MARKER_S, lambda: self._mark(known, place, epoch, commit=commit))
            return
        topic = self._brokers.topics.get(place[0])
        if topic is not None:
            log = topic.logs[place[1]]
            log.end_transaction(known.producer_id, epoch, self._brokers.wall_ms, commit=commit)
        known.places.discard(place)
        if not known.places:
            known.state = State.COMMITTED if commit else State.ABORTED

    def _time_out(self, known: Transaction, number: int) -> None:
        """Aborts a transaction that was open for too long, and fences its producer."""
        if known.state is not State.OPEN or known.number != number:
            return
        if self._brokers.down or self._brokers.coordinator_away:
            self._brokers.after(CLEANING_S / 10, lambda: self._time_out(known, number))
            return
        known.epoch += 1
        self._end(known, commit=False)
