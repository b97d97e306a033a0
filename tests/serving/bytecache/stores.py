"""A remote store for tests: files in a directory, with what is asked of it counted, and with faults on demand."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from serving.bytecache.disk.directory import Directory, DirectoryOptions, lock_directory
from serving.bytecache.filesystem.remote import Remote
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.fetching import FetchRules
from serving.bytecache.reading.place import Owned
from serving.bytecache.reading.source import Identity
from tests.patience import PATIENCE_S

MIB = 1 << 20


@dataclass
class DirectoryStore:
    """The files below ``root``. ``before_fetch`` runs before each fetch: it may wait, raise, or change a file."""

    root: Path
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    identities: int = 0
    before_fetch: Callable[[], None] = lambda: None
    shorten: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, path: str, data: bytes) -> None:
        """Replaces a file as stores do: as a whole, with another mtime."""
        fresh = self.root / f"{path}.new"
        fresh.write_bytes(data)
        os.replace(fresh, self.root / path)

    def identity(self, path: str, timeout_s: float | None = None) -> Identity:  # noqa: ARG002
        self.identities += 1
        found = (self.root / path).stat()
        return Identity(f"{found.st_mtime_ns}:{found.st_ino}", found.st_size)

    def fetch(self, path: str, ranges: Sequence[tuple[int, int]], timeout_s: float | None = None) -> Sequence[bytes]:  # noqa: ARG002
        with self.lock:
            self.asked += [(path, start, end) for start, end in ranges]
        self.before_fetch()
        with (self.root / path).open("rb") as file:
            return [os.pread(file.fileno(), end - start - self.shorten, start) for start, end in ranges]

    @property
    def bytes_asked(self) -> int:
        return sum(end - start for _, start, end in self.asked)


def aged(*paths: Path) -> None:
    """Waits until files are old enough to be cached. Their times of change are set ten seconds back."""
    for path in paths:
        found = path.stat()
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - 10 * 10**9))
    remote = Remote(LocalFileSystem())
    deadline = time.monotonic() + PATIENCE_S
    while not all(remote.identity(str(path)).settled for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def open_directory(place: Path, quota: int = 64 * MIB, **options: object) -> Directory:
    """A cache directory of this process."""
    lock = lock_directory(place)
    assert lock is not None
    return Directory(place, DirectoryOptions(quota=quota, **options), lock)  # type: ignore[arg-type]


def cache_of(*directories: Directory, gap: int = 64 * 1024, request_bytes: int = 8 * MIB) -> ByteCache:
    """A cache over directories of this process."""
    return ByteCache([Owned(each) for each in directories], FetchRules(gap, request_bytes))


def allocated_bytes(directory: Path) -> int:
    """What all files below take on disk."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
