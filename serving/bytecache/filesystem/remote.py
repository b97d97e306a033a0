"""A remote store that fsspec knows, as the cache needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from time import time as now
from typing import Any, Final

from fsspec import AbstractFileSystem
from fsspec.implementations.dirfs import DirFileSystem

from serving.bytecache.errors import ByteCacheError
from serving.bytecache.reading.source import Identity

_TAGS: Final = ("ETag", "etag", "generation")
_TIMES: Final = ("mtime", "LastModified", "last_modified", "modificationTime", "modified")
_MILLISECONDS: Final = 100_000_000_000
"""A time above this is no number of seconds."""
WHOLE_SECONDS_S: Final = 2.0
"""How old a time in whole seconds must be; the clocks of store and reader may differ by the rest."""
_PLACES: Final = ("endpoint_url", "host", "port", "account_name", "base_url")


class Remote:
    """A `serving.bytecache.reading.source.Source`."""

    def __init__(self, fs: AbstractFileSystem) -> None:
        self._fs = fs

    def identity(self, path: str) -> Identity:
        """Asks the store itself, not a listing that was kept. Raises ``IsADirectoryError``, and the store's errors."""
        self._fs.invalidate_cache(self._fs._parent(path))
        return self.identity_of(path, self._fs.info(path))

    def identity_of(self, path: str, info: Mapping[str, Any]) -> Identity:
        """Of what the store said about a file."""
        if info["type"] == "directory":
            raise IsADirectoryError(path)
        if (size := info.get("size")) is None:
            return Identity("", -1)
        version, settled = self._version(path, info)
        return Identity(version, int(size), settled)

    def fetch(self, path: str, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """The bytes of each range. Raises the store's errors."""
        if len(ranges) == 1:
            return [self._fs.cat_file(path, start=ranges[0][0], end=ranges[0][1])]
        starts, ends = zip(*ranges, strict=True)
        return self._fs.cat_ranges([path] * len(ranges), list(starts), list(ends), on_error="raise")  # type: ignore[no-any-return]

    def _version(self, path: str, info: Mapping[str, Any]) -> tuple[str, bool]:
        """The ETag, if it is a strong one; else when it was changed; else nothing. And whether it is settled."""
        for name in _TAGS:
            if (tag := info.get(name)) and not str(tag).startswith("W/"):
                return f"{tag}", True
        time = next((info[name] for name in _TIMES if info.get(name)), None)
        if time is None:
            try:
                time = self._fs.modified(path)
            except (NotImplementedError, KeyError):
                return "", True
        return f"{time!r}:{info.get('ino', '')}", _settled(time)


def _settled(changed: object) -> bool:
    """False for a time of change in whole seconds that has just begun: another change may get the same."""
    if isinstance(changed, datetime):
        changed = changed.timestamp()
    if not isinstance(changed, int | float):
        return True
    seconds = changed / 1_000 if changed > _MILLISECONDS else changed
    return seconds % 1 != 0 or now() - seconds > WHOLE_SECONDS_S


def name_of(fs: AbstractFileSystem, path: str) -> str:
    """What a file is called in the cache: with its store's address, where that is not the usual one."""
    if isinstance(fs, DirFileSystem):  # a folder that looks like a root
        return name_of(fs.fs, fs._join(path))
    protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
    options = fs.storage_options | fs.storage_options.get("client_kwargs", {})
    place = ",".join(str(options[name]) for name in _PLACES if options.get(name))
    return f"{protocol}{f'+{place}' if place else ''}://{path.lstrip('/')}"


def refuse_unknown(given: Mapping[str, object], known: Sequence[str]) -> None:
    """Raises `ByteCacheError` ``bad_bytes_option`` for an option that does not exist."""
    if unknown := sorted(given.keys() - set(known)):
        raise ByteCacheError("bad_bytes_option", f"the byte cache has no option {unknown[0]!r}")
