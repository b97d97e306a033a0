"""When a PostgreSQL source begins an epoch, and what is left of the one before. Without a server."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from stream.kafka.connection import KafkaCluster
from stream.sources.debezium.connector import KafkaConnect
from stream.sources.debezium.places import Places
from stream.sources.debezium.source import ConnectorOptions
from stream.sources.mariadb.binlog.progress import Progress
from stream.sources.mariadb.connection import ConnectionSettings, SourceHistoryLost
from stream.sources.mariadb.gtid import PostgresPlace
from stream.sources.mariadb.position import ServerPosition
from stream.sources.mariadb.source import SourceOptions
from stream.sources.postgres import source as sources
from stream.sources.postgres.server import ServerState
from stream.sources.postgres.source import PostgresSource
from stream.wire.events import ResumePoint
from tests.sources.postgres.test_messages import schema_of

AT = "Postgres/1:0/10"


@pytest.mark.parametrize("why", ["", "no places", "the slot is gone", "another choice of tables", "restored"])
def test_an_epoch_begins_with_no_table_described(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """What was described in the epoch before is unknown to who reads the new one. Else all goes on as it was."""
    connector = ConnectorOptions("pre", KafkaConnect("http://nowhere"), KafkaCluster("nowhere:1"))
    settings = ConnectionSettings(product="PostgreSQL")
    source = PostgresSource(SourceOptions(settings, "s/0"), connector, lambda: None)  # type: ignore[arg-type,return-value]
    begun: list[str] = []

    def slot(*_: object) -> None:
        if why == "the slot is gone":
            raise SourceHistoryLost("it is not there")

    end = PostgresPlace(1, 8 if why == "restored" else 16)
    source._places = None if why == "no places" else Places(6 if why == "another choice of tables" else 5)
    monkeypatch.setattr(sources, "session", lambda _: nullcontext())
    monkeypatch.setattr(sources, "check_settings", lambda _: None)
    monkeypatch.setattr(sources, "read_state", lambda _: ServerState(7_000, end, end.lsn))
    monkeypatch.setattr(sources, "slot_of", slot)
    monkeypatch.setattr(source, "_ask_connector", lambda *_: SimpleNamespace(fingerprint=5, slot="slot"))
    monkeypatch.setattr(source, "_first_place", lambda _: ServerPosition(AT, 7))
    monkeypatch.setattr(source, "_new_epoch", lambda *words: begun.append(words[-1]))
    schema, _ = schema_of()
    nobody: Any = None
    source._check(nobody, schema, Progress(ResumePoint("s/0", 1, 1, AT, 7, AT)))
    assert begun == ["history_lost"] * bool(why)
    assert set(schema.catalog.names) == (set() if why else {"s.t"})
    assert source._new_epoch_for == ""


def test_an_epoch_begins_behind_all_that_its_topics_have_told_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed while the topics are looked at may be in them already: nobody would tell it, nor void it."""
    connector = ConnectorOptions("pre", KafkaConnect("http://nowhere"), KafkaCluster("nowhere:1"))
    settings = ConnectionSettings(product="PostgreSQL")
    source = PostgresSource(SourceOptions(settings, "s/0"), connector, lambda: None)  # type: ignore[arg-type,return-value]
    end = PostgresPlace(1, 16)

    def beginning(found: dict[str, int]) -> dict[tuple[str, int], int]:
        nonlocal end
        end = PostgresPlace(1, 24)
        return dict.fromkeys([(name, 0) for name in found], 8)

    topics = SimpleNamespace(
        transactions="pre.transaction",
        existing=lambda: {"pre.s.t": 1, "pre.transaction": 1, "other": 1},
        topic_of=lambda name: f"pre.{name}",
        beginning=beginning,
        close=lambda: None,
    )
    monkeypatch.setattr(sources, "ConnectorTopics", lambda *_: topics)
    monkeypatch.setattr(sources, "read_state", lambda _: ServerState(7_000, end, end.lsn))
    monkeypatch.setattr(sources, "slot_of", lambda *_: None)
    monkeypatch.setattr(sources, "fetch_all", lambda *_: [("s", "t")])
    monkeypatch.setattr(source, "_ask_connector", lambda *_: SimpleNamespace(fingerprint=5, slot="slot"))
    nobody: Any = None
    assert source._first_place(nobody) == ServerPosition(str(PostgresPlace(1, 24)), 7)
    assert source._places == Places(5, {("pre.s.t", 0): 8, ("pre.transaction", 0): 8})
