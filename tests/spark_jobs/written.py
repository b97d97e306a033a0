"""Random histories for topics: what the simulator's worlds publish, and what a scribe writes that no model would."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from lab.simulation.catalog import run_state as catalog
from lab.simulation.catalog.settling import CatalogRun
from lab.simulation.catalog.world import OPS as CATALOG_OPS
from lab.simulation.catalog.world import CatalogWorld
from lab.simulation.engine import History, Outcome, play, shape
from lab.simulation.models.loop import silent
from lab.simulation.rows import run_state as rows
from lab.simulation.rows.settling import RowsRun
from lab.simulation.rows.world import OPS as ROWS_OPS
from lab.simulation.rows.world import RowsWorld
from tests.consumers.fold.test_naive_fold import Scribe

Log = Sequence[Sequence[bytes | None]]
"""The messages of each partition."""

KINDS: Final = ("rows", "catalog", "scribe")
MESSAGES_MIN: Final = 30
"""Of all partitions together: fewer are folded before anything could be killed."""


def random_log(kind: str, rng: Random) -> Log:
    """A random log of this kind."""
    if kind == "scribe":
        return scribed(rng, 2, MESSAGES_MIN)
    world = RowsWorld() if kind == "rows" else CatalogWorld()
    while True:
        found = _published(world.name, world.history(rng))
        if sum(map(len, found)) >= MESSAGES_MIN:
            return found


def _published(world: str, ops: History) -> Log:
    """What a world's publishers have written, with all their faults, when a history is over."""
    run: RowsRun | CatalogRun
    if world == "rows":
        run, known = RowsRun(shape(ops, rows.SHAPE), Outcome(), False), ROWS_OPS
    else:
        run, known = CatalogRun(shape(ops, catalog.SHAPE), Outcome(), False), CATALOG_OPS
    with silent():
        outcome = play(run, ops, known)
    assert not outcome.violations, outcome.violations
    return run.topic.partitions


def scribed(rng: Random, partitions: int, messages: int) -> Log:
    """Rows in the even partitions, a catalog in the odd ones, with garbage among them."""
    layout = f"xxh3_64;partitions={partitions}"
    layouts = (layout, f"{layout};x-other=1")
    found = []
    for partition in range(partitions):
        scribe = Scribe(rng, sharing=rng.random() < 0.5, catalog=partition % 2 == 1, layouts=layouts)
        written: list[bytes | None] = [*scribe.history(messages)]
        for _ in range(rng.randint(0, 3)):
            written.insert(rng.randint(0, len(written)), rng.choice((b"garbage", b"", b"\xc3\x01" + b"\0" * 30)))
        found.append(written)
    return found
