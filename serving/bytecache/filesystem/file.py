"""A file that is read through the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fsspec.spec import AbstractBufferedFile

from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.files import OpenFile


class ReadFile(AbstractBufferedFile):  # type: ignore[misc]
    """One version of a remote file. It has no buffer: the cache below is one."""

    def __init__(self, fs: Any, path: str, file: OpenFile, cache: ByteCache) -> None:
        super().__init__(fs, path, "rb", cache_type="none", size=file.size)
        self.opened = file
        self.loc: int = 0
        self._cache = cache

    def read(self, length: int | None = -1) -> bytes:
        """Up to ``length`` bytes; all that is left without it."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        start = self.loc
        end = self.size if length is None or length < 0 else min(start + length, self.size)
        if start >= end:
            return b""
        data = self._cache.read(self.opened, start, end)
        self.loc = end
        return data

    def readinto(self, b: Any) -> int:
        """As ``io``'s, without a copy between the disk's cache and ``b`` where the range is well placed."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        length = self._cache.read_into(self.opened, self.loc, memoryview(b).cast("B"))
        self.loc += length
        return length

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each range. What is missing of all of them is fetched together."""
        return self._cache.read_many(self.opened, ranges)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self._cache.read(self.opened, start, end)


class WrittenFile:
    """A file of the store that is being written. ``closed_now`` is called once it is closed: only then it changes."""

    def __init__(self, file: Any, closed_now: Callable[[], object]) -> None:
        self._file = file
        self._closed_now = closed_now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        """Closes it, also if the store refuses what was written."""
        try:
            self._file.close()
        finally:
            self._closed_now()

    def __enter__(self) -> WrittenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
