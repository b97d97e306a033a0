"""What people ask of a source: each source takes what is asked of its own shard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stream.kafka import requests
from stream.kafka.connection import KafkaCluster
from stream.kafka.requests import RequestsReader


def test_a_source_does_not_do_what_is_asked_of_another_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """All shards of a keyspace have one topic. The place behind a request is where it goes on after a restart."""
    asked = [(b"s/0", b"one"), (b"s/1", b"two"), (None, b"three"), (b"s/0", b"four")]
    messages = [
        SimpleNamespace(key=lambda key=key: key, value=lambda value=value: value, offset=lambda offset=offset: offset)
        for offset, (key, value) in enumerate(asked, 7)
    ]
    consumer: Any = SimpleNamespace(assign=lambda _: None, close=lambda: None)
    monkeypatch.setattr(requests, "open_consumer", lambda *_, **__: consumer)
    monkeypatch.setattr(requests, "poll_batch", lambda *_, **__: messages)
    assert RequestsReader(KafkaCluster("127.0.0.1:1"), "s", "s/0").new(7) == [(8, b"one"), (11, b"four")]
