"""The files of a change log: lines of JSON, only ever added to, and what a crash may leave of the last one.

A line is whole or it is none: it ends with LF, and it is JSON. Each has the checkpoint behind its event, so the last
whole line says where the log goes on, and nothing else has to be kept with it. What a crash left behind that line is
cut off; the stream tells it again. A file is synced before the next one begins, so only the last one can be torn.

The first line of each file says what is logged in it. A log of other tables would have gaps nobody sees, so it is
refused.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from serving.changelog.errors import ChangeLogError
from serving.client import StreamEvent

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
FILE_AGE_S_MAX: Final = 86_400.0
"""A file ends after about a day, so that whole days can be removed."""
WRITE_BYTES: Final = 256 * 1024
_SUFFIX: Final = ".jsonl"


class Heading(msgspec.Struct, frozen=True):
    """The first line of a file. ``tables``: those that are logged, sorted; none: all. ``begun_at``: in seconds."""

    keyspace: str
    tables: list[str]
    begun_at: float = 0.0
    kind: str = "log"
    version: int = 1


_heading = msgspec.json.Decoder(Heading)
_event = msgspec.json.Decoder(StreamEvent)
_encode = msgspec.json.Encoder().encode


class LogFiles:
    """The log of ``heading`` in a directory. A context manager; one process at a time has it open.

    ``keep_s``: files that ended longer ago are removed; None: none is. Raises `ChangeLogError`, `OSError`.
    """

    def __init__(
        self,
        directory: Path,
        heading: Heading,
        *,
        keep_s: float | None = None,
        file_bytes_max: int = FILE_BYTES_MAX,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory, self._heading = directory, heading
        self._keep_s, self._file_bytes_max, self._clock = keep_s, file_bytes_max, clock
        self._pending = bytearray()
        self._file = -1
        self._bytes, self._begun_at = 0, 0.0
        self.checkpoint = ""
        """Behind the last event that is in the log; empty: there is none."""
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(directory / f"{heading.keyspace}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise ChangeLogError(
                f"another process writes the log of {heading.keyspace} in {directory}",
                hint="run one for a keyspace and a directory",
                code="log_taken",
            ) from error
        try:
            self._recover()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets others write. What was not synced may be lost, and is told again."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def append(self, event: StreamEvent) -> None:
        """Adds an event, which has a checkpoint. It is surely in the log after the next `sync`."""
        is_old = self._clock() - self._begun_at >= FILE_AGE_S_MAX
        if self._file >= 0 and (is_old or self._bytes + len(self._pending) >= self._file_bytes_max):
            self._end_file()
        if self._file < 0:
            self._begin_file()
        self._add(event)
        self.checkpoint = event.checkpoint

    def sync(self) -> None:
        """What was appended outlives a crash of the machine from now on."""
        if self._file >= 0:
            self._write()
            os.fsync(self._file)

    def _recover(self) -> None:
        """Opens the last file behind its last whole line. A file without any event is removed."""
        files = files_of(self._directory, self._heading.keyspace)
        while files and not self.checkpoint:
            path = files.pop()
            end = 0
            for line_end, line in _whole_lines(path):
                if not end:
                    self._check_heading(path, line)
                elif (checkpoint := _checkpoint_of(line)) is not None:
                    self.checkpoint = checkpoint
                else:
                    break
                end = line_end
            if not self.checkpoint:
                path.unlink()
                continue
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.ftruncate(self._file, end)
            os.fsync(self._file)
            self._bytes = end
        self._prune()

    def _check_heading(self, path: Path, line: bytes) -> None:
        try:
            found = _heading.decode(line)
        except msgspec.DecodeError as error:
            raise ChangeLogError(f"{path} is no change log", hint="write into another directory") from error
        self._begun_at = found.begun_at
        if (found.keyspace, found.tables) != (self._heading.keyspace, self._heading.tables):
            raise ChangeLogError(
                f"{path} is the log of {', '.join(found.tables) or 'all tables'} of {found.keyspace}",
                hint="go on with the same tables, or write into another directory",
            )

    def _begin_file(self) -> None:
        files = files_of(self._directory, self._heading.keyspace)
        number = _number_of(files[-1]) + 1 if files else 1
        path = self._directory / f"{self._heading.keyspace}-{number:016}{_SUFFIX}"
        begun = path.with_suffix(".begun")  # its heading is whole before it has its name
        self._file = os.open(begun, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o666)
        self._bytes, self._begun_at = 0, self._clock()
        self._add(msgspec.structs.replace(self._heading, begun_at=self._begun_at))
        self.sync()
        if os.path.lexists(path):  # nobody who locks the log has made it
            raise ChangeLogError(f"{path} is there already", hint="run one process for a keyspace and a directory")
        begun.rename(path)
        self._sync_directory()
        self._prune()

    def _end_file(self) -> None:
        self.sync()
        os.close(self._file)
        self._file = -1

    def _add(self, line: StreamEvent | Heading) -> None:
        self._pending += _encode(line) + b"\n"
        if len(self._pending) >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        while self._pending:
            written = os.write(self._file, self._pending)
            self._bytes += written
            del self._pending[:written]

    def _prune(self) -> None:
        """Removes what is kept no longer, but never the last file: it says where to go on."""
        if self._keep_s is None:
            return
        for path in files_of(self._directory, self._heading.keyspace)[:-1]:
            if self._clock() - path.stat().st_mtime > self._keep_s:
                path.unlink()

    def _sync_directory(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def files_of(directory: Path, keyspace: str) -> list[Path]:
    """The files of a log, in order; not those of ``shop-eu`` with those of ``shop``."""
    name = re.compile(rf"{re.escape(keyspace)}-[0-9]{{16}}{re.escape(_SUFFIX)}")
    return sorted(path for path in directory.iterdir() if name.fullmatch(path.name))


def _number_of(path: Path) -> int:
    return int(path.stem[-16:])


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that end with LF, each with the place behind it."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield end, line


def _checkpoint_of(line: bytes) -> str | None:
    """The checkpoint of an event; None: the line is torn."""
    try:
        return _event.decode(line).checkpoint or None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
