"""Resharding: shards are handed over to their successors, at an exact position.

The *journal* is the last state that a shard has in the topic. Who hands a shard over opens it as its publisher, which
fences the one that was there, and commits a state with the annotation `HANDED_OVER`. No publisher opens the shard
after that. So the position of that state is final: everything up to it is in the topic under the shard's own name,
and nothing after it ever will be. A successor begins there, and publishes what follows, under the GTIDs that it has in
the successor's server: what was written to the ancestor's, and came by replication, and what is written to its own.

A successor of several shards waits until all of them are handed over. If they end at different places of a history
that they share, it begins at the first one. What the one that was ahead has told is told again without images
(`WithoutImages`): rows may have changed since, in transactions that are not told again.
See docs/decisions/0064-handed-over-at-a-position.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import permutations
from typing import Final, TypeAlias, overload

from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import Topic
from stream.publish.resume import ResumeError, read_declarations, read_tail
from stream.publish.topology import TopologyError, places
from stream.shards.map import IdRange
from stream.wire.codec import Record
from stream.wire.declarations import Declarations
from stream.wire.events import (
    VOID,
    Change,
    DescribeTable,
    ResumePoint,
    RowChange,
    SourceTransaction,
    Topology,
)
from stream.wire.keys import Layout
from tokens import Position
from tokens.mariadb import MariadbPosition
from tokens.mysql import MysqlPosition, SourceId

HANDED_OVER: Final = "handed_over"
"""The annotation of a shard's last state: the shard that has ended it."""
HISTORIES: Final = "histories"
"""The annotation of a shard: JSON, it and each of its ancestors → the histories that their own servers write.

A *history* is a GTID domain of MariaDB, or a server's UUID of MySQL.
"""
Entry: TypeAlias = int | SourceId
"""What a position has entries of: a GTID domain, or a server's UUID with a tag."""
TOLD: Final = "told_before"
"""The annotation of a successor: the position up to which some ancestor has told what follows."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """What a shard of the topic has said last."""

    point: ResumePoint
    topology: Record | None
    """Its `Topology`."""
    descriptions: Mapping[str, DescribeTable]
    """Table → how it was at `point`."""

    @property
    def is_handed_over(self) -> bool:
        """Whether nobody publishes it any more."""
        return HANDED_OVER in self.point.annotations

    @property
    def range(self) -> IdRange:
        """The keys that it has published: all without a map."""
        ranges = {each["shard"]: each["range"] for each in self.topology["ranges"]} if self.topology else {}
        return IdRange.parse(ranges.get(self.point.shard, "-"))

    @property
    def over(self) -> tuple[dict[str, int], dict[str, int]]:
        """Shard → epoch: whose positions are its own ones, with itself; and those of which it has lost the history."""
        held = {self.point.shard: self.point.epoch}
        if self.topology is None:
            return held, {}
        return dict(places(self.topology["ancestors"])) | held, dict(places(self.topology["succeeded"]))

    @property
    def lineage(self) -> set[str]:
        """It, and the shards that it has succeeded."""
        return {shard for each in self.over for shard in each}


def read_ancestor(kafka: KafkaCluster, topic: Topic, shard: str) -> Ancestor:
    """What ``shard`` has said last. Raises `TopologyError` ``ancestor_unknown``, `ResumeError`, `TopicReadError`."""
    home = Layout(topic.partitions).home_partition(shard)
    tail = read_tail(kafka, topic.name, home, shard)
    if tail.problem is not None:
        raise tail.problem
    if tail.point is None:
        raise unknown_ancestor(shard, topic.name)
    said = read_declarations(kafka, topic.name, home, tail.point)
    return Ancestor(tail.point, said.topology, said.descriptions())


def unknown_ancestor(shard: str, topic: str) -> TopologyError:
    """There is nothing to go on from."""
    return TopologyError(
        f"{topic} has no state of {shard}, which is to be succeeded",
        hint="is it the right name? If its source was away for longer than retention, start that once more",
        code="ancestor_unknown",
    )


def joint_position(ended: Sequence[Ancestor]) -> str:
    """Where a successor of shards that end where these do begins: after what any of them has published.

    Each has its own histories: those of all count. What several have, from a shard that they have both succeeded,
    counts as far as all of them have published it: rather twice than never. Raises `TopologyError`
    ``ancestors_differ``: positions of two kinds of servers.
    """
    joint = reduce(_joint, (Position.parse(each.point.position) for each in ended))
    return str(_without(joint, {each for one, other in permutations(ended, 2) for each in _not_begun(one, other)}))


def _not_begun(ahead: Ancestor, behind: Ancestor) -> set[Entry]:
    """What ``ahead`` has entries of, and ``behind`` may have yet to publish from the beginning.

    They have come up in a shard that both have succeeded, since that was handed over: a server that had no GTIDs yet,
    or has taken the place of another one. Versions before `HISTORIES` don't tell whose a history is.
    """
    owned: dict[str, list[str]] = json.loads(ahead.point.annotations.get(HISTORIES, "{}"))
    if ahead.point.shard not in owned or not ahead.lineage & behind.lineage:
        return set()
    foreign = {each for shard, histories in owned.items() if shard not in behind.lineage for each in histories}
    entries, others = _entries(ahead.point.position), _entries(behind.point.position)
    return {entry for entry, history in entries.items() if entry not in others and history not in foreign}


def _entries(position: str) -> dict[Entry, str]:
    """What a position has entries of → the history."""
    found = Position.parse(position)
    if isinstance(found, MysqlPosition):
        return {source: source[0] for source in found.sources}
    return {domain: str(domain) for domain in found.domains} if isinstance(found, MariadbPosition) else {}


def _without(position: Position, entries: set[Entry]) -> Position:
    if isinstance(position, MysqlPosition):
        return MysqlPosition({source: at for source, at in position.sources.items() if source not in entries})
    if isinstance(position, MariadbPosition):
        return MariadbPosition({domain: at for domain, at in position.domains.items() if domain not in entries})
    return position


def with_histories(held: str, shard: str, own: Iterable[str]) -> str:
    """The annotation `HISTORIES` ``held``, with what ``shard``'s own servers write, besides what they wrote before."""
    owned: dict[str, list[str]] = json.loads(held or "{}")
    return json.dumps(owned | {shard: sorted({*owned.get(shard, ()), *own})})


