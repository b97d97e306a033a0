"""The installation of one history: its servers, its network and disks, and which of its processes run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from random import Random
from typing import Any, Final

import pymysql

from lab.simulation.engine import Outcome
from lab.simulation.installation.committed import CommittedRecord
from lab.simulation.installation.judging import SessionJudge
from lab.simulation.installation.operating.clocks import Clocks
from lab.simulation.installation.operating.guarding import FRONT, Credentials
from lab.simulation.installation.processes import (
    DEPOT,
    OTHER_SHARD,
    PRIMARY,
    REPLICA,
    SHARD,
    Consuming,
    Published,
    Requested,
    Serving,
    start_consumer,
    start_front,
    start_source,
)
from lab.simulation.installation.writing import (
    ACCOUNTS,
    CREATE_NOTES,
    FIRST_OLD_ROW,
    KEYSPACE,
    OLD_ROWS,
    ORDERS,
    OTHER_KEYSPACE,
    PARTS,
    STOCK,
    SimulatedTable,
    notes_of,
    writer_of,
    writes_of,
)
from lab.simulation.kernel.sockets import socket_twins
from lab.simulation.kernel.substitution import Twins
from lab.simulation.mariadb.connections import twins as mariadb_twins
from lab.simulation.mariadb.server import SimulatedServer
from lab.simulation.operators.tracing import IS_THERE, Traces
from lab.simulation.whole_processes.run import Bound, WholeProcesses
from serving.locations import cache, places
from serving.locations import file as locations_file
from stream.changes import last
from stream.changes.following import Follower
from stream.sources.mariadb.backfill import chunks
from stream.sources.mariadb.connection import ConnectionSettings

Complain = Callable[[str, str], None]
SHAPE: Final = 8
"""Integers in the first op."""
SOURCES: Final = ("source-0", "source-1")
CONSUMERS: Final = ("consumer-0", "consumer-1")
FRONTS: Final = {"front-0": 8480, "front-1": 8481}
"""Name → port."""
NODES: Final = dict(zip(CONSUMERS, (f"http://127.0.0.1:{port}" for port in FRONTS.values()), strict=True))
"""Consumer → the front that it announces in placed histories, as a node does its own. That one may not answer."""
FOLLOWER: Final = "follower"
"""A consumer of another group, in placed histories only."""
PLACED_BOUNDS: Final[Sequence[Bound]] = (
    (places, "EXPIRES_S", 6.0),
    (cache, "FORCED_S", 20.0),
    (locations_file, "SAVE_S", 1.0),
)
"""So that locations get old, and are written, within a history."""
PROCESSES: Final = (*CONSUMERS, *SOURCES, *FRONTS)
OTHER_SOURCE: Final = "source-of-depot"
"""The source of a wide history's second keyspace. Only what befalls Kafka and the network befalls it."""
ZONES_S: Final = (3_600, -7_200, 34_200)
"""The time zones of a wide history's primary, its replica, and the second keyspace's server."""
ROWS_PER_CHUNK: Final = 3
CLOCK_ERROR_S: Final = 10.0
"""Of a clock, in histories whose clocks differ."""
FIRST_SERVER_ID: Final = 4_380
HELD_BYTES: Final = 700
"""Of lean histories: what a stream holds of what it can't tell yet."""


class Truth:
    """A shard: its server, what that has committed, and the judge of what sessions get of it."""

    def __init__(self, server: SimulatedServer, settings: ConnectionSettings, shard: str, complain: Complain) -> None:
        self.server = server
        self.settings = settings
        self.shard = shard
        self.record = CommittedRecord()
        self.judge = SessionJudge(self.record, complain)
        self._recorded = 0

    def record_commits(self) -> None:
        """Takes what the server has committed since the last time into the record of what is true."""
        for commit in self.server.history[self._recorded :]:
            gtid = "-".join(map(str, commit.gtid))
            before = self.record.histories[-1].latest() if commit.change is not None else {}
            self.record.commit(commit.at, writes_of(commit, before), writer_of(commit), gtid, notes_of(commit))
            self._recorded += 1

    def restored(self, now: float, kept: int, epoch: int) -> None:
        """The server has lost what came after its first ``kept`` commits. ``epoch``: the last one before."""
        self.record.replace(now, kept, epoch=epoch)
        self._recorded = kept


