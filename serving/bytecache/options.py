"""How a process uses the cache: which directories, how much of them, in which way."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from serving.bytecache.disk.directory import DirectoryOptions
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.policy.admission import parse_admission
from serving.bytecache.policy.pools import POLICIES, Value

ENVIRONMENT: Final = "FRESHET_BYTES__"
"""Begins the names of variables; the rest is a field of `CacheOptions` in upper case."""
_MAPS: Final = ("scopes", "values")
"""These have no variable here: a process that has settings gives them."""
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]+)([KMGT]?)(?:iB)?")


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """``dirs``: ``PATH``, with ``:ssd`` or ``:disk``, a size (``:20GiB``) or a share of what is free (``:0.2``) behind.

    ``free_share``: of the space that is free at the start, where a directory says nothing else. ``scopes``: of tenants
    or tables, name → quota in bytes. ``ttl_s``: how long what was fetched is kept, 0: for ever. ``values``: pattern of
    names as ``freshet bytes ls`` shows them → value, the first that fits; else it is recognised. ``read_only``: nothing
    is stored. ``trace``: a file for a trace of the reads, of a ``trace_share`` of the files; ``trace_anonymous``:
    without their names. ``hosts``: on which the same files are read; ``host``: this one of them.
    The others: as in `DirectoryOptions` and `FetchRules`.
    """

    dirs: tuple[str, ...] = ()
    free_share: float = 0.5
    min_free: int = 0
    shards: int = 8
    policy: str = "s3fifo"
    key_file: str = ""
    write_buffer: int = 64 << 20
    gap: int = 64 << 10
    request_bytes: int = 8 << 20
    admission: str = "all"
    scopes: Mapping[str, int] = field(default_factory=dict, hash=False)
    ttl_s: int = 0
    values: Mapping[str, str] = field(default_factory=dict, hash=False)
    read_only: bool = False
    trace: str = ""
    trace_share: float = 1.0
    trace_anonymous: bool = False
    hosts: tuple[str, ...] = ()
    host: str = ""

    def __post_init__(self) -> None:
        """Raises `ByteCacheError` ``bad_bytes_option``."""
        checks = {
            "free_share": 0 < self.free_share <= 1,
            "min_free": self.min_free >= 0,
            "shards": 1 <= self.shards <= 64,
            "policy": self.policy in POLICIES,
            "write_buffer": self.write_buffer >= 1 << 20,
            "gap": 0 <= self.gap <= 1 << 30,
            "request_bytes": 1 << 16 <= self.request_bytes <= 1 << 30,
            "dirs": len(set(self.dirs)) == len(self.dirs),
            "ttl_s": self.ttl_s >= 0,
            "values": {each.upper() for each in self.values.values()} <= set(Value.__members__),
            "trace_share": 0 < self.trace_share <= 1,
            "hosts": len(set(self.hosts)) == len(self.hosts),
            "host": not self.host or self.host in self.hosts,
        }
        for name, fits in checks.items():
            if not fits:
                raise ByteCacheError("bad_bytes_option", f"{name} = {getattr(self, name)!r} is out of its limits")
        try:
            parse_admission(self.admission)
        except ValueError as error:
            raise ByteCacheError("bad_bytes_option", str(error)) from None
        for text in self.dirs:
            self.directory(text)

    def value_of(self, name: str) -> Value | None:
        """What the rules say of a file; None: nothing."""
        fitting = (value for pattern, value in self.values.items() if fnmatchcase(name, pattern))
        return Value[value.upper()] if (value := next(fitting, None)) is not None else None

    def directory(self, text: str) -> tuple[Path, DirectoryOptions]:
        """One of ``dirs``. Raises `ByteCacheError` ``bad_bytes_option``."""
        path, *rest = text.split(":")
        given: dict[str, Any] = {}
        for word in rest:
            if word in ("ssd", "disk"):
                given["medium"] = word
            elif found := _SIZE.fullmatch(word):
                given["quota"] = int(found[1]) * _UNITS[found[2]]
            elif re.fullmatch(r"0\.[0-9]+|1\.0", word):
                given["free_share"] = float(word)
            else:
                raise ByteCacheError("bad_bytes_option", f"{word!r} in {text!r} is no medium, size or share")
        if not path:
            raise ByteCacheError("bad_bytes_option", "a directory of the byte cache has an empty path")
        options = DirectoryOptions(
            free_share=self.free_share,
            min_free=self.min_free,
            shards=self.shards,
            policy=self.policy,
            key_file=self.key_file,
            write_buffer=self.write_buffer,
            scopes=dict(self.scopes),
        )
        return Path(path).absolute(), dataclasses.replace(options, **given)


def from_environment(given: Mapping[str, Any]) -> CacheOptions:
    """What is ``given``, else what the environment says (``FRESHET_BYTES__DIRS=/ssd/a,/ssd/b``), else the defaults.

    Without any directory there is one below ``$XDG_CACHE_HOME``. Raises `ByteCacheError` ``bad_bytes_option``.
    """
    values: dict[str, Any] = {}
    for each in dataclasses.fields(CacheOptions):
        if (text := os.environ.get(ENVIRONMENT + each.name.upper())) is not None and each.name not in _MAPS:
            values[each.name] = (
                tuple(text.split(",")) if each.name in ("dirs", "hosts") else _number(each.name, text, each.default)
            )
    values |= given
    dirs = values.get("dirs") or (str(_home() / "freshet" / "bytes"),)
    values["dirs"] = (dirs,) if isinstance(dirs, str) else tuple(map(str, dirs))
    hosts = values.get("hosts") or ()
    values["hosts"] = (hosts,) if isinstance(hosts, str) else tuple(map(str, hosts))
    return CacheOptions(**values)


def _home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _number(name: str, text: str, default: object) -> object:
    if isinstance(default, bool):
        return text.lower() in ("1", "true", "yes")
    try:
        return type(default)(text)  # type: ignore[call-arg]
    except ValueError:
        raise ByteCacheError("bad_bytes_option", f"{ENVIRONMENT}{name.upper()}: {text!r} is no number") from None
