"""Ops that chance brings together too seldom. They do not say what should come of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from lab.simulation.connectors.captured import PROCESSES, ROWS, SOURCES
from lab.simulation.connectors.connect import NAME
from lab.simulation.connectors.run import HELD
from lab.simulation.connectors.tables import AWAY, BACK
from lab.simulation.engine import Op

_CONNECTOR: Final = PROCESSES.index(NAME)
_SOURCE: Final = PROCESSES.index(SOURCES[0])
_ONE, _BOTH, _MANY = 0, 1, 4
"""What a transaction writes."""


def _moved_elsewhere(row: int, rng: Random) -> list[Op]:
    """A table moves to another database before the source reads what was written to it."""
    behind: list[Op] = [("kill", _SOURCE, 0)] if rng.random() < 0.5 else [("lag", 2), ("cut", _SOURCE, 0, 1)]
    return [
        ("write", row, _BOTH, 2),
        *behind,
        ("write", row, _BOTH, 0),
        ("change", AWAY, 1),
        ("start", _SOURCE),
        ("write", row, _ONE, 2),
        ("let", 3),
        ("change", BACK, 2),
    ]


def _prepared_across_an_epoch(row: int, rng: Random) -> list[Op]:
    """An epoch is due while an XA transaction is prepared."""
    due: Op = rng.choice([("anew", 1), ("configure", 0, 2), ("expire", rng.randrange(5), 1)])
    return [("write", row, _BOTH, 2), ("xa", row, 1, HELD), due, ("write", (row + 1) % ROWS, _ONE, 2), ("let", 4)]


def _killed_with_open_rows(row: int, rng: Random) -> list[Op]:
    """Connector and source are killed when the connector may have told a part of a transaction."""
    return [
        ("let", 3),
        ("write", row, _MANY, 0),
        ("let", 0) if rng.random() < 0.5 else ("judge",),
        ("kill", _CONNECTOR, 2),
        ("let", 3),
        ("kill", _SOURCE, 1),
        ("start", _SOURCE),
        ("let", 3),
        ("start", _CONNECTOR),
        ("let", 3),
    ]


def _restarted_amid_a_transaction(row: int, rng: Random) -> list[Op]:
    """The connector is held within a transaction. The source has published what was told of it when it is killed."""
    amid: list[Op] = [
        ("write", row, _MANY, rng.randrange(2)),
        ("hold", _CONNECTOR, 3),
        ("kill", _SOURCE, 0),
        ("start", _SOURCE),
        ("let", 3),
    ]
    return [*amid, *amid]


def _told_before_it_is_prepared(row: int, rng: Random) -> list[Op]:
    """A connector tells the rows of XA transactions a while before the server names these among what is prepared."""
    late: list[Op] = [("lag", 2), ("let", 2)]
    return [*late, *(("xa", (row + each) % ROWS, 1, 2 + HELD * rng.randrange(2)) for each in range(3)), ("let", 3)]


_MOTIFS: Final[Sequence[Callable[[int, Random], list[Op]]]] = (
    _moved_elsewhere,
    _prepared_across_an_epoch,
    _killed_with_open_rows,
    _restarted_amid_a_transaction,
    _told_before_it_is_prepared,
)


def motif(rng: Random) -> list[Op]:
    """One of them."""
    return rng.choice(_MOTIFS)(rng.randrange(ROWS), rng)
