"""The disk of consumers: real files in a directory that lives in memory, with places to crash and to fail.

RocksDB is a model: a directory of sorted files, which appear in it whole or not at all. The product's code around it is
real: manifests, locks, the building of files, the file of a commit in doubt.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import rocksdict
import xxhash

from consumers.store.view import ROCKS_NAME
from lab.simulation.kernel.switching import Process, Switching

IN_MEMORY: Final = "/dev/shm"
STEP_S: Final = 0.002
"""The longest time that a step of a write takes."""
PART_SHARE: Final = 0.25
"""How often the kernel takes only a part of what is to be written together, as it may."""
_MANIFEST: Final = "MANIFEST-000005"
_DIGEST_BYTES: Final = 8
_FIRST_TABLE: Final = 10


class Disk:
    """The files of all processes of a history. `close` deletes them."""

    def __init__(self, kernel: Switching) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="freshet-", dir=IN_MEMORY if os.path.isdir(IN_MEMORY) else None))
        self.full: set[str] = set()
        """Processes for which no space is left."""
        self.failing: set[str] = set()
        """Processes whose writes fail with an I/O error."""
        self.dies_at: dict[str, int] = {}
        """Process → it is killed in its so-many-th next step of a write."""
        self.damaged: set[str] = set()
        """Processes of which a bit on the disk has flipped."""
        self._kernel = kernel
        self._open: dict[int, Process] = {}
        self._ends: set[Process] = set()

    def twins(self) -> dict[Any, Any]:
        """Real object → what takes its place in the product's modules."""
        system = {
            "open": self._open_file,
            "memfd_create": self._open_in_memory,
            "close": self._close_file,
            "pwrite": self._stepping(os.pwrite),
            "pwritev": self._write_together,
            "replace": self._stepping(os.replace),
            "link": self._stepping(os.link),
            "rename": self._stepping(os.rename),
            "fsync": self._stepping(os.fsync),
            "fdatasync": self._stepping(os.fdatasync),
            "sendfile": self._stepping(os.sendfile),
        }
        return {
            os: SimpleNamespace(**{**vars(os), **system}),
            rocksdict.Rdict: partial(SimulatedRocks, self),
            rocksdict.SstFileWriter: SimulatedTableWriter,
            rocksdict.Checkpoint: SimulatedCheckpoint,
        }

    def close(self) -> None:
        """Deletes everything."""
        for handle in self._open:
            os.close(handle)
        shutil.rmtree(self.root, ignore_errors=True)

    def step(self) -> None:
        """A step of a write: it takes a while, and may be the last one, or fail with ``OSError``."""
        kernel, process = self._kernel, self._kernel.current
        left = self.dies_at.get(process, 0)
        if left:
            self.dies_at[process] = left - 1
            if left == 1:
                kernel.kill(process)
        kernel.park(kernel.rng.random() * STEP_S)
        if process in self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if process in self.failing:
            raise OSError(errno.EIO, "Input/output error")

    def _stepping(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*arguments: Any) -> Any:
            self.step()
            return call(*arguments)

        return stepping

    def _write_together(self, handle: int, parts: Sequence[bytes | memoryview], at: int) -> int:
        """As ``os.pwritev``: returns how much was written, at times less than was given."""
        self.step()
        data = b"".join(parts)
        rng = self._kernel.rng
        length = 1 + int(rng.random() * len(data)) if rng.random() < PART_SHARE else len(data)
        return os.pwrite(handle, data[:length], at)

    def _open_file(self, path: Any, flags: int, mode: int = 0o777) -> int:
        return self._keep(os.open(path, flags, mode))

    def _open_in_memory(self, name: str, flags: int = os.MFD_CLOEXEC) -> int:
        return self._keep(os.memfd_create(name, flags))

    def _keep(self, handle: int) -> int:
        process = self._kernel.current_process
        self._open[handle] = process
        if process not in self._ends:
            self._ends.add(process)
            process.at_end.append(partial(self._process_ended, process))
        return handle

    def _close_file(self, handle: int) -> None:
        """Closes what was opened here; a dead process's files are closed already."""
        if self._open.get(handle) is self._kernel.current_process:
            del self._open[handle]
            os.close(handle)

    def _process_ended(self, process: Process) -> None:
        for handle in [handle for handle, owner in self._open.items() if owner is process]:
            del self._open[handle]
            os.close(handle)

    def damage(self, process: str) -> str:
        """Flips a bit in one of the sorted files of a process; returns its name, "" if there is none."""
        files = sorted(self.data_dir(process).rglob(f"{ROCKS_NAME}/*.sst"))
        if not files:
            return ""
        path = files[int(self._kernel.rng.random() * len(files))]
        data = bytearray(path.read_bytes())
        data[int(self._kernel.rng.random() * len(data))] ^= 1 << int(self._kernel.rng.random() * 8)
        path.write_bytes(data)
        self.damaged.add(process)
        return str(path.relative_to(self.root))

    def lose(self, process: str) -> None:
        """Deletes all files of a process that does not run."""
        shutil.rmtree(self.data_dir(process), ignore_errors=True)

    def data_dir(self, process: str) -> Path:
        """The data directory of a process."""
        return self.root / process


