"""The world of files: its ops, faults and histories."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from lab.simulation.engine import History, Op, Outcome, ops_of, play, shape
from lab.simulation.files.host import ADMISSIONS, PLACES, ROOM, SHAPE, STATES
from lab.simulation.files.managing import LOOKS, ManagingRun
from lab.simulation.files.reading import (
    BYTES,
    CONDITIONS,
    EXPLAINED,
    FILES,
    GIVEN,
    LENGTHS,
    NEVER_RAISES,
    RECOVERS,
    SIZES,
    STALE,
)
from lab.simulation.files.reading import PLACES as PARTS
from lab.simulation.files.store import STYLES
from lab.simulation.whole_processes.run import PAUSES_S
from serving.bytecache.policy.pools import POLICIES

OPS: Final = ops_of(ManagingRun)
_PAUSE: Final = len(PAUSES_S)
_DIES_WITHIN: Final = 12
_OFFSETS: Final = 4_096
COMMON: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "read": (10, (FILES, PARTS, len(LENGTHS), 5, len(GIVEN), 2)),
    "get": (6, (FILES, PARTS, len(LENGTHS), 5, len(CONDITIONS), 2)),
    "put": (4, (FILES, len(SIZES), 2)),
    "let": (2, (_PAUSE,)),
    "start": (2, (1,)),
}
"""Op → (weight, how many values each integer has): the ops of every history."""
RARE: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "delete": (1, (FILES, 2)),
    "prefetch": (2, (FILES, PARTS, len(LENGTHS))),
    "resize": (1, (4,)),
    "reserve": (1, (6, _PAUSE)),
    "verify": (1, ()),
    "forget": (1, (FILES, 2)),
    "kill": (2, (1, 1)),
    "die writing": (2, (_DIES_WITHIN,)),
    "disk": (2, (2, _PAUSE)),
    "damage": (4, (len(PLACES), _OFFSETS, 3)),
    "store": (1, (2, 2)),
    "shorten": (1, (3,)),
}
"""Op → (weight, fields): the ops that a history may have."""
MANAGES: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "change": (2, (FILES, FILES, 5)),
    "look": (2, (FILES, LOOKS)),
    "scrape": (1, ()),
}
"""Op → (weight, fields): those of programs that do more than read, and of operators, which some histories have."""
WITH_MANAGERS: Final = 0.4
KINDS: Final = COMMON | RARE | MANAGES


class FilesWorld:
    """Remote files that change, a byte cache on a disk that fails, and readers of both kinds."""

    name = "files"
    rules: tuple[str, ...] = (STALE, BYTES, ROOM, EXPLAINED, RECOVERS, NEVER_RAISES)
    faults: tuple[str, ...] = (
        *("kill", "death while writing", "disk full", "disk fails", "damage", "store down", "short answers"),
    )
    states: tuple[str, ...] = tuple(STATES)
    cost = 40

    def history(self, rng: Random) -> History:
        """A random history of 8 to 40 ops, which uses some kinds of ops only."""
        bounds = (1 << 16, len(STYLES), len(POLICIES), len(ADMISSIONS), 2, 2)
        ops: History = [("world", *(rng.randrange(bound) for bound in bounds)), ("let", 1)]
        ops += [("put", path, rng.randrange(len(SIZES)), 0) for path in range(FILES)]
        share = 0.2 + 0.6 * rng.random()
        names = [*COMMON, *[name for name in RARE if rng.random() < share]]
        for name in rng.choices(names, [KINDS[name][0] for name in names], k=8 + rng.randrange(32)):
            ops.append((name, *(rng.randrange(bound) for bound in KINDS[name][1])))
        more = Random(int(ops[0][1]))  # so that the other histories stay as they are
        if more.random() < WITH_MANAGERS:
            for name in more.choices([*MANAGES], [weight for weight, _ in MANAGES.values()], k=3 + more.randrange(6)):
                place = more.randrange(2 + FILES, len(ops) + 1)
                ops.insert(place, (name, *(more.randrange(bound) for bound in MANAGES[name][1])))
        return ops

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, then the final checks. Stops at the first violation."""
        run = ManagingRun(shape(ops, SHAPE), Outcome(), trace)
        with run.installed():
            run.begin()
            return play(run, ops, OPS)
