"""Shards become others in three steps: two become three, two, and one. Sources are killed anywhere meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final
from uuid import UUID

from lab.simulation.engine import Outcome
from lab.simulation.installation.processes import KAFKA
from lab.simulation.kernel.substitution import Twins
from lab.simulation.successions.judging import first_wrong, lacking, told
from lab.simulation.successions.tables import LAYOUT, NAME, PARTITIONS, TABLES
from lab.simulation.whole_processes.run import Bound, WholeProcesses
from lab.simulation.whole_processes.words import NEVER_RAISES
from stream.kafka.topics import RETENTION_MS_MIN, check_topics, ensure_topics
from stream.publish.handover import HISTORIES, with_histories
from stream.publish.publisher import Publisher
from stream.publish.shard_producer import PublisherLost
from stream.publish.topology import DeclaredTopology, TopologyError
from stream.shards.map import ShardMap
from stream.wire.batch import BatchLimits
from stream.wire.events import (
    VALUE,
    BackfillTable,
    BeginScope,
    Change,
    ResumePoint,
    RowChange,
    SourceTransaction,
)
from tokens import Position
from tokens.errors import FreshetError

TOLD: Final = "nothing lost, nothing twice"
RECOVERS: Final = "recovers by itself"
SHAPE: Final = 4
KEYSPACE: Final = "ks"
OLD, HIGH, LOW, MIDDLE, WIDE, WHOLE = (f"{KEYSPACE}/{text}" for text in ("-80", "80-", "-40", "40-80", "40-", "-"))
MAPS: Final = (
    ShardMap.parse({OLD: "-80", HIGH: "80-"}),
    ShardMap.parse({LOW: "-40", MIDDLE: "40-80", HIGH: "80-"}),
    ShardMap.parse({LOW: "-40", WIDE: "40-"}),
    ShardMap.parse({WHOLE: "-"}),
)
SUCCEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    OLD: (),
    HIGH: (),
    LOW: (OLD,),
    MIDDLE: (OLD,),
    WIDE: (MIDDLE, HIGH),
    WHOLE: (LOW, WIDE),
}
"""Shard → those that it succeeds, which are those that its server replicates. `LOW` and `WIDE` have `OLD` in common."""
SHARDS: Final = (*SUCCEEDS,)
PADS: Final = (1, 400)
"""Bytes of images: the larger ones fill a batch."""
SETTLES_IN_S: Final = 120.0


class Behind(FreshetError):
    """A successor's server has not replicated enough to go on where its ancestors end."""

    code = "behind"


