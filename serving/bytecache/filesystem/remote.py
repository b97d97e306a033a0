"""A remote store that fsspec knows, as the cache needs it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import time as now
from typing import Any, Final

from fsspec import AbstractFileSystem
from fsspec.archive import AbstractArchiveFileSystem
from fsspec.asyn import sync
from fsspec.exceptions import FSTimeoutError
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.spec import AbstractBufferedFile

from serving.bytecache.errors import ByteCacheError
from serving.bytecache.filesystem.web import failure_of, is_web, parts
from serving.bytecache.reading.source import Identity

_TAGS: Final = ("ETag", "etag", "generation")
_OF_HTTP: Final = "Last-Modified"
_TIMES: Final = ("mtime", "LastModified", "last_modified", "modificationTime", "modified", _OF_HTTP)
_CREATED: Final = "created"
"""Of local files: when anything of them changed last. It can't be set, as ``cp -p`` and ``tar x`` do the other."""
_NUMBERS: Final = ("ino", "fileId")
"""Of the file itself: another one at the same path has another."""
_MILLISECONDS: Final = 100_000_000_000
"""A time above this is no number of seconds."""
SETTLED_S: Final = 2.0
"""How old a time of change must be. Until then the file may get other bytes under it: it has whole seconds only, or the
tick of a kernel, and a long write sets it when it begins. The clocks of store and reader may differ by the rest."""
_PLACES: Final = ("endpoint_url", "profile", "host", "port", "account_name", "base_url", "fo", "org", "repo", "sha")
"""Options that say where a path is. None of them is a secret: names are shown."""
_ENDPOINTS: Final = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")}
"""Variables that say it where no option does."""


