"""The answers of the status API. Ages are seconds; None: unknown."""

from __future__ import annotations

import msgspec


class ShardState(msgspec.Struct):
    """How far a partition has followed one shard. ``age_s``: since the source's clock that its watermark carries."""

    shard: str
    epoch: int
    watermark: str
    age_s: float | None


class PartitionState(msgspec.Struct):
    """One partition as its owner tells it. ``owner`` "": nobody announces that it owns it; ``state`` away: no answer.

    ``age_s``: the largest of its shards; None if one is unknown, as of a replica. ``silent_s``: since
    anything was folded; a live source says something each second. ``behind``: records of the topic that are not folded
    yet. None: unknown. ``tables``: each whose backfill has begun, and whether it is whole. ``verified_at``: when
    `freshet verify` looked last, in Unix seconds, and whether it found that the state is what the topic says. None: not
    since this owner has it.
    """

    keyspace: str
    partition: int
    owner: str
    state: str
    age_s: float | None = None
    silent_s: float | None = None
    behind: int | None = None
    entries: int = 0
    overlay_entries: int = 0
    shards: list[ShardState] = []
    tables: dict[str, bool] = {}
    verified_at: float | None = None
    verified_equal: bool | None = None

    @property
    def has_clock(self) -> bool:
        """Whether a source of the partition tells the time in its markers. A catalog's does not."""
        return self.age_s is not None or any(each.age_s is not None for each in self.shards)

    @property
    def judged_age_s(self) -> float | None:
        """By what it is judged: ``age_s``, or without a clock ``silent_s``: it must have been heard of at least."""
        return self.age_s if self.has_clock else self.silent_s


class KeyspaceStatus(msgspec.Struct):
    """Of one keyspace: whether each partition has had an owner that caught up, and what the others lack.

    ``partitions``: the worst first.
    """

    name: str
    ready: bool
    missing: list[str]
    partitions: list[PartitionState] = []


class KeyChange(msgspec.Struct):
    """A change of one key at Unix time ``at``. ``row``: what it left, as JSON; "": nothing, or nobody knows.

    ``made_entry``: the owner's entry is of it.
    """

    at: int
    transaction: str
    what: str
    row: str
    made_entry: bool


class KeyChanges(msgspec.Struct):
    """The last changes, the newest first. ``note``: why there may be others; "": there are none in that time."""

    changes: list[KeyChange]
    note: str


class KeyStatus(msgspec.Struct):
    """What the owner of a key holds of it, and whether that may be served: ``freshness`` and ``why`` are the decision.

    ``fields``: the entry's, by name. ``image``: the row, if it may be served. ``partition`` None: no partition has the
    key, since its table can't be cached. ``history`` None: it was not asked for.
    """

    partition: int | None
    served: bool
    freshness: str
    why: str
    fields: dict[str, str]
    image: msgspec.Raw | None = None
    history: KeyChanges | None = None


class BackfillState(msgspec.Struct):
    """A table of a shard that is read from its beginning: ``rows`` were read, of about ``estimated_rows`` (0: unknown).

    ``rows_per_s`` and ``eta_s`` (-1: unknown) are of the one that is read now; ``paused``: why it is not.
    """

    shard: str
    table: str
    rows: int
    is_read: bool
    estimated_rows: int = 0
    rows_per_s: int = 0
    eta_s: int = -1
    paused: str = ""


class BackfillsAnswer(msgspec.Struct):
    """The answer of ``/v1/status/backfills``: tables that have begun and are not complete, as their sources tell."""

    backfills: list[BackfillState]


class FrontStatus(msgspec.Struct):
    """The answer of ``/v1/status``. ``at``: Unix time of what is said of partitions; 0: nothing is known yet."""

    keyspaces: list[KeyspaceStatus]
    at: float = 0.0


class PartitionHistory(msgspec.Struct):
    """The age of one partition for each moment: the largest since the moment before; None: it was not known then.

    ``unknown``: at how many looks since the moment before.
    """

    partition: int
    age_s: list[float | None]
    unknown: list[int]


class KeyspaceHistory(msgspec.Struct):
    """A value for each moment: the largest age and the most records behind of any partition; None: one is unknown.

    ``unknown``: at how many looks since the moment before the age of one was. ``partitions``: those with the worst ages
    in the whole time, the worst first: unknown for a time is as old as that. Without a clock there are none.
    """

    name: str
    age_s: list[float | None]
    behind: list[int | None]
    unknown: list[int]
    partitions: list[PartitionHistory] = []


class StatusEvent(msgspec.Struct):
    """What was seen to change at Unix time ``at``, and of which partitions of the keyspace."""

    at: float
    keyspace: str
    what: str
    partitions: list[int]


class StatusHistory(msgspec.Struct):
    """The answer of ``/v1/status/history``: the last ``hours``, the oldest first. ``at``: Unix time of each moment.

    Moments are ``step_s`` seconds apart: a point tells what was worst, or counted, in that time.
    ``cache`` and ``source``: answers since the moment before, by who gave them. ``refused``: errors since then.
    ``misses``: reads that the cache did not answer, by why. They are counted for all keyspaces together, so they are
    empty for a caller who may not see all. ``events``: what was seen to change, the oldest first.
    """

    at: list[float]
    cache: list[int]
    source: list[int]
    refused: list[int]
    keyspaces: list[KeyspaceHistory]
    misses: dict[str, list[int]] = {}
    events: list[StatusEvent] = []
    hours: int = 1
    step_s: float = 10.0
