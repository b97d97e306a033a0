"""One shard's producer: each batch is one transaction, and no error is followed by another attempt at it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from stream.kafka.connection import KafkaCluster, KafkaUnreachable
from stream.publish import shard_producer
from stream.publish.publisher import Publisher
from stream.publish.shard_producer import (
    REQUEST_TIMEOUT_S,
    SLICE_TIMEOUT_S,
    STOP_TIMEOUT_S,
    PublisherLost,
    ShardProducer,
)
from stream.wire.keys import Layout
from tokens.errors import FreshetError

CLUSTER = KafkaCluster("127.0.0.1:1")
RECORDS = [(0, b"a"), (1, b"b"), (0, b"c")]


def failing(code: int, **flags: bool) -> KafkaException:
    """What librdkafka raises for a code."""
    return KafkaException(KafkaError(code, "why", **flags))


class Librdkafka:
    """What a producer was asked; ``errors`` are raised by the requests that wait for a broker, one each."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.calls: list[Any] = []
        self.errors: list[Exception] = []
        self.queue_full = False
        self.headers: list[dict[str, bytes] | None] = []
        self.ended: tuple[int, int] | None = None
        """A broker's answer has come behind the first record: what the next one and a new transaction are told."""

    def init_transactions(self, timeout_s: float) -> None:
        """A request to a broker."""
        self._request("init", timeout_s)

    def commit_transaction(self, timeout_s: float) -> None:
        """A request to a broker."""
        self._request("commit", timeout_s)

    def abort_transaction(self, timeout_s: float) -> None:
        """A request to a broker."""
        self._request("abort", timeout_s)

    def flush(self, timeout_s: float) -> int:
        """Waits for a broker; returns how many records wait."""
        self._request("flush", timeout_s)
        return 0

    def _request(self, name: str, timeout_s: float) -> None:
        assert timeout_s == SLICE_TIMEOUT_S
        self.calls.append(name)
        if self.errors:
            raise self.errors.pop(0)

    def begin_transaction(self) -> None:
        """Local."""
        if self.ended is not None and self.headers:
            raise failing(self.ended[1])
        self.calls.append("begin")

    def produce(
        self,
        topic: str,
        value: bytes,
        *,
        partition: int,
        timestamp: int = 0,
        on_delivery: Callable[[None, Any], None] | None = None,
        headers: dict[str, bytes] | None = None,
    ) -> None:
        """Takes a record; delivered at once."""
        if self.ended is not None and self.headers:
            raise failing(self.ended[0])
        self.headers.append(headers)
        if self.queue_full:
            raise BufferError
        self.calls.append((topic, partition, value, timestamp))
        if on_delivery is not None:
            on_delivery(None, SimpleNamespace(offset=lambda: 41 + len(self.calls)))


class StoppedClock:
    """Moves by a second at each look."""

    seconds = 0.0

    def now(self) -> float:
        """Seconds since 1970."""
        return self.seconds

    def monotonic(self) -> float:
        """As `now`, and moves on."""
        self.seconds += 1.0
        return self.seconds


class Made:
    """A producer over `Librdkafka`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client: Any = None
        self.clients: list[Any] = []
        self.errors: list[Exception] = []
        self.clock, self.stopping = StoppedClock(), threading.Event()
        monkeypatch.setattr(shard_producer, "Producer", self._client)
        monkeypatch.setattr(shard_producer, "sleep", lambda _: None)
        self.producer = ShardProducer(CLUSTER, "events", "ks/0", ["tx"], self.clock, self.stopping)

    def _client(self, settings: dict[str, Any]) -> Librdkafka:
        self.client = client = Librdkafka(settings)
        self.clients.append(client)
        client.errors = self.errors
        return client


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Not opened yet."""
    return Made(monkeypatch)


def test_a_batch_is_one_transaction_and_its_last_offset_is_told(made: Made) -> None:
    """Records go to their partitions with the batch's time, between begin and commit."""
    made.producer.open()
    offset = made.producer.commit(RECORDS, 77, {"place": b"9"})
    assert made.client.headers == [None, None, {"place": b"9"}], "those of the last record"
    wanted = [("events", partition, value, 77) for partition, value in RECORDS]
    assert made.client.calls == ["init", "begin", *wanted, "commit"]
    assert offset == 41 + 5
    settings = made.client.settings
    assert (settings["transactional.id"], settings["enable.idempotence"], settings["acks"]) == ("tx", True, "all")
    assert settings["transaction.timeout.ms"] == 10_000, "a dead publisher blocks readers no longer"


