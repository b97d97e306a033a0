"""Histories near those that are kept: one that catches a planted bug, or two of them in a row, changed a little.

A kept history is as short as what leads to an interesting place can be, and chance seldom gets there. A few changes to
it get to what is next to that place. No bug is planted, so what breaks a rule is a defect.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from lab.simulation.engine import History, Op, Outcome, World
from lab.simulation.planted.every import PLANTED_BUGS
from lab.simulation.planted.kept import kept_catches
from lab.simulation.worlds import all_worlds

SEEDS: Final = 1 << 16
"""Of schedulers: the first integer of the op ``world``."""
CHANGES_MAX: Final = 4
JOINED: Final = 0.35
"""The share of histories that are made of two."""


class NearWorld:
    """A world whose histories are near ``kept`` ones, of which there is at least one with ops."""

    def __init__(self, world: World, kept: Sequence[History]) -> None:
        self.name, self.rules, self.cost = world.name, world.rules, world.cost
        self.faults, self.states = world.faults, world.states
        self._world = world
        self._kept = kept
        self._ops = [op for ops in kept for op in ops if op[0] != "world"]

    def history(self, rng: Random) -> History:
        """See `World.history`."""
        first, *ops = rng.choice(self._kept)
        if first[0] == "world":
            first = ("world", rng.randrange(SEEDS), *first[2:])
        if rng.random() < JOINED:
            ops += [op for op in rng.choice(self._kept) if op[0] != "world"]
        ops = [first, *ops]
        for _ in range(rng.randint(0, CHANGES_MAX)):
            self._change(ops, rng)
        return ops

    def _change(self, ops: History, rng: Random) -> None:
        at = rng.randrange(len(ops))
        way = rng.choice(("another number", "another number", "one more", "again", "one less", "swapped"))
        if way == "another number":
            ops[at] = self._with_another_number(ops[at], rng)
        elif way == "one more":
            ops.insert(at + 1, rng.choice(self._ops))
        elif way == "again" and ops[at][0] != "world":
            ops.insert(at, ops[at])
        elif way == "one less" and at > 0:
            del ops[at]
        elif way == "swapped" and at > 1:
            ops[at - 1], ops[at] = ops[at], ops[at - 1]

    def _with_another_number(self, op: Op, rng: Random) -> Op:
        """``op`` with one of its numbers as some other op of its kind has it."""
        others = [each for each in self._ops if each[0] == op[0] and len(each) == len(op)]
        if len(op) == 1 or not others:
            return op
        field = rng.randrange(1, len(op))
        return (*op[:field], rng.choice(others)[field], *op[field + 1 :])

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """See `World.run`."""
        return self._world.run(ops, trace=trace)


def near_worlds() -> dict[str, World]:
    """Every world, by name, with histories near its kept ones; as it is, if none is kept."""
    kept = kept_catches()
    found: dict[str, list[History]] = {}
    for bug in PLANTED_BUGS:
        if bug.name in kept and kept[bug.name].ops:
            found.setdefault(bug.world, []).append(kept[bug.name].ops)
    return {name: NearWorld(world, found[name]) if name in found else world for name, world in all_worlds().items()}
