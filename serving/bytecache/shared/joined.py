"""A directory for all processes of a machine: this one owns it, or is attached to its owner, or takes over from it.

Whoever opens a directory first owns it. When the owner ends, the first process that needs it takes its place, and the
others attach to that one. Numbers of files, and places of blocks, outlive the owner; what was open stays open.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from serving.bytecache.disk.directory import Directory, DirectoryOptions, lock_directory
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.disk.seals import read_keys
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.policy.pools import Value
from serving.bytecache.reading.flights import Flights
from serving.bytecache.reading.place import FOREVER_S, Owned
from serving.bytecache.shared.attached import Attached
from serving.bytecache.shared.protocol import Described, OtherKeysError, OwnerGoneError, OwnerLateError, Took
from serving.bytecache.shared.server import Server, describe

JOIN_S: Final = 10.0
"""How long to try to attach to an owner that holds the lock, and does not answer yet."""
RETRY_S: Final = 30.0
"""After that was in vain: how long the directory is not used. Then it is tried again behind the readers' back."""
LARGE_BYTES: Final = 16 << 20
"""Of heads, on disk: a directory with more takes seconds to open, and is opened behind the readers' back."""
OPEN_WAIT_S: Final = 2.0
"""So long the first reader waits for that, or for an owner. Then all read past the directory until it is open."""
R = TypeVar("R")

_log = logging.getLogger("freshet_bytes")