def test_two_take_turns(made: Made) -> None:
    """All are fenced before any commits, and the first one fenced commits first: of two at once at most one goes on."""
    made.producer = ShardProducer(CLUSTER, "events", "ks/0", ["one", "two"], made.clock, made.stopping)
    made.producer.open()
    assert [client.settings["transactional.id"] for client in made.clients] == ["one", "two"]
    for number in range(3):
        made.producer.commit([(0, b"%d" % number)], 1)
    one, two = ([call[2] for call in client.calls if isinstance(call, tuple)] for client in made.clients)
    assert (one, two) == ([b"0", b"2"], [b"1"])


def test_each_of_them_ends_what_the_one_before_it_has_left_open(made: Made) -> None:
    """The transaction that hides a partition's end may be of either. What ends it has events of nobody."""
    made.producer = ShardProducer(CLUSTER, "events", "ks/0", ["one", "two"], made.clock, made.stopping)
    made.producer.open()
    made.producer.end_hanging([0, 2])
    ended = ["begin", ("events", 0, b"", 0), ("events", 2, b"", 0), "flush", "abort"]
    assert [client.calls for client in made.clients] == [["init", *ended]] * 2
    made.producer.commit(RECORDS, 1)
    assert [client.calls[-1] for client in made.clients] == ["commit", "abort"]


@pytest.mark.parametrize(("one", "other"), [("shop/1", "shop/1.2"), ("log", "log.2"), ("shop/1", "shop/1-2")])
def test_no_other_shard_has_the_second_id_of_a_shard(one: str, other: str) -> None:
    """Else the two would fence each other for ever. These are names that the settings allow."""
    ids = [Publisher(CLUSTER, "shop", shard, Layout(2))._producer.transactional_ids for shard in (one, other)]
    assert len({*ids[0], *ids[1]}) == 4


def test_one_that_can_t_be_fenced_leaves_none_open(made: Made) -> None:
    """No batch is committed by the first one alone."""
    made.producer = ShardProducer(CLUSTER, "events", "ks/0", ["one", "two"], made.clock, made.stopping)
    connect = made.producer._connected

    def first_only(transactional_id: str) -> Any:
        if transactional_id == "two":
            made.errors += [failing(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)]
        return connect(transactional_id)

    made.producer._connected = first_only  # type: ignore[method-assign]
    with pytest.raises(FreshetError, match="init transactions of two"):
        made.producer.open()
    with pytest.raises(PublisherLost, match="not open"):
        made.producer.commit(RECORDS, 1)


def test_a_short_outage_is_waited_out(made: Made) -> None:
    """Timeouts and retriable errors are asked again, by the same call."""
    made.errors += [failing(KafkaError._TIMED_OUT), failing(KafkaError._TRANSPORT, retriable=True)]
    made.producer.open()
    made.errors += [failing(KafkaError._TIMED_OUT)]
    made.producer.commit(RECORDS[:1], 1)
    assert made.client.calls.count("init") == 3
    assert made.client.calls.count("begin") == 1
    assert made.client.calls.count("commit") == 2


def test_an_outage_ends_the_publisher_in_time(made: Made) -> None:
    """The wait is bounded, and shorter once it is asked to stop."""
    made.producer.open()
    began = made.clock.seconds
    made.errors += [failing(KafkaError._TIMED_OUT) for _ in range(1_000)]
    with pytest.raises(PublisherLost) as lost:
        made.producer.commit(RECORDS, 1)
    assert lost.value.code == "publisher_lost"
    assert REQUEST_TIMEOUT_S <= made.clock.seconds - began <= REQUEST_TIMEOUT_S + 2
    began = made.clock.seconds
    made.stopping.set()
    with pytest.raises(PublisherLost):
        made.producer.commit(RECORDS, 1)
    assert STOP_TIMEOUT_S <= made.clock.seconds - began <= STOP_TIMEOUT_S + 3


