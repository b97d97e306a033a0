"""(e) The Spark rebuild of the topics of (a): events per second of the whole job on ``local[2]``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from freshet.spark import spark_settings
from spark_jobs.rebuild import RebuildRequest, rebuild
from spark_jobs.session import spark_session
from stream.kafka.connection import KafkaCluster


def rebuilds(kafka: KafkaCluster, keyspaces: list[str], events: int, rounds: int) -> dict[str, Any]:
    """Rebuilds each keyspace ``rounds`` times in one session, after a warm-up. Runs in a child process."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        root = Path(directory)
        settings = spark_settings("local[2]", "1g", root / "spark.log")
        found: dict[str, list[float]] = {name: [] for name in keyspaces}
        with spark_session("freshet benchmarks", settings) as session:
            for number in range(rounds + 1):
                for name in keyspaces:
                    target = root / f"{name}-{number}"
                    report = rebuild(session, RebuildRequest(name, kafka, target))
                    if report.dead_letters:
                        raise AssertionError(f"{report.dead_letters} dead letters")
                    if number:
                        found[name].append(events / report.seconds)
        return {"events": events, "events_s": found}
