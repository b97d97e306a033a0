"""Where a consumer listens after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

from consumers.owner.partitions import Ownership
from consumers.owner.server import OwnerServer
from consumers.process.run import PORT_NAME, listen_again


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
