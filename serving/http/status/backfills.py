"""How far backfills are, as sources tell it in their state in the topic: `freshet backfill status` shows the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final

from serving.errors import ReadError
from serving.http.status.answers import BackfillState
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import describe_topic, events_topic
from stream.publish.resume import read_tail
from stream.sources.status import CURSORS, TableReading
from stream.wire.events import ResumePoint
from stream.wire.keys import Layout
from tokens.errors import FreshetError

KEPT_S: Final = 5.0
"""However many look, Kafka is asked once in so long."""
READ_S: Final = 5.0
"""How long another shard's open transaction may hide the state."""


class Backfills:
    """Of all keyspaces of a front. Belongs to one event loop."""

    def __init__(self, kafka: KafkaCluster, clock: Callable[[], float] = monotonic) -> None:
        self._kafka, self._clock = kafka, clock
        self._asked: dict[str, tuple[float, asyncio.Task[list[BackfillState]]]] = {}

    async def of(self, keyspace: str, shards: Iterable[str]) -> list[BackfillState]:
        """Those of ``shards``, which are all that the keyspace has. Raises `ReadError` ``stream_unavailable``."""
        at, asking = self._asked.get(keyspace, (0.0, None))
        if asking is None or (asking.done() and self._clock() - at > KEPT_S):
            asking = asyncio.create_task(asyncio.to_thread(_read, self._kafka, keyspace, sorted(shards)))
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())  # its asker may have gone
            self._asked[keyspace] = self._clock(), asking
        try:
            return await asyncio.shield(asking)
        except FreshetError as error:
            raise ReadError("stream_unavailable", str(error), hint=error.hint) from error


def _read(kafka: KafkaCluster, keyspace: str, shards: list[str]) -> list[BackfillState]:
    topic = describe_topic(kafka, events_topic(kafka, keyspace))
    found = []
    for shard in shards:
        home = Layout(topic.partitions).home_partition(shard)
        point = read_tail(kafka, topic.name, home, shard, timeout_s=READ_S).point
        if point is not None:
            found += told(shard, point)
    return found


def told(shard: str, point: ResumePoint) -> list[BackfillState]:
    """What the annotations of a shard's state say."""
    epoch, cursors, *_ = json.loads(point.annotations.get(CURSORS) or "[0, {}]")
    if epoch != point.epoch:
        return []
    reading = TableReading.told(point.annotations)
    found = []
    for table, (_, rows, *_) in sorted(cursors.items()):
        if table != reading.table:
            found.append(BackfillState(shard, table, rows, is_read=False))
            continue
        rates = reading.estimated_rows, reading.rows_per_s, reading.eta_s
        found.append(BackfillState(shard, table, rows, True, *rates, reading.paused))
    return found
