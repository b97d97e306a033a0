"""Where a consumer listens after a restart, and what it leaves to the next one."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.owner.partitions import Ownership
from consumers.owner.server import OwnerServer
from consumers.process.loop import ConsumptionSettings
from consumers.process.run import (
    PORT_NAME,
    ConsumerProcess,
    OwnerSettings,
    _lock_data_dir,
    listen_again,
    monitoring_options,
)
from consumers.store.errors import StoreError
from stream.access.grants import Access
from stream.kafka.connection import KafkaCluster


def test_a_restarted_consumer_listens_where_it_did(tmp_path: Path) -> None:
    """Fronts try the last address; another process's port, a fixed one and a damaged file are no obstacle."""

    async def main() -> None:
        servers: list[OwnerServer] = []

        async def start(port: int = 0) -> int:
            servers.append(OwnerServer(Ownership(tmp_path), None))  # type: ignore[arg-type]
            return (await listen_again(servers[-1], "127.0.0.1", port, tmp_path))[1]

        first = await start()
        await servers[0].stop()
        assert await start() == first
        second = await start()
        assert second != first
        assert (tmp_path / PORT_NAME).read_text() == str(second)
        await servers[2].stop()
        assert await start(second) == second
        for damaged in ("", "x", "99999999", "-1"):
            (tmp_path / PORT_NAME).write_text(damaged)
            assert await start() not in (first, second)
        for server in servers:
            await server.stop()

    asyncio.run(main())


@pytest.mark.parametrize("error", [None, StoreError("the store is locked")])
def test_a_consumer_that_has_stopped_leaves_its_directory_to_the_next_one(
    error: StoreError | None, tmp_path: Path
) -> None:
    """In the same process, too, and whatever ended it."""

    async def stopped() -> None:
        """Nothing answers any more."""

    async def main() -> None:
        settings = ConsumptionSettings(KafkaCluster("127.0.0.1:1"), ("shop",), tmp_path)
        for _ in range(2):
            process: Any = ConsumerProcess(settings, OwnerSettings())
            process._lock, process._thread = _lock_data_dir(tmp_path), threading.current_thread()
            process.server = SimpleNamespace(stop=stopped)
            process.consumption = SimpleNamespace(stop=lambda: None)
            if error is None:
                process.folding.set_result(None)
            else:
                process.folding.set_exception(error)
            with nullcontext() if error is None else pytest.raises(StoreError):
                await process.stop()

    asyncio.run(main())


@pytest.mark.parametrize(("host", "is_guarded"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_metrics_are_guarded_beyond_this_machine(host: str, is_guarded: bool) -> None:
    """They name tables and shards. On this machine whoever scrapes needs no secret."""
    owner = OwnerSettings(access=Access.of_secret("s3cret"), plain=True, version="1.2")
    guards = {"access": owner.access, "files": owner.files} if is_guarded else {}
    assert monitoring_options(owner, host) == {"version": "1.2", **guards}
