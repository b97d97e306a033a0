"""The look-alike of confluent_kafka's Producer, with and without transactions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException, Message

from lab.simulation.kafka.cluster import Cluster
from lab.simulation.kafka.connection import TRANSIENT, Connection, Settings, Unreachable, failure, seconds
from lab.simulation.kafka.log import Draft, Header, Refused

OnDelivery = Callable[[KafkaError | None, Message], object]
Place = tuple[str, int]
FENCED: Final = frozenset({KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})
FOREVER_S: Final = 1e9
POLL_S: Final = 1.0
"""A poll for which there is nothing to do ends after this time."""
BATCH_RECORDS: Final = 1000
RETRIED: Final = TRANSIENT | {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.NOT_ENOUGH_REPLICAS}
"""Errors of a batch after which it is sent again, until its messages are too old."""
SIZE_MAX: Final = 1_000_000
QUEUE_MESSAGES_MAX: Final = 100_000
QUEUE_KB_MAX: Final = 1_048_576


class State(Enum):
    """Of a transactional producer, with librdkafka's names."""

    NOT_INITIALIZED = "Init"
    READY = "Ready"
    IN_TRANSACTION = "InTransaction"
    COMMITTING = "BeginCommit"
    ABORTABLE = "AbortableError"
    FATAL = "FatalError"


class Waiting(NamedTuple):
    """A message in the producer's queue."""

    draft: Draft
    place: Place
    since: float
    on_delivery: OnDelivery | None


@dataclass
class Batch:
    """What is sent to one partition with one request, until it is acknowledged."""

    messages: list[Waiting]
    sequence: int


