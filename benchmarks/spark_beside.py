"""What Spark's jobs do with a topic, beside Spark's bare read of it and beside one live consumer.

``python -m benchmarks.spark_beside`` prints one JSON object. First, with ``--entries`` keys: an audit of the whole
topic, one of what the topic got since, and consumers that begin with nothing and with the snapshot that the audit left,
as processes. Then, in each round, on the same topics: the live consumer alone, librdkafka's bare read, and, in one
session each on one and on two cores, warmed up with a part of each topic, Spark's bare read of the same query, the
rebuild, and the export to Parquet. So the ratios are of one machine in the same minutes. With ``--large`` the same once
with so many events, on two cores and without exports. Threats to validity: broker and Spark share the cores; the
audit's times hold the start of its JVM; one value size.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.child import MeasurementFailed, measure_within, quiet
from benchmarks.deployed import POLL_S, Deployment
from benchmarks.restart import KEYSPACE as EACH_KEY_ONCE
from benchmarks.spin import spin
from benchmarks.topics import make_publisher
from benchmarks.workload import FIRST, START_POSITION, START_SECONDS, transactions
from freshet.local.kafka import KafkaServer
from freshet.spark import spark_settings
from spark_jobs.export import ExportRequest, export
from spark_jobs.offsets import choose_range, topic_bounds
from spark_jobs.rebuild import RebuildRequest, rebuild
from spark_jobs.session import spark_session
from spark_jobs.streaming import OFFSETS_PER_BATCH, Micro, stream_messages
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import events_topic

KEYSPACES: Final = ("frames1", "framesown")
CORES: Final = (1, 2)
TAIL: Final = 100
"""One in so many entries changes between two audits."""
WARM_UP: Final = 5
"""One part in so many of each topic warms a session up."""
WITHIN_S: Final = 3_600.0


def bare_read(session: Any, kafka: KafkaCluster, keyspace: str, root: Path, ends: dict[int, int] | None) -> float:
    """Seconds in which Spark reads the topic with the rebuild's own query, and drops what it reads in the JVM."""
    root.mkdir(parents=True)
    chosen = choose_range(topic_bounds(kafka, events_topic(kafka, keyspace)), ends, None)

    def drop(messages: Any, _: int) -> None:
        columns = messages.select("partition", "offset", "value")
        columns.write.format("noop").mode("overwrite").save()

    began = time.perf_counter()
    Micro(kafka, chosen, root, drop).run(stream_messages(session, kafka, chosen, OFFSETS_PER_BATCH))
    return time.perf_counter() - began


