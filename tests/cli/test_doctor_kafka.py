"""The doctor at a Kafka: what processes would refuse there, before any of them starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Seen
from typing import Any

import pytest
import tomli_w
from confluent_kafka.admin import AdminClient, NewTopic

from freshet import cli
from freshet.checks import kafka as checks
from freshet.checks.finding import Check, healthy
from freshet.checks.kafka import examine_kafka
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.topics import DAY_MS, Topic, ensure_topics, events_topic
from tests.consumers.consuming import until
from tests.patience import PATIENCE_S


def statuses(found: list[Check]) -> dict[str, str]:
    """Name → status."""
    return {check.name: check.status for check in found}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Check]]:
    """What is found at brokers that list these topics, name → partitions' (leader, replicas, replicas in sync)."""

    def examine(brokers: int, replicas: int, **topics: list[tuple[int, int, int]]) -> list[Check]:
        listed = {
            name: Seen(
                partitions={n: Seen(leader=p[0], replicas=[0] * p[1], isrs=[0] * p[2]) for n, p in enumerate(of)}
            )
            for name, of in topics.items()
        }
        cluster = KafkaCluster("kafka:1", prefix="f", replicas=replicas)
        events = Topic(events_topic(cluster, "shop"), "id", 2, 3)
        monkeypatch.setattr(checks, "call_kafka", lambda *_: Seen(brokers=dict.fromkeys(range(brokers)), topics=listed))
        monkeypatch.setattr(checks, "check_topics", lambda *_: events)
        monkeypatch.setattr(checks, "advise", lambda *_: [])
        return examine_kafka(cluster, {"shop": (2, DAY_MS)})

    return examine


def test_more_replicas_than_brokers_are_missing(seen: Callable[..., list[Check]]) -> None:
    """Kafka would refuse to make any topic; one replica where there could be more loses events with its broker."""
    assert statuses(seen(1, 1)) == {"brokers": "ok", "replicas": "ok", "topic of shop": "ok"}
    assert statuses(seen(3, 3))["replicas"] == "ok"
    assert statuses(seen(2, 3))["replicas"] == "missing"
    few = seen(2, 1)
    assert (statuses(few)["replicas"], few[1].fix) == ("warning", "set it to 2 before a source makes the topics")


def test_a_broker_that_is_down_shows_in_the_topics(seen: Callable[..., list[Check]]) -> None:
    """Replicas that lag are a warning; a partition without a leader, also of Kafka's own topics, stops everything."""
    topic = "f.shop.events"
    assert statuses(seen(3, 3, **{topic: [(0, 3, 3), (1, 3, 2)]}))["topic of shop"] == "warning"
    assert "leaders" not in statuses(seen(3, 3, **{topic: [(0, 3, 3), (1, 3, 3)]}))
    for name in (topic, "f.locations", "__consumer_offsets", "__transaction_state"):
        found = seen(3, 3, **{name: [(0, 3, 3), (-1, 3, 3)]})
        assert statuses(found)["leaders"] == "missing"
        assert found[-1].found == f"1 of 2 partitions of {name} have no leader"
    assert "leaders" not in statuses(seen(3, 3, others=[(-1, 3, 0)]))


def test_where_nobody_answers_that_is_all_it_says() -> None:
    """One finding with its hint."""
    [only] = examine_kafka(KafkaCluster("127.0.0.1:1"), {"shop": (2, DAY_MS), "lake": (2, DAY_MS)})
    assert (only.name, only.status) == ("brokers", "missing")
    assert "no Kafka broker answers at 127.0.0.1:1" in only.found
    assert only.fix


@pytest.mark.integration
def test_topics_are_judged_by_the_rules_of_the_processes(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """None yet is right, and so is one of the source's making; every other one has the hint that mends it."""
    monkeypatch.chdir(tmp_path)
    shortlived = f"{keyspace_name}x"

    def ask(retention_ms: int = 7 * DAY_MS, **partitions: int) -> tuple[int, dict[str, dict[str, str]]]:
        keyspaces = {name: {"partitions": each, "retention_ms": retention_ms} for name, each in partitions.items()}
        settings = {"kafka": {"bootstrap": kafka.bootstrap, "extra": dict(kafka.extra)}, "keyspaces": keyspaces}
        Path("freshet.toml").write_text(tomli_w.dumps(settings))
        code = cli.run(["doctor", "--kafka", "--json"])
        return code, {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}

    code, found = ask(**{keyspace_name: 2})
    assert (code, found["brokers"]["status"]) == (0, "ok")
    assert found[f"topic of {keyspace_name}"]["found"].endswith("is not there yet: its source makes it")
    ensure_topics(kafka, keyspace_name, 2)
    short = NewTopic(events_topic(kafka, shortlived), 2, 1, config={"retention.ms": "60000"})
    with AdminClient(client_settings(kafka)) as admin:
        admin.create_topics([short])[short.topic].result(PATIENCE_S)
        until(lambda: short.topic in admin.list_topics(timeout=60).topics, "the broker knows the topic")
    code, found = ask(**{keyspace_name: 2, shortlived: 2})
    assert code == 1
    assert found[f"topic of {keyspace_name}"]["found"].endswith("2 partitions with 1 replicas")
    assert "retention.ms=604800000" in found[f"topic of {shortlived}"]["fix"]
    code, found = ask(retention_ms=30 * DAY_MS, **{keyspace_name: 2})
    assert (code, found[f"topic of {keyspace_name}"]["status"]) == (0, "warning")
    assert f"retention.ms={30 * DAY_MS}" in found[f"topic of {keyspace_name}"]["fix"]
    code, found = ask(**{keyspace_name: 3})
    assert (code, found[f"topic of {keyspace_name}"]["status"]) == (1, "missing")
    assert not healthy([Check(**each) for each in found.values()])
