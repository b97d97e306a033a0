"""A remote store of files, and every version that each of them has had: what reads are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from math import floor
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final, NamedTuple

from fsspec import AbstractFileSystem

from lab.simulation.kernel.scheduler import Kernel

CALL_S: Final = 0.05
"""The longest time that a call takes."""
STYLES: Final = ("ETag", "time", "whole seconds", "nothing")
"""What a store says of a file's version."""
_FOOTER: Final = (1_000).to_bytes(4, "little") + b"PAR1"
"""The end of a Parquet file with a footer of so many bytes."""


class Version(NamedTuple):
    """What a path had from ``since`` on. ``data`` None: there was no file."""

    since: float
    data: bytes | None
    number: int


def content(path: str, number: int, size: int) -> bytes:
    """The bytes of a file's version: others in each. Larger ones look like Parquet files."""
    data = Random(f"{path}:{number}").randbytes(size)
    return data if size < 2_000 else data[: -len(_FOOTER)] + _FOOTER


class RemoteStore:
    """Files by path. Each call takes a while, and answers with what is true when it ends."""

    def __init__(self, kernel: Kernel, style: str) -> None:
        self.style = style
        self.is_down = False
        self.to_shorten = 0
        """So many of the next reads are given too little."""
        self.failed_at = float("-inf")
        """When a call was last answered with an error, or with too little."""
        self.fetched = 0
        """Bytes that were asked for."""
        self._kernel = kernel
        self._versions: dict[str, list[Version]] = {}

    @property
    def names_versions(self) -> bool:
        """Whether two versions never look the same, so that one answer is of one version even while files change."""
        return self.style in ("ETag", "time")

    def put(self, path: str, size: int | None) -> None:
        """Replaces a file, or deletes it (``size`` None)."""
        had = self._versions.setdefault(path, [])
        number = len(had) + 1
        had.append(Version(self._kernel.time, None if size is None else content(path, number, size), number))

    def paths(self) -> list[str]:
        """Where there is a file now."""
        return [path for path, had in self._versions.items() if had[-1].data is not None]

    def now(self, path: str) -> Version:
        """The present version of a file."""
        had = self._versions.get(path)
        return had[-1] if had else Version(0.0, None, 0)

    def since(self, path: str, at: float) -> list[Version]:
        """The versions that a file has had at some moment since ``at``."""
        had = self._versions.get(path, [])
        later = [each for each in had if each.since >= at]
        before = [each for each in had if each.since < at][-1:] or [Version(0.0, None, 0)]
        return before + later

    def before(self, path: str, at: float) -> list[bytes]:
        """What a file has had, and not any more at ``at``."""
        kept = [each.number for each in self.since(path, at)]
        return [each.data for each in self._versions.get(path, []) if each.data is not None and each.number not in kept]

    def call(self) -> None:
        """A call is under way. Raises ``ConnectionError``."""
        self._kernel.park(self._kernel.rng.random() * CALL_S)
        if self.is_down:
            self.failed_at = self._kernel.time
            raise ConnectionError("the store is down")

    def read(self, path: str, start: int, end: int) -> bytes:
        """Bytes of the present version. Raises ``FileNotFoundError``, ``ConnectionError``."""
        self.call()
        data = self.now(path).data
        if data is None:
            raise FileNotFoundError(path)
        self.fetched += end - start
        if self.to_shorten:
            self.to_shorten -= 1
            self.failed_at = self._kernel.time
            end = start + (end - start) // 2
        return data[start:end]

    def describe(self, path: str) -> dict[str, Any]:
        """What the store says of a file. Raises ``FileNotFoundError``, ``ConnectionError``."""
        self.call()
        if self.now(path).data is None:
            raise FileNotFoundError(path)
        return self.described(path)

    def described(self, path: str) -> dict[str, Any]:
        """What it says of a file that is there."""
        version = self.now(path)
        assert version.data is not None
        said: dict[str, Any] = {"name": path, "size": len(version.data), "type": "file"}
        match self.style:
            case "ETag":
                said["ETag"] = f'"{path}-{version.number}"'
            case "time":
                said["mtime"] = version.since + version.number / 1024
            case "whole seconds":
                said["mtime"] = floor(version.since)
        return said


class _Written(BytesIO):
    """A file that is written when it is closed."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        super().__init__()
        self._write = write

    def close(self) -> None:
        if not self.closed:
            self._write(self.getvalue())
        super().close()


class SimulatedFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """fsspec's view of the store."""

    protocol: ClassVar[str] = "simulated"
    cachable = False
    present: ClassVar[RemoteStore | None] = None
    """The store of the history that runs: what a URL leads to."""

    def __init__(self, store: RemoteStore) -> None:
        super().__init__()
        self._store = store

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        del path
        return {"store": SimulatedFileSystem.present}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """As the store says."""
        return self._store.describe(path)

    def modified(self, path: str) -> Any:
        """The store that says nothing does not say this either."""
        raise NotImplementedError(path)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """One range."""
        return self._store.read(path, start or 0, end or 0)

    def cat_ranges(self, paths: Sequence[str], starts: Sequence[int], ends: Sequence[int], **_: Any) -> list[bytes]:
        """Ranges, one after the other."""
        return [self._store.read(*each) for each in zip(paths, starts, ends, strict=True)]

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The files below a path."""
        self._store.call()
        below = sorted(each for each in self._store.paths() if each.startswith(path.rstrip("/") + "/"))
        return [self._store.described(each) for each in below] if detail else below

    def exists(self, path: str, **_: Any) -> bool:
        """Whether there is a file. Raises ``ConnectionError``."""
        self._store.call()
        return self._store.now(path).data is not None

    def isfile(self, path: str) -> bool:
        """The same: there are no directories."""
        return self.exists(path)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        """A program writes a file: it is there once it is closed."""
        assert mode == "wb"
        return _Written(lambda data: self.pipe_file(path, data))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """A program copies a file, by its length."""
        self.pipe_file(path2, self._store.read(path1, 0, len(self._store.now(path1).data or b"")))

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """A program copies a local file, by its length."""
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def touch(self, path: str, truncate: bool = True, **_: Any) -> None:  # noqa: ARG002
        """A program empties a file."""
        self.pipe_file(path, b"")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:  # noqa: ARG002
        """A program writes a file: content is made by the store, of that length."""
        self._store.call()
        self._store.put(path, len(value))

    def rm_file(self, path: str) -> None:
        """A program deletes a file."""
        self._store.call()
        self._store.put(path, None)
