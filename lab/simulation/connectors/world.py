"""Histories of somebody else's connector, and of the source that reads what it has written."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from lab.simulation.connectors.judging import NO_STALE, TOLD
from lab.simulation.connectors.run import PROCESSES, RECOVERS, ROWS, SHAPE, STATES, TROUBLES, WRITES, ConnectorsRun
from lab.simulation.connectors.tables import CHANGES, CONFIGURATIONS
from lab.simulation.engine import History, Op, Outcome, ops_of, play, shape
from lab.simulation.whole_processes.run import PAUSES_S
from lab.simulation.whole_processes.words import NEVER_RAISES

OPS: Final = ops_of(ConnectorsRun)
_PAUSE: Final = len(PAUSES_S) - 1
_PROCESS: Final = len(PROCESSES)
COMMON: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "write": (12, (ROWS, WRITES, 3)),
    "let": (3, (_PAUSE,)),
    "change": (3, (len(CHANGES), _PAUSE)),
    "start": (3, (_PROCESS,)),
    "kill": (3, (_PROCESS, 3)),
}
"""Op → (weight, how many values each integer has): the ops of every history."""
RARE: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "hold": (2, (_PROCESS, _PAUSE)),
    "kafka": (2, (2, _PAUSE)),
    "mariadb": (2, (2, _PAUSE)),
    "lag": (2, (3,)),
    "cut": (1, (_PROCESS, 2, _PAUSE)),
    "answers": (1, (_PROCESS, 3)),
    "rest": (1, (len(TROUBLES), _PAUSE)),
    "configure": (1, (len(CONFIGURATIONS), _PAUSE)),
    "anew": (1, (2,)),
    "expire": (1, (5, 2)),
    "xa": (1, (ROWS, 2, 3)),
    "rotate": (1, ()),
    "grant": (1, ()),
    "judge": (1, ()),
}
"""Op → (weight, fields): the ops that a history may have."""
KINDS: Final = COMMON | RARE


class ConnectorsWorld:
    """A database whose changes come through somebody else's connector."""

    name = "connectors"
    rules: tuple[str, ...] = (TOLD, NO_STALE, RECOVERS, NEVER_RAISES)
    faults: tuple[str, ...] = (
        "kill",
        "pause",
        "Kafka down",
        "MariaDB down",
        "lag",
        "cut from Kafka",
        "cut from MariaDB",
        "Kafka's answers lost",
        "Connect does not answer",
        "connector set otherwise",
        "connector begins anew",
        "messages deleted",
        "XA transaction",
        "statement without a message",
        *dict.fromkeys(fault for fault, _ in CHANGES),
    )
    states: tuple[str, ...] = tuple(STATES)
    cost = 150

    def history(self, rng: Random) -> History:
        """A random history of 6 to 24 ops, which uses some kinds of ops only."""
        share = 0.1 + 0.3 * rng.random()
        names = [*COMMON, *[name for name in RARE if rng.random() < share]]
        ops: History = [("world", rng.randrange(1 << 16), *(rng.randrange(2) for _ in range(SHAPE - 1)))]
        if rng.random() < 0.8:
            ops.append(("let", 3))
        for name in rng.choices(names, [KINDS[name][0] for name in names], k=6 + rng.randrange(18)):
            ops.append((name, *(rng.randrange(bound) for bound in KINDS[name][1])))
        return ops

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, then the final checks. Stops at the first violation."""
        run = ConnectorsRun(shape(ops, SHAPE), Outcome(), trace)
        with run.installed():
            run.begin()
            return play(run, ops, OPS)
