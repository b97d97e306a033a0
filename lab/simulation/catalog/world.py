"""The world of catalog tables: its faults, states and ops."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from lab.simulation.catalog.reading import (
    EXPLAINS,
    LIST,
    MONOTONIC,
    NOTHING_LOST,
    RECOVERS,
    SAME_STATE,
    STALE,
    UNCOMMITTED,
)
from lab.simulation.catalog.run_state import SHAPE, STATES
from lab.simulation.catalog.settling import CatalogRun
from lab.simulation.catalog.shaping import random_history
from lab.simulation.engine import History, Op, Outcome, ops_of, play, shape
from lab.simulation.models.loop import silent
from lab.simulation.naive.judging import BY_THE_RULES

FAULTS: Final = (
    "abort",
    "rename",
    "drop",
    "aborted ids forgotten",
    "lost ack",
    "publisher crash",
    "duplicates",
    "garbage in the topic",
    "damaged message",
    "a new epoch",
    "lagging replica",
    "read within a fold",
    "owner crash",
    "late fill",
)
OPS: Final = ops_of(CatalogRun)


class CatalogWorld:
    """Catalog tables, from a metastore's log to readers with write-id lists. ``motifs``: as in `RowsWorld`."""

    name = "catalog"
    rules: tuple[str, ...] = (
        STALE, LIST, MONOTONIC, UNCOMMITTED, NOTHING_LOST, RECOVERS, SAME_STATE, BY_THE_RULES, EXPLAINS, "never raises",
    )  # fmt: skip
    faults: tuple[str, ...] = FAULTS
    states: tuple[str, ...] = tuple(STATES)
    cost = 1

    def __init__(self, *, motifs: bool = True) -> None:
        self._motifs = motifs

    def history(self, rng: Random) -> History:
        """A random history of about 6 to 40 ops."""
        return random_history(rng, motifs=self._motifs)

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, then the final checks. Stops at the first violation."""
        with silent():
            return play(CatalogRun(shape(ops, SHAPE), Outcome(), trace), ops, OPS)
