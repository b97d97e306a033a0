"""Generates random histories of catalog tables; see `lab.simulation.rows.shaping`."""

from __future__ import annotations

from random import Random
from typing import Final

from lab.simulation.engine import History, Op

OWNERS: Final = 2
READERS: Final = 2
SMALL: Final = 0.85
"""Share of histories that are short and have quick checks at their end."""
KINDS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "open": (4, ()),
    "create": (2, (2, 4)),
    "allocate": (3, (3, 2)),
    "write": (6, (3, 2)),
    "finish": (4, (3, 3)),
    "publish": (7, (5, 1, 1)),
    "sync": (5, (OWNERS,)),
    "list": (4, (READERS, 2, 3)),
    "read": (8, (READERS, OWNERS, 6)),
}
RARE_OPERATIONS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "rename": (2, (2,)),
    "drop": (1, (2, 2)),
    "clean": (2, ()),
    "publish ending badly": (3, (4, 4, 3)),
    "die": (2, ()),
    "repeat": (2, (12,)),
    "garbage": (1, (2,)),
    "damage": (1, (64,)),
    "new epoch": (1, ()),
    "replica": (2, ()),
    "race": (2, (READERS, OWNERS, 5)),
    "fold": (3, (OWNERS, 2, 5)),
    "commit": (2, (OWNERS, 2, 8)),
    "fill": (4, (3,)),
}


MOTIFS: Final[tuple[tuple[Op, ...], ...]] = (
    (
        ("write", 0, "name"),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
    ),
    (
        ("open",),
        ("open",),
        ("allocate", 0, "name"),
        ("write", 1, "name"),
        ("publish", 4, 0, 0),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("finish", 1, 1),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
    ),
    (
        ("garbage", 0),
        ("sync", "owner"),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
        ("write", 0, "name"),
        ("finish", 0, 1),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
    ),
    (
        ("open",),
        ("open",),
        ("allocate", 0, "name"),
        ("write", 1, "name"),
        ("list", "reader", "name", 2),
        ("finish", 0, 1),
        ("publish", 4, 0, 0),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("read", "reader", "owner", 0),
    ),
    (("drop", "name", 1), ("publish", 4, 0, 0), ("list", "reader", "name", 0), ("read", "reader", "owner", 0)),
    (("finish", 0, 0), ("clean",), ("list", "reader", "name", 0), ("read", "reader", "owner", 0)),
    (  # an owner folds on while it answers for an external table
        ("drop", "name", 0),
        ("create", "name", 3),
        ("publish", 4, 0, 0),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("list", "reader", "name", 0),
        ("write", 0, "name"),
        ("publish", 4, 0, 0),
        ("sync", "other owner"),
        ("read", "reader", "other owner", 0),
        ("race", "reader", "owner", "even"),
    ),
    (  # an ALLOC is lost, a later id is known, and then the first one's transaction writes
        ("open",),
        ("publish", 4, 0, 0),
        ("damage", 0),
        ("allocate", 0, "name"),
        ("publish", 4, 0, 0),
        ("write", 1, "name"),
        ("finish", 1, 1),
        ("publish", 4, 0, 0),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("write", 0, "name"),
        ("finish", 0, 1),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
    ),
    (  # an ALLOC is lost, and its transaction writes, without being named
        ("open",),
        ("publish", 4, 0, 0),
        ("damage", 0),
        ("allocate", 0, "name"),
        ("publish", 4, 0, 0),
        ("write", 0, "name"),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
    ),
    (  # of two writes of a transaction the second one is lost
        ("write", 0, "name"),
        ("publish", 4, 0, 0),
        ("damage", 0),
        ("write", 0, "name"),
        ("publish", 4, 0, 0),
        ("finish", 0, 1),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
    ),
    (  # the same, and an owner folds the void and the COMMIT while it answers
        ("sync", "owner"),
        ("write", 0, "name"),
        ("publish", 2, 0, 0),
        ("damage", 0),
        ("write", 0, "name"),
        ("finish", 0, 1),
        ("publish", 2, 0, 0),
        ("list", "reader", "name", 0),
        ("race", "reader", "owner", 4),
    ),
    (  # a publisher dies with its knowledge of a transaction that is then aborted and cleaned
        ("allocate", 0, "name"),
        ("publish", 4, 0, 0),
        ("die",),
        ("finish", 0, 0),
        ("clean",),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
    ),
    (  # a transaction of two tables
        ("create", "other name", 0),
        ("write", 0, "name"),
        ("write", 0, "other name"),
        ("publish", 4, 0, 0),
        ("finish", 0, 1),
        ("publish", 4, 0, 0),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
    ),
    (  # a new epoch, while a transaction that wrote is open
        ("write", 0, "name"),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
        ("new epoch",),
        ("fold", "owner", 0, 2),
        ("read", "reader", "owner", 0),
        ("finish", 0, 1),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
    ),
    (  # a reader in a transaction reads its own write while the table is voided, and then another one reads
        ("write", 0, "name"),
        ("garbage", 0),
        ("publish", 4, 0, 0),
        ("publish", 0, 0, 0),
        ("sync", "owner"),
        ("list", 0, "name", 2),
        ("read", 0, "owner", 0),
        ("list", 1, "name", 0),
        ("read", 1, "owner", 0),
    ),
    (  # a fill from a replica, after the topic was damaged
        ("replica",),
        ("write", 0, "name"),
        ("finish", 0, 1),
        ("damage", 0),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 5),
        ("publish", 0, 0, 0),
        ("sync", "owner"),
        ("read", "reader", "owner", 5),
        ("read", "reader", "owner", 0),
    ),
)
"""Sequences of ops that chance finds too seldom (see `lab.simulation.rows.shaping`)."""


_ALL: Final = KINDS | RARE_OPERATIONS


def random_history(rng: Random, *, motifs: bool) -> History:
    """A random history: usually a created table, then 4 to 27 ops of random kinds, and if ``motifs`` maybe a motif."""
    pick = rng.random
    small = pick() < SMALL
    share = 0.15 + 0.5 * pick()
    names = [*KINDS, *[name for name in RARE_OPERATIONS if pick() < share]]
    ops: History = [("world", int(pick() < 0.3), int(pick() < 0.4), rng.choice((0, 0, 1, 2)), int(small))]
    favourite = int(pick() * 2)
    ops += [("create", favourite, 0), ("open",)] if pick() < 0.9 else []
    ops += [("publish", 0, 0, 0), ("sync", 0), ("sync", 1)] if pick() < 0.6 else []
    motif = rng.choice(MOTIFS) if motifs and pick() < 0.5 else ()
    owner, reader = int(pick() * OWNERS), int(pick() * READERS)
    aimed = {"name": favourite, "other name": 1 - favourite, "owner": owner, "other owner": 1 - owner, "reader": reader}
    at = len(ops) + int(pick() * 6)
    count = 4 + int(pick() * 8) if small else 8 + int(pick() * 20)
    for name in rng.choices(names, [_ALL[name][0] for name in names], k=count):
        fields = [favourite % bound if pick() < 0.3 else int(pick() * bound) for bound in _ALL[name][1]]
        ops.append(("publish" if name == "publish ending badly" else name, *fields))
    aimed["even"] = 2 * int(pick() * 4)
    ops[at:at] = [tuple(aimed.get(str(field), field) for field in op) for op in motif]
    return ops
