"""A source whose connector becomes one that can't be a source."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stream.kafka.connection import KafkaCluster
from stream.sources.debezium.connector import KafkaConnect
from stream.sources.debezium.errors import ConnectUnreachable, DebeziumError
from stream.sources.debezium.places import PLACES, Places, read_places
from stream.sources.debezium.source import ConnectorOptions, DebeziumSource
from stream.sources.mariadb.connection import ConnectionSettings, SourceHistoryLost
from stream.sources.mariadb.source import SourceOptions


@pytest.fixture
def source() -> DebeziumSource:
    """A source that has read some of its connector's topics."""
    connector = ConnectorOptions("pre", KafkaConnect("http://nowhere"), KafkaCluster("nowhere:1"))
    made = DebeziumSource(SourceOptions(ConnectionSettings(product="MySQL"), "s/0"), connector, lambda: None)  # type: ignore[arg-type,return-value]
    made._places = Places(5, {("pre", 0): 7})
    made.status.position, made.status.timestamp = "MySQL56/", 7
    return made


def test_what_a_connector_has_hidden_is_void_also_when_it_is_mended(
    source: DebeziumSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator who follows the hint and starts the source again would keep rows of before a TRUNCATE."""
    told: list[Any] = []
    publisher: Any = SimpleNamespace(annotate=told.append, start_new_epoch=lambda *words: told.append(words))
    source._publisher = publisher

    def bad() -> Any:
        raise DebeziumError("it hides changes")

    monkeypatch.setattr(source, "_ask_connector", bad)
    with pytest.raises(DebeziumError):
        source._look()
    annotation, epoch = told
    places = read_places(annotation[PLACES], "pre")
    assert places is not None
    assert places.offsets == {("pre", 0): 7}
    assert epoch == ("MySQL56/", 7, "history_lost")
    monkeypatch.setattr(source, "_ask_connector", lambda: SimpleNamespace(fingerprint=5))
    with pytest.raises(SourceHistoryLost):
        source._check_choice(places)


def test_a_connect_that_is_away_hides_nothing(source: DebeziumSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the connector writes nothing either, so what was read goes on to be right."""

    def away() -> Any:
        raise ConnectUnreachable("away")

    monkeypatch.setattr(source, "_ask_connector", away)
    source._look()
