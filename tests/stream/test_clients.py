"""Clients of Kafka that are kept: when they are made anew, when they end, and what they never tell."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from structlog.testing import capture_logs

from stream.kafka import connection, locations, requests, topics
from stream.kafka.connection import KafkaCluster, KafkaDenied, KafkaRequestError, KafkaUnreachable
from stream.kafka.locations import LocationsReader
from stream.kafka.reader import TopicReadError
from stream.kafka.requests import RETRY_S, RequestsReader
from stream.kafka.topics import Topic, TopicRight, TopicWatch

NOWHERE = KafkaCluster("127.0.0.1:1")


def test_a_topic_of_requests_that_is_not_there_is_not_asked_for_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source looks many times a second: each look would make a client and end it, and none is left open."""
    clock, opened, closed = [100.0], list[float](), list[float]()

    def opening(*_: object, **__: object) -> Any:
        opened.append(clock[0])
        return SimpleNamespace(assign=lambda _: None, close=lambda: closed.append(clock[0]))

    def missing(*_: object, **__: object) -> Any:
        raise TopicReadError("there is no such topic")

    monkeypatch.setattr(requests, "monotonic", lambda: clock[0])
    monkeypatch.setattr(requests, "open_consumer", opening)
    monkeypatch.setattr(requests, "poll_batch", missing)
    reader = RequestsReader(NOWHERE, "s", "s/0")
    for _ in range(3):
        assert reader.new(7) == []
    assert (opened, closed) == ([100.0], [100.0])
    clock[0] += RETRY_S
    assert reader.new(7) == []
    assert opened == closed == [100.0, 100.0 + RETRY_S]


class Answer(Future[Any]):
    """An answer that nobody may wait for: who asks says that it never does."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Only if it is here."""
        assert self.done()
        return super().exception(timeout)


class Admin:
    """An administration client that answers when the test says so."""

    def __init__(self, _: object) -> None:
        self.asked: list[Future[Any]] = []
        self.is_closed = False

    def describe_topics(self, *_: object, **__: object) -> dict[str, Future[Any]]:
        """Of one topic."""
        self.asked.append(Answer())
        return {"t": self.asked[-1]}

    def __exit__(self, *_: object) -> None:
        self.is_closed = True


@pytest.mark.parametrize("is_denied", [True, False])
def test_who_asks_once_for_a_right_keeps_no_client(monkeypatch: pytest.MonkeyPatch, is_denied: bool) -> None:
    """Each has connections and threads; a source runs for months."""
    monkeypatch.setattr(topics, "AdminClient", Admin)
    right: Any = TopicRight(NOWHERE, "t")
    assert right.denied() is None
    assert not right._admin.is_closed
    [answer] = right._admin.asked
    if is_denied:
        answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    else:
        answer.set_result(object())
    assert (right.denied() is not None) is is_denied
    assert right._admin.is_closed
    assert right.denied() is None, "once"


def test_a_watch_asks_nothing_more_before_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is slow would get more and more questions, and no answer would ever be heard."""
    monkeypatch.setattr(topics, "AdminClient", Admin)
    watch: Any = TopicWatch(NOWHERE, Topic("t", "id", 1))
    for _ in range(3):
        assert watch.other_id() == ""
    [answer] = watch._admin.asked
    answer.set_result(SimpleNamespace(topic_id="other"))
    assert watch.other_id() == "other"
    assert len(watch._admin.asked) == 2


def test_a_watch_that_got_no_answer_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker was away for a moment: a topic that is made anew after that has to be noticed all the same."""
    monkeypatch.setattr(topics, "AdminClient", Admin)
    watch: Any = TopicWatch(NOWHERE, Topic("t", "id", 1))
    assert watch.other_id() == ""
    watch._admin.asked[-1].set_exception(KafkaException(KafkaError(KafkaError._TRANSPORT)))
    assert watch.other_id() == ""
    watch._admin.asked[-1].set_result(SimpleNamespace(topic_id="other"))
    assert watch.other_id() == "other"


