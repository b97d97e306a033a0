"""Rebuilds with Spark up to the offsets of the owners' checkpoint, and compares both byte for byte."""

from __future__ import annotations

from typing import Any

from freshet.commands.rebuild import shown_progress
from freshet.owners import live_checkpoint
from freshet.spark import spark_settings
from lab.demo.stack import CATALOG, ROWS, Stack


def rebuild_and_verify(stack: Stack) -> dict[str, dict[str, Any]]:
    """Rebuilds both keyspaces in one Spark session. Returns keyspace → equal, items, events, seconds, events_per_s."""
    from spark_jobs.output import find_stores
    from spark_jobs.rebuild import RebuildRequest, checkpoint_begins, checkpoint_offsets, rebuild
    from spark_jobs.session import spark_session
    from spark_jobs.verify import verify_stores

    outcome: dict[str, dict[str, Any]] = {}
    kafka = stack.kafka.cluster
    spark = spark_settings("local[2]", "1g", stack.directory / "spark.log")
    with spark_session("freshet demo", spark) as session:  # started before, so no rate has the JVM's start in it
        for keyspace in (ROWS, CATALOG):
            live = live_checkpoint(kafka, keyspace, [])
            target = stack.directory / "rebuilt" / keyspace
            target.parent.mkdir(exist_ok=True)
            request = RebuildRequest(keyspace, kafka, target, checkpoint_offsets(live), begins=checkpoint_begins(live))
            with shown_progress(f"rebuild {keyspace}") as progress:
                report = rebuild(session, request, progress=progress)
            verdict = verify_stores(live, find_stores(target, keyspace), names=("live", "rebuilt"))
            outcome[keyspace] = {
                "equal": verdict.equal,
                "items": verdict.items,
                "events": report.rows,
                "seconds": round(report.seconds, 2),
                "events_per_s": report.rows_per_s,
            }
    return outcome
