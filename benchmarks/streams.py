"""(k) Kafka Streams, exactly once, over the events of (a): the same keys and images, one event a record.

``Streams.java`` does of it what a consumer does: it reads the stored sequence number of the key, compares, and puts.
Its store is Kafka Streams' own with a changelog topic; but for exactly once all settings are the defaults. Its seconds
run from its first event to its last: neither the start nor the last commit counts, both in its favour.
"""

from __future__ import annotations

import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from benchmarks import workload
from benchmarks.child import MeasurementFailed
from freshet.local.artifacts import jars
from freshet.local.java import find_java
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.topics import ensure_topics, events_topic
from stream.wire.events import RowChange
from stream.wire.keys import Layout

PROGRAM: Final = Path(__file__).with_name("Streams.java")
KEYSPACE: Final = "streams"
THREADS: Final = (1, 2)
TIMEOUT_S: Final = 500.0
FLAGS: Final = ("-Xmx1g", "-XX:+UseG1GC")


def fill(kafka: KafkaCluster, events: int, keys: int) -> dict[str, Any]:
    """Fills the topic of one event a record. Runs in a child process."""
    ensure_topics(kafka, KEYSPACE, workload.PARTITIONS)
    topic, layout = events_topic(kafka, KEYSPACE), Layout(workload.PARTITIONS)
    producer = Producer(client_settings(kafka, **{"enable.idempotence": True, "linger.ms": 20}))
    for number, transaction in enumerate(workload.transactions(events, keys)):
        [change] = transaction.changes
        assert isinstance(change, RowChange)
        value = number.to_bytes(8, "big") + change.image
        while True:
            try:
                producer.produce(topic, value, change.key, layout.partition_of(change.key))
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(60):
        raise MeasurementFailed("not all events of (k) were delivered")
    return {"events": events}


def streams(kafka: KafkaCluster, events: int, threads: int) -> dict[str, Any]:
    """Events per second of Kafka Streams with ``threads`` threads. Runs in a child process.

    Raises `MeasurementFailed` if it does not end.
    """
    classpath = ":".join(str(jar) for jar in jars("streams"))
    topic, application = events_topic(kafka, KEYSPACE), f"bench-{time.time_ns()}"
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        command = [find_java().path, *FLAGS, "-cp", classpath, str(PROGRAM)]
        command += [kafka.bootstrap, topic, str(events), str(threads), directory, application]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise MeasurementFailed(f"Kafka Streams did not take {events} events in {TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        raise MeasurementFailed("Kafka Streams failed:\n" + "\n".join(done.stderr.splitlines()[-10:]))
    seconds, used = float(done.stdout.splitlines()[-1]), resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "rows_s": events / seconds,
        "seconds": seconds,
        "cpu_s": used.ru_utime + used.ru_stime,
        "rss_mb": used.ru_maxrss / 1000,
    }
