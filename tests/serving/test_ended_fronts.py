"""What a front lets go when it ends: whatever holds sessions, connections or threads, once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from serving.http.app import make_app
from serving.http.bytes.metrics import BytesMetrics
from serving.http.front import make_front
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace, TableSpace
from stream.wire.keys import Layout
from tests.serving.fakes import FakeRowSource


def test_a_front_that_ends_closes_the_sources_of_all_its_keyspaces() -> None:
    """Each has sessions at its server: a process that goes on, or makes another front, would keep them."""
    closed: list[str] = []

    class Closing(FakeRowSource):
        def __init__(self, name: str) -> None:
            super().__init__(None, "0-1-5", shard=name)

        async def close(self) -> None:
            closed.append(self.shard)

    async def close_files() -> None:
        closed.append("files")

    catalog, files = Closing("hive/0"), SimpleNamespace(metrics=BytesMetrics(), close=close_files)
    spaces: list[Any] = [
        RowSpace("one", Layout(1), "one", Closing("one/0")),
        RowSpace("two", Layout(1), "two", sources=(Closing("two/-80"), Closing("two/80-"))),
        RowSpace("none", Layout(1), "none"),
        TableSpace("hive", Layout(1), catalog),  # type: ignore[arg-type]
    ]
    app = make_app(make_front(spaces, Locations(), files=files))  # type: ignore[arg-type]
    ended = iter(("lifespan.startup", "lifespan.shutdown"))
    told: list[str] = []

    async def receive() -> dict[str, str]:
        return {"type": next(ended)}

    async def send(message: Any) -> None:
        assert closed == [] or message["type"] == "lifespan.shutdown.complete"
        told.append(message["type"])

    asyncio.run(app({"type": "lifespan"}, receive, send))  # type: ignore[arg-type]
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert sorted(closed) == ["files", "hive/0", "one/0", "two/-80", "two/80-"]
