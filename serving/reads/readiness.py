"""Whether every partition of every keyspace has had an owner that was caught up with where its topic ended at start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from serving.reads.owners import OwnerAway, Owners
from serving.reads.spaces import RowSpace, TableSpace

NAMED_MAX = 5


class Readiness:
    """Remembers what was ready: an owner that goes away later is no reason to take the front out of service."""

    def __init__(self, owners: Owners, spaces: Mapping[str, RowSpace | TableSpace]) -> None:
        self._owners = owners
        self._spaces = spaces
        self._ready: set[tuple[str, int]] = set()
        self._asking = asyncio.Lock()

    async def missing(self) -> list[str]:
        """What is not ready yet, at most `NAMED_MAX` and a count; empty: ready."""
        async with self._asking:
            found = []
            for space in self._spaces.values():
                found += await self._missing_of(space)
        if len(found) > NAMED_MAX:
            found[NAMED_MAX:] = [f"and {len(found) - NAMED_MAX} partitions more"]
        return found

    async def _missing_of(self, space: RowSpace | TableSpace) -> list[str]:
        waiting = [p for p in range(space.layout.partitions) if (space.name, p) not in self._ready]
        by_address: dict[str | None, list[int]] = {}
        for partition in waiting:
            by_address.setdefault(self._owners.address_of(space.name, partition), []).append(partition)
        found = [f"{space.name}/{partition} has no owner" for partition in by_address.pop(None, [])]
        asked = [self._ask(space, partitions) for partitions in by_address.values()]
        for problems in await asyncio.gather(*asked):
            found += problems
        return found

    async def _ask(self, space: RowSpace | TableSpace, partitions: list[int]) -> list[str]:
        """The owner of ``partitions``, all at one address."""
        try:
            status = await self._owners.ask(space.name, partitions[0], lambda client: client.status(space.name))
        except OwnerAway as away:
            return [f"{space.name}/{partition}: {away}" for partition in partitions]
        of_partition = {each.partition: each for each in status.partitions if each.keyspace == space.name}
        found = []
        for partition in partitions:
            known = of_partition.get(partition)
            if known is None:
                found.append(f"{space.name}/{partition} has moved")
                continue
            for shard in known.shards:
                space.epochs.learn(shard.shard, shard.epoch)
            if known.ready:
                self._ready.add((space.name, partition))
            else:
                found.append(f"{space.name}/{partition} is {known.state} at {known.position} of {known.end}")
        return found
