"""The processes of one history, and the servers that they work with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from types import ModuleType
from typing import Any, Final, NoReturn

import structlog

from lab.simulation.engine import Outcome, TracedRun
from lab.simulation.installation.disk import Disk
from lab.simulation.installation.judging import NEVER_RAISES
from lab.simulation.installation.parts import RESTART_S
from lab.simulation.installation.processes import KAFKA, start_consumer
from lab.simulation.kafka.cluster import Cluster
from lab.simulation.kafka.twins import twins as kafka_twins
from lab.simulation.kernel.fronts import listen
from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.kernel.substitution import installed
from lab.simulation.operators.looking import Looking
from lab.simulation.warehouse.judging import CatalogJudge
from lab.simulation.warehouse.metastore import CATALOG, Warehouse
from lab.simulation.warehouse.serving import PORT, MetastoreServer
from lab.simulation.warehouse.serving import twins as metastore_twins
from serving.http.front import make_front
from serving.reads.owners import Located
from serving.reads.spaces import TableSpace
from serving.sources.hive import HiveTables
from stream.kafka.locations import LocationsReader
from stream.kafka.topics import RETENTION_MS_MIN, ensure_topics
from stream.publish.publisher import Publisher
from stream.sources.hive.live.following import FollowOptions
from stream.sources.hive.live.metastore import MetastoreSettings
from stream.sources.hive.live.source import HiveSource
from stream.wire.keys import Layout
from tokens.errors import FreshetError

SHAPE: Final = 6
"""Integers in the first op."""
SHARD: Final = "hive/0"
SOURCE: Final = "source"
CONSUMERS: Final = ("consumer-0", "consumer-1")
FRONT: Final = "front"
FRONT_PORT: Final = 8_480
PROCESSES: Final = (SOURCE, *CONSUMERS, FRONT)
CLIENT: Final = "client"
METASTORE: Final = MetastoreSettings((("metastore-0", PORT), ("metastore-1", PORT)), CATALOG, 5.0)
SMALL: Final = {"EVENTS_MAX": 4, "CHUNK_TABLES": 2, "PARTITIONS_MAX": 2, "SINGLE_MAX": 2}
"""Bounds of the live source, so small that few objects are many."""
EPOCH_ENDS: Final = frozenset({"history lost", "epoch ends", "a transaction was partly published"})
"""What a source logs before it begins a new epoch."""


class WarehouseParts(TracedRun):
    """All parts, while they run."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        """``shape``: the scheduler's seed; 1 for two partitions, and for a second consumer; the form of messages; 1 for
        a source that begins when the catalog is there already, and for a front that answers while the metastore is
        away with what it has."""
        super().__init__(outcome, trace)
        seed, partitions, consumers, form, self._late, stale = shape
        self._stale_if_down = bool(stale % 2)
        self.kernel = Kernel(Random(seed))
        self.kafka = Cluster(self.kernel, self.kernel.rng)
        self.disk = Disk(self.kernel)
        self.partitions = 1 + partitions % 2
        self.warehouse = Warehouse(lambda: self.kernel.now)
        self.server = MetastoreServer(self.kernel, self.warehouse, form)
        self.looking = Looking(self.kernel, self.complain)
        self.epochs_begun = 0
        self.judge = CatalogJudge(
            self.warehouse, self.complain, lambda: self.epochs_begun > 0, may_be_stale=self._stale_if_down
        )
        self.wanted = [SOURCE, *CONSUMERS[: 1 + consumers % 2], FRONT]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While it lasts, the product's modules are the simulation's, and what they log is judged."""
        config, bounds = structlog.get_config(), _bounds()
        structlog.configure(processors=[self._log], wrapper_class=structlog.BoundLogger)
        try:
            for module, name, _ in bounds:
                setattr(module, name, SMALL[name])
            more = (metastore_twins(self.server), self.disk.twins(), self.looking.ports.twins())
            with installed(self.kernel, kafka_twins(self.kafka), *more):
                yield
        finally:
            structlog.configure(**config)
            for module, name, bound in bounds:
                setattr(module, name, bound)
            self.disk.close()

    def _log(self, _: Any, level: str, event: MutableMapping[str, Any]) -> NoReturn:
        if not self.kernel.is_over:
            if event["event"] in EPOCH_ENDS:
                self.epochs_begun += 1
            if event.get("exc_info"):
                self.complain(NEVER_RAISES, f"{self.kernel.current} logged an error: {event}")
            if self.tracing:
                said = ", ".join(str(event[name]) for name in ("partition", "reason", "error") if name in event)
                self.say(f"  {self.kernel.now:.3f} {self.kernel.current}: {level}: {event['event']} {said}")
        raise structlog.DropEvent

    def say(self, text: str) -> None:
        """See `TracedRun.say`. The place of the files is another one each time."""
        super().say(text.replace(str(self.disk.root), "") if self.tracing else text)

    def complain(self, rule: str, what: str) -> None:
        """See `TracedRun.complain`."""
        super().complain(rule, what.replace(str(self.disk.root), ""))

    def begin(self) -> None:
        """Starts every process; a source that begins late is started by the history."""
        for name in self.wanted:
            if name != SOURCE or not self._late % 2:
                self.start(name)

    def start(self, name: str) -> None:
        """Starts a process, unless it runs."""
        if self.kernel.is_running(name):
            return
        self.kernel.process(name).at_end.append(partial(self.kafka.forget, name))
        if name == SOURCE:
            self._start_source()
        elif name == FRONT:
            self.kernel.spawn(FRONT, self._serve, "serve")
        else:
            start_consumer(self.kernel, name, (CATALOG,), self.disk.data_dir(name), self._gave_up)

    def _start_source(self) -> None:
        """``freshet source hive``."""

        def new_publisher() -> Publisher:
            ensure_topics(KAFKA, CATALOG, self.partitions, replication=1, retention_ms=RETENTION_MS_MIN)
            return Publisher(KAFKA, CATALOG, SHARD, Layout(self.partitions))

        options = FollowOptions(METASTORE, SHARD, threads=2, list_age_s=0.5, reconcile_s=2.0)
        source = HiveSource(options, new_publisher, lambda _: None)

        def run() -> None:
            try:
                source.run()
            except FreshetError as error:
                self._gave_up(SOURCE, error)

        self.kernel.spawn(SOURCE, run, "source")

    def _serve(self) -> None:
        """``freshet serve``."""
        reader = LocationsReader(KAFKA).start(patient=True)

        def locate(keyspace: str, partition: int) -> Located | None:
            found = reader.owner_of(keyspace, partition)
            return Located(found.address, found.topic_id) if found is not None else None

        space = TableSpace(CATALOG, Layout(self.partitions), HiveTables(METASTORE, SHARD))
        front = make_front([space], locate, stale_if_down=self._stale_if_down)
        self.kernel.run_task(FRONT, lambda: listen(front, FRONT_PORT))

    def _gave_up(self, name: str, error: FreshetError) -> None:
        self.say(f"{name} ends: {error.code}: {error}")
        self.outcome.answers[f"process ended: {error.code}"] += 1
        self.kernel.call_at(self.kernel.now + RESTART_S, partial(self.start, name))
        self.kernel.kill(name)

    def let(self, seconds: float) -> None:
        """Lets the world go on. Errors that nobody caught are violations."""
        self.run_until(lambda: False, seconds)

    def run_until(self, ready: Callable[[], bool], within_s: float) -> bool:
        """Lets the world go on until ``ready()``, at most so long."""

        def has_failed() -> bool:
            return bool(self.kernel.errors or self.outcome.violations)

        self.kernel.run_until(lambda: ready() or has_failed(), within_s)
        for where, error in self.kernel.errors:
            self.complain(NEVER_RAISES, f"{where} ended with {type(error).__name__}: {error}")
        return ready()

    def count_fault(self, fault: str) -> None:
        """Counts a fault under every state that holds now."""
        for state, holds in STATES.items():
            if holds(self):
                self.outcome.met[fault, state] += 1

    def close(self) -> None:
        """See `engine.HistoryRun.close`."""
        self.kernel.close()


def _bounds() -> list[tuple[ModuleType, str, int]]:
    """(module, name, value) of each bound that `SMALL` has another value of."""
    live = [module for name, module in sorted(sys.modules.items()) if name.startswith("stream.sources.hive.live.")]
    return [(module, name, getattr(module, name)) for module in live for name in SMALL if hasattr(module, name)]


STATES: Final[dict[str, Callable[[WarehouseParts], bool]]] = {
    "all up": lambda run: all(map(run.kernel.is_running, run.wanted)) and not run.server.down,
    "no source": lambda run: not run.kernel.is_running(SOURCE),
    "no consumer": lambda run: not any(map(run.kernel.is_running, CONSUMERS)),
    "metastore away": lambda run: run.server.down,
    "open writer": lambda run: any(table.pending for table in run.warehouse.states[-1].tables.values()),
}