def test_no_rest_of_a_password_is_told() -> None:
    """Where one value begins with another, masking the shorter one first would leave the end of the longer one."""
    text = 'invalid value "secret-2024" for "a"'
    for names in ("ab", "ba"):
        values = dict(zip(names, ("secret", "secret-2024"), strict=True))
        assert connection._without_values(text, values) == 'invalid value "***" for "a"'


def test_who_follows_announcements_opens_another_reader_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that failed is closed; with none, no owner that is announced from then on would be found."""
    reader = LocationsReader(NOWHERE)
    closed, polled = list[str](), list[str]()

    def consumer(name: str) -> Any:
        return SimpleNamespace(name=name, close=lambda: closed.append(name))

    def poll(one: Any, *_: object) -> list[object]:
        polled.append(one.name)
        if len(polled) > 5:
            reader._stopping.set()
        if one.name in closed or one.name == "first":
            raise RuntimeError("the consumer is closed")
        reader._stopping.set()
        return []

    monkeypatch.setattr(locations, "RETRY_S", 0.0)
    monkeypatch.setattr(locations, "ensure_locations_topic", lambda _: None)
    monkeypatch.setattr(locations, "poll_batch", poll)
    monkeypatch.setattr(locations, "end_offsets", lambda *_: {0: 0})
    monkeypatch.setattr(reader, "_open", lambda _: consumer("second"))
    reader._follow(consumer("first"))
    assert (polled, closed) == (["first", "second"], ["first", "second"])


def leaders(*numbers: int) -> Any:
    """What a broker says of a topic whose partitions have these leaders."""
    partitions = {at: SimpleNamespace(leader=number) for at, number in enumerate(numbers)}
    brokers = {1: SimpleNamespace(host="k", port=9092)}
    return SimpleNamespace(brokers=brokers, topics={"t": SimpleNamespace(error=None, partitions=partitions)})


def test_a_partition_without_a_leader_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or with one that nobody knows: the others are told."""
    admin = SimpleNamespace(list_topics=lambda **_: leaders(1, -1, 7))
    monkeypatch.setattr(topics, "AdminClient", lambda _: nullcontext(admin))
    assert topics.topic_leaders(NOWHERE, ["t", "missing"]) == {("t", 0): "k:9092"}


def test_a_topic_that_was_made_is_there_once_all_its_partitions_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher would else begin with some, and fail at the first row of another one."""
    answers = [leaders(1, 1), leaders(1, -1), leaders(-1, -1)]
    monkeypatch.setattr(topics, "POLL_INTERVAL_S", 0.0)
    admin: Any = SimpleNamespace(list_topics=lambda **_: answers.pop())
    topics._await_topic(admin, NOWHERE, "t", 60.0)
    assert not answers


def test_a_partition_that_has_no_leader_for_long_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source waits outages out, and ends of a topic that is unfit: this one passes once a broker is back."""
    clock = iter(range(100))
    monkeypatch.setattr(topics, "monotonic", lambda: next(clock))
    monkeypatch.setattr(topics, "POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(topics, "_describe", lambda *_: None)
    admin: Any = SimpleNamespace(list_topics=lambda **_: leaders(1, -1))
    with pytest.raises(KafkaUnreachable, match="no leader"):
        topics._await_topic(admin, NOWHERE, "t", 5.0)


@pytest.mark.parametrize(
    ("code", "is_outage"),
    [
        (KafkaError._NOENT, True),
        (KafkaError.LEADER_NOT_AVAILABLE, True),
        (KafkaError.NOT_LEADER_FOR_PARTITION, True),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, False),
    ],
)
def test_an_error_that_passes_is_an_outage_once_patience_ends(code: int, is_outage: bool) -> None:
    """But for a topic that is not there, as one with a mistake in its name: no broker that comes back has it."""

    def refuse() -> None:
        raise KafkaException(KafkaError(code))

    with pytest.raises(KafkaUnreachable if is_outage else KafkaRequestError):
        connection.call_kafka(NOWHERE, "ask", refuse)