def histories_of(shard: str, ended: Iterable[Ancestor]) -> str:
    """The annotation `HISTORIES` with which the successor of these shards begins; "" if none of them has it."""
    owned: dict[str, list[str]] = {}
    for each in ended:
        owned |= json.loads(each.point.annotations.get(HISTORIES, "{}"))
    return with_histories(json.dumps(owned), shard, ()) if owned else ""


def _joint(one: Position, other: Position) -> Position:
    if not one or not other:
        return one or other
    if isinstance(one, MariadbPosition) and isinstance(other, MariadbPosition):
        mine, theirs = one.domains, other.domains
        shared = {domain: min(mine[domain], theirs[domain], key=lambda at: at[1]) for domain in mine.keys() & theirs}
        return MariadbPosition(mine | theirs | shared)
    if isinstance(one, MysqlPosition) and isinstance(other, MysqlPosition):
        both = one.sources.keys() & other.sources.keys()
        here, there = (MysqlPosition({each: p.sources[each] for each in both}) for p in (one, other))
        union = one.union(other)
        return union.difference(here.union(there).difference(here.difference(here.difference(there))))
    raise TopologyError(
        f"{one} and {other} are not positions of the same kind of server",
        hint="a shard succeeds shards of its own kind of server",
        code="ancestors_differ",
    )


def successor(begun: Topology, ancestors: Iterable[Ancestor]) -> Topology:
    """The topology ``begun`` of a shard that goes on where ``ancestors`` end: theirs are its ancestors, too."""
    held: dict[str, int] = {}
    lost: dict[str, int] = {}
    for each in ancestors:
        positions, over = each.over
        held |= {shard: max(epoch, held.get(shard, 0)) for shard, epoch in positions.items()}
        lost |= {shard: max(epoch, lost.get(shard, 0)) for shard, epoch in over.items()}
    gone = {shard: epoch for shard, epoch in lost.items() if shard not in held}
    return Topology(begun.shards, tuple(sorted(held.items())), tuple(sorted(gone.items())), begun.ranges)


def check_goes_on(point: ResumePoint) -> None:
    """Raise `TopologyError` ``shard_handed_over`` if other shards have taken the place of a publisher's shard."""
    by = point.annotations.get(HANDED_OVER, "")
    if by:
        raise TopologyError(
            f"{point.shard} was handed over to {by}, and ended",
            hint="stop its source for good: other shards publish its keys",
            code="shard_handed_over",
        )


