"""The coroutines of the file system: many calls at a time, over stores that need threads themselves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem

from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.shared.opening import close_caches

PATHS = [f"/{i}" for i in range(100)]


class NamedHostFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """A store whose host has a name: as ``aiohttp`` does, it is looked up in a thread of the event loop."""

    protocol = "named"
    cachable = False

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80)
        return {"name": path, "size": len(path), "type": "file", "ETag": "one"}

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80)
        return path.encode()[start:end]


@pytest.fixture
def over_a_host(tmp_path: Path) -> Iterator[FreshetFileSystem]:
    """The cache over a store whose host has a name. What such a store can't answer is given up after five seconds."""
    options: dict[str, Any] = {"dirs": (f"{tmp_path}/cache:64MiB",), "deadline_s": 5.0, "skip_instance_cache": True}
    yield FreshetFileSystem(fs=NamedHostFileSystem(), **options)
    close_caches()


def test_coroutines_read_and_write_too(over_a_host: FreshetFileSystem, tmp_path: Path) -> None:
    """The asynchronous interface gives the same bytes, many at a time."""
    options = over_a_host.storage_options | {"fs": LocalFileSystem(auto_mkdir=True)}
    fs = FreshetFileSystem(**options, asynchronous=True)

    async def run() -> list[bytes]:
        await asyncio.gather(*(fs._pipe_file(f"{tmp_path}/{i}", bytes([i]) * 1_000) for i in range(20)))
        assert (await fs._info(f"{tmp_path}/3"))["size"] == 1_000
        return list(await asyncio.gather(*(fs._cat_file(f"{tmp_path}/{i}", 1, 3) for i in range(20))))

    assert asyncio.run(run()) == [bytes([i, i]) for i in range(20)]


def test_many_files_are_read_at_once_from_a_store_whose_host_has_a_name(over_a_host: FreshetFileSystem) -> None:
    """Reads that wait for the store leave it the threads in which it looks the name up."""
    assert over_a_host.cat(PATHS) == {path: path.encode() for path in PATHS}


def test_a_child_has_threads_of_its_own_for_coroutines(over_a_host: FreshetFileSystem) -> None:
    """After a fork those of the parent are not there: what is asked of a new file system is answered."""
    over_a_host.cat(PATHS[:5])
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        fine = False
        try:
            fs = FreshetFileSystem(**over_a_host.storage_options | {"fs": NamedHostFileSystem()})
            fine = fs.cat(PATHS) == {path: path.encode() for path in PATHS}
        finally:
            os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