@pytest.mark.parametrize("error", [BufferError("full"), KafkaException(KafkaError(KafkaError._INVALID_ARG))])
def test_hot_rows_that_can_not_be_asked_for_end_nothing(error: Exception) -> None:
    """The fold asks for them: it goes on, and says so once. Whoever reads such a row brings it, too."""

    def refused(*_: object, **__: object) -> None:
        raise error

    sender: Any = requests.HotKeysSender(NOWHERE)
    sender._producer = SimpleNamespace(produce=refused)
    with capture_logs() as told:
        for _ in range(2):
            sender.send("shop", "shop/0", "shop.t", [b"shop.t\0[1]"])
    assert len(told) == 1


def test_keys_that_are_no_text_are_not_asked_for() -> None:
    """Owners are asked for any bytes. The fold, which asks for those that are read most, must not end by them."""
    sent: list[bytes] = []
    sender: Any = requests.HotKeysSender(NOWHERE)
    sender._producer = SimpleNamespace(produce=lambda _, value, *__, **___: sent.append(value), poll=lambda _: 0)
    for keys in ([b"shop.t\0\xff", b"shop.t\0[1]"], [b"shop.t\0\xff"]):
        sender.send("shop", "shop/0", "shop.t", keys)
    assert [requests.read_hot_keys(value) for value in sent] == [requests.HotKeys("shop.t", ["[1]"])]


def test_a_source_that_ends_leaves_nothing_of_its_requests_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka ends a process in which a client is destroyed in a thread of its own."""
    closed: list[str] = []
    reader: Any = RequestsReader(NOWHERE, "s", "s/0")
    for name in ("_consumer", "_right"):
        monkeypatch.setattr(reader, name, SimpleNamespace(close=lambda name=name: closed.append(name)))
    reader.close()
    assert sorted(closed) == ["_consumer", "_right"]


def test_a_reader_of_announcements_that_can_not_begin_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front that starts without Kafka tries again and again."""
    closed: list[str] = []

    def away(*_: object) -> None:
        raise KafkaUnreachable("away")

    reader: Any = LocationsReader(NOWHERE)
    monkeypatch.setattr(locations, "ensure_locations_topic", lambda _: None)
    monkeypatch.setattr(locations, "end_offsets", lambda *_: {0: 5})
    monkeypatch.setattr(reader, "_open", lambda _: SimpleNamespace(close=lambda: closed.append("consumer")))
    monkeypatch.setattr(reader, "_read_to", away)
    with pytest.raises(KafkaUnreachable):
        reader._open_at_end(1.0)
    assert closed == ["consumer"]


@pytest.mark.parametrize("module", [locations, requests])
@pytest.mark.parametrize(
    ("refusal", "left", "raised"),
    [
        (None, 0, None),
        (None, 1, KafkaUnreachable),
        (KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), 0, KafkaDenied),
    ],
)
def test_what_is_not_in_the_topic_is_told_to_who_has_sent_it(
    refusal: KafkaError | None, left: int, raised: type[Exception] | None, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent again: nobody would find an owner until it says so again, and no source would hear of a request."""
    told: list[Any] = []

    def flush(_: float) -> int:
        for each in told[left:]:
            each(refusal, SimpleNamespace(offset=lambda: 7))
        return left

    producer = SimpleNamespace(
        produce=lambda *_, on_delivery, **__: told.append(on_delivery),
        flush=flush,
    )
    monkeypatch.setattr(locations, "ensure_locations_topic", lambda _: None)
    monkeypatch.setattr(requests, "ensure_requests_topic", lambda *_: None)
    monkeypatch.setattr(module, "Producer", lambda _: producer)
    said = locations.Announcement(keyspace="shop", partition=0, address="a:1", instance="a")
    with nullcontext() if raised is None else pytest.raises(raised):
        if module is locations:
            locations.announce(NOWHERE, [said])
        else:
            assert requests.send_request(NOWHERE, "shop", "shop/0", b"{}") == 7
    assert len(told) == 1