def test_a_producer_of_large_batches_has_more_time_for_each(made: Made) -> None:
    """Its transaction may take so long at the broker, and it waits so long for the commit."""
    made.producer = ShardProducer(CLUSTER, "log", "log", ["tx"], made.clock, made.stopping, transaction_timeout_s=120)
    made.producer.open()
    assert made.client.settings["transaction.timeout.ms"] == 120_000
    made.errors += [failing(KafkaError._TIMED_OUT) for _ in range(100)]
    made.producer.commit(RECORDS, 1)
    assert made.client.calls.count("commit") == 101
    made.errors += [failing(KafkaError._TIMED_OUT) for _ in range(130)]
    with pytest.raises(PublisherLost):
        made.producer.commit(RECORDS, 1)


def test_an_absent_broker_at_the_start_is_unreachable(made: Made) -> None:
    """No transaction was begun, so this is an outage and no loss."""
    made.errors += [failing(KafkaError._TIMED_OUT) for _ in range(1_000)]
    with pytest.raises(KafkaUnreachable):
        made.producer.open()
    with pytest.raises(PublisherLost):
        made.producer.commit(RECORDS, 1)


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (KafkaError._FENCED, "fenced"),
        (KafkaError.PRODUCER_FENCED, "fenced"),
        (KafkaError.INVALID_PRODUCER_EPOCH, "fenced"),
        (KafkaError.TRANSACTION_COORDINATOR_FENCED, "fenced"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "kafka_denied"),
        (KafkaError.INVALID_RECORD, "publisher_lost"),
    ],
)
def test_any_other_error_ends_the_publisher_at_once(made: Made, code: int, shown: str) -> None:
    """The transaction is not tried again: nobody knows whether it was committed."""
    made.producer.open()
    made.errors += [failing(code)]
    with pytest.raises(PublisherLost) as lost:
        made.producer.commit(RECORDS, 1)
    assert lost.value.code == shown
    assert made.client.calls.count("commit") == 1
    assert bool(lost.value.hint) is (code != KafkaError.INVALID_RECORD), "fencing and a missing right say what to do"


@pytest.mark.parametrize(
    ("told", "reason", "shown"),
    [
        (KafkaError._FATAL, KafkaError._FENCED, "fenced"),
        (KafkaError._STATE, KafkaError.INVALID_PRODUCER_EPOCH, "fenced"),
        (KafkaError._STATE, KafkaError.TOPIC_AUTHORIZATION_FAILED, "kafka_denied"),
        (KafkaError._STATE, KafkaError._STATE, "publisher_lost"),
        (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._FENCED, "publisher_lost"),
    ],
)
def test_an_error_between_two_records_is_told_with_its_reason(made: Made, told: int, reason: int, shown: str) -> None:
    """librdkafka gives none to whoever hands over a record; what a record itself is refused for is a reason."""
    made.producer.open()
    made.client.ended = told, reason
    with pytest.raises(PublisherLost) as lost:
        made.producer.commit(RECORDS, 1)
    assert lost.value.code == shown
    assert "commit" not in made.client.calls


def test_a_full_queue_ends_the_publisher(made: Made) -> None:
    """A part of the batch is in the transaction, so it can't go on."""
    made.producer.open()
    made.client.queue_full = True
    with pytest.raises(PublisherLost, match="queue is full"):
        made.producer.commit(RECORDS, 1)


def test_a_dropped_producer_commits_nothing(made: Made) -> None:
    """Its open transaction is left to the broker."""
    made.producer.open()
    made.producer.drop()
    with pytest.raises(PublisherLost, match="not open"):
        made.producer.commit(RECORDS, 1)
    assert "commit" not in made.client.calls


@pytest.mark.parametrize("ended", [None, (KafkaError._FATAL, KafkaError._FENCED)])
@pytest.mark.parametrize("full", [False, True])
def test_a_lost_producer_is_let_go(made: Made, full: bool, ended: tuple[int, int] | None) -> None:
    """Whoever keeps the error keeps no producer alive: its threads would hold connections to the broker."""
    made.producer.open()
    made.client.queue_full, made.client.ended = full, ended
    made.errors += [failing(KafkaError._FENCED)]
    client, made.client = weakref.ref(made.client), None
    made.clients.clear()
    with pytest.raises(PublisherLost) as lost:
        made.producer.commit(RECORDS, 1)
    made.producer.drop()
    assert client() is None
    assert lost.value.__traceback__ is not None
