"""The fsspec file system ``freshet``: reads go through the cache, everything else to the store behind it.

``fsspec.open("freshet::s3://bucket/key")``, or ``FreshetFileSystem(fs=fsspec.filesystem("s3"))``. Where chained URLs
are not known: ``pandas.read_parquet("freshet://bucket/key", storage_options={"target_protocol": "s3"})``.

Options: those of `CacheOptions` (else the environment's), and those of `ReadOptions` for every file that is opened.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from fsspec import AbstractFileSystem, filesystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.chained import ChainedFileSystem

from serving.bytecache.errors import ByteCacheError
from serving.bytecache.filesystem.file import ReadFile, WrittenFile
from serving.bytecache.filesystem.remote import Remote, name_of, refuse_unknown
from serving.bytecache.options import CacheOptions, from_environment
from serving.bytecache.policy.locality import ranked, splits_of
from serving.bytecache.policy.pools import Value
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.files import OpenFile, ReadOptions
from serving.bytecache.reading.tally import Tally
from serving.bytecache.shared.opening import cache_for

T = TypeVar("T")

_threads: ThreadPoolExecutor
_CACHE: Final = [each.name for each in dataclasses.fields(CacheOptions)]
_READ: Final = [each.name for each in dataclasses.fields(ReadOptions)]
_FSSPEC: Final = ["asynchronous", "loop", "batch_size", "skip_instance_cache", "use_listings_cache",
                  "listings_expiry_time", "max_paths", "default_cache_type", "default_block_size"]  # fmt: skip
THREADS: Final = 32
"""For the coroutines of all file systems of a process."""


class FreshetFileSystem(AsyncFileSystem, ChainedFileSystem):  # type: ignore[misc]
    """A store's files, read through the byte cache."""

    protocol: ClassVar[str] = "freshet"
    async_impl = True

    def __init__(
        self,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
        fo: str = "",  # noqa: ARG002 - the path of a chained URL, which fsspec passes
        **options: Any,
    ) -> None:
        """Either ``fs``, or a protocol and its options. Raises `ByteCacheError`."""
        refuse_unknown(options, [*_CACHE, *_READ, *_FSSPEC])
        super().__init__(**{name: value for name, value in options.items() if name in _FSSPEC})
        if (fs is None) == (target_protocol is None):
            raise ByteCacheError("bad_bytes_option", "give either fs or target_protocol")
        self.fs = fs if fs is not None else filesystem(target_protocol, **(target_options or {}))
        self._options = from_environment({name: value for name, value in options.items() if name in _CACHE})
        given = {name: value for name, value in options.items() if name in _READ}
        self._read_options = ReadOptions(**_with_value({"ttl_s": self._options.ttl_s} | given))
        self._remote = Remote(self.fs)

        def strip(path: str | list[str]) -> Any:
            # Acts as a method: each instance has another store behind it.
            if isinstance(path, list):
                return [strip(each) for each in path]
            return self.fs._strip_protocol(AbstractFileSystem._strip_protocol.__func__(type(self), path))

        self._strip_protocol = strip

    @property
    def cache(self) -> ByteCache:
        """The cache of this process. After a fork it is another one."""
        return cache_for(self._options)

    @property
    def tally(self) -> Tally:
        """What the readers of this process's cache have read so far."""
        return self.cache.tallies.total()

    def forget(self, path: str, *, prefix: bool = False) -> int:
        """Nothing of the file (or of all whose path begins so) is read from the cache any more; how many they were.

        Raises `ByteCacheError` ``bytes_dir_in_use`` if an owner of the cache's directory does not answer.
        """
        return self.cache.forget(name_of(self.fs, self._strip_protocol(path)), prefix=prefix)

    def prefetch(self, path: str, start: int = 0, end: int | None = None) -> int:
        """Fetches what is not here of a file, or of a range of it; returns how many bytes those were."""
        if (file := self._opened(path)) is None:
            return 0
        return self.cache.prefetch(file, *_range(start, end, file.size))

    @contextmanager
    def reserved(self, wanted: int, directory: str = "") -> Iterator[None]:
        """Meanwhile the cache leaves ``wanted`` bytes of a directory's quota to something else, as a query that spills.

        Raises `ByteCacheError` ``bytes_not_given``, also where that would take longer than a second.
        """
        give_back = self.cache.reserve(wanted, directory)
        try:
            yield
        finally:
            give_back()

    @contextmanager
    def _changing(self, *paths: str, prefix: bool = False) -> Iterator[None]:
        """Files are changed meanwhile. Nothing is left of what was read before the change or during it.

        Where that can't be promised, `ByteCacheError` ``bytes_dir_in_use`` is raised: most often before the change.
        """

        def forget() -> None:
            with ExitStack() as each:  # all of them, also where one can't be forgotten
                for path in paths:
                    each.callback(self.forget, path, prefix=prefix)

        forget()
        try:
            yield
        finally:
            forget()

    # Reading.

    def open_cached(self, path: str, **given: Any) -> OpenFile:
        """The file as the cache reads it. ``given``: fields of `ReadOptions`. Raises `ByteCacheError`."""
        stripped = self._strip_protocol(path)
        name = name_of(self.fs, stripped)
        options = dataclasses.replace(self._read_options, **_with_value(given)) if given else self._read_options
        if options.value is None and (value := self._options.value_of(name)) is not None:
            options = dataclasses.replace(options, value=value)
        return self.cache.open(_Named(self._remote, stripped), name, options)

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **kwargs: Any) -> Any:  # noqa: ARG002
        if mode != "rb":
            self.forget(path)
            return WrittenFile(
                self.fs._open(self._strip_protocol(path), mode=mode, **kwargs), lambda: self.forget(path)
            )
        if (file := self._opened(path, **_only(kwargs, _READ))) is None:
            return self.fs.open(self._strip_protocol(path), mode)
        return ReadFile(self, path, file, self.cache)

    def _opened(self, path: str, **given: Any) -> OpenFile | None:
        """As `open_cached`; None of a file whose store does not say how long it is: it is read there."""
        try:
            return self.open_cached(path, **given)
        except ByteCacheError as error:
            if error.code != "no_length":
                raise
            return None

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes of a range; negative places count from the end."""
        if (file := self._opened(path)) is None:
            return self._remote.cat_file(self._strip_protocol(path), start, end)
        return self.cache.read(file, *_range(start, end, file.size))

    def cat_ranges(
        self,
        paths: list[str],
        starts: int | list[int] | None,
        ends: int | list[int] | None,
        max_gap: int | None = None,  # noqa: ARG002 - the cache has its own
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """The bytes of each range. What is missing of one file is fetched together."""
        begin = starts if isinstance(starts, list) else [starts] * len(paths)
        stop = ends if isinstance(ends, list) else [ends] * len(paths)
        found: list[Any] = [b""] * len(paths)
        for path in dict.fromkeys(paths):
            places = [i for i, each in enumerate(paths) if each == path]
            try:
                answers: Sequence[Any] = self._cat_ranges_of(path, [(begin[i], stop[i]) for i in places])
            except Exception as error:
                if on_error != "return":
                    raise
                answers = [error] * len(places)
            for i, answer in zip(places, answers, strict=True):
                found[i] = answer
        return found

    def _cat_ranges_of(self, path: str, ranges: Sequence[tuple[int | None, int | None]]) -> list[bytes]:
        """As `cat_ranges`, of one file."""
        if (file := self._opened(path)) is None:
            stripped = self._strip_protocol(path)
            return [self._remote.cat_file(stripped, start, end) for start, end in ranges]
        return self.cache.read_many(file, [_range(start, end, file.size) for start, end in ranges])

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """As the store says; of a file that never changes and is known here under its tag, without asking it."""
        stripped = self._strip_protocol(path)
        if self._read_options.immutable:
            place = self.cache.place_of(name := name_of(self.fs, stripped))
            known = place.known(name, self._read_options.deadline_s / 2) if place is not None else None
            if known is not None and self._read_options.bare(known.version) is not None:
                return {"name": stripped, "size": known.size, "type": "file"}
        return self._remote.info(stripped, **kwargs)

    def hosts_of(self, path: str) -> list[list[str]]:
        """For each split of the file: the option ``hosts``, the one that shall read it first."""
        stripped = self._strip_protocol(path)
        name, size = name_of(self.fs, stripped), self._remote.identity(stripped).size
        return [ranked(self._options.hosts, name, split) for split in splits_of(size)]

    # Everything else is the store's.

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        """As the store says."""
        return self.fs.ls(self._strip_protocol(path), detail=detail, **kwargs)

    def exists(self, path: str, **_: Any) -> bool:
        """As the store says."""
        return self._remote.exists(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        """As the store says."""
        return bool(self.fs.isdir(self._strip_protocol(path)))

    def isfile(self, path: str) -> bool:
        """As the store says."""
        return self._remote.isfile(self._strip_protocol(path))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Writes a file."""
        with self._changing(path):
            self.fs.pipe_file(self._strip_protocol(path), value, mode=mode, **kwargs)

    def put_file(self, lpath: str, rpath: str, **kwargs: Any) -> None:
        """Copies a local file to the store."""
        with self._changing(rpath):
            self.fs.put_file(lpath, self._strip_protocol(rpath), **kwargs)

    def get_file(self, rpath: str, lpath: str, **kwargs: Any) -> None:
        """Copies a file of the store to a local one, through the cache."""
        AbstractFileSystem.get_file(self, rpath, lpath, **kwargs)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copies within the store."""
        with self._changing(path2):
            self.fs.cp_file(self._strip_protocol(path1), self._strip_protocol(path2), **kwargs)

    def rm_file(self, path: str) -> None:
        """Deletes a file."""
        with self._changing(path):
            self.fs.rm_file(self._strip_protocol(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Deletes files, or all below."""
        with self._changing(*([path] if isinstance(path, str) else path), prefix=recursive):
            self.fs.rm(self._strip_protocol(path), recursive=recursive, maxdepth=maxdepth)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Makes a directory."""
        self.fs.mkdir(self._strip_protocol(path), create_parents=create_parents, **kwargs)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes a directory and those above it."""
        self.fs.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """Deletes an empty directory."""
        self.fs.rmdir(self._strip_protocol(path))

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Makes a file, or empties it."""
        with self._changing(path):
            self.fs.touch(self._strip_protocol(path), truncate=truncate, **kwargs)

    def created(self, path: str) -> Any:
        """As the store says."""
        return self.fs.created(self._strip_protocol(path))

    def modified(self, path: str) -> Any:
        """As the store says."""
        return self.fs.modified(self._strip_protocol(path))

    def invalidate_cache(self, path: str | None = None) -> None:
        """Of the store's listings."""
        self.fs.invalidate_cache(path)


