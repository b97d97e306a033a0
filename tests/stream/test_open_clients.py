"""Clients of Kafka that are made together: none stays open where another one can't be made."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from stream.changes import following
from stream.changes.checkpoint import Checkpoint
from stream.changes.start import Start
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import Topic
from stream.sources.debezium import topics


def test_no_client_is_left_behind_where_a_consumer_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka ends a process in which a client is destroyed in a thread of its own."""
    open_clients: list[str] = []

    class Client:
        """Counted while it is open."""

        def __init__(self, *_: object) -> None:
            open_clients.append("client")

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None:
            open_clients.remove("client")

        close = __exit__

    def refuses(*_: object, **__: object) -> Any:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG))

    kafka, start = KafkaCluster("nowhere:1"), Start(Checkpoint("t", "id", (0,)))
    for module, name in ((topics, "AdminClient"), (following, "TopicWatch")):
        monkeypatch.setattr(module, name, Client)
        monkeypatch.setattr(module, "open_consumer", refuses)
    for opens in (
        lambda: topics.ConnectorTopics(kafka, "p"),
        lambda: following.Follower(kafka, Topic("t", "id", 1), start),
    ):
        with pytest.raises(KafkaException):
            opens()
        assert not open_clients
