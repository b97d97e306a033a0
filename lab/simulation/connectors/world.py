"""Histories of somebody else's connector, and of the source that reads what it has written."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from lab.simulation.connectors.captured import PROCESSES, RECOVERS, ROWS, STATES, TROUBLES, Kinds, history_of
from lab.simulation.connectors.judging import NO_STALE, TOLD
from lab.simulation.connectors.motifs import motif
from lab.simulation.connectors.run import SHAPE, WRITES, ConnectorsRun
from lab.simulation.connectors.tables import CHANGES, CONFIGURATIONS
from lab.simulation.connectors.tracking import OWN_WRITES
from lab.simulation.engine import History, Op, Outcome, ops_of, play, shape
from lab.simulation.installation.faults import PLACES
from lab.simulation.whole_processes.run import PAUSES_S
from lab.simulation.whole_processes.words import NEVER_RAISES

OPS: Final = ops_of(ConnectorsRun)
_PAUSE: Final = len(PAUSES_S) - 1
_PROCESS: Final = len(PROCESSES)
COMMON: Final[Kinds] = {
    "write": (12, (ROWS, WRITES, 3)),
    "let": (3, (_PAUSE,)),
    "change": (3, (len(CHANGES), _PAUSE)),
    "start": (3, (_PROCESS,)),
    "kill": (3, (_PROCESS, 3)),
}
"""Op → (weight, how many values each integer has): the ops of every history."""
RARE: Final[Kinds] = {
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
    "break": (2, (len(PLACES),)),
}
"""Op → (weight, fields): the ops that a history may have."""
MOTIFS: Final = 0.33
"""The share of histories with one."""


class ConnectorsWorld:
    """A database whose changes come through somebody else's connector."""

    name = "connectors"
    rules: tuple[str, ...] = (TOLD, NO_STALE, OWN_WRITES, RECOVERS, NEVER_RAISES)
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
        "connection breaks",
        *dict.fromkeys(fault for fault, _ in CHANGES),
    )
    states: tuple[str, ...] = tuple(STATES)
    cost = 150

    def __init__(self, *, motifs: bool = True) -> None:
        self._has_motifs = motifs

    def history(self, rng: Random) -> History:
        """A random history of 6 to 24 ops, which uses some kinds of ops only; in one of three there is a motif."""
        ops = history_of(rng, SHAPE, COMMON, RARE, 0.3)
        if self._has_motifs and rng.random() < MOTIFS:
            place = rng.randrange(1, len(ops) + 1)
            ops[place:place] = motif(rng)
        return ops

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, then the final checks. Stops at the first violation."""
        run = ConnectorsRun(shape(ops, SHAPE), Outcome(), trace)
        with run.installed():
            run.begin()
            return play(run, ops, OPS)
