"""The world of successions: its ops, faults and histories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from lab.simulation.engine import History, Op, Outcome, ops_of, play, shape
from lab.simulation.successions.reading import PAGES_OF_LOTS, PATIENCE_S, SESSIONS, ReadingRun
from lab.simulation.successions.reading import RULES as READERS
from lab.simulation.successions.run import LOW, RECOVERS, SHAPE, SHARDS, STATES, TOLD
from lab.simulation.successions.tables import ROWS
from lab.simulation.whole_processes.run import PAUSES_S
from lab.simulation.whole_processes.words import NEVER_RAISES

OPS: Final = ops_of(ReadingRun)
_PAUSE: Final = len(PAUSES_S) - 1
KINDS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "write": (12, (3, 3, 2)),
    "settings": (3, (_PAUSE,)),
    "move": (3, (_PAUSE,)),
    "replicate": (2, (len(SHARDS), 4)),
    "let": (3, (_PAUSE,)),
    "start": (4, (len(SHARDS),)),
    "kill": (3, (len(SHARDS), 2)),
    "hold": (2, (len(SHARDS), _PAUSE)),
    "kafka": (1, (2, _PAUSE)),
    "answers": (1, (len(SHARDS), 2)),
    "again": (2, (len(SHARDS), _PAUSE)),
    "judge": (1, ()),
}
"""Op → (weight, how many values each integer has)."""
READS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "read": (10, (SESSIONS, ROWS, len(PATIENCE_S))),
    "read all": (3, (SESSIONS, len(PATIENCE_S))),
    "count": (2, (SESSIONS, len(PATIENCE_S))),
    "observe": (3, (SESSIONS, 3)),
    "consumer": (1, (_PAUSE,)),
}
"""Op → (weight, how many values each integer has): those of histories with readers."""
LOTS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "read lot": (1, (SESSIONS, ROWS, len(PAGES_OF_LOTS), len(PATIENCE_S))),
}
"""Op → (weight, how many values each integer has): those of histories whose rows are in lots."""
WITH_READERS: Final = 0.3
WITH_LOTS: Final = 0.5
"""Of those with readers."""

MOTIFS: Final = 0.2
"""The share of histories with `_uneven` ends."""


def _uneven(rng: Random) -> History:
    """Ops after which two shards end at different places of a history that they share, which chance hardly brings.

    The lower shard's source is dead while its ancestor's last transactions come over, and dies again before it has
    read them; the other one has, and goes on. They do not say what should come of it.
    """
    low = SHARDS.index(LOW)
    return [
        ("settings", 2),
        ("let", 3),
        ("kill", low, 0),
        *[("write", 0, 2, 0)] * (1 + rng.randrange(2)),
        ("let", rng.randrange(3)),
        ("move", 3),
        ("write", 1, 2, rng.randrange(2)),
        ("let", 2),
        ("settings", 0),
        ("kill", low, 0),
        ("let", 3),
        ("move", 2),
        ("write", 1, 2, 0),
        ("let", 2),
        ("settings", 3),
    ]


def _with_readers(ops: History, rng: Random) -> History:
    """The same ops, in some histories with those of readers among them."""
    if rng.random() >= WITH_READERS:
        return ops
    ops = [(*ops[0], 1), *ops[1:]]
    _put_among(ops, READS, 6 + rng.randrange(10), rng)
    if rng.random() < WITH_LOTS:
        ops[0] = (*ops[0][:-1], 1 + 2 * (1 + rng.randrange(2)))
        _put_among(ops, LOTS, 3 + rng.randrange(5), rng)
    return ops


def _put_among(ops: History, more: Mapping[str, tuple[int, tuple[int, ...]]], number: int, rng: Random) -> None:
    for name in rng.choices([*more], [weight for weight, _ in more.values()], k=number):
        ops.insert(rng.randrange(3, len(ops) + 1), (name, *(rng.randrange(bound) for bound in more[name][1])))


class SuccessionsWorld:
    """Resharding: who publishes which keys, from where on."""

    name = "successions"
    rules: tuple[str, ...] = (TOLD, RECOVERS, NEVER_RAISES, *READERS)
    faults: tuple[str, ...] = ("kill", "pause", "Kafka down", "Kafka's answers lost", "started by mistake")
    states: tuple[str, ...] = tuple(STATES)
    cost = 60

    def history(self, rng: Random) -> History:
        """A random history of 12 to 40 ops."""
        ops: History = [("world", rng.randrange(1 << 16), rng.randrange(4), rng.randrange(4)), ("let", 1)]
        for name in rng.choices([*KINDS], [kind[0] for kind in KINDS.values()], k=12 + rng.randrange(28)):
            ops.append((name, *(rng.randrange(bound) for bound in KINDS[name][1])))
        if rng.random() < MOTIFS:
            ops[2:2] = _uneven(rng)
        return _with_readers(ops, Random(int(ops[0][1])))  # so that the other histories stay as they are

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, then the final checks. Stops at the first violation."""
        run = ReadingRun(shape(ops, SHAPE), Outcome(), trace)
        with run.installed():
            run.begin()
            return play(run, ops, OPS)