class SimulatedTableWriter:
    """`rocksdict.SstFileWriter`."""

    def __init__(self, options: object) -> None:  # noqa: ARG002 - they change no content
        self._entries: list[tuple[bytes, bytes | None]] = []
        self._path = ""
        self._size = 0

    def open(self, path: str) -> None:
        """Where to write."""
        self._path = path

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._entries.append((key, value))

    def __delitem__(self, key: bytes) -> None:
        self._entries.append((key, None))

    def finish(self) -> None:
        """Writes the file."""
        body = msgspec.msgpack.encode(self._entries)
        data = xxhash.xxh3_64_digest(body) + body
        self._size = len(data)
        with open(self._path, "wb") as file:
            file.write(data)

    def file_size(self) -> int:
        """Bytes written."""
        return self._size


class SimulatedCheckpoint:
    """`rocksdict.Checkpoint`."""

    def __init__(self, database: SimulatedRocks) -> None:
        self._database = database

    def create_checkpoint(self, path: str) -> None:
        """Copies the database, with hard links."""
        self._database.copy_to(Path(path))


class SimulatedRocks:
    """`rocksdict.Rdict`."""

    def __init__(self, disk: Disk, path: str, *_: object) -> None:
        self._disk = disk
        self._path = Path(path)
        self._is_closed = False
        self._entries: dict[bytes, bytes] | None = None
        self._path.mkdir(parents=True, exist_ok=True)
        if not (self._path / "CURRENT").exists():
            (self._path / _MANIFEST).write_bytes(b"")
            disk.step()
            (self._path / "CURRENT").write_text(f"{_MANIFEST}\n")

    def _tables(self) -> list[Path]:
        return sorted(self._path.glob("*.sst"))

    def _all(self) -> dict[bytes, bytes]:
        if self._is_closed:
            raise rocksdict.DbClosedError("DB instance already closed")
        if self._entries is None:
            entries: dict[bytes, bytes] = {}
            for path in self._tables():
                _ingest(entries, path)
            self._entries = entries
        return self._entries

    def get(self, key: bytes | list[bytes]) -> bytes | list[bytes | None] | None:
        entries = self._all()
        return list(map(entries.get, key)) if isinstance(key, list) else entries.get(key)

    def iter(self) -> SimulatedIterator:
        """An iterator over what is in it now."""
        return SimulatedIterator(self._all())

    def ingest_external_file(self, paths: list[str], _: object) -> None:
        """Adds files, all at once and whole; it may die or fail before that, and after it."""
        entries = self._all()
        self._disk.step()
        entries = dict(entries)
        for path in paths:
            target = self._path / f"{len(self._tables()) + _FIRST_TABLE:06}.sst"
            os.rename(path, target)
            _ingest(entries, target)
        self._entries = entries
        self._disk.step()

    def copy_to(self, path: Path) -> None:
        """Links all its files to another directory."""
        path.mkdir()
        for each in [*self._tables(), self._path / _MANIFEST, self._path / "CURRENT"]:
            self._disk.step()
            os.link(each, path / each.name)

    def property_value(self, name: str) -> str:
        """The number of keys; 0 for every other property."""
        return str(len(self._all())) if name == "rocksdb.estimate-num-keys" else "0"

    def close(self) -> None:
        self._is_closed = True


class SimulatedIterator:
    """`rocksdict.RdictIter`."""

    def __init__(self, entries: Mapping[bytes, bytes]) -> None:
        self._entries = entries
        self._keys = sorted(entries)
        self._at = len(self._keys)

    def seek(self, key: bytes) -> None:
        """To the first key at or after this one."""
        self._at = bisect_left(self._keys, key)

    def next(self) -> None:
        """To the next key."""
        self._at += 1

    def valid(self) -> bool:
        """Whether there is a key here."""
        return self._at < len(self._keys)

    def key(self) -> bytes:
        """The key here."""
        return self._keys[self._at]

    def value(self) -> bytes:
        """Its value."""
        return self._entries[self._keys[self._at]]

    def status(self) -> None:
        """Raises nothing: damage was found when the files were read."""


def _ingest(entries: dict[bytes, bytes], path: Path) -> None:
    """Adds what a file writes, and takes out what it deletes."""
    data = path.read_bytes()
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if xxhash.xxh3_64_digest(body) != digest:
        raise RuntimeError(f"Corruption: block checksum mismatch: in {path}")
    for key, value in msgspec.msgpack.decode(body, type=list[tuple[bytes, bytes | None]]):
        if value is not None:
            entries[key] = value
        else:
            entries.pop(key, None)
