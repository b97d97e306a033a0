"""The world of rows: its faults, states and ops."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from lab.simulation.engine import History, Op, Outcome, ops_of, play, shape
from lab.simulation.models.loop import silent
from lab.simulation.rows.judging import RULES
from lab.simulation.rows.run_state import SHAPE, STATES
from lab.simulation.rows.settling import RowsRun
from lab.simulation.rows.shaping import random_history

FAULTS: Final = (
    "binlog ahead of the engine",
    "DDL",
    "clock step",
    "lost history",
    "lost ack",
    "publisher crash",
    "connection to the source cut",
    "duplicates",
    "reordering across shards",
    "garbage in the topic",
    "damaged frame",
    "read within a fold",
    "owner crash",
    "torn write",
    "rebuild",
    "eviction",
    "lagging replica",
    "late answer",
    "late fill",
    "shared flight",
    "position noted around a read",
    "session moves",
    "unknown shard",
    "beginning gone",
    "lost end of the log",
    "repeated declarations",
    "another choice of tables",
    "newer record",
    "sequence goes back",
    "wrong partition",
    "a row in two shards",
    "front held in a proof",
    "client gone",
    "torn answer",
)
OPS: Final = ops_of(RowsRun)


class RowsWorld:
    """Rows, from a MariaDB-like source to sessions. ``motifs``: whether histories may contain one."""

    name = "rows"
    rules: tuple[str, ...] = RULES
    faults: tuple[str, ...] = FAULTS
    states: tuple[str, ...] = tuple(STATES)
    cost = 1

    def __init__(self, *, motifs: bool = True) -> None:
        self._motifs = motifs

    def history(self, rng: Random) -> History:
        """A random history of about 3 to 35 ops."""
        return random_history(rng, motifs=self._motifs)

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, then the final checks. Stops at the first violation."""
        with silent():
            return play(RowsRun(shape(ops, SHAPE), Outcome(), trace), ops, OPS)