class SuccessionsRun(WholeProcesses):
    """Servers as lists of transactions, and a source for each, which runs the product's publisher."""

    processes = SHARDS

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        """``shape``: the scheduler's seed; 1 for MySQL's positions, and 2 for empty servers; how much
        servers lag; 1 for readers, and with 2 or 4 added to that the second or the third table."""
        seed, flavor, self._lag, readers = shape
        self.has_readers = bool(readers % 2)
        self.table = TABLES[readers // 2 % len(TABLES) if self.has_readers else 0]
        super().__init__(seed, outcome, trace)
        self.states = STATES
        self._is_mysql, self._is_empty = bool(flavor % 2), bool(flavor // 2 % 2)
        self.servers: dict[str, list[SourceTransaction]] = {shard: [] for shard in SHARDS}
        """Shard → what its server has, of its own and by replication."""
        self._own: dict[str, int] = defaultdict(int)
        for shard in () if self._is_empty else MAPS[0].shards:
            self._own[shard] = 1
            self.servers[shard].append(SourceTransaction(self._gtid(shard, 1), "", 100, []))
        self.written: dict[bytes, list[bytes]] = defaultdict(list)
        self.settings = 0
        """Which of the maps sources are given."""
        self.application = 0
        """By which of them the application writes."""

    def twins(self) -> Twins:
        """See `WholeProcesses.twins`."""
        return {}

    def bounds(self) -> Sequence[Bound]:
        """See `WholeProcesses.bounds`."""
        return []

    def begin(self) -> None:
        """Makes the topic, and starts the sources of the first map."""
        thread = self.kernel.spawn(
            "operator",
            lambda: ensure_topics(KAFKA, KEYSPACE, PARTITIONS, retention_ms=RETENTION_MS_MIN),
        )
        self.run_until(lambda: thread.done, 60)
        for shard in MAPS[0].shards:
            self.start(shard)

    # --- servers ---

    @property
    def _nothing(self) -> str:
        """The position of an empty server."""
        return "MySQL56/" if self._is_mysql else "MariaDB/"

    def _first(self, shard: str) -> str:
        """Where a source that succeeds nobody begins: behind what made its database, unless that is forgotten."""
        has = Position.parse(self._nothing)
        return str(has.append(self._gtid(shard, 1)) if shard in MAPS[0].shards and not self._is_empty else has)

    def _gtid(self, shard: str, number: int) -> str:
        own = self._own_history(shard)
        return f"MySQL56/{own}:{number}" if self._is_mysql else f"MariaDB/{own}-{own}-{number}"

    def _own_history(self, shard: str) -> str:
        server = 1 + SHARDS.index(shard)
        return str(UUID(int=server)) if self._is_mysql else str(server)

    def _replicate(self, shard: str, most: int | None = None) -> None:
        """A server takes what its primaries have; each of them has taken what its own have."""
        for primary in SUCCEEDS[shard]:
            self._replicate(primary, most)
            has = {each.gtid for each in self.servers[shard]}
            more = [each for each in self.servers[primary] if each.gtid not in has]
            self.servers[shard] += more[:most]

    def op_replicate(self, shard: int, most: int) -> None:
        """A successor's server catches up, or nearly."""
        self._replicate(SHARDS[shard % len(SHARDS)], most if most else None)

    def op_write(self, shard: int, count: int, pad: int) -> None:
        """The application writes a transaction, at the server of the keys' shard."""
        names = [*MAPS[self.application].shards]
        name = names[shard % len(names)]
        own = [key for key, at in self.table.ids.items() if MAPS[self.application].shard_of(at) == name]
        self._own[name] += 1
        number, rows = self._own[name], list[RowChange]()
        for key in sorted(self.kernel.rng.sample(own, min(len(own), (1, 2, len(own))[count % 3]))):
            named = self._named(self.table.keys.index(key)) if self.has_readers else b""
            image = b'{%s"at":"%s-%d","pad":"%s"}' % (named, name.encode(), number, b"x" * PADS[pad % 2])
            self.written[key].append(image)
            rows.append(RowChange(key, VALUE, image))
        gtid = self._gtid(name, number)
        self.servers[name].append(SourceTransaction(gtid, "", 100 + number, rows))
        self.say(f"{gtid} writes {len(rows)} rows at {name}")

    def _named(self, number: int) -> bytes:
        """The columns of a row's key, in its image."""
        pairs = zip(self.table.described.primary_key, self.table.values(number), strict=True)
        return "".join(f'"{name}":{value},' for name, value in pairs).encode()

    # --- sources ---

    def start(self, name: str) -> None:
        """Starts the source of a shard of the map, unless it runs."""
        if name in MAPS[self.settings].shards:
            self._start(name)

    def _start(self, name: str) -> None:
        if not self.kernel.is_running(name):
            self.kernel.process(name).at_end.append(partial(self.kafka.forget, name))
            self.kernel.spawn(name, lambda: self._follow(name))

    def _topology(self, shard: str) -> DeclaredTopology:
        """As the settings were when they last had the shard."""
        at = max(number for number, each in enumerate(MAPS[: self.settings + 1]) if shard in each.shards)
        before = {each for earlier in MAPS[:at] for each in earlier.shards}
        return DeclaredTopology((), SUCCEEDS[shard], MAPS[at], tuple(sorted(before - {*MAPS[at].shards})))

    def _follow(self, shard: str) -> None:
        """A source: publishes what its server has and gets, until it is killed or its shard is over."""
        limits = BatchLimits(batch_bytes=1_000)
        while True:
            try:
                out = Publisher(KAFKA, KEYSPACE, shard, LAYOUT, limits=limits, topology=self._topology(shard))
                with out:
                    point = out.open(lambda: (self._first(shard), 1), self._can_begin(shard))
                    held = point.annotations.get(HISTORIES, "")
                    out.annotate({HISTORIES: with_histories(held, shard, [self._own_history(shard)])})
                    if self.has_readers and not point.table_choice:
                        self._describe(out, shard, point)
                    self._publish(out, shard, Position.parse(point.position))
            except TopologyError as error:
                self.outcome.answers[error.code] += 1
                self.say(f"{shard} is refused: {error}")
                if error.code != "ancestor_unknown":  # else its operator starts it again, as the hint says
                    return
            except FreshetError as error:  # its publisher is lost, Kafka is away, or its server lags
                self.outcome.answers[error.code] += 1
                if isinstance(error, PublisherLost) and not self._may_be_lost():
                    self.complain(NEVER_RAISES, f"the publisher of {shard} is lost without a cause: {error}")
            self.kernel.park(0.5)

    def _describe(self, out: Publisher, shard: str, point: ResumePoint) -> None:
        """The table is, and where nobody is succeeded it has been published from its beginning."""
        whole = [BackfillTable(NAME, False), BackfillTable(NAME, True)]
        changes: list[Change] = [BeginScope((NAME,)), self.table.described, *(() if SUCCEEDS[shard] else whole)]
        out.publish(SourceTransaction(point.position, point.position, 100, changes, table_choice=1))

    def _may_be_lost(self) -> bool:
        return bool(self.struck) or self.settings > 0

    def _can_begin(self, shard: str) -> Callable[[str], None]:
        def check(position: str) -> None:
            has = Position.parse(self._nothing)
            for each in self.servers[shard]:
                has = has.append(each.gtid)
            if not has.contains(Position.parse(position)):
                raise Behind(f"{shard} has {has}, and its ancestors are at {position}")

        return check

    def _publish(self, out: Publisher, shard: str, at: Position) -> None:
        place = 0
        while True:
            for each in self.servers[shard][place:]:
                place += 1
                if not at.contains(Position.parse(each.gtid)):
                    at = at.append(each.gtid)
                    out.publish(SourceTransaction(each.gtid, str(at), each.timestamp, each.changes))
            out.flush()
            known = place
            while len(self.servers[shard]) == known:
                self.kernel.park(0.2)
                out.flush()

    # --- ops ---

    def op_settings(self, pause: int) -> None:
        """Operators give sources the next map: those of new shards start, those of old ones run on."""
        if self.settings == self.application and self.settings + 1 < len(MAPS):
            self.settings += 1
            self.say(f"the map is {[*MAPS[self.settings].shards]}")
            for shard in MAPS[self.settings].shards:
                self._replicate(shard, self._lag % 4 or None)
                self.start(shard)
            self.pause(pause)

    def op_move(self, pause: int) -> None:
        """The application stops, waits for the new servers, and moves to them."""
        if self.application < self.settings:
            for shard in MAPS[self.settings].shards:
                self._replicate(shard)
            self.application = self.settings
            self.say("the application has moved")
            self.pause(pause)

    def op_again(self, shard: int, pause: int) -> None:
        """Somebody starts a source of a shard that is over by mistake."""
        name = SHARDS[shard % len(SHARDS)]
        if self.kernel.is_running(name) or not any(each.end for each in self._logs()):
            return
        if name not in MAPS[self.settings].shards and any(name in each.shards for each in MAPS[: self.settings]):
            self.count_fault("started by mistake")
            self._start(name)
            self.pause(pause)

    def op_answers(self, shard: int, count: int) -> None:
        """Kafka does what a source asks for, and the answers are lost."""
        self.count_fault("Kafka's answers lost")
        self.kafka.answers_to_lose[SHARDS[shard % len(SHARDS)]] = 1 + count

    def _logs(self) -> Sequence[Any]:
        return self.kafka.topics[f"freshet.{KEYSPACE}.events"].logs

    def _told(self) -> dict[bytes, list[bytes | None]]:
        return told(KEYSPACE, self._topic_id, self._logs(), Random(0))

    @property
    def _topic_id(self) -> str:
        found = list[str]()
        thread = self.kernel.spawn("operator", lambda: found.append(check_topics(KAFKA, KEYSPACE, PARTITIONS).topic_id))
        self.run_until(lambda: thread.done, 60)
        return found[0]

    def op_judge(self) -> None:
        """Somebody reads the topic from its beginning."""
        if not self.kafka.down and (wrong := first_wrong(self._told(), self.written)):
            self.complain(TOLD, wrong)

    def finish(self) -> None:
        """All faults end, the last step is done to its end, and every row must be told."""
        self.kafka.down = False
        self.kafka.answers_to_lose.clear()
        self.op_move(0)
        for shard in dict.fromkeys(shard for each in MAPS[: self.settings + 1] for shard in each.shards):
            self._replicate(shard)
            if self.kernel.is_running(shard) and self._has_ended(shard):
                self.kernel.kill(shard)
            self._start(shard)  # also one that is to be succeeded, and has never begun
        end = self.kernel.now + SETTLES_IN_S
        while self.kernel.now < end and not self.outcome.violations:
            self.let(2.0)
            found = self._told()
            if wrong := first_wrong(found, self.written):
                self.complain(TOLD, wrong)
            elif not lacking(found, self.written) and found.keys() >= self.written.keys():
                return
        if not self.outcome.violations:
            missing = lacking(found, self.written) or sorted(self.written.keys() - found.keys())
            self.complain(RECOVERS, f"{missing}, {SETTLES_IN_S:g} s after the last fault")

    def _has_ended(self, shard: str) -> bool:
        """Whether its source has given up, for an error of its settings."""
        return all(thread.done for thread in self.kernel.process(shard).threads)


STATES: Final[dict[str, Callable[[SuccessionsRun], bool]]] = {
    "one map": lambda run: run.settings == run.application,
    "between two": lambda run: run.settings > run.application,
}
