"""Motifs of histories of one shape: with split transactions, two partitions, or two shards."""

from __future__ import annotations

from typing import Final

from lab.simulation.rows.motifs.vocabulary import (
    OTHER,
    OUT,
    READ,
    SYNC,
    UPDATE,
    UPDATES_BOTH,
    UPDATES_SECOND,
    UPDATES_TEXT,
    WRITE,
    Motif,
)

SPLIT: Final[tuple[Motif, ...]] = (
    (OUT, WRITE, ("publish", "shard", 4, 2, 1), SYNC, READ, ("read", "session", "any slot", "owner", "front", 2)),
    (
        ("txn", 0, UPDATES_SECOND, 0),
        ("publish", 0, 4, 0, 0),
        SYNC,
        ("write", "session", 0, UPDATES_BOTH),
        ("publish", 0, 4, 0, 0),
        ("fold", "owner", "partition", 0),
        ("read", "session", 1, "owner", "front", 2),
    ),
    (
        ("replica", 0, 8),
        ("damage", 0),
        ("write", "other session", 0, UPDATES_BOTH),
        ("publish", 0, 4, 0, 0),
        ("fold", "owner", "partition", 1),
        ("read", "session", 0, "owner", "front", 5),
        SYNC,
        ("read", "other session", 0, "owner", "front", 2),
    ),
    (  # DDL is partly published, and the next source dies while it describes the tables anew
        ("alter", "shard", "some table"),
        UPDATE,
        ("publish", "shard", 1, 2, 1),
        ("publish", "shard", 1, 1, "bit"),
    ),
    (  # a source dies while it publishes a chunk
        WRITE,
        ("backfill", "shard", 1, 0),
        ("publish", "shard", 2, 2, "some"),
        ("backfill", "shard", 3, 0),
        ("backfill", "shard", 3, 0),
        ("backfill", "shard", 3, 0),
        OUT,
        SYNC,
        ("read", "session", "any slot", "owner", "front", 2),
    ),
)
"""Motifs with transactions that are split over batches."""
TWO_PARTITIONS: Final[tuple[Motif, ...]] = (
    (  # a row is filled in a partition that gets no events of it, and changes
        SYNC,
        ("misdirect", "session", 1, "owner", "front"),
        ("txn", 0, UPDATES_SECOND, 0),
        ("write", "other session", 0, UPDATES_TEXT),
        ("publish", 0, 4, 0, 0),
        SYNC,
        ("misdirect", "other session", 1, "owner", "front"),
    ),
)
"""Motifs with two partitions."""
TWO_SHARDS: Final[tuple[Motif, ...]] = (
    (
        ("damage", "some"),
        ("write", "other session", "shard", "seed"),
        ("txn", "other shard", "seed", 0),
        OUT,
        ("mix", "bits"),
        ("publish", "other shard", 4, 0, 0),
        ("fold", "owner", "partition", "some"),
        ("read", "session", "slot", "owner", "front", 5),
        SYNC,
        OTHER,
    ),
    (
        ("write", "session", "other shard", "seed"),
        ("read", "session", "any slot", "owner", "front", 2),
        ("restore", "shard", 0, 0),
        UPDATE,
        OUT,
        SYNC,
        READ,
        ("read", "session", "any slot", "other owner", "front", 2),
    ),
)
"""Motifs with two shards in one topic."""
