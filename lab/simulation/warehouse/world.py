"""The world of a metastore's catalog: its faults, states and ops, and the end of each history."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final
from unittest.mock import patch

from lab.simulation.engine import History, Op, Outcome, ops_of, play, shape
from lab.simulation.hive.judging import RECOVERS
from lab.simulation.installation.processes import KAFKA
from lab.simulation.naive.judging import BY_THE_RULES
from lab.simulation.warehouse.changing import FUNCTIONS, KINDS_OF_TABLE, NAMES, PART_WRITES, STRANGE, VALUES
from lab.simulation.warehouse.details import ANALYZED, STALENESS_MS
from lab.simulation.warehouse.engines import ENGINES, ENGINES_GO_ON, WAYS_OF_ENGINES, Engaging
from lab.simulation.warehouse.judging import RULES as JUDGED
from lab.simulation.warehouse.metastore import CATALOG, DATABASES
from lab.simulation.warehouse.parts import CONSUMERS, FRONT, PROCESSES, SHAPE, SHARD, SOURCE, STATES
from lab.simulation.warehouse.reading import FILTERS, PATIENCE_S, SESSIONS, WAYS
from lab.simulation.warehouse.statistics import OF_TABLE, TOGETHER
from lab.simulation.warehouse.transacting import WITHIN
from lab.simulation.whole_processes.run import CLIENT, PAUSES_S
from lab.simulation.whole_processes.stores import Stores
from lab.simulation.whole_processes.words import DURABLE
from serving.client.answers import Objects, Table
from stream.kafka.topics import events_topic
from stream.wire import events

RULES: Final = (*JUDGED, ENGINES_GO_ON, RECOVERS, BY_THE_RULES, DURABLE)
FAULTS: Final = (
    "rename",
    "two alters at once",
    "cascade without an event",
    "database dropped",
    "abort without an event",
    "altered without an event",
    "dropped without an event",
    "rebuilt without an event",
    "ids without an event",
    "kill",
    "pause",
    "Kafka down",
    "metastore down",
    "metastore slow",
    "connection breaks",
    "events deleted",
    "disk lost",
)
OF_FUNCTIONS: Final = 2
"""From here on a catalog read is one of functions. They are `eventual`, since ALTER FUNCTION leaves no event."""
OF_KEYS: Final = 2
"""The read of a table that is of its constraints. What follows are reads of statistics."""
OF_STATISTICS: Final = (OF_TABLE, VALUES[0], TOGETHER)
FEW: Final = 2
"""Of more partitions the metastore alone tells the statistics together, and of none (`parts.SMALL`)."""
DROPS_KEPT: Final = 1
"""Tables have a few partitions, and the fold must forget drops of them."""
LEFT_ALONE_S: Final = 3.0
"""Longer than a front leaves a metastore alone that did not answer: until then it asks for no proof of a time."""
SETTLES_IN_S: Final = 180.0
"""Longer than two of the group's session timeouts, the longest back-offs, and a request that runs into its timeout."""


