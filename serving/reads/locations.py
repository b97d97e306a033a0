"""Which owner answers for a partition, and the partition's watermark."""

from __future__ import annotations

from serving.client.answers import LocationAnswer, ShardPlace
from serving.errors import ReadError
from serving.reads.owners import OwnerAway, Owners
from serving.reads.spaces import RowSpace, TableSpace, learn_watermarks
from tokens import Vector


class Locations:
    """Answers ``/v1/locations/…``. The answer's token is the partition's watermarks; sessions learn epochs from it."""

    def __init__(self, owners: Owners, spaces: dict[str, RowSpace | TableSpace]) -> None:
        self._owners = owners
        self._spaces = spaces
        self._last: dict[tuple[str, int], str] = {}

    def of(self, spaces: dict[str, RowSpace | TableSpace]) -> Locations:
        """The same for other keyspaces."""
        return Locations(self._owners, spaces)

    async def read(self, keyspace: str, partition: int, seen: Vector) -> LocationAnswer:
        """The owner of a partition. Raises `ReadError` ``unknown_keyspace``, ``no_owner``.

        ``seen``: what the session has seen. It may know of a newer epoch than the owner.
        """
        space = self._spaces.get(keyspace)
        if space is None:
            raise ReadError("unknown_keyspace", f"no keyspace {keyspace!r} is served here")
        if not 0 <= partition < space.layout.partitions:
            raise ReadError("unknown_path", f"{keyspace} has the partitions 0 to {space.layout.partitions - 1}")
        why = "the owner, as it announced itself; the token is the partition's watermark"
        try:
            token = await self._owners.ask(
                keyspace, partition, lambda client: learn_watermarks(client, space, partition)
            )
            self._last[keyspace, partition] = token
        except OwnerAway as away:
            known = self._last.get((keyspace, partition))
            if known is None:
                raise
            token, why = known, f"{away}; the token is the last known watermark"
        address = self._owners.address_of(keyspace, partition) or ""
        shards = {}
        for shard, folded in Vector.parse(token).items():
            sent = seen.get(shard)
            epoch, position = sent if sent is not None and sent.epoch > folded.epoch else folded
            shards[shard] = ShardPlace(epoch, str(position))
        return LocationAnswer("cache", "eventual", why, token, keyspace, partition, address, shards)
