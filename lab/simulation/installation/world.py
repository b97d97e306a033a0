"""The world of whole processes: its faults, states and ops."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from lab.simulation.engine import History, Op, Outcome, ops_of, play, shape
from lab.simulation.installation.faults import DIES_WITHIN, PAUSES_S, PLACES, WORDS
from lab.simulation.installation.motifs import motif
from lab.simulation.installation.parts import CONSUMERS, PROCESSES, SHAPE, STATES
from lab.simulation.installation.settling import RULES, InstallationRun
from lab.simulation.installation.tables import CHANGES, LOG_EVENTS, TABLE_FAULTS
from lab.simulation.installation.traffic import PATIENCE_S
from lab.simulation.installation.writing import ROWS, SESSIONS

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
    *TABLE_FAULTS,
)
_CONSUMER, _PROCESS, _PAUSE, _PATIENCE = len(CONSUMERS), len(PROCESSES), len(PAUSES_S), len(PATIENCE_S)
_ANYONE: Final = _PROCESS + 1
COMMON: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "write": (6, (SESSIONS, ROWS, 8, _PATIENCE)),
    "read": (8, (SESSIONS, ROWS, 3, _PATIENCE)),
    "await": (1, (ROWS, 2, _PATIENCE)),
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
    "log": (1, (len(LOG_EVENTS),)),
    "damage": (1, (_CONSUMER, 4)),
}
"""Op → (weight, fields): the ops that a history may have."""
KINDS: Final = COMMON | RARE
MOTIFS: Final = 0.33
"""The share of histories with one."""


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
        ops: History = [("world", rng.randrange(1 << 16), *(int(rng.random() < 0.4) for _ in range(SHAPE - 1)))]
        if rng.random() < 0.8:
            ops.append(("let", 2))
        has_motif = rng.random() < MOTIFS
        if has_motif:
            ops += [("let", 3), *motif(rng)]
        for name in rng.choices(names, [KINDS[name][0] for name in names], k=4 + rng.randrange(4 if has_motif else 14)):
            ops.append((name, *(rng.randrange(bound) for bound in KINDS[name][1])))
        return ops

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, then the final checks. Stops at the first violation."""
        run = InstallationRun(shape(ops, SHAPE), Outcome(), trace)
        with run.installed():
            run.begin()
            return play(run, ops, OPS)