class SimulatedProducer:
    """As `confluent_kafka.Producer`, as far as Freshet and its tests use it.

    What librdkafka sends in a thread of its own is sent here by `poll`, `flush` and `commit_transaction`.
    """

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._connection = Connection(cluster)
        self._cluster = cluster
        self._transactional_id: str = settings.get("transactional.id", "")
        self._transaction_s = seconds(settings, "transaction.timeout.ms", 60_000)
        default_ms = self._transaction_s * 1000 if self._transactional_id else 300_000
        named = next((each for each in ("delivery.timeout.ms", "message.timeout.ms") if each in settings), "")
        self._message_s = seconds(settings, named, default_ms)
        self._size_max = int(settings.get("message.max.bytes", SIZE_MAX))
        self._messages_max = int(settings.get("queue.buffering.max.messages", QUEUE_MESSAGES_MAX))
        self._bytes_max = int(settings.get("queue.buffering.max.kbytes", QUEUE_KB_MAX)) * 1024
        self._is_idempotent = bool(self._transactional_id) or bool(settings.get("enable.idempotence"))
        self._queue: deque[Waiting] = deque()
        self._bytes = 0
        self._batch: Batch | None = None
        self._reports: deque[tuple[OnDelivery, KafkaError | None, Message]] = deque()
        self._producer: tuple[int, int] | None = None
        """Producer id and epoch."""
        self._sequences: dict[Place, int] = {}
        self._state = State.NOT_INITIALIZED
        self._problem: KafkaException | None = None
        self._added: set[Place] = set()
        """Partitions that the coordinator has in the present transaction."""
        self._failed = 0

    def __len__(self) -> int:
        return len(self._queue) + (len(self._batch.messages) if self._batch else 0) + len(self._reports)

    # --- messages ---

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]] | None = None,
    ) -> None:
        """Puts a message into the queue. Raises ``BufferError`` if that is full."""
        if self._state is State.FATAL:
            raise failure(KafkaError._FATAL, "Unable to produce message: Local: Fatal error")
        if self._transactional_id and self._state is not State.IN_TRANSACTION:
            raise failure(KafkaError._STATE, "Unable to produce message: Local: Erroneous state")
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        written: tuple[Header, ...] = tuple((name, _bytes(each)) for name, each in pairs)
        draft = Draft(_bytes(key), _bytes(value), written, timestamp or self._cluster.wall_ms)
        if len(draft.value or b"") + len(draft.key or b"") > self._size_max:
            raise failure(KafkaError.MSG_SIZE_TOO_LARGE, "Unable to produce message: Broker: Message size too large")
        if len(self._queue) >= self._messages_max or self._bytes + draft.size > self._bytes_max:
            raise BufferError("Local: Queue full")
        self._bytes += draft.size
        self._queue.append(Waiting(draft, (topic, max(partition, 0)), self._cluster.now, on_delivery))

    def poll(self, timeout: float = -1) -> int:
        """Sends what is queued, if there is time for that, and calls back for what was delivered; how often."""
        deadline = self._deadline(timeout)
        if timeout and (self._queue or self._batch):
            self._send(deadline)
        elif not self._reports:
            self._cluster.wait(lambda: False, min(deadline, self._cluster.now + POLL_S))
        return self._report()

    def flush(self, timeout: float = -1) -> int:
        """Sends everything, with callbacks; the number of messages that are still not delivered."""
        deadline = self._deadline(timeout)
        while len(self):
            self._report()
            if len(self) and not self._send(deadline):
                break
        self._report()
        return len(self)

    def _report(self) -> int:
        count = 0
        while self._reports:
            on_delivery, error, message = self._reports.popleft()
            count += 1
            on_delivery(error, message)
        return count

    # --- sending ---

    def _send(self, deadline: float) -> bool:
        """Sends batches until the queue is empty; False if ``deadline`` comes first."""
        while self._state is not State.FATAL and (self._batch or self._queue):
            self._expire()
            batch = self._batch = self._batch or self._next_batch()
            if batch is None:
                break
            try:
                self._prepare(batch, deadline)
                self._deliver(batch, self._append(batch, deadline))
            except Unreachable:
                self._expire()
                return not (self._batch or self._queue)
            except Refused as refused:
                self._refuse(batch, refused)
            self._batch = None
        return True

    def _next_batch(self) -> Batch | None:
        if not self._queue:
            return None
        place = self._queue[0].place
        messages = [each for each in self._queue if each.place == place][:BATCH_RECORDS]
        taken = set(map(id, messages))
        self._queue = deque(each for each in self._queue if id(each) not in taken)
        self._bytes -= sum(each.draft.size for each in messages)
        return Batch(messages, self._sequences.get(place, 0))

    def _prepare(self, batch: Batch, deadline: float) -> None:
        """Gets a producer id, and has the partition added to the transaction."""
        if self._is_idempotent and self._producer is None:
            self._producer = self._connection.ask(self._cluster.transactions.new_producer, deadline)
        place = batch.messages[0].place
        if self._transactional_id and place not in self._added:
            producer, transactions = self._known_producer(), self._cluster.transactions
            wanted = {place, *(each.place for each in self._queue)}
            self._connection.ask(
                lambda: transactions.add(self._transactional_id, producer, wanted),
                deadline,
                coordinator=True,
                transient=RETRIED,
            )
            self._added |= wanted

    def _append(self, batch: Batch, deadline: float) -> int:
        """Offset of the batch's first message. A batch whose acknowledgement was lost is sent again, and not twice."""
        name, number = batch.messages[0].place

        def append() -> int:
            log = self._cluster.log(name, number)
            drafts = self._cluster.topic(name).check([each.draft for each in batch.messages], self._cluster.wall_ms)
            if self._producer is None:
                return log.append(drafts)
            return log.append(
                drafts,
                producer_id=self._producer[0],
                producer_epoch=self._producer[1],
                sequence=batch.sequence,
                is_transactional=bool(self._transactional_id),
            )

        return self._connection.ask(append, deadline, transient=RETRIED)

    def _deliver(self, batch: Batch, base: int) -> None:
        self._sequences[batch.messages[0].place] = batch.sequence + len(batch.messages)
        for number, each in enumerate(batch.messages):
            self._add_report(each, None, base + number)

    def _refuse(self, batch: Batch, refused: Refused) -> None:
        """The brokers' answer to a batch that they will never take."""
        if self._transactional_id and refused.code in FENCED:
            self._set_fatal(KafkaError._FENCED, "Local: This instance has been fenced by a newer instance")
        elif self._transactional_id:
            self._set_abortable(refused.code)
        for each in batch.messages:
            self._add_report(each, KafkaError(refused.code), -1001)

    def _expire(self) -> None:
        """Messages that were not delivered in time fail."""
        oldest = self._cluster.now - self._message_s
        if self._batch is not None and self._batch.messages[0].since < oldest:
            late, self._batch = self._batch.messages, None
        else:
            late = []
        while self._queue and self._queue[0].since < oldest:
            late.append(self._queue.popleft())
        for each in late:
            self._add_report(each, KafkaError(KafkaError._MSG_TIMED_OUT), -1001)
        if late and not self._transactional_id:
            self._producer, self._sequences = None, {}  # librdkafka raises its epoch: there is a gap

    def _add_report(self, waiting: Waiting, error: KafkaError | None, offset: int) -> None:
        self._failed += error is not None
        if waiting.on_delivery is None:
            return
        draft, (topic, partition) = waiting.draft, waiting.place
        message = Message(
            topic=topic,
            partition=partition,
            offset=offset,
            key=draft.key,
            value=draft.value,
            timestamp=(TIMESTAMP_CREATE_TIME, draft.timestamp_ms),
            error=error,
        )
        self._reports.append((waiting.on_delivery, error, message))

    # --- transactions ---

    def init_transactions(self, timeout: float = -1) -> None:
        """Gets the producer's epoch, which fences all others of the transactional id."""
        self._require(State.NOT_INITIALIZED, State.READY)
        if self._state is State.READY:
            return
        transactions = self._cluster.transactions
        try:
            self._producer = self._connection.ask(
                lambda: transactions.initialize(self._transactional_id, self._transaction_s),
                self._deadline(timeout),
                coordinator=True,
            )
        except Unreachable:
            raise failure(
                KafkaError._TIMED_OUT, "Failed to initialize Producer ID: Local: Timed out", retriable=True
            ) from None
        self._state = State.READY

    def begin_transaction(self) -> None:
        """Asks nobody."""
        self._require(State.READY)
        self._state, self._added, self._failed = State.IN_TRANSACTION, set(), 0

    def commit_transaction(self, timeout: float = -1) -> None:
        """Delivers everything, then ends the transaction. After a timeout it can be called again, and goes on."""
        self._require(State.IN_TRANSACTION, State.COMMITTING)
        self._state = State.COMMITTING
        deadline = self._deadline(timeout)
        if self.flush(max(deadline - self._cluster.now, 0.0)):
            self._require(State.COMMITTING)
            raise failure(
                KafkaError._TIMED_OUT,
                f"Failed to flush all outstanding messages within the API timeout: {len(self)} message(s) remaining",
                retriable=True,
            )
        self._require(State.COMMITTING)
        if self._failed:
            reason = f"{self._failed} message(s) failed delivery (see individual delivery reports)"
            raise KafkaException(KafkaError(KafkaError._INCONSISTENT, reason, txn_requires_abort=True))
        self._end(deadline, commit=True)

    def abort_transaction(self, timeout: float = -1) -> None:
        """Drops what is not delivered, and ends the transaction."""
        self._require(State.IN_TRANSACTION, State.ABORTABLE)
        self._queue.clear()
        self._batch, self._bytes = None, 0
        self._end(self._deadline(timeout), commit=False)

    def _end(self, deadline: float, *, commit: bool) -> None:
        if self._added:
            producer, transactions = self._known_producer(), self._cluster.transactions
            try:
                self._connection.ask(
                    lambda: transactions.end(self._transactional_id, producer, commit=commit),
                    deadline,
                    coordinator=True,
                )
            except Unreachable:
                raise failure(KafkaError._TIMED_OUT, "Transactional operation timed out", retriable=True) from None
            except Refused as refused:
                code = KafkaError._FENCED if refused.code in FENCED else refused.code
                self._set_fatal(code, f"Failed to end transaction: {KafkaError(code).str()}")
                self._require(State.COMMITTING)
        self._state = State.READY

    def _known_producer(self) -> tuple[int, int]:
        if self._producer is None:
            raise failure(KafkaError._STATE)
        return self._producer

    def _require(self, *states: State) -> None:
        if self._state in states:
            return
        if self._problem is not None:
            raise self._problem
        raise failure(KafkaError._STATE, f"Operation not valid in state {self._state.value}")

    def _set_fatal(self, code: int, reason: str) -> None:
        self._state, self._problem = State.FATAL, failure(code, reason, fatal=True)
        for each in self._queue:
            self._add_report(each, KafkaError(KafkaError._PURGE_QUEUE), -1001)
        self._queue.clear()

    def _set_abortable(self, code: int) -> None:
        if self._state is not State.FATAL:
            self._state = State.ABORTABLE
            self._problem = KafkaException(KafkaError(code, KafkaError(code).str(), txn_requires_abort=True))

    def _deadline(self, timeout_s: float) -> float:
        return self._cluster.now + (timeout_s if timeout_s >= 0 else FOREVER_S)


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
