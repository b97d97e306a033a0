"""A directory on any file system that fsspec knows: local, S3-compatible and others.

Credentials come from where the file system's own library looks for them (for ``s3://``: ``AWS_ACCESS_KEY_ID``, a
profile, a role). What is shown of an address has neither user nor password.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from consumers.snapshots.errors import SnapshotError
from consumers.snapshots.patience import Stopped
from consumers.store.errors import StoreError, store_error
from consumers.store.manifest import sync_directory, write_atomically

_SECRET: Final = re.compile(r"(?<=://)(?:[^/@\s]+:\S*|[^/\s]*)@|[?#]\S*")
"""A password may hold ``/`` and ``@``, as keys of S3 do."""
_PART_BYTES: Final = 1 << 20
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_HANDLES: Final = (errno.EMFILE, errno.ENFILE)
_HINT: Final = "check the address, the credentials in the environment, and the network"
_EXTRAS: Final = "install what fsspec needs for it, for s3:// the extra `s3`: pip install 'freshet-cache[s3]'"


def shown(uri: str) -> str:
    """An address without user, password, query and fragment."""
    return _SECRET.sub("", uri)


class Place:
    """A directory at an address. Methods raise `SnapshotError`, and `StoreError` if this process has no file handles.

    Names are paths below it, with ``/``.
    """

    def __init__(self, uri: str, heard: Callable[[], None] = lambda: None) -> None:
        """Connects where the file system does. ``uri``: what fsspec takes, or a local path.

        ``heard`` is called when the place is asked, has answered, or has sent a part of a file; what it raises as
        `Stopped` ends what asks.
        """
        import fsspec  # most consumers never need it
        from fsspec.implementations.local import LocalFileSystem

        self.uri = shown(uri)
        self._given = uri
        self._heard = heard
        heard()
        try:
            # A list that is kept would hide what another process has written since.
            self._fs, path = fsspec.core.url_to_fs(uri, use_listings_cache=False, skip_instance_cache=True)
        except ImportError as error:
            raise SnapshotError(f"{self.uri}: {error}", hint=_EXTRAS) from error
        except Exception as error:
            raise self._error(error, "open") from error
        self._path: str = path.rstrip("/")
        self.is_local = isinstance(self._fs, LocalFileSystem)

    def read(self, name: str) -> bytes:
        """The bytes of a file; raises `SnapshotError` ``snapshot_missing`` if it is not there."""
        with self._errors("read", name):
            found: bytes = self._fs.cat_file(self._at(name))
            return found

    def write(self, name: str, data: bytes) -> None:
        """Writes a small file, which is there whole or not at all."""
        with self._errors("write", name):
            if self.is_local:
                path = Path(self._at(name))
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, data)
            else:
                self._fs.pipe_file(self._at(name), data)

    def put(self, file: Path, name: str) -> None:
        """Copies a local file there, durably."""
        with self._errors("write", name):
            if self.is_local:
                path = Path(self._at(name))
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, path)
                with open(path, "rb") as written:
                    os.fsync(written.fileno())
                sync_directory(path.parent)
            else:
                self._fs.put_file(str(file), self._at(name))

    def get(self, name: str, file: Path) -> None:
        """Copies a file from there to a local one. Raises ``OSError`` or `StoreError` if that can't be written."""
        if self.is_local or "sftp" in self._fs.protocol:  # these tell nothing of parts
            with open(file, "wb") as here, closing(self._parts(name)) as parts:
                for part in parts:
                    here.write(part)
            return
        from fsspec.callbacks import Callback

        heard = Callback(hooks={"heard": lambda *_, **__: self._heard()})
        with self._errors("read", name):
            self._fs.get_file(self._at(name), str(file), callback=heard)

    def _parts(self, name: str) -> Generator[bytes]:
        with self._errors("read", name), self._fs.open(self._at(name), "rb") as there:
            while part := there.read(_PART_BYTES):
                yield part
                self._heard()

    def names(self, below: str) -> list[str]:
        """The names of what is directly in a directory, sorted; empty if there is none."""
        with self._errors("list", below):
            try:
                found = self._fs.ls(self._at(below), detail=False)
            except FileNotFoundError:
                return []
            return sorted({str(path).rstrip("/").rpartition("/")[2] for path in found})

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        with self._errors("look for", name):
            return bool(self._fs.isfile(self._at(name)))

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        with self._errors("remove", name):
            try:
                self._fs.rm_file(self._at(name))
            except FileNotFoundError:
                return

    def remove_tree(self, name: str) -> None:
        """Removes a directory with all that is in it, if it is there."""
        with self._errors("remove", name):
            try:
                self._fs.rm(self._at(name), recursive=True)
            except FileNotFoundError:
                return

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    @contextmanager
    def _errors(self, what: str, name: str) -> Iterator[None]:
        self._heard()
        try:
            yield
            self._heard()
        except Stopped:
            raise
        except Exception as error:
            raise self._error(error, what, name) from error

    def _error(self, error: Exception, what: str, name: str = "") -> SnapshotError | StoreError:
        """The error for whatever a file system's library raises. Its text may hold the address as given."""
        place = f"{self.uri}/{name}" if name else self.uri
        number = (error.errno or 0) if isinstance(error, OSError) else 0
        is_full_here = number in _FULL and what == "read"  # nothing is written there
        if is_full_here or number in _NO_HANDLES:
            return store_error(OSError(number, os.strerror(number)), f"cannot {what} {place}")
        lines: Any = str(error).replace(self._given, self.uri).strip().splitlines() or [""]
        why = shown(f"{type(error).__name__}: {lines[0][:300]}")
        if isinstance(error, FileNotFoundError):
            hint = "`freshet snapshots ls` shows what is there"
            return SnapshotError(f"{place} is not there", hint=hint, code="snapshot_missing")
        if number in _FULL:
            hint = "free space there, or name another place"
            return SnapshotError(f"cannot {what} {place}: no space left there", hint=hint, code="snapshot_full")
        return SnapshotError(f"cannot {what} {place}: {why}", hint=_HINT)