class Installation(WholeProcesses):
    """All parts, while they run."""

    processes = PROCESSES

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        """``shape``: the scheduler's seed; 1 for 2 partitions, consumers, fronts, a replica, wide, placed, guarded.

        A wide history has more tables, which are published from the beginning, and a second keyspace. In a placed one
        snapshots have a place, fronts are in zones and keep a file of locations, and there may be a follower. In a
        guarded one fronts and owners ask for credentials. With 2 added to that rows are published with what they were,
        with 4 only short images of them, with 8 also rows of a table without a primary key. With 16 requests are
        traced. With 32 the source reads the binlog at the replica, if there is one. With 64 clocks differ. With 128
        there is a table whose primary key changes.
        """
        seed, partitions, consumers, fronts, replica, wide, placed, guarded = shape
        super().__init__(seed, outcome, trace)
        self.states = STATES
        self.primary = SimulatedServer(self.kernel)
        self.replica = SimulatedServer(self.kernel, id=2)
        self.partitions = 1 + partitions % 2
        self.wanted = [SOURCES[0], *CONSUMERS[: 1 + consumers % 2], *list(FRONTS)[: 1 + fronts % 2]]
        self.wide = bool(wide % 2)
        self.placed = bool(placed % 2)
        self.credentials = Credentials(self.kernel, guarded=bool(guarded % 2))
        self.before, self.lean, self.keyless = (bool(guarded & bit) for bit in (2, 4, 8))
        self.rekeyed = bool(guarded & 128)
        self.made = 2 + self.rekeyed
        """Commits until there is a database with tables: no history is lost so far back."""
        self.traces = Traces(self.kernel, self.complain) if guarded & 16 and IS_THERE else None
        self.is_operated = False
        """Whether anybody has asked a source for something. Until then none looks: each look would cost time."""
        self.depot = SimulatedServer(self.kernel, id=3)
        self.truths = {KEYSPACE: Truth(self.primary, PRIMARY, SHARD, self.complain)}
        """Keyspace → what is true of it."""
        self.record, self.judge = self.truths[KEYSPACE].record, self.truths[KEYSPACE].judge
        if self.wide:
            self.wanted.append(OTHER_SOURCE)
            self.truths[OTHER_KEYSPACE] = Truth(self.depot, DEPOT, OTHER_SHARD, self.complain)
            self.judge.others.append(self.truths[OTHER_KEYSPACE].judge)
            self.truths[OTHER_KEYSPACE].judge.others.append(self.judge)
            for server, zone_s in zip((self.primary, self.replica, self.depot), ZONES_S, strict=True):
                server.behaviour.zone_s = zone_s
        self.clocks = Clocks()
        self.has_clocks = bool(guarded & 64)
        if self.has_clocks:
            self._set_clocks(Random(seed))
        self.said_ready: set[str] = set()
        """Processes that have said so."""
        self.epoch = 0
        """The shard's last epoch, as its sources log it."""
        self.reads_replica = bool(replica % 2)
        self.follows_replica = self.reads_replica and bool(guarded & 32)
        servers = {PRIMARY: self.primary, REPLICA: self.replica, DEPOT: self.depot}
        self._addresses = {(at.host, at.port): each for at, each in servers.items()}
        self._mariadb = mariadb_twins(self._addresses, self.kernel)
        self.driver: Any = self._mariadb[pymysql]
        """PyMySQL, to the simulated servers."""

    def _set_clocks(self, rng: Random) -> None:
        """Each process and each server has a clock of its own."""
        processes = (*PROCESSES, OTHER_SOURCE, FOLLOWER)
        self.kernel.clock_errors_s = {name: rng.uniform(-CLOCK_ERROR_S, CLOCK_ERROR_S) for name in processes}
        for server in (self.primary, self.replica, self.depot):
            server.behaviour.clock_shift_s = rng.uniform(-CLOCK_ERROR_S, CLOCK_ERROR_S)
        self.note_clocks()

    def note_clocks(self) -> None:
        """Answers to a bound may be older by what the server's clock has been ahead of a front's.

        A marker of before a step may still be the last one, and a read that is under way began before it.
        """
        fronts = [front for front in FRONTS if front in self.wanted]
        for name, error_s in self.kernel.clock_errors_s.items():
            self.clocks.note(name, error_s)
        for truth in self.truths.values():
            self.clocks.note(truth.shard, truth.server.behaviour.clock_shift_s)
            truth.judge.clocks_differ_s = self.clocks.lead_s([truth.shard], fronts)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """See `WholeProcesses.installed`."""
        with super().installed(), self.traces.on() if self.traces is not None else nullcontext():
            yield

    def twins(self) -> Twins:
        """See `WholeProcesses.twins`."""
        return {**self._mariadb, **socket_twins(self.kernel)}

    def bounds(self) -> Sequence[Bound]:
        """See `WholeProcesses.bounds`."""
        held: Sequence[Bound] = [(Follower.__init__, "__defaults__", (HELD_BYTES,))] if self.lean else []
        return [(chunks, "ROWS_MAX", ROWS_PER_CHUNK), (last, "WINDOW", 8), *held]

    def logged(self, event: Mapping[str, Any]) -> None:
        """See `WholeProcesses.logged`."""
        if event["event"] in ("publisher open", "new epoch") and event["shard"] == SHARD:
            self.epoch = event["epoch"]
        elif event["event"] == "server is read":
            at = REPLICA if event["server"] == REPLICA.name else PRIMARY
            self.outcome.answers[f"the binlog is read at {at.host}"] += 1

    def begin(self) -> None:
        """Makes the database, and starts every process."""
        self._create(PRIMARY, [*[PARTS] * self.rekeyed, ACCOUNTS, *[ORDERS] * self.wide])
        if self.wide:
            self._create(DEPOT, [STOCK])
        if self.reads_replica:
            self.replica.follow(self.primary)
        for name in self.wanted:
            self.start(name)

    def _create(self, server: ConnectionSettings, tables: Sequence[SimulatedTable]) -> None:
        connection = self.driver.connect(**server.pymysql_arguments(), autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {tables[0].keyspace}")
            for table in tables:
                cursor.execute(table.create)
                for row in range(FIRST_OLD_ROW, FIRST_OLD_ROW + OLD_ROWS * self.wide):
                    cursor.execute(table.put, table.values(row, 0))
            if self.keyless and server is PRIMARY:
                cursor.execute(CREATE_NOTES)
        connection.close()

    def start(self, name: str, *, new_epoch: bool = False) -> None:
        """Starts a process, unless it runs."""
        if self.kernel.is_running(name):
            return
        for forget in (self.kafka.forget, self.primary.forget, self.replica.forget, self.depot.forget):
            self.kernel.process(name).at_end.append(partial(forget, name))
        told = self.before, self.keyless, self.lean
        replicas = (REPLICA,) if self.follows_replica else ()
        shop = Published(KEYSPACE, SHARD, PRIMARY, self.partitions, self.wide, *told, replicas)
        depot = [Published(OTHER_KEYSPACE, OTHER_SHARD, DEPOT, 1, wide=True)] if self.wide else []
        if name in SOURCES:
            server_id = FIRST_SERVER_ID + SOURCES.index(name)
            asked = Requested(lambda: self.is_operated)
            start_source(self.kernel, name, shop, server_id, self.gave_up, new_epoch=new_epoch, asked=asked)
        elif name == OTHER_SOURCE:
            start_source(self.kernel, name, depot[0], FIRST_SERVER_ID, self.gave_up)
        elif name in (*CONSUMERS, FOLLOWER):
            places = dict.fromkeys(self.truths, self.snapshots) if self.placed else {}
            front = NODES.get(name, "") if self.placed else ""
            access = self.credentials.access(name)
            kept = self.disk.data_dir(name)
            started = Consuming(tuple(self.truths), kept, places, name == FOLLOWER, front, access, self.lean)
            start_consumer(self.kernel, name, started, self.gave_up)
        else:
            read = shop._replace(server=REPLICA) if self.reads_replica else shop
            file = self.disk.data_dir(name) / "locations" if self.placed else None
            access = self.credentials.access(name)
            served = Serving([read, *depot], FRONTS[name], file, access, self.credentials.identity(FRONT))
            start_front(self.kernel, name, served)

    @property
    def snapshots(self) -> str:
        """Where snapshots are, in a placed history."""
        return str(self.disk.root / "snapshots")

    def exchange_servers(self) -> None:
        """The replica is found at the primary's address from now on, and the primary at the replica's."""
        old, new = self.primary, self.replica
        new.follow(None)
        self.primary, self.replica = new, old
        new.behaviour, old.behaviour = old.behaviour, new.behaviour
        self._addresses |= {(PRIMARY.host, PRIMARY.port): new, (REPLICA.host, REPLICA.port): old}
        self.truths[KEYSPACE].server = new

    def record_commits(self) -> None:
        """Takes what the servers have committed since the last time into the records of what is true."""
        for truth in self.truths.values():
            truth.record_commits()


STATES: Final[dict[str, Callable[[Installation], bool]]] = {
    "all up": lambda run: all(map(run.kernel.is_running, run.wanted)),
    "no source": lambda run: not any(map(run.kernel.is_running, SOURCES)),
    "two sources": lambda run: all(map(run.kernel.is_running, SOURCES)),
    "no consumer": lambda run: not any(map(run.kernel.is_running, CONSUMERS)),
    "two consumers": lambda run: all(map(run.kernel.is_running, CONSUMERS)),
    "Kafka away": lambda run: run.kafka.down,
    "MariaDB away": lambda run: run.primary.down,
}
