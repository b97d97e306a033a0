"""A folder of files, and a front that serves them through a cache of its own, on a real socket."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from serving.bytecache.shared.opening import close_caches
from serving.http.bytes.files import Files
from serving.http.front import make_front
from serving.http.server import FrontServer, make_server
from serving.locations.refreshing import Locations
from tests.patience import PATIENCE_S


@dataclass
class FileFront:
    """A running front. ``root``: the folder that it serves."""

    url: str
    root: Path

    def ask(self, name: str, method: str = "GET", **headers: str) -> httpx2.Response:
        """A request for a file below the root; ``if_range`` is the header ``If-Range``."""
        given = {header.replace("_", "-"): value for header, value in headers.items()}
        return httpx2.request(method, f"{self.url}/v1/bytes/file://{self.root}/{name}", headers=given, timeout=60)

    def metric(self, name: str, count: str = "") -> float:
        """The sum of the series that begin with ``name``; of those for one ``count``.

        A scrape waits for the counts for a second only: it is asked again where there are none yet.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            lines = httpx2.get(f"{self.url}/metrics", timeout=60).text.splitlines()
            found = [line for line in lines if line.startswith(name) and f'count="{count}' * bool(count) in line]
            if found:
                return sum(float(line.rsplit(" ", 1)[1]) for line in found)
            assert time.monotonic() < deadline, name

    def reaches(self, name: str, count: str, least: float) -> bool:
        """Whether a metric gets that large: what was read is stored, and counted, behind the reader's back."""
        deadline = time.monotonic() + PATIENCE_S
        while self.metric(name, count) < least:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


class Running:
    """A front in a thread, as a context."""

    def __init__(self, roots: list[str], **options: Any) -> None:
        self._roots, self._options = roots, options
        self._server: FrontServer | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> str:
        self._thread.start()
        deadline = time.monotonic() + PATIENCE_S
        while self._server is None or not self._server.started:
            assert self._thread.is_alive(), "the front has ended"
            assert time.monotonic() < deadline, "the front does not start"
            time.sleep(0.01)
        return "http://{}:{}".format(*self._server.address)

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join()
        close_caches()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        front = make_front([], Locations(), files=Files(self._roots, self._options))
        self._server = make_server(front, "127.0.0.1", 0)
        self._server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]  # a thread gets none
        await self._server.serve()


@pytest.fixture
def front(tmp_path: Path) -> Iterator[FileFront]:
    """A front over an empty folder."""
    root = tmp_path / "served"
    root.mkdir()
    with Running([f"file://{root}"], dirs=(f"{tmp_path}/cache:64MiB",), shards=2) as url:
        yield FileFront(url, root)
