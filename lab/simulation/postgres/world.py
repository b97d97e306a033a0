"""Histories of a PostgreSQL, of its connector, and of the source and the readers of both."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from lab.simulation.connectors.captured import PROCESSES, RECOVERS, ROWS, TROUBLES, Kinds, history_of
from lab.simulation.connectors.judging import NO_STALE, TOLD
from lab.simulation.engine import History, Op, Outcome, ops_of, play, shape
from lab.simulation.postgres.run import LAGS, READS, SHAPE, STATES, WRITES, PostgresRun
from lab.simulation.postgres.tables import ALTERATIONS
from lab.simulation.whole_processes.run import PAUSES_S
from lab.simulation.whole_processes.words import EXPLAINS, NEVER_RAISES

OPS: Final = ops_of(PostgresRun)
_PAUSE: Final = len(PAUSES_S) - 1
_PROCESS: Final = len(PROCESSES)
COMMON: Final[Kinds] = {
    "write": (12, (ROWS, 4 * WRITES, 3, 3)),
    "read": (10, (ROWS, READS, 2)),
    "let": (3, (_PAUSE,)),
    "alter": (3, (len(ALTERATIONS), 4, _PAUSE)),
    "start": (3, (_PROCESS,)),
    "kill": (3, (_PROCESS, 3)),
}
"""Op → (weight, how many values each integer has): the ops of every history."""
RARE: Final[Kinds] = {
    "hold": (2, (_PROCESS, _PAUSE)),
    "kafka": (2, (2, _PAUSE)),
    "server": (2, (2, _PAUSE)),
    "lag": (4, (len(LAGS),)),
    "promote": (1, (_PAUSE,)),
    "cut": (1, (_PROCESS, 2, _PAUSE)),
    "answers": (1, (_PROCESS, 3)),
    "rest": (1, (len(TROUBLES), _PAUSE)),
    "anew": (1, (2,)),
    "expire": (1, (5, 2)),
    "judge": (1, ()),
}
"""Op → (weight, fields): the ops that a history may have."""


class PostgresWorld:
    """A PostgreSQL whose changes come through Debezium's connector, and which is read past the cache."""

    name = "postgres"
    rules: tuple[str, ...] = (TOLD, NO_STALE, EXPLAINS, RECOVERS, NEVER_RAISES)
    faults: tuple[str, ...] = (
        "kill",
        "pause",
        "Kafka down",
        "PostgreSQL down",
        "standby promoted",
        "lag",
        "cut from Kafka",
        "cut from PostgreSQL",
        "Kafka's answers lost",
        "Connect does not answer",
        "connector begins anew",
        "messages deleted",
        *dict.fromkeys(alteration.fault for _, alteration in ALTERATIONS),
    )
    states: tuple[str, ...] = tuple(STATES)
    cost = 150

    def history(self, rng: Random) -> History:
        """A random history of 6 to 24 ops, which uses some kinds of ops only."""
        return history_of(rng, SHAPE, COMMON, RARE, 0.4)

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, then the final checks. Stops at the first violation."""
        run = PostgresRun(shape(ops, SHAPE), Outcome(), trace)
        with run.installed():
            run.begin()
            return play(run, ops, OPS)
