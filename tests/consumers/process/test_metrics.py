"""What an operator can tell from a consuming process's metrics and `freshet lag`."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from freshet.cli import run
from freshet.commands import lag
from stream.kafka.connection import KafkaCluster
from tests.consumers.consuming import ConsumeProcess, Feed, caught_up, until


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
