"""A change log in a topic: each event once and whole, whenever the process is killed.

What is appended goes out in Kafka transactions. The last record of each says in its headers where the log goes on, and
what it is the log of. So events and progress are one write, as in files, and the topic's end is all that a new process
reads. It fences the one before first, so that nothing is written after what it reads. A process that would be refused,
such as that of another log, fences nobody: it has looked at the end before.

Kafka's own place for progress, an offset with metadata in the same transaction, holds 4 KiB, and is forgotten a week
after its last commit (docs/decisions/0132-a-log-in-a-topic-says-where-it-goes-on.md).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from time import monotonic, sleep, time
from types import TracebackType
from typing import Final, Self

from confluent_kafka.admin import AdminClient

from serving.changelog.errors import ChangeLogError
from serving.changelog.files import MARKS, Heading
from serving.changelog.records import Describe, Encoder
from serving.client import StreamEvent
from stream.kafka.connection import REQUEST_TIMEOUT_S, KafkaCluster, client_settings
from stream.kafka.reader import end_offsets, read_range, start_offsets, windows_back
from stream.kafka.topics import IN_SYNC_MIN, TopicError, describe_topic, ensure_topic, topic_settings
from stream.publish.clock import SystemClock
from stream.publish.shard_producer import PublisherLost, ShardProducer

BATCH_BYTES: Final = 1024 * 1024
"""What was appended goes out at a mark, or when it is so large."""
RECORD_BYTES_MIN: Final = 1024 * 1024
"""What a topic must take: each row image, and the producer's batches. Kafka's default is above it."""
RECORD_BYTES_MAX: Final = 8 * 1024 * 1024
WINDOW: Final = 16
"""Offsets that are looked at first, at the end of the topic."""
MADE_TIMEOUT_S: Final = 30.0
TRANSACTION_TIMEOUT_S: Final = 120
"""How long a Kafka transaction may take: one of the source may have 64 MB. Readers wait so long, and about 10 s more,
for what a killed log has left open, unless it is started again."""
DECIDED_S: Final = 5.0
"""How long a topic without any committed record is waited for, if something is in it."""
PAUSE_S: Final = 0.05
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OWN: Final = re.compile(r"locations|[A-Za-z0-9_-]+\.(events|dlq|requests)")
_KEYSPACE, _TABLES, _CHECKPOINT, _VERSION = "freshet-keyspace", "freshet-tables", "freshet-checkpoint", "freshet-log"
_INCLUDED: Final = "freshet-included"
"""Logs of earlier versions have none."""
VERSION: Final = "1"


class LogTopic:
    """The log of ``heading`` in a topic. A context manager; it is made if it is missing.

    ``framing``, ``describe``: as in `serving.changelog.records.Encoder`. ``keep_s``: how long a topic that is made
    keeps records; None: for ever. Raises `ChangeLogError`, `KafkaUnreachable`, `KafkaRequestError`.
    """

    def __init__(
        self,
        kafka: KafkaCluster,
        topic: str,
        heading: Heading,
        framing: Mapping[str, bytes],
        describe: Describe,
        *,
        keep_s: float | None = None,
    ) -> None:
        check_name(kafka, topic)
        self._kafka, self._topic, self._heading = kafka, topic, heading
        self._ensure(keep_s)
        keyspace = heading.keyspace
        headers = {_VERSION: VERSION, _KEYSPACE: keyspace, _TABLES: json.dumps(heading.tables)}
        if heading.included is not None:
            headers[_INCLUDED] = json.dumps(heading.included)
        self._headers = {name: text.encode() for name, text in headers.items()}
        """Of each last record, beside the checkpoint."""
        room = self._bytes_max() - sum(map(len, self._headers.values()))
        self._encoder = Encoder(keyspace, framing, describe, room)
        self._pending: list[tuple[int, bytes]] = []
        self._pending_bytes = 0
        self._producer = ShardProducer(
            kafka,
            topic,
            f"the log in {topic}",
            (transactional_id(kafka, keyspace, topic),),
            SystemClock(),
            _NEVER,
            transaction_timeout_s=TRANSACTION_TIMEOUT_S,
        )
        self.checkpoint = ""
        """Behind the last event that is in the log or waits to be; empty: there is none."""

    def __enter__(self) -> Self:
        if not self._read_end(committed=True):  # for what it refuses
            self._await_decided()
            self._read_end(committed=True)
        self._producer.open()
        self.checkpoint = self._read_end()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.drop()

    def append(self, event: StreamEvent) -> None:
        """Adds an event, which has a checkpoint. It is surely in the topic after the next `sync`."""
        self.checkpoint = event.checkpoint
        for record in self._encoder.records(event):
            self._pending.append((0, record))
            self._pending_bytes += len(record)
        if self._pending_bytes >= BATCH_BYTES and event.kind not in MARKS:  # behind a mark comes a sync
            self.sync()

    def sync(self) -> None:
        """Commits what was appended. Raises `ChangeLogError`."""
        if not self._pending:
            return
        headers = {**self._headers, _CHECKPOINT: self.checkpoint.encode()}
        try:
            self._producer.commit(self._pending, int(time() * 1000), headers)
        except PublisherLost as error:
            if error.code == "fenced":
                raise ChangeLogError(
                    f"another process writes the log of {self._heading.keyspace} in {self._topic}, or a transaction "
                    f"was not in Kafka within {TRANSACTION_TIMEOUT_S} s",
                    hint="run one for a topic. If there is no other, look at the way to Kafka, and start it again",
                    code="log_taken",
                ) from error
            raise ChangeLogError(
                f"the log in {self._topic} can't be written: {error}",
                hint="start it again: the log goes on where it was",
                code="log_failed",
            ) from error
        self._pending, self._pending_bytes = [], 0

    def _await_decided(self) -> None:
        """Returns once what is in the topic is committed or aborted there.

        Kafka acknowledges a commit before the partition knows of it, and it may be a running log's first one. What a
        killed process has left open is ended by the next one's start alone, so that waits no longer than `DECIDED_S`.
        """
        end = end_offsets(self._kafka, self._topic, [0], committed=False)[0]
        deadline = monotonic() + DECIDED_S
        while end_offsets(self._kafka, self._topic, [0])[0] < end and monotonic() < deadline:
            sleep(PAUSE_S)

    def _read_end(self, *, committed: bool = False) -> str:
        """The checkpoint in the topic's last record; empty if it never had any. Raises `ChangeLogError`.

        ``committed``: without what is open, which another process may still commit.
        """
        end = end_offsets(self._kafka, self._topic, [0], committed=committed)[0]
        low = start_offsets(self._kafka, self._topic, [0])[0]
        for start, upto in windows_back(low, end, WINDOW):
            headers = None
            for message in read_range(self._kafka, self._topic, 0, start, upto):
                headers = message.headers() or []
            if headers is not None:
                return self._checkpoint_in(dict(headers))
        if low > 0:
            raise ChangeLogError(
                f"{self._topic} has lost all its records, so it does not say where the log goes on",
                hint="log into another topic; a longer retention.ms keeps the end for longer than a log may be stopped",
            )
        return ""

    def _checkpoint_in(self, headers: Mapping[str, bytes | None]) -> str:
        """Raises `ChangeLogError` if the last record is not one of this log."""
        names = _VERSION, _KEYSPACE, _TABLES, _INCLUDED
        version, keyspace, tables, included = ((headers.get(name) or b"").decode(errors="replace") for name in names)
        if not version:
            raise ChangeLogError(
                f"the last record of {self._topic} is of no change log", hint="give the log a topic of its own"
            )
        if version != VERSION:
            raise ChangeLogError(
                f"the log in {self._topic} is of version {version}, not {VERSION}",
                hint="go on with the version of Freshet that wrote it, or log into another topic",
            )
        found = Heading(keyspace, json.loads(tables), included=json.loads(included) if included else None)
        if not found.is_of(self._heading):
            raise ChangeLogError(
                f"{self._topic} is the log of {found}", hint="go on with the same words, or log into another topic"
            )
        return (headers[_CHECKPOINT] or b"").decode()

    def _ensure(self, keep_s: float | None) -> None:
        """Make the topic if it is missing, and refuse one with several partitions: the log has one order."""
        kept = str(int(keep_s * 1000)) if keep_s is not None else "-1"
        config = {"cleanup.policy": "delete", "retention.ms": kept, "retention.bytes": "-1"}
        config["min.insync.replicas"] = str(min(self._kafka.replicas, IN_SYNC_MIN))
        try:
            topic = describe_topic(self._kafka, self._topic)
        except TopicError:
            ensure_topic(self._kafka, self._topic, config, timeout_s=MADE_TIMEOUT_S)
            topic = describe_topic(self._kafka, self._topic)
        if topic.partitions != 1:
            raise ChangeLogError(
                f"{self._topic} has {topic.partitions} partitions: a log has one, in which its order is",
                hint="let Freshet make the topic, or make one with one partition",
            )

    def _bytes_max(self) -> int:
        """What a record may have. Raises `ChangeLogError` for a topic that would lose records."""
        with AdminClient(client_settings(self._kafka)) as admin:
            found = topic_settings(
                admin,
                self._kafka,
                self._topic,
                request_timeout_s=REQUEST_TIMEOUT_S,
                patience_s=MADE_TIMEOUT_S,
            )
        if "compact" in found["cleanup.policy"]:
            raise ChangeLogError(
                f"{self._topic} is compacted: its records have no keys", hint="set cleanup.policy=delete for it"
            )
        bytes_max = int(found["max.message.bytes"])
        if bytes_max < RECORD_BYTES_MIN:
            raise ChangeLogError(
                f"{self._topic} takes records of {bytes_max} bytes at most: a row may have more",
                hint=f"set max.message.bytes for it to {RECORD_BYTES_MIN} or more",
            )
        return min(bytes_max, RECORD_BYTES_MAX) - _BATCH_OVERHEAD


_NEVER: Final = threading.Event()
"""Nobody asks the producer to stop: the log may be killed at any moment."""
_BATCH_OVERHEAD: Final = 1_024
"""What Kafka adds to a record that is alone in its batch, with the names of the headers."""


def check_name(kafka: KafkaCluster, topic: str) -> None:
    """Raises `ChangeLogError` for what is no name of a topic, or that of one of Freshet's own."""
    own = topic.startswith(f"{kafka.prefix}.") and _OWN.fullmatch(topic.removeprefix(f"{kafka.prefix}."))
    if not _NAME.fullmatch(topic) or own or topic.startswith("__"):
        raise ChangeLogError(f"no log can be kept in a topic {topic!r}", hint="name one that is the log's alone")


def transactional_id(kafka: KafkaCluster, keyspace: str, topic: str) -> str:
    """As of the shards' publishers, whose names have no colon: so a log never fences one of these."""
    return kafka.transactional_id(keyspace, f"log:{topic}")
