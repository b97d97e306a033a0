"""Generates random histories of rows.

Each history uses some kinds of ops only, because few kinds go deeper than all. It favours one session, one row and one
owner. It may contain a *motif*: a short sequence of ops that chance finds too seldom. A motif does not say what the
outcome should be.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from lab.simulation.engine import History
from lab.simulation.rows.motifs.anywhere import ANYWHERE
from lab.simulation.rows.motifs.backfills import BACKFILLS
from lab.simulation.rows.motifs.shaped import SPLIT, TWO_PARTITIONS, TWO_SHARDS
from lab.simulation.rows.source import CHILD, PARENT, SLOTS_A_SHARD, TEXT

OWNERS: Final = 2
SESSIONS: Final = 2
FRONTS: Final = 2
TABLES: Final = (PARENT, CHILD, TEXT)
MOTIFS: Final = (*SPLIT, *TWO_PARTITIONS, *TWO_SHARDS, *ANYWHERE, *BACKFILLS)

SMALL: Final = 0.85
"""Share of histories that are short and have quick checks at their end: most bugs need few steps."""
SEED: Final = 1 << 16
Fields = tuple[str | int, ...]
"""For each integer of an op: how many values it has, or the name of a favourite of the history."""

BASE: Final[dict[str, tuple[int, Fields]]] = {
    "txn": (6, ("shard", SEED, 4)),
    "write": (3, ("session", "shard", SEED)),
    "publish": (6, ("shard", 4, 1, 1)),
    "fold": (5, ("owner", "partition", 6)),
    "sync": (4, ("owner",)),
    "read": (9, ("session", "slot", "owner", "front", 14)),
}
"""Op → (weight, fields): the ops of every history."""
RARE_OPERATIONS: Final[dict[str, tuple[int, Fields]]] = {
    "publish ending badly": (3, ("shard", 4, 4, 3)),
    "alter": (1, ("shard", 3)),
    "backfill": (4, ("shard", 4, 2)),
    "clock": (1, ("shard", 8)),
    "engine": (2, ("shard",)),
    "replica": (2, ("shard", 4)),
    "die": (1, ("shard",)),
    "cut": (1, ("shard",)),
    "restore": (1, ("shard", 3, 3)),
    "fold and read": (2, ("owner", "partition", 6, "session", "slot")),
    "race": (2, ("owner", "session", "slot", 6, 4)),
    "commit": (4, ("owner", "partition", 8)),
    "rebuild": (1, ("owner", "partition")),
    "snap": (4, (4, 3)),
    "give": (4, (4,)),
    "fill": (4, (4,)),
    "share": (2, ("session", 4)),
    "batch": (2, ("session", "shard", "owner", "front", 10)),
    "find": (3, ("session", "shard", 3, "owner", "front", 12)),
    "evict": (1, ("owner",)),
    "adopt": (1, ("session", "session")),
    "repeat": (1, ("shard", 8)),
    "mix": (2, (64,)),
    "garbage": (1, ("partition", 6)),
    "damage": (1, (8,)),
    "begin": (1, ("owner", "partition", 12)),
    "lose end": (1, (3,)),
    "say again": (1, ()),
    "choose": (1, (4,)),
    "newer": (1, (2,)),
    "upgrade": (1, ()),
    "go back": (1, ("shard", SEED)),
    "misdirect": (1, ("session", "slot", "owner", "front")),
    "rename": (1, ("session", "shard")),
    "wait": (1, ("session", "owner", "partition")),
    "foreign row": (1, ("slot",)),
    "hold": (2, ("session", "slot", "owner", "front", 2)),
    "release": (2, (4, 3)),
    "leave": (1, (4,)),
    "tear": (1, ("session", "slot", "owner", "front")),
}
"""Op → (weight, fields): the ops that a history may have."""
KINDS: Final = BASE | RARE_OPERATIONS
_NAMED: Final = {
    "shard": 2,
    "session": SESSIONS,
    "slot": 2 * SLOTS_A_SHARD,
    "owner": OWNERS,
    "partition": 2,
    "front": FRONTS,
}


def random_history(rng: Random, *, motifs: bool) -> History:
    """A random history, in half of all cases with a motif if ``motifs``. Its first op is the world's shape."""
    pick = rng.random
    small = pick() < SMALL
    favourites = {name: int(pick() * bound) for name, bound in _NAMED.items()}
    favourites["seed"] = int(pick() * SEED)
    share = 0.1 + 0.5 * pick()
    names = [*BASE, *[name for name in RARE_OPERATIONS if pick() < share]]
    ops: History = [
        ("world", *(int(pick() < share) for share in (0.3, 0.2, 0.25)), rng.choice((0, 0, 1, 2)), int(small))
    ]
    if pick() < 0.85:
        ops += [("publish", shard, 0, 0, 0) for shard in range(1 + int(ops[0][2]))] + [("sync", 0), ("sync", 1)]
    motif = rng.choice(MOTIFS) if motifs and pick() < 0.5 else ()
    count = 2 + int(pick() * 7) if small else 5 + int(pick() * 15)
    at = int(pick() * count) if motif else -1
    if motif in SPLIT:
        ops[0] = (*ops[0][:4], 1, ops[0][5])  # batches so small that transactions are split
    if motif in TWO_PARTITIONS:
        ops[0] = ("world", 1, *ops[0][2:])
    if motif in TWO_SHARDS:
        ops[0] = ("world", 0, 1, *ops[0][3:])
    for number, name in enumerate(rng.choices(names, [KINDS[name][0] for name in names], k=count)):
        if number == at:
            ops += [(str(op[0]), *(_aimed(rng, field, favourites) for field in op[1:])) for op in motif]
        fields = [_drawn(pick, field, favourites) for field in KINDS[name][1]]
        ops.append(("publish" if name == "publish ending badly" else name, *fields))
    return ops


def _drawn(pick: Callable[[], float], field: str | int, favourites: dict[str, int]) -> int:
    if isinstance(field, int):
        return int(pick() * field)
    return favourites[field] if pick() < 0.6 else int(pick() * _NAMED[field])


def _aimed(rng: Random, field: str | int, favourites: dict[str, int]) -> int:
    if isinstance(field, int):
        return field
    match field:
        case "seed":
            return int(rng.random() * SEED)
        case "last":
            return 6 + int(rng.random() * 2)
        case "older":
            return 4 + int(rng.random() * 4)
        case "some":
            return int(rng.random() * 8)
        case "bit":
            return int(rng.random() * 2)
        case "bits":
            return int(rng.random() * 64)
        case "some table":
            return int(rng.random() * len(TABLES))
    kind, _, name = field.rpartition(" ")
    if kind == "other":
        return 1 - favourites[name]
    return favourites[name] if not kind else int(rng.random() * _NAMED[name])
