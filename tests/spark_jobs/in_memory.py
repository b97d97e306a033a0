"""A topic and a Spark in memory: a job's driver runs whole, in this process, without a broker or a virtual machine.

Of Spark there is what the drivers use of it: the Kafka source with its micro-batches, a task for each partition of a
frame, and a range. It fails as Spark does, where retention has passed what it reads next or a micro-batch fails. Of a
broker there is what the drivers ask one.
"""

from __future__ import annotations

import errno
import json
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import Topic, events_topic
from tests.spark_jobs.topics import TestTopic

CONTROL: Final = b"Kafka's own record"
"""An offset at which no reader gets anything: where a transaction ends."""
READERS: Final = (
    "spark_jobs.beginning",
    "spark_jobs.source.reading",
    "spark_jobs.auditing.tracing",
    "stream.kafka.announced",
    "tests.spark_jobs.topics",
)
"""The modules that read ranges of a topic themselves, without Spark."""
Happen = Callable[[], None]


class Message(NamedTuple):
    """A message as Kafka's client gives it."""

    at: int
    content: bytes | None

    def offset(self) -> int:
        """Its offset."""
        return self.at

    def value(self) -> bytes | None:
        """Its value."""
        return self.content


class TopicInMemory(TestTopic):
    """The event topic of the keyspace ``shop``, whose messages are in memory."""

    def __init__(self, partitions: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka, self.keyspace, self.partitions = KafkaCluster("127.0.0.1:1"), "shop", partitions
        self.name = events_topic(self.kafka, self.keyspace)
        self.low = dict.fromkeys(range(partitions), 0)
        self._messages: list[list[bytes | None]] = [[] for _ in range(partitions)]
        self._id = "t1"
        for module in ("spark_jobs.offsets", "spark_jobs.source.datasource", "stream.kafka.announced"):
            monkeypatch.setattr(f"{module}.start_offsets", lambda *_: dict(self.low))
        monkeypatch.setattr("spark_jobs.offsets.end_offsets", lambda *_: self.ends())
        monkeypatch.setattr("spark_jobs.offsets.describe_topic", lambda *_, **__: self.described())
        for module in READERS:
            monkeypatch.setattr(f"{module}.read_range", lambda *given: self.read(*given[2:]))

    def described(self) -> Topic:
        """As a broker describes it."""
        return Topic(self.name, self._id, len(self._messages))

    def write(self, partition: int, messages: Iterable[bytes | None]) -> None:
        """Append messages."""
        self._messages[partition] += messages

    def read(self, partition: int, start: int, end: int) -> Iterator[Message]:
        """The messages of a range, which must be retained."""
        assert start >= self.low[partition] or start >= end, "what is asked for is gone"
        found = (Message(at, each) for at, each in enumerate(self._messages[partition][:end]) if each is not CONTROL)
        return (each for each in found if each.at >= start)

    def delete_before(self, partition: int, offset: int) -> None:
        """Drop the beginning of a partition, as retention does."""
        self.low[partition] = offset

    def lose_end(self, partition: int, offset: int) -> None:
        """Drop the end of a partition, as a broker does that becomes leader without all of it."""
        del self._messages[partition][offset:]

    def create_again(self) -> None:
        """Another topic of the name, with as many messages."""
        self._id += "'"

    def add_partitions(self, total: int) -> None:
        """Raise the number of partitions, which the layout forbids."""
        self._messages += [[] for _ in range(total - len(self._messages))]

    def ends(self) -> dict[int, int]:
        """Last stable offsets."""
        return {partition: len(self._messages[partition]) for partition in range(self.partitions)}

    def topic_id(self) -> str:
        """Kafka's id of the topic."""
        return self._id

    def session(self, read: Sequence[Happen] = (), idle: Sequence[Happen] = ()) -> Any:
        """A Spark session on this machine, which lasts for one query.

        ``read``: what happens when each of the first micro-batches has been read; it may raise `JvmDied`. ``idle``: of
        a query that follows the topic, when it finds nothing new, one after the other; then comes Ctrl-C.
        """
        return _Session(self, iter(read), iter(idle))


class JvmDied(Exception):
    """As py4j tells it; whatever is asked of the query from then on finds nobody to answer."""

    __module__ = "py4j.protocol"


class Frame:
    """Batches of Arrow, by the partitions of a frame."""

    def __init__(self, parts: Sequence[Iterable[pa.RecordBatch]]) -> None:
        self._parts = parts

    def select(self, *columns: str) -> Self:
        """The Kafka source has other columns, too."""
        assert columns == ("partition", "offset", "value")
        return self

    def mapInArrow(self, task: Callable[[Iterator[Any]], Iterator[Any]], _: str) -> Frame:
        """A task for each partition."""
        return Frame([[*task(iter(part))] for part in self._parts])

    def collect(self) -> list[Any]:
        """The rows."""
        return [SimpleNamespace(**row) for part in self._parts for batch in part for row in batch.to_pylist()]


class _Session:
    """Of a Spark session what the drivers use."""

    def __init__(self, topic: TopicInMemory, read: Iterator[Happen], idle: Iterator[Happen]) -> None:
        self.sparkContext = SimpleNamespace(
            applicationId="in memory", master="local[2]", pythonExec=sys.executable, defaultParallelism=2
        )
        self.readStream = _Stream(topic, read, idle)

    def range(self, start: int, end: int, *, numPartitions: int) -> Frame:
        """A number in each partition."""
        assert numPartitions == end - start
        return Frame([[pa.RecordBatch.from_pydict({"id": [number]})] for number in range(start, end)])


class _Stream:
    """A reader of the Kafka source, the frame that it loads, its writer and its query: one of each, so one class."""

    def __init__(self, topic: TopicInMemory, read: Iterator[Happen], idle: Iterator[Happen]) -> None:
        self._topic, self._read, self._idle = topic, read, idle
        self._options: dict[str, str] = {}
        self._reached: dict[int, int] = {}
        self._until: dict[int, int] | None = None
        self._number = 0
        self._progress: Any = None
        self._has_died = False
        self.writeStream = self

    def format(self, name: str) -> Self:
        assert name == "kafka"
        return self

    def options(self, **given: Any) -> Self:
        self._options |= {name: str(value) for name, value in given.items()}
        return self

    def option(self, name: str, value: Any) -> Self:
        return self.options(**{name: value})

    def load(self) -> Self:
        given = json.loads(self._options["startingOffsets"])[self._topic.name]
        self._reached = {int(partition): offset for partition, offset in given.items()}
        assert json.loads(self._options["assign"]) == {self._topic.name: sorted(self._reached)}
        assert self._options["kafka.isolation.level"] == "read_committed"
        assert self._options["failOnDataLoss"] == "true"
        return self

    def foreachBatch(self, handle: Callable[[Any, int], None]) -> Self:
        self._handle = handle
        return self

    def trigger(self, *, availableNow: bool = False, processingTime: str = "") -> Self:
        assert availableNow is not bool(processingTime)
        self._until = self._topic.ends() if availableNow else None
        return self

    def start(self) -> Self:
        checkpoint = Path(self._options["checkpointLocation"].removeprefix("file://"))  # Spark decodes nothing in it
        assert not checkpoint.exists(), "an old query would be gone on with"
        checkpoint.mkdir()
        return self

    def awaitTermination(self, _: float) -> bool:
        """Runs the next micro-batch, in this thread; True if there is none."""
        ends = self._topic.ends() if self._until is None else self._until
        limit = max(1, int(self._options["maxOffsetsPerTrigger"]) // len(ends))
        upto = {each: min(end, self._reached[each] + limit) for each, end in ends.items()}
        if upto == self._reached:
            if self._until is None:
                next(self._idle, lambda: signal.raise_signal(signal.SIGINT))()
            return self._until is not None
        if any(self._reached[each] < self._topic.low[each] for each in upto if upto[each] > self._reached[each]):
            raise PySparkException("Some data may have been lost because they are not available in Kafka any more")
        parts = [self._batches(each, end) for each, end in upto.items() if end > self._reached[each]]
        try:
            next(self._read, lambda: None)()
            self._handle(Frame(parts), self._number)
        except JvmDied:
            self._has_died = True
            raise
        except Exception as error:
            raise PySparkException(f"the micro-batch failed: {error}") from error
        self._reached, self._number = upto, self._number + 1
        told = json.dumps({self._topic.name: {str(each): offset for each, offset in upto.items()}})
        self._progress = SimpleNamespace(sources=[SimpleNamespace(endOffset=told)])
        return False

    def _batches(self, partition: int, end: int) -> list[pa.RecordBatch]:
        """The messages up to an offset as Spark gives them: in batches of a few."""
        messages = [*self._topic.read(partition, self._reached[partition], end)]
        found = []
        for at in range(0, len(messages), 7):
            part = messages[at : at + 7]
            columns = [
                pa.array([partition] * len(part), pa.int32()),
                pa.array([each.at for each in part], pa.int64()),
                pa.array([each.content for each in part], pa.binary()),
            ]
            found.append(pa.RecordBatch.from_arrays(columns, names=["partition", "offset", "value"]))
        return found

    @property
    def lastProgress(self) -> Any:
        self.stop()
        return self._progress

    def stop(self) -> None:
        if self._has_died:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
