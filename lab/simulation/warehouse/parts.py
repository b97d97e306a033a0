"""The processes of one history, and the servers that they work with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from lab.simulation.engine import Outcome
from lab.simulation.installation.processes import KAFKA, Consuming, start_consumer
from lab.simulation.kernel.fronts import listen
from lab.simulation.kernel.substitution import Twins
from lab.simulation.warehouse.beginnings import TransactionJudge
from lab.simulation.warehouse.metastore import CATALOG, Warehouse
from lab.simulation.warehouse.serving import PORT, MetastoreServer
from lab.simulation.warehouse.serving import twins as metastore_twins
from lab.simulation.warehouse.statistics import Analyzed, AnalyzedServer
from lab.simulation.whole_processes.run import Bound, WholeProcesses
from serving.http.front import Front, make_front
from serving.locations.directory import TopicDirectory
from serving.locations.refreshing import Locations
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

SHAPE: Final = 8
"""Integers in the first op."""
SHARD: Final = "hive/0"
SOURCE: Final = "source"
CONSUMERS: Final = ("consumer-0", "consumer-1")
FRONT: Final = "front"
FRONT_PORT: Final = 8_480
PROCESSES: Final = (SOURCE, *CONSUMERS, FRONT)
METASTORE: Final = MetastoreSettings((("metastore-0", PORT), ("metastore-1", PORT)), CATALOG, 5.0)
SMALL: Final = {
    "EVENTS_MAX": 4, "CHUNK_TABLES": 2, "CHUNK_DETAILS": 2, "FEW_MAX": 2, "PARTITIONS_MAX": 2, "SINGLE_MAX": 2,
    "LOOK_AGAIN_S": 5,
}  # fmt: skip
"""Bounds of the live source, so small that few objects are many, and a few seconds long."""
EPOCH_ENDS: Final = frozenset({"history lost", "epoch ends", "a transaction was partly published"})
"""What a source logs before it begins a new epoch."""


class WarehouseParts(WholeProcesses):
    """All parts, while they run."""

    processes = PROCESSES

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        """``shape``: the scheduler's seed; 1 for two partitions, and for a second consumer; the form of messages; 1 for
        a source that begins when the catalog is there already, and for a front that answers while the metastore is
        away with what it has; 1 for tables with a column, and statistics of it; 1 for a front that engines ask."""
        seed, partitions, consumers, form, self._late, stale, columns, engines = shape
        super().__init__(seed, outcome, trace)
        self.states = STATES
        self._stale_if_down = bool(stale % 2)
        self._has_engines = bool(engines % 2)
        self.partitions = 1 + partitions % 2
        self.analyzed = Analyzed(lambda: self.kernel.now) if columns % 2 else None
        """The metastore, if its tables have columns."""
        self.warehouse = self.analyzed or Warehouse(lambda: self.kernel.now)
        made = AnalyzedServer if self.analyzed is not None else MetastoreServer
        self.server = made(self.kernel, self.warehouse, form)
        self.epochs_begun = 0
        self.judge = TransactionJudge(
            self.warehouse, self.complain, lambda: self.epochs_begun > 0, may_be_stale=self._stale_if_down
        )
        self.wanted = [SOURCE, *CONSUMERS[: 1 + consumers % 2], FRONT]

    def twins(self) -> Twins:
        """See `WholeProcesses.twins`."""
        return metastore_twins(self.server)

    def bounds(self) -> Sequence[Bound]:
        """See `WholeProcesses.bounds`."""
        live = [module for name, module in sorted(sys.modules.items()) if name.startswith("stream.sources.hive.live.")]
        return [(module, name, bound) for module in live for name, bound in SMALL.items() if hasattr(module, name)]

    def logged(self, event: Mapping[str, Any]) -> None:
        """See `WholeProcesses.logged`."""
        if event["event"] in EPOCH_ENDS:
            self.epochs_begun += 1

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
            start_consumer(self.kernel, name, Consuming((CATALOG,), self.disk.data_dir(name), {}), self.gave_up)

    def _start_source(self) -> None:
        """``freshet source hive``."""

        def new_publisher() -> Publisher:
            ensure_topics(KAFKA, CATALOG, self.partitions, retention_ms=RETENTION_MS_MIN)
            return Publisher(KAFKA, CATALOG, SHARD, Layout(self.partitions))

        options = FollowOptions(METASTORE, SHARD, threads=2, list_age_s=0.5, reconcile_s=2.0)
        source = HiveSource(options, new_publisher, lambda _: None)

        def run() -> None:
            try:
                source.run()
            except FreshetError as error:
                self.gave_up(SOURCE, error)

        self.kernel.spawn(SOURCE, run, "source")

    def _serve(self) -> None:
        """``freshet serve``."""
        reader = LocationsReader(KAFKA).start(patient=True)
        space = TableSpace(CATALOG, Layout(self.partitions), HiveTables(METASTORE, SHARD))
        front = make_front([space], Locations(TopicDirectory(reader)), stale_if_down=self._stale_if_down)
        self.kernel.run_task(FRONT, lambda: listen(front, FRONT_PORT))
        if self._has_engines:
            self.beside(front)

    def beside(self, front: Front) -> None:
        """Listens for engines, too."""


STATES: Final[dict[str, Callable[[WarehouseParts], bool]]] = {
    "all up": lambda run: all(map(run.kernel.is_running, run.wanted)) and not run.server.down,
    "no source": lambda run: not run.kernel.is_running(SOURCE),
    "no consumer": lambda run: not any(map(run.kernel.is_running, CONSUMERS)),
    "metastore away": lambda run: run.server.down,
    "open writer": lambda run: any(table.pending for table in run.warehouse.states[-1].tables.values()),
}