class Joined:
    """As `serving.bytecache.reading.place.Place`. No read raises because an owner is gone."""

    def __init__(self, path: Path, options: DirectoryOptions, *, at_once: bool = True) -> None:
        """Raises `ByteCacheError` for a directory that can't be used, or whose owner does not answer.

        ``at_once``: False: a large one may be opened later (`LARGE_BYTES`), and one whose owner does not answer is
        read past until it does.
        """
        self.flights = Flights()
        self._path, self._options = path, options
        self._lock = threading.Lock()
        self._inner: Owned | Attached | None = None
        self._server: Server | None = None
        self._not_before = 0.0
        self._forked = False
        self._reserved: dict[object, tuple[int, Callable[[], object] | None]] = {}
        self._opening: threading.Thread | None = None
        self._waited_until = 0.0
        """So long readers wait for `_opening`."""
        self._failed: OSError | None = None
        """Why the directory is not used; None: it is, or nobody has tried."""
        self._held: int | None = None
        """The lock, while the directory is being opened."""
        if at_once:
            self._join()
            return
        if not self._is_large() and self._own():
            return
        if (opening := self._open_behind()) is not None:
            opening.join(OPEN_WAIT_S)
        if self._failed is not None and not _is_in_use(self._failed):
            raise self._failed

    @property
    def name(self) -> str:
        """The directory's path."""
        return str(self._path)

    @property
    def directory(self) -> Directory | None:
        """The directory, where this process owns it."""
        return self._inner.directory if isinstance(self._inner, Owned) else None

    def close(self) -> None:
        """Lets it go, and what was reserved. No read may be under way."""
        if (opening := self._opening) is not None:
            opening.join()
        for _, held in self._reserved.values():
            if held is not None:
                held()
        self._reserved.clear()
        if self._server is not None:
            self._server.close()
        if isinstance(self._inner, Owned):
            self._inner.directory.close()
        elif self._inner is not None:
            self._inner.close()

    def settle(self) -> None:
        """At the end of the process: writes what waits, and counts hits. Reads go on."""
        if isinstance(self._inner, Owned):
            self._inner.directory.settle()
        elif self._inner is not None:
            self._inner.settle()

    def after_fork(self) -> None:
        """In the child: what was open can be read, nothing else."""
        self._forked = True
        self._lock = threading.Lock()
        if self._held is not None:
            os.close(self._held)
        if self._server is not None:
            self._server.after_fork()
        self._reserved.clear()
        if self._inner is not None:
            self._inner.after_fork()
            self.flights = self._inner.flights

    # As `Place`.

    def read(self, file: CachedFile, start: int, end: int) -> bytes | None:
        """As `Place.read`."""
        inner = self._inner
        return inner.read(file, start, end) if inner is not None else None

    def read_into(self, file: CachedFile, start: int, into: memoryview) -> bool:
        """As `Place.read_into`."""
        inner = self._inner
        return inner is not None and inner.read_into(file, start, into)

    def block(self, file: CachedFile, block: int) -> bytes | memoryview | None:
        """As `Place.block`."""
        inner = self._inner
        return inner.block(file, block) if inner is not None else None

    def enter(self, path: str, version: str, size: int, scope: str, timeout_s: float = FOREVER_S) -> CachedFile | None:
        """As `Place.enter`."""
        return self._call(lambda inner: inner.enter(path, version, size, scope, timeout_s), None, timeout_s)

    def known(self, path: str, timeout_s: float = FOREVER_S) -> CachedFile | None:
        """As `Place.known`."""
        return self._call(lambda inner: inner.known(path, timeout_s), None, timeout_s)

    def claim(self, file: CachedFile, blocks: Sequence[int], timeout_s: float = FOREVER_S) -> Sequence[int]:
        """As `Place.claim`."""
        return self._call(lambda inner: inner.claim(file, blocks, timeout_s), blocks, timeout_s)

    def keep(
        self,
        file: CachedFile,
        first: int,
        data: memoryview,
        value: Value,
        expires: int,
        timeout_s: float = FOREVER_S,
    ) -> None:
        """As `Place.keep`."""
        self._call(lambda inner: inner.keep(file, first, data, value, expires, timeout_s), None, timeout_s)

    def release(self, file: CachedFile, blocks: Sequence[int], timeout_s: float = FOREVER_S) -> None:
        """As `Place.release`."""
        self._call(lambda inner: inner.release(file, blocks, timeout_s), None, timeout_s)

    def wait(self, file: CachedFile, blocks: Sequence[int], timeout_s: float) -> None:
        """As `Place.wait`."""
        self._call(lambda inner: inner.wait(file, blocks, timeout_s), None, timeout_s)

    def forget(self, path: str, *, prefix: bool, timeout_s: float | None = None) -> int:
        """As `Place.forget`. Raises `ByteCacheError` ``bytes_dir_in_use``: it would be read again."""
        return self._answered(lambda inner: inner.forget(path, prefix=prefix, timeout_s=timeout_s), timeout_s)

    def describe(self, *, files: bool) -> Described | None:
        """As `serving.bytecache.shared.server.describe`; None while no owner answers."""
        return self._call(lambda inner: _described(inner, files=files), None, None)

    def described(self, *, files: bool) -> Described:
        """As `describe`. Raises `ByteCacheError` ``bytes_dir_in_use``."""
        return self._answered(lambda inner: _described(inner, files=files))

    def verify(self) -> tuple[int, int]:
        """As `Directory.verify`. Raises `ByteCacheError` ``bytes_dir_in_use``."""
        return self._answered(lambda inner: (inner.directory if isinstance(inner, Owned) else inner).verify())

    def resize(self, quota: int) -> None:
        """As `Directory.resize`. Raises `ByteCacheError` ``bytes_dir_in_use``."""
        self._answered(lambda inner: (inner.directory if isinstance(inner, Owned) else inner).resize(quota))

    def reserve(self, wanted: int) -> Callable[[], object] | None:
        """As `Place.reserve`. Whoever owns the directory later is asked for the same again."""
        given = self._call(lambda inner: inner.reserve(wanted), None, None)
        if given is None:
            return None
        mark = object()
        with self._lock:
            self._reserved[mark] = wanted, given

        def give_back() -> None:
            with self._lock:
                _, held = self._reserved.pop(mark, (0, None))
            if held is not None:
                held()

        return give_back

    # Inside.

    def _call(self, ask: Callable[[Owned | Attached], R], otherwise: R, timeout_s: float | None) -> R:
        """``timeout_s``: of a reader, which waits for an owner no longer; None: whoever asks must not miss it."""
        for _ in range(2):
            inner = self._inner
            if inner is None and not self._forked and self._rejoin(None, timeout_s):
                inner = self._inner
            if self._forked or inner is None:
                return otherwise
            try:
                return ask(inner)
            except OwnerLateError:
                return otherwise
            except OwnerGoneError:
                if not self._rejoin(inner, timeout_s):
                    return otherwise
        return otherwise

    def _answered(self, ask: Callable[[Owned | Attached], R], timeout_s: float | None = None) -> R:
        """As `_call`, of what may not be left out without a word. Raises `ByteCacheError` ``bytes_dir_in_use``."""
        nothing: list[R] = []
        found = self._call(lambda inner: [ask(inner)], nothing, timeout_s)
        if not found:
            raise self._no_answer()
        return found[0]

    def _no_answer(self) -> ByteCacheError:
        return ByteCacheError("bytes_dir_in_use", f"{self._path} has an owner that does not answer")

    def _rejoin(self, gone: Attached | Owned | None, timeout_s: float | None) -> bool:
        """Whether there is an owner again, other than ``gone``; another thread may have been faster.

        What this process was attached to is closed when nobody uses it: other threads may still read, and what they
        read verifies. ``timeout_s``: as of `_call`.
        """
        with self._lock:
            opening, now = self._opening, time.monotonic()
            if self._inner is not gone or (opening is None and now < self._not_before):
                return self._inner is not gone and self._inner is not None
            if isinstance(gone, Attached):
                gone.retire()
            if opening is None:
                is_large = self._is_large()
                if not is_large and self._try_to_own():
                    return self._inner is not None
                self._waited_until = 0.0 if is_large else now + OPEN_WAIT_S
                opening = self._open_behind()
        if opening is not None:
            opening.join(None if timeout_s is None else max(0.0, min(timeout_s, self._waited_until - now)))
        return self._inner is not gone and self._inner is not None

    def _is_large(self) -> bool:
        with suppress(OSError):  # somebody deletes it just now
            return sum(each.stat().st_size for each in self._path.glob("*/heads")) > LARGE_BYTES
        return False

    def _open_behind(self) -> threading.Thread | None:
        """Opens the directory in a thread. What was known of an owner before is read meanwhile.

        None: no thread can be had. It is tried again later.
        """

        def run() -> None:
            try:
                self._try_to_join()
            finally:
                self._opening = None

        self._opening = opening = threading.Thread(target=run, name="freshet-bytes-open", daemon=True)
        try:
            opening.start()
        except RuntimeError as error:
            self._opening = None
            self._fail(error)
            return None
        return opening

    def _try_to_join(self) -> None:
        try:
            self._join()
        except (OSError, RuntimeError) as error:  # a `ByteCacheError`, or no descriptor or thread can be had
            self._fail(error)

    def _try_to_own(self) -> bool:
        """As `_own`; True also if that failed."""
        try:
            return self._own()
        except (OSError, RuntimeError) as error:  # as in `_try_to_join`
            self._fail(error)
            return True

    def _fail(self, error: OSError | RuntimeError) -> None:
        if self._failed is None and _is_in_use(error):  # not each time
            _log.warning("files are read past the cache, which is tried again: %s", error)
        in_vain = ByteCacheError("bytes_dir_denied", f"cannot use {self._path}: {error}")
        self._failed = error if isinstance(error, OSError) else in_vain
        self._not_before = time.monotonic() + RETRY_S
        self._inner = None

    def _join(self) -> None:
        """Owns the directory, or attaches to its owner. Raises `ByteCacheError`."""
        deadline, pause = time.monotonic() + JOIN_S, 0.001
        while not self._own():
            try:
                attached = Attached(self._path, read_keys(self._options.key_file), self._options.write_buffer)
            except OtherKeysError as gone:  # it would be so again
                raise ByteCacheError("bytes_dir_in_use", f"{self._path} has an owner with other keys") from gone
            except OwnerGoneError as gone:
                if time.monotonic() > deadline:
                    raise self._no_answer() from gone
                time.sleep(pause)
                pause = min(2 * pause, 0.1)
            else:
                self._inner, self.flights, self._failed = attached, attached.flights, None
                self._reserve_again(attached)
                return

    def _own(self) -> bool:
        """Owns the directory, unless another process does. Raises `ByteCacheError`."""
        lock = lock_directory(self._path)
        if lock is None:
            return False
        self._held = lock  # a child that is forked meanwhile lets it go
        try:
            owned = Owned(Directory(self._path, self._options, lock))
            try:
                self._server = Server(owned.directory, owned.flights)
            except BaseException:
                owned.directory.close()
                raise
            self._inner, self.flights, self._failed = owned, owned.flights, None
        finally:
            self._held = None
        self._reserve_again(owned)
        return True

    def _reserve_again(self, owner: Owned | Attached) -> None:
        """What was reserved with an owner that is gone. An owner that refuses is asked no more."""
        for mark, (wanted, _) in list(self._reserved.items()):
            held = None
            with suppress(OwnerGoneError):
                held = owner.reserve(wanted)
            if mark in self._reserved:
                self._reserved[mark] = wanted, held
            elif held is not None:  # given back meanwhile
                held()


def _is_in_use(error: Exception) -> bool:
    """Whether an owner does not answer, but may again: one with other keys is none that this process can have."""
    in_use = isinstance(error, ByteCacheError) and error.code == "bytes_dir_in_use"
    return in_use and not isinstance(error.__cause__, OtherKeysError)


def _described(inner: Owned | Attached, *, files: bool) -> Described:
    if isinstance(inner, Owned):
        found, reads = describe(inner.directory, files=files), inner.directory.reads
    else:
        found, reads = inner.describe(files=files), inner.reads
        found.counts["dropped"] += inner.writers.counts.dropped
        found.counts["dropped_bytes"] += inner.writers.counts.dropped_bytes
    found.times["read"] = Took(list(reads.counts), reads.seconds)
    return found
