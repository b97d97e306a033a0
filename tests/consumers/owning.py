"""An owner in the test's own process: stores folded by hand, the real server on a real port."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from consumers.owner.client import Identity, OwnerClient
from consumers.owner.overlay import Overlay
from consumers.owner.partitions import Ownership, Partition
from consumers.owner.protocol import CheckpointPlace
from consumers.owner.server import OwnerServer
from consumers.process.run import make_checkpoint
from consumers.store.index import Index
from consumers.store.store import PartitionStore
from stream.access.grants import Access
from stream.kafka.topics import Topic
from tests.consumers.histories import SHARD, event
from tokens import Position, Vector

KEYSPACE = "shop"
COLUMNS = [
    {"name": "id", "kind": "int", "exact": True},
    {"name": "name", "kind": "text", "exact": False},
]


def schema(ordinal: int, table: str = "shop.items", **fields: Any) -> bytes:
    """The description of a table with an exact integer key."""
    described: dict[str, Any] = {
        "table": table,
        "columns": COLUMNS,
        "primary_key": ["id"],
        "cacheable": True,
        "reason": "",
    }
    return event("TableSchema", ordinal, **(described | fields))


def vector(sequence: int, *, shard: str = SHARD, epoch: int = 1) -> str:
    """The token of a session that has seen ``0-1-sequence``."""
    return str(Vector({shard: (epoch, Position.parse(f"MariaDB/0-1-{sequence}"))}))


class Owner:
    """One partition and its server. `fold` does what the fold thread does."""

    def __init__(
        self,
        data_dir: Path,
        *,
        overlay_bytes: int = 1 << 20,
        token: str = "",
        topic_id: str = "t",
        number: int = 0,
        indexes: Sequence[Index] = (),
    ) -> None:
        self.data_dir = data_dir
        self.ownership = Ownership(data_dir)
        store = PartitionStore.open(data_dir, keyspace=KEYSPACE, partition=number, topic_id=topic_id, indexes=indexes)
        topic = Topic(f"freshet.{KEYSPACE}.events", topic_id, 1)
        self.partition = Partition(KEYSPACE, number, topic, store, Overlay(overlay_bytes), ready=True)
        self.ownership.add(self.partition)
        self.server = OwnerServer(self.ownership, self._checkpoints, access=Access.of_secret(token))
        self.token = token

    async def _checkpoints(self, partitions: list[Partition]) -> list[CheckpointPlace]:
        return [make_checkpoint(self.data_dir / "checkpoints", each) for each in partitions]

    def fold(self, *messages: bytes) -> None:
        """Folds messages at the next offsets and wakes waiting reads."""
        offset = self.partition.store.state.head.offset
        self.partition.store.fold(list(enumerate(messages, offset)))
        self.partition.wake()

    def run(self, use: Callable[[OwnerClient], Awaitable[None]], **options: Any) -> None:
        """Serves while ``use`` runs."""

        async def main() -> None:
            host, port = await self.server.start()
            client = OwnerClient(f"{host}:{port}", **{"identity": Identity(lambda: self.token)} | options)
            try:
                await asyncio.wait_for(use(client), 20)
            finally:
                await client.close()
                await self.server.stop()
                self.partition.store.close(commit=False)

        asyncio.run(main())