class Remote:
    """A `serving.bytecache.reading.source.Source`."""

    def __init__(self, fs: AbstractFileSystem) -> None:
        self._fs = fs
        asks = getattr(fs, "_info", None) or fs.info
        self._can_refresh = "refresh" in inspect.signature(asks).parameters
        self._is_archive = isinstance(_inmost(fs), AbstractArchiveFileSystem)
        """A member's time says nothing of the archive, which may be replaced as a whole."""
        self._can_end = inspect.iscoroutinefunction(getattr(_inmost(fs).cat_file, "__wrapped__", None))
        """Its calls are coroutines: one that takes too long can be ended. Others hold their thread."""
        self._is_web = is_web(_inmost(fs))
        self._reads_by_opening = getattr(fs.cat_file, "__func__", None) is AbstractFileSystem.cat_file

    def identity(self, path: str, timeout_s: float | None = None) -> Identity:
        """Asks the store itself, not a listing that was kept. Raises ``IsADirectoryError``, and the store's errors."""
        if self._can_refresh:
            return self.identity_of(path, self.info(path, timeout_s, refresh=True))
        self._fs.invalidate_cache(self._fs._parent(path))
        return self.identity_of(path, self.info(path, timeout_s))

    def info(self, path: str, timeout_s: float | None = None, **given: Any) -> dict[str, Any]:
        """As the store says. Raises its errors."""
        return self._call(timeout_s, self._fs.info, path, **given)  # type: ignore[no-any-return]

    def exists(self, path: str) -> bool:
        """As the store says. Raises the errors of an HTTP server, which fsspec's client takes for a missing file."""
        if not self._is_web:
            return bool(self._fs.exists(path))
        try:
            self.info(path)
        except (FileNotFoundError, ValueError):  # the latter: it is no URL
            return False
        return True

    def isfile(self, path: str) -> bool:
        """As `exists`: all that an HTTP server has are files."""
        return self.exists(path) if self._is_web else bool(self._fs.isfile(path))

    def identity_of(self, path: str, info: Mapping[str, Any]) -> Identity:
        """Of what the store said about a file."""
        if info["type"] == "directory":
            raise IsADirectoryError(path)
        if (size := info.get("size")) is None:
            return Identity("", -1)
        if self._is_archive:
            return Identity("", int(size))
        changed = next((info[name] for name in _TIMES if info.get(name)), None)
        for name in _TAGS:
            if (tag := info.get(name)) and not str(tag).startswith("W/"):
                # HTTP servers make it of the time, in whole seconds, and the length (nginx): it tells no more than they
                settled = _OF_HTTP not in info or _settled(changed)
                return Identity(f"{tag}", int(size), settled, f"{changed!r}")
        if changed is None:
            try:
                changed = self._fs.modified(path)
            except (NotImplementedError, KeyError):
                return Identity("", int(size))
        number = next((info[name] for name in _NUMBERS if info.get(name)), "")
        times = [changed, info[_CREATED]] if info.get(_CREATED) else [changed]
        return Identity(f"{':'.join(map(repr, times))}:{number}", int(size), all(map(_settled, times)))

    def fetch(self, path: str, ranges: Sequence[tuple[int, int]], timeout_s: float | None = None) -> Sequence[bytes]:
        """The bytes of each range. Raises `ByteCacheError` ``no_ranges``, and the store's errors."""
        if self._is_web:
            return self._web_parts(timeout_s, path, ranges)
        if self._reads_by_opening:
            return self._read(path, ranges)
        if len(ranges) == 1:
            return [self._call(timeout_s, self._fs.cat_file, path, start=ranges[0][0], end=ranges[0][1])]
        starts, ends = map(list, zip(*ranges, strict=True))
        paths = [path] * len(ranges)
        return self._call(timeout_s, self._fs.cat_ranges, paths, starts, ends, on_error="raise")  # type: ignore[no-any-return]

    def cat_file(self, path: str, start: int | None, end: int | None) -> bytes:
        """A part of a file of unknown length, or all of it; negative places count from the end. As `fetch`."""
        if end is not None and (end in (0, start) or 0 < end < (start or 0)):  # no ``Range`` of HTTP's is empty
            return b""
        if self._is_web and not (start is None and end is None):
            return self._web_parts(None, path, [(start, end)])[0]
        return self._fs.cat_file(path, start=start, end=end)  # type: ignore[no-any-return]

    def _web_parts(
        self, timeout_s: float | None, path: str, ranges: Sequence[tuple[int | None, int | None]]
    ) -> Sequence[bytes]:
        web = _inmost(self._fs)
        return self._call(timeout_s, sync, web.loop, parts, web, _inmost_path(self._fs, path), ranges)  # type: ignore[no-any-return]

    def _call(self, timeout_s: float | None, method: Callable[..., Any], *args: Any, **given: Any) -> Any:
        """Of the store. Raises ``TimeoutError``, and its errors."""
        late = "the store did not answer within the read's deadline"
        if timeout_s is not None and timeout_s <= 0:  # fsspec takes it for: without a limit
            raise TimeoutError(late)
        if timeout_s is not None and self._can_end:
            given["timeout"] = timeout_s
        try:
            return method(*args, **given)
        except FSTimeoutError as error:
            raise TimeoutError(late) from error
        except FileNotFoundError as error:
            if self._is_web and (failure := failure_of(error)) is not None:
                raise failure from None
            raise

    def _read(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """By one open file, past fsspec's buffer: that reads megabytes ahead for each range (WebHDFS, SFTP)."""
        found = []
        with self._fs.open(path, "rb") as file:
            for start, end in ranges:
                if isinstance(file, AbstractBufferedFile):
                    found.append(file._fetch_range(start, end))
                else:
                    file.seek(start)
                    found.append(file.read(end - start))
        return found


def _settled(changed: object) -> bool:
    """Whether a time of change is old enough that the file won't get other bytes under it."""
    if isinstance(changed, str):
        try:
            changed = parsedate_to_datetime(changed)
        except (ValueError, OverflowError):
            return False  # no date of HTTP's: nobody can tell
    if isinstance(changed, datetime):
        changed = (changed if changed.tzinfo else changed.replace(tzinfo=UTC)).timestamp()
    if not isinstance(changed, int | float):
        return False
    seconds = changed / 1_000 if changed > _MILLISECONDS else changed
    return now() - seconds > SETTLED_S


def _inmost(fs: AbstractFileSystem) -> AbstractFileSystem:
    """Behind folders that look like roots."""
    return _inmost(fs.fs) if isinstance(fs, DirFileSystem) else fs


def _inmost_path(fs: AbstractFileSystem, path: str) -> str:
    """What a path is called by `_inmost`."""
    return _inmost_path(fs.fs, fs._join(path)) if isinstance(fs, DirFileSystem) else path


def name_of(fs: AbstractFileSystem, path: str) -> str:
    """What a file is called in the cache: with its store's address, where that is not the usual one."""
    if isinstance(fs, DirFileSystem):  # a folder that looks like a root
        return name_of(fs.fs, fs._join(path))
    protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
    options = fs.storage_options | fs.storage_options.get("client_kwargs", {})
    places = [str(options[name]) for name in _PLACES if options.get(name)]
    if account := getattr(getattr(fs, "service_client", None), "primary_hostname", ""):
        places = [account]  # Azure's, however it was given: a connection string is a secret
    place = ",".join(places) or next(filter(None, map(os.environ.get, _ENDPOINTS.get(protocol, ()))), "")
    return f"{protocol}{f'+{place}' if place else ''}://{path.lstrip('/')}"


def refuse_unknown(given: Mapping[str, object], known: Sequence[str]) -> None:
    """Raises `ByteCacheError` ``bad_bytes_option`` for an option that does not exist."""
    if unknown := sorted(given.keys() - set(known)):
        raise ByteCacheError("bad_bytes_option", f"the byte cache has no option {unknown[0]!r}")
