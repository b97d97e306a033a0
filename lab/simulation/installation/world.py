"""The world of whole processes: its faults, states and ops."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from lab.simulation.engine import History, Op, Outcome, ops_of, play, shape
from lab.simulation.installation import kafka_faults
from lab.simulation.installation.run import PAUSES_S, PROCESSES, ROWS, RULES, STATES, InstallationRun

SHAPE: Final = 3
OPS: Final = ops_of(InstallationRun)
FAULTS: Final = (
    "kill",
    "death while writing",
    "stop",
    "pause",
    "Kafka down",
    "cut from Kafka",
    "link cut",
    "disk full",
    "disk fails",
    "damage",
    *kafka_faults.FAULTS,
)
COMMON: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "write": (8, (ROWS, len(PAUSES_S))),
    "let": (3, (len(PAUSES_S),)),
    "start": (3, (len(PROCESSES),)),
}
"""Op → (weight, how many values each integer has): the ops of every history."""
RARE: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "kill": (2, (len(PROCESSES), len(PAUSES_S))),
    "die writing": (2, (2, 40)),
    "stop": (1, (2,)),
    "pause": (1, (len(PROCESSES), len(PAUSES_S))),
    "kafka": (2, (2, len(PAUSES_S))),
    "cut": (1, (len(PROCESSES), len(PAUSES_S))),
    "link": (1, (2, len(PAUSES_S))),
    "disk": (1, (2, 2, len(PAUSES_S))),
    "damage": (1, (2,)),
    **kafka_faults.OPS,
}
"""Op → (weight, fields): the ops that a history may have."""
KINDS: Final = COMMON | RARE


class InstallationWorld:
    """Processes of the product, as they are, on simulated servers."""

    name = "installation"
    rules: tuple[str, ...] = RULES
    faults: tuple[str, ...] = FAULTS
    states: tuple[str, ...] = tuple(STATES)
    cost = 100

    def history(self, rng: Random) -> History:
        """A random history of 3 to 15 ops."""
        share = 0.15 + 0.5 * rng.random()
        names = [*COMMON, *[name for name in RARE if rng.random() < share]]
        ops: History = [("world", rng.randrange(1 << 16), rng.randrange(2), rng.randrange(2)), ("let", 3)]
        for name in rng.choices(names, [KINDS[name][0] for name in names], k=3 + rng.randrange(12)):
            ops.append((name, *(rng.randrange(bound) for bound in KINDS[name][1])))
        return ops

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, then the final checks. Stops at the first violation."""
        run = InstallationRun(shape(ops, SHAPE), Outcome(), trace)
        with run.installed():
            run.begin()
            return play(run, ops, OPS)
