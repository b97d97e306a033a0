"""A model of Kafka Connect's worker with one task: a connector that writes what a server commits, exactly once.

What it has told and how far it is are one Kafka transaction, which may end anywhere, also within one of the server's.
"""

from __future__ import annotations

import io
import json
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request

from confluent_kafka import KafkaException

from lab.simulation.connectors.committed import Replay, rows_of
from lab.simulation.connectors.messages import Told, Writer
from lab.simulation.kafka.cluster import Cluster
from lab.simulation.kafka.producer import SimulatedProducer
from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.mariadb.server import SimulatedServer

NAME: Final = "connect"
"""The worker's process."""
PREFIX: Final = "c"
URL: Final = "http://connect:8083"
OFFSETS: Final = "connect-offsets"
CONFIG: Final = {
    "connector.class": "io.debezium.connector.mariadb.MariaDbConnector",
    "topic.prefix": PREFIX,
    "provide.transaction.metadata": "true",
    "exactly.once.support": "required",
    "column.propagate.source.type": ".*",
    "skipped.operations": "none",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "true",
    "value.converter.replace.null.with.default": "false",
    "event.converting.failure.handling.mode": "fail",
    "enable.time.adjuster": "false",
    "table.include.list": "shop[.].*",
}
MYSQL_CLASS: Final = "io.debezium.connector.mysql.MySqlConnector"
WITHOUT_ENDS: Final = {"provide.transaction.metadata": "false", "heartbeat.interval.ms": "1000"}
HEARTBEAT: Final = Told("", b"")
"""In place of a message into a topic that nobody reads: what counts is how far the task is with it."""
BATCH_MAX: Final = 7
"""Messages of one Kafka transaction, at most."""
PATIENCE_S: Final = 20.0
AGAIN_S: Final = 0.5
NONE, ABSENT, BROKEN, AWAY = range(4)
"""What is wrong with the worker's REST interface."""


class Place(NamedTuple):
    """How far the task is: ``commits`` were told, and ``rows`` of the next one. ``snapshot``: where it began, or ""."""

    commits: int
    rows: int
    snapshot: str


