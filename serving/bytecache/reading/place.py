"""A directory of the cache as a reader sees it: its own (`Owned`), or another process's (`shared.attached`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from serving.bytecache.disk.directory import Directory
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.policy.pools import Value
from serving.bytecache.reading.flights import Flights

FOREVER_S: Final = float("inf")
"""As ``timeout_s``: as long as `serving.bytecache.shared` waits for any answer."""


class Place(Protocol):
    """Where files are kept. Nothing here raises for a fault of the disk or of another process: it is a miss.

    ``timeout_s``: how long a call may wait for another process, of what a reader's deadline has left. Then it is one.
    """

    flights: Flights
    """Of the readers in this process (and, of an owner, of those that are attached to it)."""

    @property
    def name(self) -> str:
        """Decides, with a file's path, which of several directories keeps it."""

    def enter(self, path: str, version: str, size: int, scope: str, timeout_s: float = FOREVER_S) -> CachedFile | None:
        """As `Directory.enter`."""

    def known(self, path: str, timeout_s: float = FOREVER_S) -> CachedFile | None:
        """As `Directory.known`."""

    def read(self, file: CachedFile, start: int, end: int) -> bytes | None:
        """As `Directory.read`."""

    def read_into(self, file: CachedFile, start: int, into: memoryview) -> bool:
        """As `Directory.read_into`."""

    def block(self, file: CachedFile, block: int) -> bytes | memoryview | None:
        """As `Directory.block`."""

    def claim(self, file: CachedFile, blocks: Sequence[int], timeout_s: float = FOREVER_S) -> Sequence[int]:
        """Of blocks that are claimed among this process's readers: which of them no other process fetches now."""

    def keep(
        self,
        file: CachedFile,
        first: int,
        data: memoryview,
        value: Value,
        expires: int,
        timeout_s: float = FOREVER_S,
    ) -> None:
        """Stores blocks that were claimed, or drops them."""

    def release(self, file: CachedFile, blocks: Sequence[int], timeout_s: float = FOREVER_S) -> None:
        """Claimed blocks won't be fetched."""

    def wait(self, file: CachedFile, blocks: Sequence[int], timeout_s: float) -> None:
        """Until no other process fetches these, or the time is over."""

    def forget(self, path: str, *, prefix: bool, timeout_s: float | None = None) -> int:
        """Forgets the file at ``path``, or all below; returns how many.

        Raises `ByteCacheError` ``bytes_dir_in_use`` where another process does not answer. ``timeout_s``: None: that
        is waited for as long as it takes.
        """

    def reserve(self, wanted: int) -> Callable[[], object] | None:
        """As `Directory.reserve`: what gives the room back to the cache; None: refused."""


class Owned:
    """A directory that this process owns."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.flights = Flights()
        self.read = directory.read
        self.read_into = directory.read_into
        self.block = directory.block

    def after_fork(self) -> None:
        """In the child: who read in the parent reads no more."""
        self.flights = Flights()
        self.directory.after_fork()

    @property
    def name(self) -> str:
        """The directory's path."""
        return str(self.directory.place)

    # Nothing is waited for here: ``timeout_s`` means nothing.

    def enter(self, path: str, version: str, size: int, scope: str, timeout_s: float = FOREVER_S) -> CachedFile | None:
        """As `Directory.enter`."""
        del timeout_s
        return self.directory.enter(path, version, size, scope)

    def known(self, path: str, timeout_s: float = FOREVER_S) -> CachedFile | None:
        """As `Directory.known`."""
        del timeout_s
        return self.directory.known(path)

    def claim(self, file: CachedFile, blocks: Sequence[int], timeout_s: float = FOREVER_S) -> Sequence[int]:
        """All: attached processes claim among this one's flights."""
        del file, timeout_s
        return blocks

    def keep(
        self,
        file: CachedFile,
        first: int,
        data: memoryview,
        value: Value,
        expires: int,
        timeout_s: float = FOREVER_S,
    ) -> None:
        """Soon."""
        del timeout_s
        self.directory.submit(file, first, data, value, expires)

    def release(self, file: CachedFile, blocks: Sequence[int], timeout_s: float = FOREVER_S) -> None:
        """Nothing was claimed."""

    def wait(self, file: CachedFile, blocks: Sequence[int], timeout_s: float) -> None:
        """Nothing to wait for."""

    def forget(self, path: str, *, prefix: bool, timeout_s: float | None = None) -> int:
        """As `Directory.forget`."""
        del timeout_s
        return self.directory.forget(self.directory.matching(path, prefix=prefix))

    def reserve(self, wanted: int) -> Callable[[], object] | None:
        """As `Place.reserve`."""
        return partial(self.directory.unreserve, wanted) if self.directory.reserve(wanted) else None
