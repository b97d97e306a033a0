"""What has changed between two looks at the owners, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from serving.http.status.answers import PartitionState, StatusEvent

AWAY = "away"


def changes(before: Sequence[PartitionState], now: Sequence[PartitionState], at: float) -> list[StatusEvent]:
    """One event for each kind of change in a keyspace, with the partitions that it is of. ``at``: Unix time."""
    known = {(each.keyspace, each.partition): each for each in before}
    found: dict[tuple[str, str], list[int]] = {}
    for each in now:
        then = known.get((each.keyspace, each.partition))
        for what in _of_partition(then, each) if then is not None else ():
            found.setdefault((each.keyspace, what), []).append(each.partition)
    return [StatusEvent(at, keyspace, what, sorted(partitions)) for (keyspace, what), partitions in found.items()]


def _of_partition(then: PartitionState, now: PartitionState) -> Iterator[str]:
    if now.state == AWAY != then.state:
        yield f"no answer from {then.owner}" if now.owner == then.owner else "nobody says that it owns it"
        return
    if then.state == AWAY != now.state:
        yield f"answered by {now.owner}"
    elif then.owner != now.owner:
        yield f"moved from {then.owner} to {now.owner}"
    if now.state not in (AWAY, then.state):
        yield f"now {now.state}"
    epochs = {each.shard: each.epoch for each in then.shards}
    for shard in now.shards:
        if shard.epoch > epochs.get(shard.shard, shard.epoch):
            yield f"{shard.shard} began epoch {shard.epoch}: its history was lost or replaced"
    if then.state == AWAY or now.state == AWAY:
        return
    if then.owner == now.owner and now.verified_at not in (None, then.verified_at):  # another one's verdict is no news
        yield "verified: equal to a rebuild" if now.verified_equal else "verified: DIFFERS from a rebuild"
    for table in sorted(then.tables.keys() | now.tables.keys()):
        was, is_whole = then.tables.get(table, False), now.tables.get(table, False)
        if was != is_whole:
            yield f"{table} is whole" if is_whole else f"{table} is no longer whole"
