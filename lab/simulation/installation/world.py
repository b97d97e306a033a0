"""The world of whole processes: its faults, states, ops and motifs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from lab.simulation.engine import History, Op, Outcome, ops_of, play, shape
from lab.simulation.installation import kafka_faults
from lab.simulation.installation.applications.caching import INVALIDATORS
from lab.simulation.installation.applications.giving import GIVES
from lab.simulation.installation.applications.sinking import STATEMENTS_MAX
from lab.simulation.installation.faults import DIES_WITHIN, OF_REPLICAS, PLACES, SERVERS, STEPPED, STEPS_S, WORDS
from lab.simulation.installation.finding import WAYS
from lab.simulation.installation.following.logs import STEPS_MAX, TORN
from lab.simulation.installation.following.looking_back import LOOKS
from lab.simulation.installation.following.readers import BEGINNINGS, FOLLOWERS, HEARTBEAT_MS
from lab.simulation.installation.operating.guarding import PATHS, SECRETS
from lab.simulation.installation.operating.locating import ASKS
from lab.simulation.installation.operating.routing import ROUTED_ROWS
from lab.simulation.installation.parts import CONSUMERS, FRONTS, PROCESSES, SHAPE, STATES
from lab.simulation.installation.settling import RULES, InstallationRun
from lab.simulation.installation.tables import ASKED, CHANGES, SETTINGS, STATEMENTS, TABLE_FAULTS
from lab.simulation.installation.traffic import PATIENCE_S, STALENESS_MS
from lab.simulation.installation.writing import ROWS, SESSIONS, SLOTS
from lab.simulation.whole_processes.run import PAUSES_S

OPS: Final = ops_of(InstallationRun)
FAULTS: Final = (
    "second source",
    "kill",
    "death while writing",
    "stop",
    "pause",
    "Kafka down",
    "Kafka's answers lost",
    "slow",
    "cut from Kafka",
    "cut from MariaDB",
    "link reset",
    "link cut",
    "MariaDB down",
    "connection breaks",
    "lag",
    "restore",
    "disk full",
    "disk fails",
    "damage",
    "disk lost",
    "snapshot damaged",
    "replica falls behind",
    "replica made anew",
    "replica set wrong",
    "failover",
    "clock stepped",
    *TABLE_FAULTS,
    *kafka_faults.FAULTS,
)
_CONSUMER, _PROCESS, _PAUSE, _PATIENCE = len(CONSUMERS), len(PROCESSES), len(PAUSES_S), len(PATIENCE_S)
_ANYONE: Final = _PROCESS + 1
_SLOTS: Final = len(SLOTS)
COMMON: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "write": (6, (SESSIONS, _SLOTS, 8, _PATIENCE)),
    "read": (8, (SESSIONS, _SLOTS, 3, _PATIENCE)),
    "bounded": (2, (SESSIONS, _SLOTS, len(STALENESS_MS), _PATIENCE)),
    "await": (1, (_SLOTS, 3, _PATIENCE)),
    "again": (2, (_SLOTS, 3, _PATIENCE)),
    "let": (2, (_PAUSE,)),
    "start": (2, (_PROCESS,)),
}
"""Op → (weight, how many values each integer has): the ops of every history."""
RARE: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "session": (2, (SESSIONS, 4)),
    "kill": (2, (_PROCESS, _PAUSE)),
    "die writing": (2, (_CONSUMER, DIES_WITHIN)),
    "stop": (1, (_CONSUMER,)),
    "hold": (2, (_PROCESS, _PAUSE)),
    "kafka": (2, (2, _PAUSE)),
    "lose answers": (1, (_PROCESS, 3)),
    "slow": (1, (2, _PAUSE)),
    "cut": (2, (_ANYONE, 2, _PAUSE)),
    "link": (2, (_CONSUMER, 2, 2, _PAUSE)),
    "mariadb": (2, (2, _PAUSE)),
    "break": (2, (_ANYONE, len(WORDS), len(PLACES))),
    "lag": (2, (3, 3)),
    "restore": (1, (3,)),
    "disk": (1, (_CONSUMER, 2, _PAUSE)),
    "change": (2, (len(CHANGES), _PAUSE)),
    "lock": (1, (_PAUSE,)),
    "backfill": (2, (len(ASKED), 2, _PAUSE)),
    "log": (2, (len(STATEMENTS) + 1,)),
    "xa": (1, (_SLOTS, 2, _PAUSE)),
    "setting": (1, (len(SETTINGS), _PAUSE)),
    "damage": (1, (_CONSUMER, 4)),
    **kafka_faults.OPS,
}
"""Op → (weight, fields): the ops that a history may have."""
RANGES: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "find": (3, (SESSIONS, _SLOTS, WAYS, len(STALENESS_MS) + 4, _PATIENCE)),
    "count": (1, (SESSIONS, _SLOTS, WAYS, _PATIENCE)),
    "sort": (1, (SESSIONS, _SLOTS, WAYS, _PATIENCE)),
}
"""Op → (weight, fields): reads of whole tables, which some histories have besides."""
FOLLOWS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "follow": (2, (FOLLOWERS, len(BEGINNINGS[0]), len(HEARTBEAT_MS), _PAUSE)),
    "look back": (1, (ROWS, LOOKS, _PATIENCE)),
}
"""Op → (weight, fields): those of readers of the change stream, which some histories have besides."""
APPLIES: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "invalidate": (2, (len(INVALIDATORS), _PAUSE)),
    "cached": (6, (SESSIONS, _SLOTS, _PATIENCE)),
    "forget": (1, (_SLOTS, 2)),
    "give": (3, (SESSIONS, _SLOTS, len(GIVES), _PATIENCE)),
    "sink": (2, (_PAUSE,)),
    "sink dies": (2, (STATEMENTS_MAX, _PAUSE)),
}
"""Op → (weight, fields): those of applications that keep and give rows, which some histories have besides."""
OPERATES: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "snapshot": (5, (4, _PAUSE)),
    "lose": (3, (_CONSUMER, _PAUSE)),
    "prune": (1, (2,)),
    "spoil": (2, (2,)),
    "follower": (3, (2, _PAUSE)),
    "drain": (3, (_CONSUMER,)),
    "locate": (6, (2, len(ASKS), _PATIENCE)),
    "route": (4, (ROUTED_ROWS, _PATIENCE)),
}
"""Op → (weight, fields): those of operators, which only placed histories have."""
LOGS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "keep log": (2, (_PAUSE,)),
    "log dies": (2, (STEPS_MAX, _PAUSE)),
    "log torn": (1, (len(TORN), _PAUSE)),
    "keep topic": (4, (2, _PAUSE)),
}
"""Op → (weight, fields): those of who keeps a log in files or in a topic, which some histories have besides."""
GUARDED: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "stranger": (4, (2, len(SECRETS), len(PATHS), _PATIENCE)),
    "exchange": (1, (_PAUSE,)),
    "letters": (1, (2, 2 * len(FRONTS))),
}
"""Op → (weight, fields): those on credentials, which only guarded histories have."""
WORKS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {"log many": (1, (len(STATEMENTS),))}
"""Op → (weight, fields): those of who works at the server, in some histories besides."""
REPLICAS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {"replica": (1, (len(OF_REPLICAS), _PAUSE))}
"""Op → (weight, fields): what befalls a replica at which the source reads the binlog."""
STEPS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "step": (3, (len(STEPPED) + SERVERS, len(STEPS_S))),
    "bounded": (2, COMMON["bounded"][1]),
}
"""Op → (weight, fields): clocks that are set, and reads that depend on them, in some histories whose clocks differ."""
KEYS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {"rekey": (1, (2, _PAUSE))}
"""Op → (weight, fields): those of a table whose primary key changes, in some histories."""
FAILOVERS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {"failover": (1, (3, _PAUSE))}
"""Op → (weight, fields): those of histories in which a replica is promoted, or restored with its primary."""
WITH_FAILOVERS: Final = 0.3
"""Of those that have a replica."""
WITH_GUARDS: Final = 0.25
WITH_LOGS: Final = 0.2
WITH_LETTERS: Final = 0.2
WITH_TRACES: Final = 0.2
WITH_CLOCKS: Final = 0.2
WITH_STEPS: Final = 0.6
"""Of those."""
WITH_KEYS: Final = 0.15
WITH_WORK: Final = 0.15
WITH_REPLICAS: Final = 0.6
"""Of those that have a replica."""
WITH_FOLLOWERS: Final = 0.3
WITH_RANGES: Final = 0.4
WITH_APPLICATIONS: Final = 0.35
"""The share of those histories."""
KINDS: Final = (
    COMMON | RARE | RANGES | FOLLOWS | LOGS | APPLIES | OPERATES | GUARDED | WORKS | REPLICAS | STEPS | KEYS | FAILOVERS
) | kafka_faults.LETTERS
MOTIFS: Final = 0.33
"""The share of histories with one."""


_PUT, _DELETE, _ROLLBACK = 1, 0, 7
_TO_THE_END: Final = 3
_APPLICATION: Final = len(PROCESSES)
_AT_COMMIT: Final = 1
_KAFKA_AWAY: Final[Op] = ("kafka", 1, 1)
_CAUGHT_UP: Final[Op] = ("let", 3)
_HAND_OVER: Final[Op] = ("session", 0, 1)


def _write(session: int, row: int, what: int = _PUT) -> Op:
    return ("write", session, row, what, _TO_THE_END)


def _read(session: int, row: int) -> Op:
    return ("read", session, row, 1, _TO_THE_END)


def _read_all(session: int) -> Op:
    return ("read", session, 0, 0, _TO_THE_END)


def _motif(rng: Random) -> list[Op]:
    """Ops that chance finds too seldom, with rows by chance. They do not say what should come of it.

    In most of them Kafka is away, so that the cache answers and stays behind what sessions see and write.
    """
    one, other = 1, 0
    row, second, third, last = [*rng.sample(range(3), 3), 3]
    cached = [_write(other, second), _write(other, last), _CAUGHT_UP, _read(one, last)]
    broken: Op = ("break", _APPLICATION, _AT_COMMIT, rng.randrange(3))
    return rng.choice(
        [
            # a batch that is newer than its last row, and then a row that the cache has only older
            [*cached, _KAFKA_AWAY, _write(other, second), _write(other, row), _read_all(one), _read(one, second)],
            # a row of the source, or its absence, and then one that the cache has only older
            [*cached, _KAFKA_AWAY, _write(other, second), _write(other, row), _read(one, row), _read(one, second)],
            [*cached, _write(other, row), _KAFKA_AWAY, _write(other, second), _read(one, third), _read(one, second)],
            # an absence that one owner knows, and a row that another one has only older
            [*cached, _write(other, second, _DELETE), _CAUGHT_UP, _read(one, second), _read_all(one)],
            # a commit whose end the session does not hear of, and what it reads then
            [*cached, _KAFKA_AWAY, broken, _write(one, last), _read(one, last)],
            [*cached, _KAFKA_AWAY, broken, _write(one, last), _write(one, row, _ROLLBACK), _read(one, last)],
            # a commit, and a read by a session that is handed the token, for the second time
            [*cached, _HAND_OVER, _KAFKA_AWAY, _write(one, last), _HAND_OVER, _read(other, last)],
        ]
    )


def _followed(rng: Random) -> list[Op]:
    """Ops that readers of the change stream go through, which chance brings together too seldom."""
    row, other = rng.sample(range(4), 2)
    front = PROCESSES.index("front-0")
    through: list[list[Op]] = [
        [_write(0, row), ("let", 2), _write(0, other), ("let", 2), ("restore", 1)],
        [("kafka", 1, 4), _write(0, row), ("kafka", 0, 3)],
        [_write(0, row), ("let", 2), ("tail", rng.randrange(2), rng.randrange(6)), _write(0, row)],
        [("write", 0, row, _PUT, 0), ("write", 1, other, _PUT, 0), ("kill", front, 0), ("start", front)],
        [_write(0, row), ("follow", 1, 2, 0, 0), ("write", 1, row, _PUT, 0), _write(0, other), ("let", 2)],
    ]
    begin: list[Op] = [("let", 3), _write(0, row), _write(1, other), _CAUGHT_UP, _read(0, row), _read(1, row)]
    return [
        *begin,
        ("follow", 0, 0, 0, 2),
        *rng.choice(through),
        _write(1, row),
        ("let", 2),
        _write(0, other),
        ("let", 3),
    ]


def _with_more(ops: History, rng: Random) -> History:
    """The same ops, in some histories with others among them. Where there are none, nothing else differs."""
    *_, has_replica, _, is_placed = (bool(int(each) % 2) for each in ops[0][1:])
    guarded = 0
    published = Random(int(ops[0][1]) + 1)  # what else is published than rows as they are, and who traces
    among = (
        (RANGES, WITH_RANGES),
        (FOLLOWS, WITH_FOLLOWERS),
        (APPLIES, WITH_APPLICATIONS),
        (OPERATES, float(is_placed)),
        (LOGS, WITH_LOGS),
        (kafka_faults.LETTERS, WITH_LETTERS),
        (GUARDED, WITH_GUARDS),
        (WORKS, WITH_WORK),
        (REPLICAS, WITH_REPLICAS * has_replica),
        (FAILOVERS, WITH_FAILOVERS * has_replica),
    )
    for more, share in among:
        if rng.random() < share:
            _put_among(ops, more, 2 + rng.randrange(4), rng)
            if more is LOGS:
                ops.insert(min(3, len(ops)), ("keep log", rng.randrange(_PAUSE)))
            if more is APPLIES:
                ops.insert(min(2, len(ops)), ("invalidate", 0, rng.randrange(_PAUSE)))
            if more is OPERATES:
                ops += [("snapshot", 0, 2), ("snapshot", 0, 2), ("prune", 0)]
            if more is kafka_faults.LETTERS:
                place = rng.randrange(len(ops) // 2, len(ops) + 1)
                ops[place:place] = [("bury", rng.randrange(2), rng.randrange(12), rng.randrange(2)), ("letters", 1, 0)]
            guarded |= (more is GUARDED) + 2 * (more is FOLLOWS and bool(int(ops[0][1]) % 2))
            guarded |= 32 * (more is REPLICAS)
            if more in (FOLLOWS, LOGS, APPLIES):
                guarded |= 2 * published.randrange(8)
            if more is FOLLOWS and rng.random() < MOTIFS:
                ops += _followed(rng)
    guarded |= 16 * (published.random() < WITH_TRACES)
    if published.random() < WITH_CLOCKS:
        guarded |= 64
        if published.random() < WITH_STEPS:
            _put_among(ops, STEPS, 3 + published.randrange(5), published)
    if published.random() < WITH_KEYS:
        guarded |= 128
        _put_among(ops, KEYS, 1 + published.randrange(4), published)
    ops[0] = (*ops[0], guarded)
    return ops


def _put_among(ops: History, more: Mapping[str, tuple[int, tuple[int, ...]]], number: int, rng: Random) -> None:
    """Adds so many ops of a kind at any places behind the first."""
    for name in rng.choices([*more], [weight for weight, _ in more.values()], k=number):
        place = rng.randrange(1, len(ops) + 1)
        ops.insert(place, (name, *(rng.randrange(bound) for bound in more[name][1])))


class InstallationWorld:
    """Processes of the product, as they are, on simulated servers."""

    name = "installation"
    rules: tuple[str, ...] = RULES
    faults: tuple[str, ...] = FAULTS
    states: tuple[str, ...] = tuple(STATES)
    cost = 200

    def history(self, rng: Random) -> History:
        """A random history of 5 to 20 ops, which uses some kinds of ops only; in one of three there is a motif."""
        share = 0.1 + 0.4 * rng.random()
        names = [*COMMON, *[name for name in RARE if rng.random() < share]]
        ops: History = [("world", rng.randrange(1 << 16), *(int(rng.random() < 0.4) for _ in range(SHAPE - 2)))]
        if rng.random() < 0.8:
            ops.append(("let", 2))
        has_motif = rng.random() < MOTIFS
        if has_motif:
            ops += [("let", 3), *_motif(rng)]
        for name in rng.choices(names, [KINDS[name][0] for name in names], k=4 + rng.randrange(4 if has_motif else 14)):
            ops.append((name, *(rng.randrange(bound) for bound in KINDS[name][1])))
        return _with_more(ops, Random(int(ops[0][1])))

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, then the final checks. Stops at the first violation."""
        run = InstallationRun(shape(ops, SHAPE), Outcome(), trace)
        with run.installed():
            run.begin()
            return play(run, ops, OPS)