class Worker:
    """The worker. ``config``: of its only connector, as the REST interface tells it. ``trouble``: of that interface."""

    def __init__(
        self, kernel: Kernel, kafka: Cluster, server: SimulatedServer, partitions: int, *, tells_ends: bool
    ) -> None:
        """``partitions``: of each table's topic. ``tells_ends``: of transactions; else it has heartbeats."""
        self._kernel, self._kafka, self._server = kernel, kafka, server
        self._partitions, self._tells_ends = partitions, tells_ends
        self._is_mysql = server.is_mysql
        self.as_it_should_be = CONFIG | {"connector.class": MYSQL_CLASS} if self._is_mysql else CONFIG
        if not tells_ends:
            self.as_it_should_be = self.as_it_should_be | WITHOUT_ENDS
        self.config = dict(self.as_it_should_be)
        self.trouble = NONE
        self.begins_anew = False
        """Its offsets were deleted: it will begin with a snapshot."""

    def answer(self, request: Request, timeout: float = 0.0, context: None = None) -> io.BytesIO:  # noqa: ARG002
        """The twin of `urllib.request.urlopen`."""
        self._kernel.wait(lambda: True)
        if self.trouble == AWAY or not self._kernel.is_running(NAME):
            raise URLError("Connection refused")
        if self.trouble == BROKEN:
            raise HTTPError(request.full_url, 500, f"timed out after {timeout} s", {}, None)  # type: ignore[arg-type]
        found: dict[str, Any] = {"shop": {"info": {"config": self.config}}} if self.trouble != ABSENT else {}
        if request.full_url.endswith("/connectors/shop/offsets"):
            found = {"offsets": [{"partition": {"server": PREFIX}, "offset": self._offset()}]}
        return io.BytesIO(json.dumps(found).encode())

    def _offset(self) -> dict[str, Any]:
        """How far the task is, by what is committed in Kafka."""
        logs = self._kafka.topics[OFFSETS].logs if OFFSETS in self._kafka.topics else []
        kept = [each for log in logs for each in log.committed(log.start, log.stable)]
        if not kept:
            return {}
        place = Place(*json.loads(kept[-1].value or b""))
        if not place.commits:
            return {}
        domain, server, number = self._server.history[place.commits - 1].gtid
        gtids = f"{self._server.uuid}:1-{number}" if self._is_mysql else f"{domain}-{server}-{number}"
        return {"gtids": gtids, "event": 2 if place.rows else 0, "row": place.rows}

    # --- the task ---

    def run(self) -> None:
        """Tell what the server has committed, until the process ends. A task that fails is started again."""
        while True:
            try:
                self._run_task()
            except KafkaException:
                self._kernel.park(AGAIN_S)

    def _run_task(self) -> None:
        out = SimulatedProducer(self._kafka, {"transactional.id": "connect-shop"})
        out.init_transactions(PATIENCE_S)
        self._await_server()
        place = self._kept()
        if self.begins_anew or not place.snapshot:
            place = self._snapshot(out)
        server = self._server
        tables = Replay(server.history[: place.commits])
        writer = self._writer(server.log.last.name)
        left: deque[tuple[Told, Place]] = deque()
        while True:
            while len(left) < BATCH_MAX and tables.count < len(server.history):
                left += self._of_commit(writer, tables, place)
                place = Place(tables.count, 0, place.snapshot)
            if left:
                self._write(out, [left.popleft() for _ in range(min(len(left), 1 + self._below(BATCH_MAX)))])
            else:
                self._kernel.wait(lambda: len(server.history) > tables.count)
            self._await_server()

    def _of_commit(self, writer: Writer, tables: Replay, place: Place) -> Iterator[tuple[Told, Place]]:
        """Messages of the next commit, and how far the task is with each."""
        commit = self._server.history[tables.count]
        changed = tables.take(commit)
        told = writer.commit(tables.count, commit, changed, place.rows)
        if not self._tells_ends:
            told.append(HEARTBEAT)
        rows = place.rows
        for left, message in zip(reversed(range(len(told))), told, strict=True):
            rows += message.is_row
            yield (
                message,
                Place(place.commits, rows, place.snapshot) if left else Place(tables.count, 0, place.snapshot),
            )

    def _snapshot(self, out: SimulatedProducer) -> Place:
        server = self._server
        count, (file, offset) = server.committed, server.committed_place
        found = [(table, rows_of(table)) for table in Replay(server.history[:count]).databases]
        place = Place(count, 0, f"{file}:{offset}")
        told = self._writer(file).snapshot(place.snapshot, self._kernel.now, found)
        self._write(out, [(message, place) for message in told])
        self.begins_anew = False
        return place

    def _writer(self, file: str) -> Writer:
        return Writer(file, self._server.uuid if self._is_mysql else "", tells_ends=self._tells_ends)

    def _await_server(self) -> None:
        server = self._server
        self._kernel.wait(lambda: not server.down and server.reaches(NAME))

    # --- Kafka ---

    def _write(self, out: SimulatedProducer, told: list[tuple[Told, Place]]) -> None:
        """Write messages, and how far the task is then, in one transaction."""
        messages = [message for message, _ in told if message is not HEARTBEAT]
        for message in messages:
            self._make(PREFIX + message.topic)
        self._make(OFFSETS)
        out.begin_transaction()
        for message in messages:
            topic = PREFIX + message.topic
            out.produce(topic, message.value, partition=self._below(len(self._kafka.topics[topic].logs)))
        out.produce(OFFSETS, json.dumps(told[-1][1]).encode(), partition=0)
        out.commit_transaction(PATIENCE_S)

    def _make(self, name: str) -> None:
        self._kernel.wait(lambda: self._kafka.reaches(NAME))
        topics = self._kafka.topics
        if name not in topics:
            self._kafka.create(name, self._partitions if name.count(".") > 1 else 1, {})
        if topics[name].known_at > self._kernel.now:
            self._kafka.wait(lambda: False, topics[name].known_at)

    def _kept(self) -> Place:
        """How far the last task was, once its last transaction is decided."""
        if OFFSETS not in self._kafka.topics:
            return Place(0, 0, "")
        [log] = self._kafka.topics[OFFSETS].logs
        while not self._kafka.wait(lambda: log.stable == log.end, self._kernel.now + PATIENCE_S):
            pass
        kept = log.committed(0, log.end)
        return Place(*json.loads(kept[-1].value or b"")) if kept else Place(0, 0, "")

    def _below(self, bound: int) -> int:
        return self._kernel.rng.randrange(bound)
