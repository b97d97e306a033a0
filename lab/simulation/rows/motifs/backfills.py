"""Motifs of tables that are published from the beginning."""

from __future__ import annotations

from typing import Final

from lab.simulation.rows.motifs.vocabulary import (
    DELETES_PARENT,
    OUT,
    READ,
    SYNC,
    UPDATE,
    UPDATES_FIRST,
    UPDATES_SECOND,
    WRITE,
    Motif,
)

_WHOLE: Final = (*(("backfill", "shard", 3, 0),) * 3, ("publish", "shard", 0, 0, 0))
"""All tables of a shard, if nothing hides what was committed."""
_READ_ANY: Final = ("read", "session", "any slot", "owner", "front", 2)
_FIND: Final = ("find", "session", "shard", "some table", "owner", "front", "bit")
_FIND_BY: Final = ("find", "session", "shard", "some table", "owner", "front", "older")
_WRITE_OUT: Final = (WRITE, OUT, SYNC, READ)
"""The session has seen something, so that its next answers must be proved."""

BACKFILLS: Final[tuple[Motif, ...]] = (
    (*_WRITE_OUT, *_WHOLE, SYNC, _READ_ANY, _READ_ANY),
    (*_WRITE_OUT, *_WHOLE, SYNC, _FIND, UPDATE, OUT, ("fold", "owner", "partition", "some"), _FIND),
    (*_WRITE_OUT, *_WHOLE, SYNC, WRITE, OUT, ("fold", "owner", "partition", 1), _FIND, ("sync", "other owner"), _FIND),
    (  # all rows of a table, while owners are at different places
        *_WHOLE,
        *_WRITE_OUT,
        _FIND,
        ("find", "session", "shard", 0, "any owner", "front", 3),
        ("txn", "shard", "seed", 0),
        OUT,
        ("fold", "owner", "partition", "some"),
        ("find", "session", "shard", 0, "owner", "front", 3),
    ),
    (  # rows by a value that they have, or had
        *_WHOLE,
        *_WRITE_OUT,
        UPDATE,
        OUT,
        ("fold", "owner", "partition", "some"),
        _FIND_BY,
        SYNC,
        ("find", "session", "shard", 0, "owner", "front", "older"),
        _FIND_BY,
    ),
    (  # a value that a row has had between two changes that are folded together
        *_WHOLE,
        SYNC,
        ("write", "session", "shard", 0),
        ("txn", "shard", 0, 0),
        OUT,
        SYNC,
        ("find", "session", "shard", 0, "owner", "front", 5),
        _FIND_BY,
    ),
    (  # the same over a restart
        *_WHOLE,
        *_WRITE_OUT,
        ("commit", "owner", "partition", "some"),
        UPDATE,
        ("txn", "shard", "seed", 0),
        OUT,
        SYNC,
        ("find", "session", "shard", 0, "owner", "front", "older"),
        ("find", "session", "shard", 0, "any owner", "front", "older"),
        _FIND_BY,
    ),
    (  # a table of which entries are void, and which is whole again
        *_WHOLE,
        ("alter", "shard", 0),
        *_WRITE_OUT,
        *_WHOLE,
        SYNC,
        _FIND,
    ),
    (  # whole tables are voided
        *_WHOLE,
        ("alter", "shard", "some table"),
        *_WRITE_OUT,
        _READ_ANY,
    ),
    (  # one shard's source leaves a table out; the other one has not begun a scope of its own yet
        ("publish", 0, 0, 0, 0),
        ("publish", 1, 0, 0, 0),
        ("backfill", 0, 2, 0),
        ("choose", 1),
        ("publish", 0, 0, 0, 0),
        SYNC,
        ("read", "session", 1, "owner", "front", 0),
        ("txn", 0, UPDATES_SECOND, 0),
        ("write", "other session", 0, UPDATES_FIRST),
        ("publish", 0, 2, 0, 0),
        SYNC,
        ("read", "other session", 1, "owner", "front", 0),
    ),
    (  # rows change between a chunk's snapshot and its place
        ("backfill", "shard", "some", "bit"),
        UPDATE,
        ("txn", "shard", "seed", 0),
        ("backfill", "shard", 1, "bit"),
        WRITE,
        ("publish", "shard", 1, 0, 0),
        SYNC,
        READ,
        OUT,
        SYNC,
        READ,
    ),
    (  # rows change before the engine shows them
        ("txn", "shard", "seed", 1),
        OUT,
        ("backfill", "shard", 1, "bit"),
        ("engine", "shard"),
        ("backfill", "shard", 2, "bit"),
        OUT,
    ),
    (  # a row that a foreign key deletes was read before, and its chunk ends after
        ("backfill", "shard", 3, 0),
        ("txn", "shard", DELETES_PARENT, 1),
        ("backfill", "shard", "bit", 0),
        OUT,
        SYNC,
        ("read", "session", "any slot", "owner", "front", 2),
    ),
    (  # a source dies in the middle of a table, and the next one goes on
        *_WRITE_OUT,
        ("backfill", "shard", 0, 0),
        UPDATE,
        ("backfill", "shard", 0, 0),
        ("publish", "shard", 1, 2, 0),
        *_WHOLE,
        SYNC,
        _READ_ANY,
        _READ_ANY,
    ),
    (  # an owner begins in the middle of a backfill
        *_WRITE_OUT,
        ("backfill", "shard", 2, 0),
        ("publish", "shard", 0, 0, 0),
        SYNC,
        ("begin", "owner", "partition", "some"),
        *_WHOLE,
        SYNC,
        _READ_ANY,
        _READ_ANY,
    ),
)
