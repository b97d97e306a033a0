"""The files that are served: opened and read through the byte cache, each call in a thread.

The cache is reached as any program does, through fsspec (``docs/internals/bytes.md``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

import structlog
import xxhash

from serving.errors import ReadError
from serving.http.bytes.metrics import BytesMetrics
from serving.http.bytes.naming import root_of, scheme_of
from serving.http.bytes.ranges import Range
from stream.access.who import asking
from tokens.errors import FreshetError

OPEN_MAX: Final = 64
"""Answers under way: each holds up to `serving.http.bytes.ranges.PIECE` bytes."""
THREADS: Final = OPEN_MAX + 1
"""One for each, and for the metrics: whoever reads from a store that is slow waits for it alone."""
LEFT_MAX: Final = OPEN_MAX // 4
"""Threads that work on for readers of one caller who have left; with more it is refused, and others have places."""

_log = structlog.get_logger(__name__)
T = TypeVar("T")


class Files:
    """The files below ``roots``. Belongs to one event loop."""

    def __init__(self, roots: Sequence[str], options: Mapping[str, Any]) -> None:
        """``roots``: URIs. ``options``: of the byte cache. Raises `FreshetError` for a directory it can't use."""
        from fsspec import filesystem, get_filesystem_class  # most fronts serve no files

        self._roots = roots
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="freshet-bytes")
        self._stores: dict[str, Any] = {}
        for root in roots:
            scheme = scheme_of(root)
            place = get_filesystem_class(scheme)._get_kwargs_from_urls(root)  # as a host, and whose account
            self._stores[root] = filesystem("freshet", target_protocol=scheme, target_options=place, **options)
            self._stores[root].cache.places  # noqa: B018 - opens the directories: what is wrong is told at the start
        self._open = 0
        self._left: dict[asyncio.Future[Any], str] = {}
        """What threads do for readers who have left, and who asked for it. Each has a place until it has ended."""
        self.metrics = BytesMetrics()

    async def open(self, uri: str) -> File:
        """The version that the store has now. Raises `ReadError`."""
        root, who = root_of(uri, self._roots), asking.get()
        if self._open + len(self._left) >= OPEN_MAX:
            raise ReadError("too_many_requests", f"{OPEN_MAX} files are being read already")
        if who and sum(each == who for each in self._left.values()) >= LEFT_MAX:
            hint = "the store is slow: wait for answers, and for longer"
            raise ReadError("too_many_requests", f"{who} has left {LEFT_MAX} reads that are under way still", hint=hint)
        self._open += 1
        began = monotonic()
        try:
            opened = await self._run(uri, lambda: self._open_now(root, uri))
        except BaseException:
            self._open -= 1
            raise
        return File(uri, opened, self._run, partial(self._closed, began))

    async def count(self) -> None:
        """Brings `metrics` up to date."""
        counts = await asyncio.get_running_loop().run_in_executor(self._threads, self._counts)
        self.metrics.show(*counts)

    async def close(self) -> None:
        """Ends the threads. The directories are given back at the end of the process."""
        for running in [*self._left]:
            running.cancel()  # nobody is told any more
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _closed(self, began: float, tally: Any) -> None:
        self._open -= 1
        self.metrics.answered(tally, monotonic() - began)

    def _ended(self, running: asyncio.Future[Any]) -> None:
        del self._left[running]
        if not running.cancelled():
            running.exception()  # told to nobody

    def _open_now(self, root: str, uri: str) -> Any:
        from serving.bytecache.filesystem.file import ReadFile

        if scheme_of(uri) == "file":  # links may lead out of the root
            real = os.path.realpath(uri.removeprefix("file://"))
            above = os.path.realpath(root.removeprefix("file://"))
            if os.path.commonpath([real, above]) != above:
                raise ReadError("not_served", "this URI is below no root of the settings")
            if not os.path.isfile(real):
                raise FileNotFoundError(uri)
            uri = f"file://{real}"
        store = self._stores[root]
        return ReadFile(store, uri, store.open_cached(uri), store.cache)

    def _counts(self) -> tuple[dict[str, Any], list[Any]]:
        cache = next(iter(self._stores.values())).cache
        found = [place.describe(files=False) for place in cache.places]
        return {name: each.total() for name, each in cache.tallies.of.items()}, [
            each for each in found if each is not None
        ]

    async def _run(self, uri: str, ask: Callable[[], T]) -> T:
        """Runs it in a thread; the store's errors become the API's."""
        running = asyncio.get_running_loop().run_in_executor(self._threads, ask)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:  # whoever asked has left; the thread works on, and has a place
            self._left[running] = asking.get()
            running.add_done_callback(self._ended)
            raise
        except ReadError:
            raise
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise ReadError("file_not_found", f"{uri} is no file") from None
        except Exception as error:
            if isinstance(error, FreshetError) and error.code == "file_changed":
                raise ReadError("file_changed", str(error)) from error
            if isinstance(error, FreshetError) and error.code == "no_length":
                raise ReadError("source_failed", f"{uri}: the store does not say how long the file is") from error
            if isinstance(error, FreshetError) and error.code == "no_ranges":
                raise ReadError("source_failed", f"{uri}: the store ignores ranges") from error
            _log.warning("a remote file can't be read", uri=uri, error=f"{type(error).__name__}: {error}")
            code = "source_unreachable" if isinstance(error, ConnectionError | TimeoutError) else "source_failed"
            raise ReadError(code, f"{uri}: {type(error).__name__}") from error


class File:
    """One version of a file. Close it."""

    def __init__(
        self, uri: str, opened: Any, run: Callable[[str, Callable[[], Any]], Any], closed: Callable[[Any], None]
    ) -> None:
        """``closed``: told, once, what was read."""
        self._uri, self._opened, self._run = uri, opened, run
        self._closed: Callable[[Any], None] | None = closed

    @property
    def size(self) -> int:
        """In bytes."""
        return int(self._opened.size)

    @property
    def etag(self) -> str:
        """Strong; "" where the store has no version, or may still give the same one to other bytes."""
        found = self._opened.opened.identity
        if not found.version or not found.settled:
            return ""
        name = f"{found.version}:{found.size}".encode(errors="surrogatepass")  # a store's ETag may be no text
        return f'"{xxhash.xxh3_128_hexdigest(name)}"'

    @property
    def tally(self) -> Any:
        """What was found here, and what was fetched."""
        return self._opened.opened.tally

    async def read(self, ranges: Sequence[Range]) -> list[bytes]:
        """Raises `ReadError`: ``file_changed`` if the store has another version by now, and for the store's errors."""
        found: list[bytes] = await self._run(self._uri, lambda: self._opened.read_ranges(ranges))
        return found

    async def close(self) -> None:
        """Makes room for another one."""
        closed, self._closed = self._closed, None
        if closed is not None:
            closed(self.tally)
            with suppress(Exception):
                self._opened.close()