def jobs(kafka: KafkaCluster, events: int, cores: int, keyspaces: list[str], *, exports: bool) -> dict[str, Any]:
    """Keyspace → job → events a second, in a warm session on so many cores. Runs in a child process."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        root = Path(directory)
        found: dict[str, Any] = {}
        with spark_session(
            "freshet benchmarks", spark_settings(f"local[{cores}]", "1g", root / "spark.log")
        ) as session:
            for part in (WARM_UP, 1):
                for keyspace in keyspaces:
                    here = root / f"{keyspace}-{part}"
                    whole = topic_bounds(kafka, events_topic(kafka, keyspace)).end
                    ends = {partition: end // part for partition, end in whole.items()}
                    seconds = {"spark_read": bare_read(session, kafka, keyspace, here / "read", ends)}
                    built = rebuild(session, RebuildRequest(keyspace, kafka, here / "rebuilt", ends))
                    seconds["rebuild"], rows = built.seconds, built.rows
                    if exports:
                        written = export(session, ExportRequest(keyspace, kafka, here / "exported", ends))
                        seconds["export"], rows = written.seconds, min(rows, written.rows)
                    if built.dead_letters or (part == 1 and rows < events):
                        raise MeasurementFailed(f"{keyspace}: {rows} of {events} events")
                    found[keyspace] = {f"{job}_events_s": events / each for job, each in seconds.items()}
        return found


def rates(
    kafka: KafkaCluster,
    events: int,
    keys: int,
    rounds: int,
    keyspaces: Sequence[str] = KEYSPACES,
    on: Sequence[int] = CORES,
    *,
    exports: bool = True,
) -> dict[str, Any]:
    """Keyspace → medians of all rates over the rounds, and what is compared with what; ``on``: so many cores."""
    published = {}
    for keyspace in keyspaces:
        say(f"filling {keyspace}: {events} events")
        filled = measure_within(WITHIN_S, "topics:fill", kafka=kafka, keyspace=keyspace, events=events, keys=keys)
        published[keyspace] = filled["rows_s"]
    seen: dict[str, list[dict[str, float]]] = {keyspace: [] for keyspace in keyspaces}
    for number in range(1, rounds + 1):
        say(f"round {number} of {rounds}: spin {spin():.1f}, load {os.getloadavg()[0]:.1f}")
        of_round: dict[str, dict[str, float]] = {}
        for keyspace in keyspaces:
            given = {"kafka": kafka, "keyspace": keyspace, "events": events}
            live = measure_within(WITHIN_S, "materialize:materialize", **given)
            raw = measure_within(WITHIN_S, "materialize:raw_consume", **given)
            of_round[keyspace] = {"live_events_s": live["rows_s"], "raw_consume_events_s": raw["rows_s"]}
        for cores in on:
            todo = {"keyspaces": list(keyspaces), "exports": exports}
            done = measure_within(WITHIN_S, "spark_beside:jobs", kafka=kafka, events=events, cores=cores, **todo)
            for keyspace, found in done.items():
                of_round[keyspace] |= {f"cores{cores}_{name}": rate for name, rate in found.items()}
        for keyspace, found in of_round.items():
            for cores in on:
                rebuilt = found[f"cores{cores}_rebuild_events_s"]
                found[f"cores{cores}_rebuild_of_spark_read"] = rebuilt / found[f"cores{cores}_spark_read_events_s"]
                found[f"cores{cores}_rebuild_of_live"] = rebuilt / found["live_events_s"]
            seen[keyspace].append(found)
        say(json.dumps(of_round))
    return {
        keyspace: {"published_events_s": published[keyspace]}
        | {name: round(median(each[name] for each in found), 3) for name in found[0]}
        for keyspace, found in seen.items()
    }


def publish_tail(kafka: KafkaCluster, entries: int) -> dict[str, Any]:
    """Changes one in `TAIL` entries. Runs in a child process."""
    changed = entries // TAIL
    with make_publisher(kafka, EACH_KEY_ONCE) as publisher:
        publisher.open(lambda: (START_POSITION, START_SECONDS))
        for transaction in transactions(changed, entries, first=entries + FIRST):
            publisher.publish(transaction)
        publisher.flush()
    return {"changed": changed}


def audits(kafka: KafkaCluster, entries: int, rounds: int) -> dict[str, Any]:
    """Seconds of audits, and until a new consumer is ready, with a snapshot and without."""
    say(f"filling {EACH_KEY_ONCE}: {entries} entries")
    measure_within(WITHIN_S, "topics:fill_once_each", kafka=kafka, keyspace=EACH_KEY_ONCE, keys=entries)
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        root = Path(directory)
        place = root / "snapshots"
        deployed = deployment(root / "live", kafka)
        try:
            found: dict[str, Any] = {"entries": entries, "from_topic_s": [deployed.start_consumer()]}
            found["verify_whole_s"] = _verified(deployed, place, None)
            since = [each.name for each in (place / EACH_KEY_ONCE).iterdir()]
            measure_within(WITHIN_S, "spark_beside:publish_tail", kafka=kafka, entries=entries)
            _await_tail(deployed, kafka)
            found["verify_tail_s"] = _verified(deployed, place, since[0])
        finally:
            deployed.stop()
        found["from_snapshot_s"], found["restore_s"] = [], []
        for number in range(rounds):
            for kind, more in (("from_snapshot_s", f"snapshots = {json.dumps(str(place))}\n"), ("from_topic_s", "")):
                seconds, restoring = _ready(root / f"{kind}-{number}", kafka, more)
                found[kind].append(seconds)
                if more:
                    found["restore_s"].append(restoring)
        found["snapshot_mb"] = sum(each.stat().st_size for each in place.rglob("*.sst")) / 2e6  # of two snapshots
    kinds = ("from_topic_s", "from_snapshot_s", "restore_s")
    return found | {f"median_{kind}": median(found[kind]) for kind in kinds}


def _await_tail(deployed: Deployment, kafka: KafkaCluster) -> None:
    """Waits until the consumer has folded and committed what the topic holds now."""
    ends = topic_bounds(kafka, events_topic(kafka, EACH_KEY_ONCE)).end
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        reached = deployed.await_offsets(lambda offset, committed, _: offset == committed)
        if all(reached[partition] >= end - 1 for partition, end in ends.items()):  # a control record may be the last
            return
        time.sleep(POLL_S)
    raise MeasurementFailed("the consumer did not reach the topic's end")


def deployment(directory: Path, kafka: KafkaCluster, more: str = "") -> Deployment:
    """One consumer of the keyspace; ``more``: settings of the keyspace."""
    directory.mkdir()
    return Deployment(directory, kafka, (EACH_KEY_ONCE,), more=more)


def _ready(directory: Path, kafka: KafkaCluster, more: str) -> tuple[float, float]:
    """Seconds from a new consumer's start until all of its partitions are ready, and those in which stores were made.

    They are made one after the other: their files are copied, checked and ingested.
    """
    deployed = deployment(directory, kafka, more)
    try:
        seconds = deployed.start_consumer()
        restored = deployed.logged("store made from a snapshot")
        if len(restored) != (len(deployed.logged("partition taken")) if more else 0):
            raise MeasurementFailed(f"{len(restored)} stores were made from a snapshot")
        return seconds, sum(each["seconds"] for each in restored)
    finally:
        deployed.stop()


def _verified(deployed: Deployment, place: Path, since: str | None) -> float:
    """Seconds of `freshet verify` as a process. It must have begun with the snapshot ``since``."""
    line = [sys.executable, "-m", "freshet", "--config", str(deployed.directory / "freshet.toml"), "verify"]
    line += [EACH_KEY_ONCE, "--snapshots", str(place), "--spark-log", str(deployed.directory / "spark.log"), "--json"]
    began = time.perf_counter()
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    told = json.loads(done.stdout) if done.returncode == 0 else {}
    if not told.get("equal") or told["since"] != (since or ""):
        raise MeasurementFailed(f"verify: {done.stdout[-500:]}{done.stderr[-500:]}")
    return seconds


def say(text: str) -> None:
    """Prints progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_beside", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", type=int, default=0, help="events of one more topic, of one row a frame")
    parser.add_argument("--only", choices=("rates", "audits", "large"), help="one of the parts")
    options = parser.parse_args()
    quiet()
    found: dict[str, Any] = {"events": options.events, "spin_before": spin()}
    with new_kafka() as kafka:
        if options.only in (None, "audits"):
            found["audits"] = audits(kafka, options.entries, options.rounds)
            say(json.dumps(found))
        if options.only in (None, "rates"):
            found["rates"] = rates(kafka, options.events, options.keys, options.rounds)
            say(json.dumps(found))
    if options.large:
        with new_kafka() as kafka:
            found["large"] = rates(kafka, options.large, options.keys, 1, KEYSPACES[:1], CORES[-1:], exports=False)
    json.dump(found | {"spin_after": spin(), "load": os.getloadavg()[0]}, sys.stdout, indent=1)
    print()


@contextmanager
def new_kafka() -> Iterator[KafkaCluster]:
    """A broker of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory,
        KafkaServer(Path(directory), quick_start=False) as kafka,
    ):
        yield kafka.cluster


if __name__ == "__main__":
    main()
