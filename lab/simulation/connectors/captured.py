"""What worlds of a server, a connector that reads it, and a source that reads the connector have in common."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, Final

from lab.simulation.connectors.committed import Slot
from lab.simulation.connectors.connect import ABSENT, AWAY, BROKEN, NAME, PREFIX, Worker
from lab.simulation.connectors.judging import Told, Truth, judged
from lab.simulation.engine import History
from lab.simulation.installation.processes import KAFKA
from lab.simulation.whole_processes.run import CLIENT, Crashing, WholeProcesses
from stream.kafka.topics import RETENTION_MS_MIN, ensure_topics, events_topic
from stream.publish.publisher import Publisher
from stream.sources.mariadb.source import MariaDBSource
from stream.wire.keys import Layout, row_key
from tokens.errors import FreshetError

RECOVERS: Final = "recovers by itself"
KEYSPACE: Final = "shop"
SHARD: Final = "shop/0"
PARTITIONS: Final = 2
LAYOUT: Final = Layout(PARTITIONS)
SOURCES: Final = ("source-0", "source-1")
PROCESSES: Final = (NAME, *SOURCES)
ROWS: Final = 4
TROUBLES: Final = (AWAY, ABSENT, BROKEN)
SETTLES_IN_S: Final = 90.0
SPILL_BYTES: Final = (1 << 20, 3_000)
"""Of rows that the source holds: in some histories hardly any."""
Kinds = Mapping[str, tuple[int, tuple[int, ...]]]
"""Op → (weight, how many values each integer has)."""

STATES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "all up": lambda run: all(map(run.kernel.is_running, (NAME, SOURCES[0]))),
    "no source": lambda run: not any(map(run.kernel.is_running, SOURCES)),
    "two sources": lambda run: all(map(run.kernel.is_running, SOURCES)),
    "no connector": lambda run: not run.kernel.is_running(NAME),
}


class CapturedRun(WholeProcesses):
    """A server, a connector that reads it, and a source that reads the connector."""

    processes = PROCESSES
    states = STATES
    server: Crashing
    worker: Worker
    refusals: tuple[type[Exception], ...]
    """What the server's driver raises."""
    under_way = 0
    """Writers, readers and changes of tables that have not ended."""

    @abstractmethod
    def _start_source(self, name: str) -> None:
        """``freshet source debezium``."""

    @abstractmethod
    def _truth(self) -> Truth:
        """What has been committed until now."""

    @abstractmethod
    def _settled(self) -> str:
        """Writes each row of both tables, waits a while, and says what the topic lacks then."""

    def start(self, name: str) -> None:
        """Starts a process, unless it runs."""
        if self.kernel.is_running(name):
            return
        for forget in (self.kafka.forget, self.server.forget):
            self.kernel.process(name).at_end.append(partial(forget, name))
        if name == NAME:
            self.kernel.spawn(name, self.worker.run, "task")
        else:
            self._start_source(name)

    @staticmethod
    def new_publisher() -> Publisher:
        """Of a source."""
        ensure_topics(KAFKA, KEYSPACE, PARTITIONS, retention_ms=RETENTION_MS_MIN)
        return Publisher(KAFKA, KEYSPACE, SHARD, LAYOUT)

    def _run_source(self, name: str, source: MariaDBSource) -> None:
        def run() -> None:
            try:
                source.run()
            except FreshetError as error:
                self.gave_up(name, error)

        self.kernel.spawn(name, run, "source")

    def _in_background(self, what: str, work: Callable[[], object]) -> None:
        self.under_way += 1

        def run() -> None:
            try:
                work()
            except self.refusals as error:
                self.say(f"{what} failed: {error}")
            self.under_way -= 1

        self.kernel.spawn(CLIENT, run)

    # --- faults ---

    def op_cut(self, process: int, server: int, pause: int) -> None:
        """A process does not reach Kafka, or the server, for a while."""
        self.cut_off(PROCESSES[process % len(PROCESSES)], server, self.server, pause)

    def op_answers(self, process: int, count: int) -> None:
        """Kafka does what a process asks for, and the answers are lost."""
        self.count_fault("Kafka's answers lost")
        self.kafka.answers_to_lose[PROCESSES[process % len(PROCESSES)]] = 1 + count % 3

    def op_rest(self, trouble: int, pause: int) -> None:
        """Kafka Connect does not answer, or has no connector, for a while; its task goes on."""
        self.count_fault("Connect does not answer")
        self.worker.trouble = TROUBLES[trouble % len(TROUBLES)]
        self.pause(pause)
        self.worker.trouble = 0

    def op_anew(self, pause: int) -> None:
        """An operator deletes the connector's offsets, and it begins with a snapshot, behind what it has not told."""
        self.count_fault("connector begins anew")
        self.say("the connector begins anew")
        self.kernel.kill(NAME)
        self._forget_offsets()
        self.pause(pause)
        self.start(NAME)

    def _forget_offsets(self) -> None:
        self.worker.begins_anew = True

    def op_expire(self, topic: int, pause: int) -> None:
        """Kafka deletes the beginning of a connector's topic, though the source may not have read it."""
        names = [name for name in sorted(self.kafka.topics) if name == PREFIX or name.startswith(f"{PREFIX}.")]
        if names:
            self.count_fault("messages deleted")
            name = names[topic % len(names)]
            self.say(f"the messages in {name} are deleted")
            for number, log in enumerate(self.kafka.topics[name].logs):
                self.kafka.lose_beginning(name, number, log.stable)
            self.pause(pause)

    def op_judge(self) -> None:
        """Somebody reads the topic from its beginning."""
        self._judge()

    # --- the end ---

    def _judge(self) -> list[Told]:
        topic = self.kafka.topics.get(events_topic(KAFKA, KEYSPACE))
        found, wrong = judged(topic.logs if topic is not None else (), self._truth(), partition_of)
        if wrong is not None:
            self.complain(*wrong)
        return found

    def _settle(self) -> None:
        """Everything runs. Then every row that is written is in the topic, as it is."""
        self.kernel.kill(SOURCES[1])
        for name in (NAME, SOURCES[0]):
            self.start(name)
        end, lacks = self.kernel.now + SETTLES_IN_S, ""
        while self.kernel.now < end and not self.outcome.violations:
            lacks = self._settled()
            if not lacks:
                return
        if not self.outcome.violations:
            self.complain(RECOVERS, f"{lacks}, {SETTLES_IN_S:g} s after the last fault")


def partition_of(slot: Slot) -> int:
    """The partition of a row."""
    table, key = slot
    return LAYOUT.partition_of(row_key(table, json.loads(key)))


def history_of(rng: Random, size: int, common: Kinds, rare: Kinds, rare_share: float) -> History:
    """6 to 24 ops at random: those of ``common``, and a tenth of ``rare`` and up to ``rare_share`` more.

    ``size``: integers in the first op.
    """
    share = 0.1 + rare_share * rng.random()
    names = [*common, *[name for name in rare if rng.random() < share]]
    ops: History = [("world", rng.randrange(1 << 16), *(rng.randrange(2) for _ in range(size - 1)))]
    if rng.random() < 0.8:
        ops.append(("let", 3))
    kinds = {**common, **rare}
    for name in rng.choices(names, [kinds[name][0] for name in names], k=6 + rng.randrange(18)):
        ops.append((name, *(rng.randrange(bound) for bound in kinds[name][1])))
    return ops
