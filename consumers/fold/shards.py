"""Which shards a partition holds, and how they stand to each other: epochs, the topology, succession. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from consumers.fold.state import Head, Lineage, Rejection, Void
from stream.shards.map import IdRange, ShardMap, map_of
from stream.wire.events import EVERY_TABLE
from stream.wire.keys import Layout
from tokens.decision import ENDED

Voids = dict[tuple[str, str], Void]


class Kin(msgspec.Struct, array_like=True, frozen=True):
    """What a partition knows of the shards around a key's own: the topology, and ancestors with their epochs.

    See `tokens.Tag`. ``caught_up``: it has folded what the topic had when it began, so a shard that is not in the
    topology is not one that was added long ago. It goes into answers, so it is a struct that may get more fields.
    """

    topology: frozenset[str] = frozenset()
    ancestors: dict[str, int] = {}
    caught_up: bool = True

    def heard(self, caught_up: bool) -> Kin:
        """What a partition says that has ``caught_up``, or has not."""
        return self if caught_up else msgspec.structs.replace(self, caught_up=False)


NO_KIN = Kin()


def kin_of(head: Head, shard: str) -> Kin:
    """What the partition knows of the shards around ``shard``, by the topology that ``shard`` itself declares.

    Ancestors count in the epoch that declared them only: a later epoch has another history, and theirs is `ENDED`.
    """
    topology = head.topologies.get(shard)
    if topology is None:
        return NO_KIN
    if not topology.ancestors and not topology.succeeded:
        return _without_ancestors(topology.shards)
    lineage = head.lineages.get(shard)
    ancestors = dict.fromkeys(topology.succeeded, ENDED)
    if lineage is not None and lineage.epoch == topology.epoch:
        ancestors |= topology.ancestors
    elif lineage is not None and lineage.epoch > topology.epoch:
        ancestors |= dict.fromkeys(topology.ancestors, ENDED)
    return Kin(frozenset(topology.shards), ancestors)


@lru_cache(maxsize=256)
def _without_ancestors(shards: tuple[str, ...]) -> Kin:
    """The most frequent one: of each read of a shard that has no ancestors."""
    return Kin(frozenset(shards))


def is_succeeded(head: Head, shard: str, epoch: int) -> bool:
    """Whether another shard of this partition has taken over the history of (shard, epoch), in whichever epoch."""
    for other, topology in head.topologies.items():
        if other != shard and max(topology.ancestors.get(shard, -1), topology.succeeded.get(shard, -1)) >= epoch:
            return True
    return False


def sole_lineage(head: Head) -> tuple[str, Lineage | None]:
    """Name and lineage of the partition's shard if it has exactly one, else ("", None): the shard of unknown keys.

    Shards that another one has succeeded don't count. One that is declared, and has published nothing here yet, does.
    """
    left = [each for each in head.lineages.items() if not is_succeeded(head, each[0], each[1].epoch)]
    if len(left) != 1:
        return "", None
    topology = head.topologies.get(left[0][0])
    if topology is not None and any(shard not in head.lineages for shard in topology.shards):
        return "", None
    return left[0]


def shard_map(head: Head) -> ShardMap | None:
    """The map by which keys have their shards here; None if it is not known.

    Each shard that goes on here must declare it, and be in it. While they differ, a key may be in two of them: nothing
    follows from any map (docs/concepts/order.md). Who has published nothing here yet has no say.
    """
    found: tuple[tuple[str, str], ...] = ()
    for shard, lineage in head.lineages.items():
        topology = head.topologies.get(shard)
        ranges = topology.ranges if topology is not None else ()
        if (found and ranges == found) or is_succeeded(head, shard, lineage.epoch):
            continue
        if not ranges or found:
            return None
        found = ranges
    if not found:
        return None
    known = map_of(found)
    others = [each for each in head.lineages.items() if each[0] not in known]
    return known if all(is_succeeded(head, name, each.epoch) for name, each in others) else None


def has_own_keys(head: Head, shard: str) -> bool:
    """Whether no other shard has keys of ``shard``, so that its events need not be compared with others' entries.

    One that arrives must have declared the map before.
    """
    if len(head.lineages) == 1 and shard in head.lineages:
        return True
    found, own = shard_map(head), head.topologies.get(shard)
    return found is not None and shard in found and own is not None and bool(own.ranges) and map_of(own.ranges) == found


def lineage_of_key(head: Head, key: bytes, prefix: int | None) -> tuple[str, Lineage | None]:
    """The shard of a row key, and its lineage: by the map, else the partition's only one. ("", None): it is not known.

    ``prefix``: of the table's description; None: unknown, so a map says nothing. A shard of the map may have no lineage
    yet.
    """
    found = shard_map(head)
    if found is None:
        return sole_lineage(head)
    if prefix is None or not head.layout:
        return "", None
    shard = found.shard_of(Layout.parse(head.layout).keyspace_id(key, prefix))
    return shard, head.lineages.get(shard)


def lineage_for(head: Head, shard: str, epoch: int) -> Lineage | None:
    """The lineage that an event of (shard, epoch) continues: a new one for a new epoch, None if the epoch is over."""
    lineage = head.lineages.get(shard)
    if lineage is None or epoch > lineage.epoch:
        return None if is_succeeded(head, shard, epoch) else Lineage(epoch, 0, 0, "", 0, "")
    return lineage if epoch == lineage.epoch and not is_succeeded(head, shard, epoch) else None


def older_epoch_rejection(event: dict[str, Any]) -> Rejection:
    """The rejection of an event whose epoch is over."""
    shard, epoch = event["shard"], event["epoch"]
    return Rejection("older_epoch", f"epoch {epoch} of shard {shard} is over; a newer one has begun", f"shard {shard}")


def is_stranger(head: Head, shard: str) -> bool:
    """Whether ``shard`` appears for the first time beside others, and none of them declares it.

    One that takes nothing from any that goes on may say so itself: it succeeds all the others, or all those that have
    keys of its range.
    """
    if shard in head.lineages or not head.lineages:
        return False
    own = head.topologies.get(shard)
    if own is not None and not any(
        _may_share(head, shard, name)
        for name, each in head.lineages.items()
        if not is_succeeded(head, name, each.epoch)
    ):
        return False
    declared = (head.topologies.get(other) for other in head.lineages)
    return not any(topology is not None and shard in topology.shards for topology in declared)


def _may_share(head: Head, shard: str, other: str) -> bool:
    """Whether a shard that arrives may have keys of another one, by the range that each declares of itself."""
    ranges = [
        topology.range_of(name) if (topology := head.topologies.get(name)) is not None else ""
        for name in (shard, other)
    ]
    return not all(ranges) or IdRange.parse(ranges[0]).overlaps(IdRange.parse(ranges[1]))


def arrival_voids(head: Head, shard: str, epoch: int) -> Voids:
    """The voids that the first event of a lineage causes; empty if the lineage is known.

    A new epoch voids its shard, even without an EpochStart. A shard that nobody declared may have written any key, so
    everything that the partition holds becomes void.
    """
    lineage = head.lineages.get(shard)
    if lineage is not None:
        return {(EVERY_TABLE, shard): Void(epoch, 0, "")} if epoch > lineage.epoch else {}
    return void_everything(head) if is_stranger(head, shard) else {}


def arrival_rejections(head: Head, shard: str) -> tuple[Rejection, ...]:
    """The rejection of the first event of an undeclared shard. The event itself is folded."""
    if not is_stranger(head, shard):
        return ()
    others = ", ".join(sorted(head.lineages))
    reason = f"shard {shard} publishes beside {others}, whose topology does not name it: everything folded is void"
    return (Rejection("second_shard", reason, f"shard {shard}"),)


def void_everything(head: Head) -> Voids:
    """Voids of all that is folded of each shard, until the marker that follows."""
    return {(EVERY_TABLE, shard): Void(lineage.epoch, lineage.ordinal, "") for shard, lineage in head.lineages.items()}