class WarehouseRun(Engaging):
    """One history. See `lab.simulation.engine.HistoryRun`."""

    def finish(self) -> None:
        """All faults and transactions end, and all of the catalog comes fresh from the cache, but for what is never."""
        self.say("all faults end")
        self.kafka.down = self.server.down = False
        self.server.to_break.clear()
        self.server.slow_s = 0.0
        for name in self.wanted:
            self.start(name)
        for txn in self.opened():
            self.warehouse.end(txn, commit=True)
            self.changed(f"{txn} is committed")
        if not self.run_until(lambda: not self.under_way, SETTLES_IN_S):
            self._fail(f"{self.under_way} requests of sessions have not ended")
        self._read_all()
        self.let(LEFT_ALONE_S)
        if not self.outcome.violations:
            self._check_refusals()
        if not self.outcome.violations:
            self._check_stores()

    def _read_all(self) -> None:
        name, client = self.new_session()
        client.observe(SHARD, f"HiveEvent/{len(self.warehouse.log)}")
        self.judge.wrote(name)
        reads = OF_KEYS + 1 + len(OF_STATISTICS) * (self.analyzed is not None)
        tables = self.warehouse.tables
        missing = [(table, what) for table in tables for what in range(reads) if self._is_owed(table, what)]
        missing += [("", what) for what in range(4)]

        def work() -> None:
            end = self.kernel.now + SETTLES_IN_S
            while missing and self.kernel.now < end:
                for each in list(missing):
                    table, what = each
                    found: Objects | Table | None
                    is_the_last = True
                    if not table:
                        found = self.read_catalog(name, client, what)
                        is_the_last = found is not None and self.is_the_last(found)
                    elif what > OF_KEYS:
                        of = OF_STATISTICS[what - OF_KEYS - 1]
                        found = self.read_statistics(name, client, table, self.listed(table), of)
                    elif what == OF_KEYS:
                        found = self.read_constraints(name, client, table, self.listed(table))
                    elif what:
                        found = self.read_partitions(name, client, table, self.listed(table), 0, 0)
                    else:
                        found = self.read_table(name, client, table, self.listed(table))
                    # Objects of no table change without an event; that they exist is logged.
                    proved = ("fresh",) if table else ("eventual",) if what >= OF_FUNCTIONS else ("eventual", "fresh")
                    place = "source" if self._is_view(table) else "cache"
                    if found is not None and found.served_from == place and found.freshness in proved and is_the_last:
                        missing.remove(each)
                self.kernel.wait(lambda: False, 0.5)

        thread = self.kernel.spawn(CLIENT, work)
        self.run_until(lambda: thread.done, 2 * SETTLES_IN_S)
        if missing and not self.outcome.violations:
            self._fail(f"not fresh from the cache: {missing}")

    def _check_refusals(self) -> None:
        """A session that demands a time is refused nothing now. While faults last nobody can say what has to be."""
        name, client = self.new_session()
        refused: list[str] = []

        def work() -> None:
            for table in self.warehouse.tables:
                if self._is_view(table):
                    continue
                listed = self.listed(table)
                for bound_ms in STALENESS_MS:
                    found = self.read_table(name, client, table, listed, bound_ms)
                    if found is None or found.freshness != "fresh":
                        refused.append(f"{table} of {bound_ms} ms ago")

        thread = self.kernel.spawn(CLIENT, work)
        if not self.run_until(lambda: thread.done, SETTLES_IN_S):
            self._fail("a session that demands a time gets no answer")
        elif refused:
            self._fail(f"refused: {', '.join(refused)}")

    def _is_owed(self, table: str, what: int) -> bool:
        """All but tables come from the source while no event has told of the table's write ids, and of a view."""
        together = what > OF_KEYS and OF_STATISTICS[what - OF_KEYS - 1] is TOGETHER
        if together and not 0 < len(self.warehouse.parts[table]) <= FEW:
            return False
        return not what or not (table in self.warehouse.untold or self._is_view(table))

    def _is_view(self, table: str) -> bool:
        """Whether it is a materialized view, of which nothing is proved."""
        return bool(table) and self.warehouse.tables[table][0] in self.warehouse.views

    def _check_stores(self) -> None:
        """All but consumers are killed; and these, once they have committed."""
        stores = Stores(self, {CATALOG: self.kafka.topics[events_topic(KAFKA, CATALOG)].logs}, CONSUMERS)
        for name in (SOURCE, FRONT):
            self.kernel.kill(name)
        stores.check_committed()
        for name in CONSUMERS:
            self.kernel.kill(name)
        stores.check_content()

    def _fail(self, what: str) -> None:
        self.complain(RECOVERS, f"{what}, {SETTLES_IN_S:g} s after the last fault; {'; '.join(self.kernel.waits())}")


