"""Clients of Kafka that are kept: when they are made anew, when they end, and what they never tell."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from stream.kafka import connection, locations, requests, topics
from stream.kafka.connection import KafkaCluster
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
    monkeypatch.setattr(reader, "_open", lambda: consumer("second"))
    reader._follow(consumer("first"))
    assert (polled, closed) == (["first", "second"], ["first", "second"])
