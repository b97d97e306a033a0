"""Fills: answers of the source offered to the owner, in the background, bounded, and never in a reader's way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from consumers.owner_client import OwnerClient
from consumers.protocol import Filled
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.owners import Owners

UNDER_WAY_MAX = 256

_log = structlog.get_logger(__name__)


class Fills:
    """Fire and forget: a fill that fails costs another read of the source later, nothing else."""

    def __init__(self, owners: Owners, metrics: FrontMetrics) -> None:
        self._owners = owners
        self._metrics = metrics
        self._under_way: set[asyncio.Task[None]] = set()

    def offer(self, keyspace: str, partition: int, fill: Callable[[OwnerClient], Awaitable[Filled]]) -> None:
        """Has ``fill`` sent to the partition's owner; drops it if too many are under way."""
        if len(self._under_way) >= UNDER_WAY_MAX:
            self._metrics.fill("dropped")
            return
        task = asyncio.get_running_loop().create_task(self._send(keyspace, partition, fill))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _send(self, keyspace: str, partition: int, fill: Callable[[OwnerClient], Awaitable[Filled]]) -> None:
        try:
            filled = await self._owners.ask(keyspace, partition, fill)
        except ReadError as error:
            self._metrics.fill("failed")
            _log.info("fill failed", keyspace=keyspace, partition=partition, error=str(error))
            return
        self._metrics.fill("accepted" if filled.accepted else "refused")
        if not filled.accepted:
            _log.debug("fill refused", keyspace=keyspace, partition=partition, why=filled.why)

    async def close(self) -> None:
        """Ends what is under way."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
