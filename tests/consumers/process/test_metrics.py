"""What an operator can tell from a consuming process's metrics and `freshet lag`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from freshet.cli import run
from freshet.commands import lag
from stream.kafka.connection import KafkaCluster
from tests.consumers.consuming import ConsumeProcess, Feed, caught_up, gtid, until


def metrics(process: ConsumeProcess) -> dict[str, list[float]]:
    """All samples by name, as scraped now."""
    [ready] = process.lines("ready")
    with urlopen(f"http://{ready['metrics']}/metrics") as answer:
        text = answer.read().decode()
    found: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.value)
    return found


def test_a_stopped_source_shows_as_silence(
    kafka: KafkaCluster,
    keyspace_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If the source stops, lag stays 0 but the silence metric grows."""
    feed = Feed(kafka, keyspace_name)
    feed.load(20)
    with ConsumeProcess(kafka, keyspace_name, tmp_path, FRESHET_CONSUMER__METRICS_PORT="0") as process:
        address = process.ready()
        until(lambda: caught_up(kafka, keyspace_name, address), "caught up")
        until(lambda: min(metrics(process)["freshet_consumer_silence_seconds"]) > 0.5, "silence")
        found = metrics(process)
        assert set(found["freshet_consumer_lag_seconds"]) == {0.0}
        assert set(found["freshet_consumer_epoch"]) == {1.0}
        monkeypatch.setattr(lag, "QUIET_S", 0.2)
        assert run(["lag", keyspace_name, "--owner", address, "--bootstrap", kafka.bootstrap]) == 0
        assert "is `freshet source` running?" in capsys.readouterr().err

        def heard() -> bool:
            feed.load(1)
            return max(metrics(process)["freshet_consumer_silence_seconds"]) < 0.5

        until(heard, "heard")
        assert process.terminate() == 0


def fetch(address: str, path: str, token: str = "") -> tuple[int, str]:
    """Status and body."""
    request = Request(f"http://{address}{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        return refused.code, refused.read().decode()


def test_health_and_build_are_told_and_an_empty_partition_has_no_entries(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """Each commit writes the head again: it is no entry."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.flush()
    with ConsumeProcess(kafka, keyspace_name, tmp_path, FRESHET_CONSUMER__METRICS_PORT="0") as process:
        address = process.ready()
        for _ in range(4):
            feed.mark()
            feed.flush()
            until(lambda: caught_up(kafka, keyspace_name, address), "caught up")
            until(lambda: metrics(process)["freshet_store_pending_rows"] == [0.0], "committed")
        [ready] = process.lines("ready")
        assert fetch(ready["metrics"], "/healthz") == (200, "alive\n")
        assert fetch(ready["metrics"], "/readyz") == (200, "ready\n")
        assert fetch(ready["metrics"], "/other")[0] == 404
        found = metrics(process)
        assert found["freshet_build_info"] == [1.0]
        assert found["freshet_store_entries"] == [0.0]
        assert found["freshet_consumer_paused"] == [0.0]
        assert not [name for name in found if name.endswith("_created")]
        assert process.terminate() == 0


def test_metrics_beyond_loopback_need_the_owners_token(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """Health is open: whoever restarts a process has no secret."""
    Feed(kafka, keyspace_name, partitions=1).flush()
    with ConsumeProcess(
        kafka,
        keyspace_name,
        tmp_path,
        FRESHET_CONSUMER__METRICS_PORT="0",
        FRESHET_CONSUMER__OWNER_HOST="0.0.0.0",
        FRESHET_CONSUMER__OWNER_TOKEN="s3cret",
        FRESHET_CONSUMER__PLAIN="true",
    ) as process:
        process.ready()
        [ready] = process.lines("ready")
        address = f"127.0.0.1:{ready['metrics'].rpartition(':')[2]}"
        assert fetch(address, "/metrics")[0] == 401
        assert fetch(address, "/metrics", "wrong")[0] == 401
        assert "freshet_consumer_offset" in fetch(address, "/metrics", "s3cret")[1]
        assert fetch(address, "/healthz")[0] == 200
        assert process.terminate() == 0


def test_whole_tables_are_told(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """Of each table whose backfill has begun, by partition: 0, and 1 once all of it is there."""
    feed = Feed(kafka, keyspace_name)

    def say(name: str, **fields: Any) -> None:
        feed.ordinal += 1
        for partition in range(feed.partitions):
            place = {"gtid": gtid(feed.ordinal), "position": gtid(feed.ordinal), "timestamp": 1}
            feed.send(partition, name, **place, **fields)
        feed.mark()
        feed.flush()

    def told() -> list[float]:
        return metrics(process).get("freshet_consumer_table_complete", [])

    for partition in range(feed.partitions):
        feed.send(partition, "Topology", shards=[feed.shard], ancestors=[], succeeded=[])
    say("TableBackfill", table="shop.items", complete=False)
    with ConsumeProcess(kafka, keyspace_name, tmp_path, FRESHET_CONSUMER__METRICS_PORT="0") as process:
        process.ready()
        until(lambda: told() == [0.0] * feed.partitions, "a table that is not whole")
        say("TableBackfill", table="shop.items", complete=True)
        until(lambda: told() == [1.0] * feed.partitions, "a whole table")
        assert process.terminate() == 0
