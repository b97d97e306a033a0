"""A real `freshet consume` process, a topic to feed it, and what its stores must hold."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from consumers.owner.client import OwnerConnection
from consumers.owner.protocol import OwnerError, PartitionStatus
from consumers.store.store import PartitionStore, StoreView
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.reader import end_offsets, read_range
from stream.kafka.topics import Topic, ensure_topics, events_topic
from stream.wire.codec import encode
from stream.wire.events import ABSENT, VALUE, VOID
from stream.wire.keys import Layout
from tests.patience import PATIENCE_S


def until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """The first true answer of ``condition``; fails after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout_s:g} s: {what}")


class Feed:
    """Writes a shard's events into a keyspace's topic, as frames of random size, with markers."""

    def __init__(self, kafka: KafkaCluster, keyspace: str, partitions: int = 2, seed: int = 1) -> None:
        self.topic: Topic = ensure_topics(kafka, keyspace, partitions)
        self.keyspace = keyspace
        self.shard = f"{keyspace}/0"
        self.layout = f"xxh3_64;partitions={partitions}"
        self.ordinal = 0
        self.partitions = partitions
        self._random = random.Random(seed)
        self._producer = Producer(client_settings(kafka, **{"linger.ms": 5, "enable.idempotence": True}))
        self.ordinal = 1
        self._numbers: list[list[int]] = [[] for _ in range(partitions)]
        placed = Layout.parse(self.layout)
        for number in range(3000 * partitions):
            self._numbers[placed.partition_of(b"shop.items\0[%d]" % number)].append(number)
        for partition in range(partitions):
            self.send(partition, "EpochStart", gtid=gtid(1), timestamp=1, position=gtid(0), reason="first_start")
        self.mark()

    def keys(self, partition: int, count: int = 900) -> list[bytes]:
        """Keys that are kept in the partition."""
        return [b"shop.items\0[%d]" % number for number in self._numbers[partition][:count]]

    def put(self, partition: int, message: bytes | None) -> None:
        """Sends any message."""
        while True:
            try:
                self._producer.produce(self.topic.name, message, partition=partition)
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def send(self, partition: int, name: str, **fields: Any) -> None:
        """One event with the feed's shard, epoch and ordinal."""
        place = {"shard": self.shard, "epoch": 1, "ordinal": self.ordinal}
        self.put(partition, encode(name, place | fields))

    def frame(self, partition: int, rows: int) -> None:
        """A frame of single-row transactions over a few thousand keys."""
        first = self.ordinal + 1
        self.ordinal += rows
        operations = bytes(self._random.choice((VALUE, VALUE, VALUE, ABSENT, VOID)) for _ in range(rows))
        numbers = [self._random.choice(self._numbers[partition]) for _ in range(rows)]
        record = {
            "shard": self.shard,
            "epoch": 1,
            "ordinal": first - 1,
            "keys": [b"shop.items\0[%d]" % number for number in numbers],
            "images": [
                b'{"n":%d}' % number if operation == VALUE else b""
                for number, operation in zip(numbers, operations, strict=True)
            ],
            "operations": operations,
            "ordinals": list(range(1, rows + 1)),
            "transactions": [1] * rows,
            "gtids": [gtid(first + row) for row in range(rows)],
            "positions": [],
            "timestamps": [1_700_000_000] * rows,
            "origins": [],
        }
        self.put(partition, encode("RowFrame", record))

    def mark(self) -> None:
        """A marker in every partition for all that was sent."""
        for partition in range(self.partitions):
            self.send(
                partition,
                "Marker",
                position=gtid(self.ordinal),
                timestamp=1_700_000_000,
                low_water=gtid(0),
                layout=self.layout,
                whole=True,
            )

    def load(self, frames: int) -> None:
        """Random frames, a marker now and then and at the end; returns when they are in the topic."""
        for number in range(frames):
            self.frame(self._random.randrange(self.partitions), self._random.randrange(1, 30))
            if number % 20 == 19:
                self.mark()
        self.mark()
        self.flush()

    def flush(self) -> None:
        """Returns when everything is in the topic."""
        assert self._producer.flush(60) == 0


def gtid(sequence: int) -> str:
    """A MariaDB GTID."""
    return f"MariaDB/0-1-{sequence}"


