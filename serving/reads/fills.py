"""Fills: answers of the source, offered to owners in the background and within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from consumers.owner.client import OwnerClient
from consumers.owner.protocol import Fill, Filled, FillTable
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.reads.owners import Owners

UNDER_WAY_MAX = 4_096
UNDER_WAY_BYTES_MAX = 64 << 20
"""The total size of their images."""

Send = Callable[[OwnerClient], Awaitable[list[Filled]]]

_log = structlog.get_logger(__name__)


class Fills:
    """Sends fills without waiting for them. A fill that fails only costs another read of the source later."""

    def __init__(self, owners: Owners, metrics: FrontMetrics) -> None:
        self._owners = owners
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._bytes = 0

    def offer_rows(self, keyspace: str, partition: int, fills: Sequence[Fill]) -> None:
        """Starts to send rows to their partition's owner; drops them if too many fills are under way."""
        size = sum(len(fill.image or b"") for fill in fills)
        self._offer(keyspace, partition, lambda client: client.fill_rows(fills), len(fills), size)

    def give_up(self, nothing: Fill) -> None:
        """Sends a fill that keeps nothing and ends a lease; may drop it: the lease ends by itself, too."""

        async def send(client: OwnerClient) -> list[Filled]:
            await client.fill(nothing)
            return []

        self._offer(nothing.keyspace, nothing.partition, send, 1, 0)

    def offer_table(self, keyspace: str, partition: int, fill: FillTable) -> None:
        """Starts to send a catalog table to its partition's owner; drops it if too many fills are under way."""

        async def send(client: OwnerClient) -> list[Filled]:
            return [await client.fill_table(fill)]

        self._offer(keyspace, partition, send, 1, len(fill.image))

    def _offer(self, keyspace: str, partition: int, send: Send, count: int, size: int) -> None:
        if self._under_way + count > UNDER_WAY_MAX or self._bytes + size > UNDER_WAY_BYTES_MAX:
            self._metrics.fill("dropped", count)
            return
        self._under_way += count
        self._bytes += size

        async def run() -> None:
            try:
                await self._send(keyspace, partition, send, count)
            finally:
                self._under_way -= count
                self._bytes -= size

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, keyspace: str, partition: int, send: Send, count: int) -> None:
        try:
            filled = await self._owners.ask(keyspace, partition, send)
        except ReadError as error:
            self._metrics.fill("failed", count)
            _log.info("fill failed", keyspace=keyspace, partition=partition, count=count, error=str(error))
            return
        refused = [each.why for each in filled if not each.accepted]
        for why in refused:
            _log.debug("fill refused", keyspace=keyspace, partition=partition, why=why)
        self._metrics.fill("accepted", len(filled) - len(refused))
        self._metrics.fill("refused", len(refused))

    async def close(self) -> None:
        """Cancels the fills that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
