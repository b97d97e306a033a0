"""Readiness: whether every partition has had an owner that reached the topic's end as of the owner's start.

The end of an empty topic is reached at once, so the partition must also have a marker: then its source has published.
Where a map says which keys each shard has, it must have one of each of its shards: until an owner has named a shard's
epoch, answers of its source prove nothing (docs/concepts/freshness.md). So after a split a new front is not ready
before the new shards have begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from serving.reads.owners import OwnerAway, Owners
from serving.reads.spaces import RowSpace, TableSpace

NAMED_MAX = 5


class Readiness:
    """A partition that was ready stays so: the front can serve from the source if an owner goes away later."""

    def __init__(self, owners: Owners, spaces: Mapping[str, RowSpace | TableSpace]) -> None:
        self._owners = owners
        self._spaces = spaces
        self._ready: set[tuple[str, int]] = set()
        self._asking = asyncio.Lock()

    def of(self, spaces: Mapping[str, RowSpace | TableSpace]) -> Readiness:
        """The same for other keyspaces."""
        return Readiness(self._owners, spaces)

    async def missing(self) -> list[str]:
        """The partitions that are not ready yet: at most `NAMED_MAX` and a count. Empty if the front is ready."""
        by_keyspace = await self.missing_by_keyspace()
        return _named([problem for problems in by_keyspace.values() for problem in problems])

    async def missing_by_keyspace(self) -> dict[str, list[str]]:
        """Keyspace → what it lacks, a line for each partition; empty if it is ready. One does not hinder another."""
        async with self._asking:
            return {name: await self._missing_of(space) for name, space in self._spaces.items()}

    async def _missing_of(self, space: RowSpace | TableSpace) -> list[str]:
        waiting = [p for p in range(space.layout.partitions) if (space.name, p) not in self._ready]
        by_address: dict[str | None, list[int]] = {}
        for partition in waiting:
            by_address.setdefault(self._owners.address_of(space.name, partition), []).append(partition)
        found = [f"{space.name}/{partition} has no owner" for partition in by_address.pop(None, [])]
        asked = [self._missing_at_one_owner(space, partitions) for partitions in by_address.values()]
        for problems in await asyncio.gather(*asked):
            found += problems
        return found

    async def _missing_at_one_owner(self, space: RowSpace | TableSpace, partitions: list[int]) -> list[str]:
        """Which of ``partitions``, all announced at one address, are not ready."""
        try:
            status = await self._owners.ask(space.name, partitions[0], lambda client: client.status(space.name))
        except OwnerAway as away:
            return [f"{space.name}/{partition}: {away}" for partition in partitions]
        of_partition = {each.partition: each for each in status.partitions if each.keyspace == space.name}
        await asyncio.gather(*(self._learn_place(space, each) for each in partitions if each not in of_partition))
        found = []
        for partition in partitions:
            known = of_partition.get(partition)
            if known is None:
                found.append(f"{space.name}/{partition} has moved")
                continue
            for shard in known.shards:
                space.epochs.learn(shard.shard, shard.epoch)
            missing = _unheard_of(space, [shard.shard for shard in known.shards if shard.watermark])
            if known.ready and missing:
                found.append(f"{space.name}/{partition} has nothing of {missing} yet")
            elif known.ready:
                self._ready.add((space.name, partition))
            else:
                found.append(f"{space.name}/{partition} is {known.state} at {known.position} of {known.end}")
        return found

    async def _learn_place(self, space: RowSpace | TableSpace, partition: int) -> None:
        """Asks for a partition that has moved as a read does: who refuses it says who holds it, also without Kafka.

        The next look asks there.
        """
        with suppress(OwnerAway):
            await self._owners.ask(space.name, partition, lambda client: client.wait(space.name, partition, "", 0))


def _unheard_of(space: RowSpace | TableSpace, marked: Sequence[str]) -> str:
    """The shards that a partition should have a marker of, and has not, as words; "" if there are none."""
    if isinstance(space, RowSpace) and space.map is not None:
        return ", ".join(shard for shard, _ in space.map.ranges if shard not in marked)
    return "" if marked else "a source"


def _named(problems: list[str]) -> list[str]:
    """The first `NAMED_MAX`, and how many more there are."""
    left = len(problems) - NAMED_MAX
    return problems if left <= 0 else [*problems[:NAMED_MAX], f"and {left} more partitions"]