OPS: Final = ops_of(WarehouseRun)
_NAMES, _PAUSE, _PATIENCE, _PROCESS = len(NAMES), len(PAUSES_S), len(PATIENCE_S), len(PROCESSES)
_TXNS: Final = 4
COMMON: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "open": (3, (3,)),
    "allocate": (4, (_NAMES, _TXNS, 2)),
    "end": (4, (_TXNS, 10)),
    "create": (4, (_NAMES, 3 * len(KINDS_OF_TABLE))),
    "alter": (3, (_NAMES, _TXNS)),
    "partition": (5, (_NAMES, 8, len(VALUES), _TXNS)),
    "table": (7, (SESSIONS, _NAMES, 4, _TXNS, _PATIENCE)),
    "partitions": (6, (SESSIONS, _NAMES, 4, WAYS, len(FILTERS) + 1, _PATIENCE)),
    "begin": (3, (SESSIONS, _NAMES, _NAMES, _TXNS, 6, _PATIENCE)),
    "within": (6, (SESSIONS, _NAMES, WITHIN, WAYS, len(FILTERS) + 1, _PATIENCE)),
    "let": (4, (_PAUSE,)),
}
"""Op → (weight, how many values each integer has): the ops of every history."""
RARE: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "read only": (1, ()),
    "touch": (2, (_NAMES, len(PART_WRITES), _TXNS)),
    "entangle": (3, (_NAMES, 2, _TXNS)),
    "key": (3, (_NAMES, _NAMES)),
    "constraints": (4, (SESSIONS, _NAMES, 4, _PATIENCE)),
    "bounded": (4, (SESSIONS, _NAMES, 4, len(STALENESS_MS), _PATIENCE)),
    "drop": (2, (_NAMES,)),
    "rename": (2, (_NAMES, _NAMES)),
    "overtake": (2, (_NAMES, _NAMES)),
    "convert": (1, (_NAMES,)),
    "seed": (2, (_NAMES, 3)),
    "strange": (1, (_NAMES, len(STRANGE))),
    "database": (2, (len(DATABASES), 4)),
    "function": (2, (len(FUNCTIONS),)),
    "unlogged": (2, (len(DATABASES) + len(FUNCTIONS),)),
    "view": (3, (_NAMES, 2)),
    "vanish": (2, (len(DATABASES) + 1,)),
    "catalog": (3, (SESSIONS, 12, _PATIENCE)),
    "session": (2, (SESSIONS, 4)),
    "observe": (3, (SESSIONS,)),
    "list": (2, (_NAMES,)),
    "start": (3, (_PROCESS,)),
    "kill": (2, (_PROCESS, _PAUSE)),
    "hold": (1, (_PROCESS, _PAUSE)),
    "kafka": (2, (2, _PAUSE)),
    "metastore": (2, (2, _PAUSE)),
    "slow": (2, (4, _PAUSE)),
    "break": (2, (_PROCESS, 3)),
    "expire": (1, (_PAUSE,)),
    "disk": (1, (len(CONSUMERS),)),
}
"""Op → (weight, fields): the ops that a history may have."""
MEASURES: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "analyze": (4, (_NAMES, len(VALUES) + 1, 4, _TXNS)),
    "statistics": (5, (SESSIONS, _NAMES, 4, ANALYZED, _PATIENCE)),
}
"""Op → (weight, fields): those of histories whose tables have statistics."""
WITH_STATISTICS: Final = 0.3
ENGAGES: Final[tuple[int, ...]] = (ENGINES, _NAMES, 3, WAYS_OF_ENGINES, len(VALUES), _PATIENCE)
"""How many values each integer of the op ``engine`` has."""
WITH_ENGINES: Final = 0.3
DRAWN: Final = 5
"""Integers of the first op that each history draws."""
KINDS: Final = COMMON | RARE | MEASURES | {"engine": (6, ENGAGES)}
MOTIFS: Final = 0.4
"""The share of histories with one."""


def _motif(rng: Random) -> list[Op]:
    """Ops that chance finds too seldom: the cache stays behind what a session sees of another table at the source.

    Then it reads the table that has changed; or another session does, which is handed its token for the second time.
    """
    table, other = rng.sample(range(_NAMES), 2)
    to_the_end, hand_over = _PATIENCE - 1, ("session", 1, 1)
    sees: list[Op] = [("alter", table, 0), ("create", other, 8), ("table", 0, other, 0, 0, to_the_end)]
    if rng.random() < 0.3:
        sees[2] = ("begin", 0, other, other, 0, 3, to_the_end)
    begins: list[Op] = [("create", table, 4), ("let", 3), ("table", 0, table, 0, 0, to_the_end)]
    if rng.random() < 0.5:
        return [*begins, ("kafka", 1, 0), *sees, ("table", 0, table, 0, 0, to_the_end)]
    return [*begins, hand_over, ("kafka", 1, 0), *sees, hand_over, ("table", 1, table, 0, 0, to_the_end)]


def _drops(rng: Random) -> list[Op]:
    """Partitions of one table are dropped and made again, some while a slow metastore is asked for them."""
    table = rng.randrange(_NAMES)
    ops: list[Op] = [("create", table, 4), ("let", 3)]
    for _ in range(8 + rng.randrange(8)):
        ops.append(("partition", table, rng.choice((0, 0, 4)), rng.randrange(len(VALUES)), 0))
        if rng.random() < 0.3:
            ops.append(rng.choice([("slow", 1 + rng.randrange(3), rng.randrange(_PAUSE)), ("let", rng.randrange(3))]))
    return ops


def _transacts(rng: Random) -> list[Op]:
    """Some transactions hold write ids of a table; one begins, and reads or writes it while the others go on."""
    table, other = rng.sample(range(_NAMES), 2)
    to_the_end = _PATIENCE - 1
    ops: list[Op] = [("create", table, rng.choice((0, 1, 3, 4))), ("open", 1 + rng.randrange(2))]
    ops += [("allocate", table, rng.randrange(2), 1), ("let", rng.randrange(_PAUSE))]
    ops.append(("begin", 0, rng.choice((table, other)), other, rng.randrange(_TXNS), rng.randrange(6), to_the_end))
    goes_on: tuple[Op, ...] = (
        ("end", 0, 1),
        ("end", 1, 1),
        ("open", 0),
        ("allocate", table, 1, 1),
        ("allocate", table, 2, 1),
    )
    for _ in range(3 + rng.randrange(4)):
        reads_or_writes = ("within", 0, table, rng.randrange(3), 0, 0, to_the_end)
        ops.append(rng.choice((*goes_on, *[reads_or_writes] * len(goes_on))))
    return ops


