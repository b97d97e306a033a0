"""When a front is ready."""

from __future__ import annotations

import asyncio

import pytest

from consumers.owner.protocol import PartitionStatus, ShardStatus, Statuses
from serving.reads.readiness import Readiness
from serving.reads.spaces import RowSpace
from stream.wire.keys import Layout
from tests.serving.fakes import FakeOwner, Network


class StatusOwner(FakeOwner):
    """An owner of shop/0 that has caught up with what its topic has: ``shards``."""

    def __init__(self) -> None:
        super().__init__()
        self.shards: list[ShardStatus] = []

    async def status(self, _: str = "") -> Statuses:
        self._ask("status")
        counts = (0, 0, 0, 0)
        partition = PartitionStatus("shop", 0, 0, 0, 0, 0, True, "ready", self.shards, *counts, "", "t")
        return Statuses(0, True, "me", [partition])


def test_a_front_is_ready_only_with_something_of_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of an empty topic is reached at once; without a marker nothing can be proved."""
    owner = StatusOwner()
    readiness = Readiness(Network(monkeypatch, {"a:1": owner}).owners(), {"shop": RowSpace("shop", Layout(1))})

    async def run() -> None:
        assert await readiness.missing() == ["shop/0 has nothing of a source yet"]
        owner.shards = [ShardStatus("shop/0", 1, 3, "", 0, "", 0.0)]
        assert await readiness.missing() == ["shop/0 has nothing of a source yet"]
        owner.shards = [ShardStatus("shop/0", 1, 3, "MariaDB/0-1-3", 9, "", 0.0)]
        assert await readiness.missing() == []

    asyncio.run(run())