class _Named:
    """A store in which one file has another name than in the cache."""

    def __init__(self, remote: Remote, path: str) -> None:
        self._remote, self._path = remote, path

    def identity(self, _: str, timeout_s: float | None = None) -> Any:
        return self._remote.identity(self._path, timeout_s)

    def fetch(self, _: str, ranges: Sequence[tuple[int, int]], timeout_s: float | None = None) -> Sequence[bytes]:
        return self._remote.fetch(self._path, ranges, timeout_s)


def _own_threads() -> None:
    """Threads for coroutines. Those of an event loop itself are the store's: it looks its host's name up in them."""
    global _threads
    _threads = ThreadPoolExecutor(THREADS, thread_name_prefix="freshet-bytes-call")


_own_threads()
os.register_at_fork(after_in_child=_own_threads)


def _in_thread(name: str) -> Callable[..., Any]:
    """The coroutine of a method: it runs in a thread, so that an event loop is not held up."""

    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = partial(contextvars.copy_context().run, getattr(self, name), *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(_threads, call)

    run.__name__ = run.__qualname__ = f"_{name}"
    return run


# What runs in a thread calls no coroutine that needs a thread, too: there are only so many.
for _name in ("cat_file", "cat_ranges", "info", "ls", "exists", "isdir", "isfile", "pipe_file", "put_file", "get_file",
              "cp_file", "rm_file", "rm", "mkdir", "makedirs", "rmdir", "touch", "created", "modified"):  # fmt: skip
    setattr(FreshetFileSystem, f"_{_name}", _in_thread(_name))
FreshetFileSystem.__abstractmethods__ = frozenset()


def _range(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    first = 0 if start is None else start if start >= 0 else max(0, size + start)
    return first, size if end is None else end if end >= 0 else size + end


def _only(given: dict[str, T], names: Sequence[str]) -> dict[str, T]:
    return {name: value for name, value in given.items() if name in names}


def _with_value(given: dict[str, Any]) -> dict[str, Any]:
    """``given``, its ``value`` no text any more. Raises `ByteCacheError` ``bad_bytes_option``."""
    value = given.get("value")
    if not isinstance(value, str):
        return given
    try:
        return given | {"value": Value[value.upper()]}
    except KeyError:
        raise ByteCacheError("bad_bytes_option", f"value {value!r} is none of scan, normal, index, pinned") from None