def take_over(
    kafka: KafkaCluster,
    topic: Topic,
    shards: Iterable[str],
    end: Callable[[str], None],
    can_begin: Callable[[str], None],
) -> list[Ancestor]:
    """End ``shards``, unless they have ended; what each has said last.

    ``end`` ends one. ``can_begin`` raises if the successor's source can't go on after a position: as long as it lags
    behind them, they publish. Raises `TopologyError`, `ResumeError`, `TopicReadError`.
    """
    names = list(shards)
    found = [read_ancestor(kafka, topic, name) for name in names]
    can_begin(joint_position(found))
    going_on = [each for each in found if not each.is_handed_over]
    for each in going_on:
        end(each.point.shard)
    if going_on:
        found = [read_ancestor(kafka, topic, name) for name in names]
        can_begin(joint_position(found))
    return found


class WithoutImages(Sequence[Change]):
    """Changes of a transaction that an ancestor has told: which rows, not what they were. As lazy as the changes are.

    A row may have changed since, in a transaction of another GTID domain or server's UUID that is not told again.
    """

    def __init__(self, changes: Sequence[Change]) -> None:
        self._changes = changes

    def __len__(self) -> int:
        return len(self._changes)

    @overload
    def __getitem__(self, at: int) -> Change: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Change]: ...

    def __getitem__(self, at: int | slice) -> Change | Sequence[Change]:
        if isinstance(at, slice):
            return WithoutImages(self._changes[at])
        change = self._changes[at]
        return RowChange(change.key, VOID) if isinstance(change, RowChange) else change


def told_before(ended: Sequence[Ancestor]) -> str:
    """Up to where some of these shards, or an ancestor of theirs, has told what follows `begins_at`; "": nowhere."""
    points = [each.point for each in ended]
    begins = Position.parse(joint_position(ended))
    ends = [text for each in points for text in (each.position, each.annotations.get(TOLD, ""))]
    told = reduce(lambda one, other: one.union(other), map(Position.parse, ends), begins)
    return str(told) if not begins.contains(told) else ""


def as_told(txn: SourceTransaction, told: Position) -> SourceTransaction:
    """``txn``, without images if it is within ``told``. The same after each restart: its GTID decides."""
    return replace(txn, changes=WithoutImages(txn.changes)) if told.contains(Position.parse(txn.gtid)) else txn


def begins_at(ended: Sequence[Ancestor]) -> tuple[str, int]:
    """Position and source seconds at which the successor of ``ended`` begins."""
    return joint_position(ended), max(each.point.timestamp for each in ended)


def has_ended(kafka: KafkaCluster, topic: Topic, shard: str) -> bool:
    """Whether a shard of the topic was handed over. Raises `TopicReadError`, `KafkaUnreachable`."""
    point = read_tail(kafka, topic.name, Layout(topic.partitions).home_partition(shard), shard).point
    return point is not None and HANDED_OVER in point.annotations


def descriptions_of(ended: Iterable[Ancestor]) -> dict[str, DescribeTable]:
    """Table → how it was where these shards ended, if all that have it say the same: what follows is read by it."""
    found: dict[str, DescribeTable | None] = {}
    for each in ended:
        for table, described in each.descriptions.items():
            found[table] = described if found.get(table, described) == described else None
    return {table: described for table, described in found.items() if described is not None}


def check_named(
    kafka: KafkaCluster,
    topic: Topic,
    shard: str,
    over: Iterable[str],
    topology: Topology,
    declared: Declarations | None,
) -> None:
    """Raise `TopologyError` ``ancestor_missing`` if a shard that is over had keys of ``shard``, which is not told so.

    Its readers' tokens would have no meaning for these keys, and what they have seen would not be demanded. Neighbours
    that ``shard`` has ``declared`` before have other keys.
    """
    own = dict(topology.ranges).get(shard)
    said = declared.topology if declared is not None else None
    known = {name for name, _ in (*topology.ancestors, *topology.succeeded)} | set(said["shards"] if said else ())
    for name in sorted(set(over) - known - {shard}):
        keys = _range_of(kafka, topic, name)
        if own is not None and keys is not None and keys.overlaps(IdRange.parse(own)):
            raise TopologyError(
                f"{name}, which is over, had the keys of {keys}, and {shard} is to have those of {own}",
                hint=f"add {name!r} to succeeds of {shard}",
                code="ancestor_missing",
            )


def _range_of(kafka: KafkaCluster, topic: Topic, shard: str) -> IdRange | None:
    """The keys of a shard of the topic; None if nothing is known of it any more."""
    try:
        return read_ancestor(kafka, topic, shard).range
    except (TopologyError, ResumeError):  # of a shard that is over retention takes one thing after the other
        return None