def _points(rng: Random) -> list[Op]:
    """A table points to another one, which changes, maybe behind a source that was away; then its keys are read."""
    child, parent = rng.sample(range(_NAMES), 2)
    points: list[Op] = [("create", child, 4), ("create", parent, 8), ("key", child, parent), ("key", child, parent)]
    ops = [*points]
    ops.append(("let", rng.randrange(_PAUSE)))
    for _ in range(1 + rng.randrange(3)):
        if rng.random() < 0.5:
            ops += [("kill", 0, rng.randrange(_PAUSE)), ("start", 0)]
        changes = ("drop", parent), ("rename", parent, rng.randrange(_NAMES)), ("key", parent, parent)
        ops += [rng.choice(changes), ("observe", 0), ("constraints", 0, child, 0, _PATIENCE - 1)]
        if rng.random() < 0.7:
            ops += [*points, ("let", rng.randrange(_PAUSE))]
    return ops


def _entangles(rng: Random) -> list[Op]:
    """A table is altered in a way that its events don't show, while the source is slow to read what is stored."""
    table, to_the_end = rng.randrange(_NAMES), _PATIENCE - 1
    ops: list[Op] = [("create", table, rng.choice((4, 8))), ("partition", table, 4, 0, 0), ("let", 3)]
    for _ in range(1 + rng.randrange(3)):
        ops += [("slow", 1 + rng.randrange(2), 0), ("entangle", table, rng.randrange(2), 0)]
        ops.append(("let", rng.randrange(_PAUSE)))
        ops.append(rng.choice([("table", 0, table, 0, 0, to_the_end), ("partitions", 0, table, 0, 0, 0, to_the_end)]))
    return [*ops, ("slow", 3, 0)]


def _with_statistics(ops: History, rng: Random) -> History:
    """The same ops, in some histories with others among them, of tables that have statistics."""
    if rng.random() >= WITH_STATISTICS:
        return ops
    ops = [(*ops[0], 1), *ops[1:]]
    for name in rng.choices([*MEASURES], [weight for weight, _ in MEASURES.values()], k=4 + rng.randrange(7)):
        place = rng.randrange(len(ops) // 3, len(ops) + 1)
        ops.insert(place, (name, *(rng.randrange(bound) for bound in MEASURES[name][1])))
    return ops


def _with_engines(ops: History, rng: Random) -> History:
    """The same ops, in some histories with engines' calls among them: some before a table has a reader, some after."""
    if rng.random() >= WITH_ENGINES:
        return ops
    world: Op = (*ops[0], *(0,) * (SHAPE - len(ops[0])), 1)
    ops = [world, *ops[1:]]
    for _ in range(6 + rng.randrange(14)):
        call: Op = ("engine", *(rng.randrange(bound) for bound in ENGAGES))
        place = 1 + rng.randrange(len(ops))
        ops[place:place] = [call] * (1 + rng.randrange(3))
    return ops


class WarehouseWorld:
    """A metastore's live catalog, followed and answered for by whole processes."""

    name = "warehouse"
    rules: tuple[str, ...] = RULES
    faults: tuple[str, ...] = FAULTS
    states: tuple[str, ...] = tuple(STATES)
    cost = 100

    def history(self, rng: Random) -> History:
        """A random history of 14 to 40 ops, which uses some kinds of ops only; most begin with a table or two."""
        share = 0.2 + 0.5 * rng.random()
        names = [*COMMON, *[name for name in RARE if rng.random() < share]]
        ops: History = [("world", rng.randrange(1 << 16), *(int(rng.random() < 0.4) for _ in range(DRAWN)))]
        made: list[Op] = [("create", rng.randrange(_NAMES), rng.randrange(12)) for _ in range(rng.randrange(4))]
        made += [("partition", name, 4, rng.randrange(len(VALUES)), 0) for _, name, _ in made for _ in range(3)]
        if rng.random() < 0.4:
            made += [("open", 2), *(("allocate", rng.randrange(_NAMES), rng.randrange(3), 1) for _ in range(2))]
        ops += [*made, ("start", 0), ("let", 2)]
        if rng.random() < MOTIFS:
            ops += rng.choice((_motif, _drops, _points, _entangles, _transacts, _transacts))(rng)
        for name in rng.choices(names, [KINDS[name][0] for name in names], k=14 + rng.randrange(27)):
            ops.append((name, *(rng.randrange(bound) for bound in KINDS[name][1])))
        seed = int(ops[0][1])  # so that the other histories stay as they are
        return _with_engines(_with_statistics(ops, Random(seed)), Random(seed + 1))

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, then the final checks. Stops at the first violation."""
        run = WarehouseRun(shape(ops, SHAPE), Outcome(), trace)
        with run.installed(), patch.object(events, "DROPS_KEPT", DROPS_KEPT):
            run.begin()
            return play(run, ops, OPS)
