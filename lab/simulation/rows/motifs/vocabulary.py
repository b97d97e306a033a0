"""What motifs are written with. Fields are as in `lab.simulation.rows.shaping`: integers, or names of favourites."""

from __future__ import annotations

from typing import Final

DELETES_PARENT: Final = 8 << 4 | 1
"""Seed of a transaction that deletes the first parent row and, by a foreign key, its child."""
DELETES_SECOND: Final = 9 << 4
"""Of one that deletes the second parent row."""

UPDATES_FIRST: Final = 0
UPDATES_SECOND: Final = 1 << 4 | 2
UPDATES_BOTH: Final = 1 << 8
UPDATES_TEXT: Final = 3 << 4
"""Seeds of transactions that update the first parent row, the second one, both, and the row with a text key."""

UPDATE: Final = ("txn", "shard", "seed", 0)
WRITE: Final = ("write", "session", "shard", "seed")
OUT: Final = ("publish", "shard", 4, 0, 0)
OTHER: Final = ("read", "other session", "slot", "owner", "front", 2)
READ: Final = ("read", "session", "slot", "owner", "front", 2)
SYNC: Final = ("sync", "owner")

Motif = tuple[tuple[str | int, ...], ...]
"""A sequence of ops."""