class ConsumeProcess:
    """``freshet consume`` as a process of its own; its log lines are parsed."""

    def __init__(
        self,
        kafka: KafkaCluster,
        keyspace: str,
        data_dir: Path,
        more_keyspaces: Sequence[str] = (),
        *,
        log_dir: Path | None = None,
        group: str = "",
        code: str = "",
        flags: Sequence[str] = (),
        **environment: str,
    ) -> None:
        """``log_dir``: where its log is, ``data_dir`` if not given. ``group``: the keyspace's name if not given.

        ``code``: a program in place of ``python -m freshet``. ``flags``: more of them.
        """
        self.data_dir = data_dir
        data_dir.mkdir(parents=True, exist_ok=True)
        self._log = (log_dir or data_dir) / f"log-{time.monotonic_ns()}"
        program = ["-c", code] if code else ["-m", "freshet"]
        command = [sys.executable, *program, "--log-format", "json", "consume"]
        command += ["--keyspace", keyspace, "--data-dir", str(data_dir), "--group", group or keyspace]
        command += ["--bootstrap", kafka.bootstrap, *flags]
        command += [part for name in more_keyspaces for part in ("--keyspace", name)]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=os.environ | {"FRESHET_CONSUMER__COMMIT_INTERVAL_MS": "200"} | environment,
            )

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        """The log so far; only ``event`` if given."""
        found = []
        for line in self._log.read_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                record = {"event": line}
            if not event or record.get("event") == event:
                found.append(record)
        return found

    def ready(self) -> str:
        """Waits for the ready line; the owner's address."""

        def found() -> str | None:
            assert self.process.poll() is None, self._log.read_text()
            lines = self.lines("ready")
            return lines[0]["address"] if lines else None

        address: str = until(found, f"ready: {self._log.read_text()}")
        return address

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> ConsumeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def caught_up(kafka: KafkaCluster, keyspace: str, address: str, partitions: int = 1) -> bool:
    """Whether the owner has read everything that is in the topic now, of so many partitions at least.

    One whose store is made anew is not among its partitions meanwhile.
    """
    return len(_at_the_end(kafka, keyspace, address)) >= partitions


def accounted_for(kafka: KafkaCluster, keyspace: str, address: str) -> bool:
    """Whether the owner has also committed it. So each dead letter of it is in its topic: before that nothing is.

    A process that is stopped earlier leaves letters to the next one, if Kafka takes its time.
    """
    found = _at_the_end(kafka, keyspace, address)
    return bool(found) and all(each.committed == each.offset for each in found)


def _at_the_end(kafka: KafkaCluster, keyspace: str, address: str) -> list[PartitionStatus]:
    """The status of the owner's partitions if it has read all of them to their ends; else nothing."""
    try:
        with OwnerConnection(address) as owner:
            statuses = owner.status(keyspace).partitions
    except OwnerError:
        return []
    ends = end_offsets(kafka, events_topic(kafka, keyspace), [each.partition for each in statuses])
    return statuses if all(each.position >= ends[each.partition] for each in statuses) else []


def expected(kafka: KafkaCluster, topic: Topic, partition: int, scratch: Path) -> tuple[str, int]:
    """The digest that an uninterrupted fold of the topic has."""
    [end] = end_offsets(kafka, topic.name, [partition]).values()
    keyspace = topic.name.removeprefix("freshet.").removesuffix(".events")
    store = PartitionStore.open(scratch, keyspace=keyspace, partition=partition, topic_id=topic.topic_id)
    messages = read_range(kafka, topic.name, partition, 0, end)
    store.fold([(message.offset(), message.value()) for message in messages])
    digest = store.digest()
    store.close(commit=False)
    return digest


def digest_of(data_dir: Path, keyspace: str, partition: int) -> tuple[str, int]:
    """The digest of a closed store."""
    with StoreView(data_dir / keyspace / str(partition)) as view:
        return view.digest()


def assert_equal_to_uninterrupted(kafka: KafkaCluster, feed: Feed, data_dir: Path, scratch: Path) -> None:
    """Each partition's store is what folding the topic once gives."""
    for partition in range(feed.partitions):
        assert digest_of(data_dir, feed.keyspace, partition) == expected(kafka, feed.topic, partition, scratch)
