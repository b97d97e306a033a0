"""The files of a change log: lines of JSON, only ever added to, and what a crash may leave of the last one.

A line is whole or it is none: it ends with LF, and it is JSON. Each has the checkpoint behind its event, so the last
whole line says where the log goes on, and nothing else has to be kept with it. A file is synced before the next one
begins, so only the last one can be torn. Of what a crash left behind its last whole line, a line without LF is cut off,
and all else is set aside; the stream tells it again. A line that was synced and can't be read is damage, and no crash:
the log is refused, and nothing is changed.

The first line of each file says what is logged in it. A log of other tables, or that tells less of them, would have
gaps nobody sees, so it is refused; so is another format.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import structlog

from consumers.store.directory import names_a_directory
from consumers.store.manifest import sync_directory
from serving.changelog.errors import ChangeLogError
from serving.client import StreamEvent

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
FILE_AGE_S_MAX: Final = 86_400.0
"""A file ends after about a day, so that whole days can be removed."""
WRITE_BYTES: Final = 256 * 1024
MARKS: Final = frozenset({"watermark", "end"})
"""Kinds of events after which the log is synced before it goes on."""
_SUFFIX: Final = ".jsonl"


class Heading(msgspec.Struct, frozen=True):
    """The first line of a file. ``tables``: those that are logged, sorted; none: all. ``begun_at``: in seconds.

    ``checkpoint``: behind the file before, so that a file without any event also says where the log goes on.
    ``included``: what is told beside rows with a key as they are now, of ``before`` and ``keyless``; None: the version
    that wrote it did not say.
    """

    keyspace: str
    tables: list[str]
    begun_at: float = 0.0
    checkpoint: str = ""
    kind: str = "log"
    version: int = 1
    included: list[str] | None = None

    def is_of(self, other: Heading) -> bool:
        """Whether a log with this one goes on with the other, which is of this version."""
        is_same = self.included is None or self.included == other.included
        return is_same and (self.keyspace, self.tables) == (other.keyspace, other.tables)

    def __str__(self) -> str:
        words = "".join(f" --{each}" for each in self.included or ())
        return f"{', '.join(self.tables) or 'all tables'} of {self.keyspace}{words and ', with'}{words}"


class _Format(msgspec.Struct, frozen=True):
    """What a heading of any version has."""

    kind: str
    version: int

    def __str__(self) -> str:
        return f"{self.kind}, version {self.version}"


_FORMAT: Final = _Format("log", 1)

_format = msgspec.json.Decoder(_Format)
_heading = msgspec.json.Decoder(Heading)
_event = msgspec.json.Decoder(StreamEvent)
_encode = msgspec.json.Encoder().encode
_log = structlog.get_logger(__name__)


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
        if not names_a_directory(heading.keyspace):
            raise ChangeLogError(f"{heading.keyspace!r} is no name of a keyspace", hint="letters, digits, - and _")
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(directory / f"{heading.keyspace}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            if isinstance(error, BlockingIOError):
                raise ChangeLogError(
                    f"another process writes the log of {heading.keyspace} in {directory}",
                    hint="run one for a keyspace and a directory",
                    code="log_taken",
                ) from error
            raise ChangeLogError(  # as on a network's file system without its lock service
                f"{directory}: the file system does not lock the log of {heading.keyspace}: {error.strerror}",
                hint="name a directory on a disk of this machine",
                code="log_failed",
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
        is_full = self._bytes + len(self._pending) >= self._file_bytes_max
        is_full = is_full or self._clock() - self._begun_at >= FILE_AGE_S_MAX
        if self._file >= 0 and is_full and self.checkpoint:  # each file but the first has one in its heading
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
        """Opens the last file behind its last whole line."""
        for path in files_of(self._directory, self._heading.keyspace)[-1:]:
            end = self._read(path)
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.ftruncate(self._file, end)
            os.fsync(self._file)
            self._bytes = end
        self._prune()

    def _read(self, path: Path) -> int:
        """Takes over what a file says. Returns where its last whole line ends; what can't be read there is set aside.

        Where a mark and another line follow, the line was synced, so no crash has torn it. And where no line before it
        says where to go on, the log would begin anew, without those that follow. Both are refused.
        """
        lines = _whole_lines(path)
        end, first = next(lines, (0, b""))
        self._check_heading(path, first)
        unreadable, has_mark = 0, False
        for number, (line_end, line) in enumerate(lines, 2):
            event = _event_of(line)
            if event is None:
                unreadable = unreadable or number
            elif not unreadable:
                self.checkpoint, end = event.checkpoint, line_end
            elif has_mark or not self.checkpoint:
                raise ChangeLogError(
                    f"line {unreadable} of {path} can't be read, and lines behind it can",
                    hint="check the disk; put a backup of the file in its place, or write into another directory",
                )
            else:
                has_mark = event.kind in MARKS
        if not self.checkpoint and _number_of(path) > 1:
            raise ChangeLogError(
                f"{path} does not say where the log goes on",
                hint="put the file before it in its place, or write into another directory",
            )
        if unreadable:
            self._set_aside(path, end, unreadable)
        return end

    def _set_aside(self, path: Path, end: int, number: int) -> None:
        """Copies what is behind ``end``, from line ``number`` on, into a file of its own, before it is cut off."""
        names = (path.with_suffix(f".torn-{count}") for count in itertools.count(1))
        aside = next(each for each in names if not os.path.lexists(each))
        with path.open("rb") as file, aside.open("xb") as copy:
            file.seek(end)
            shutil.copyfileobj(file, copy)
            copy.flush()
            os.fsync(copy.fileno())
        sync_directory(self._directory)
        _log.warning(
            "the end of a log can't be read: it was set aside, and the log goes on in front of it",
            file=str(path),
            line=number,
            set_aside=str(aside),
        )

    def _check_heading(self, path: Path, line: bytes) -> None:
        try:
            written = _format.decode(line)
            found = _heading.decode(line) if written == _FORMAT else None
        except (ValueError, RecursionError) as error:
            raise ChangeLogError(f"{path} is no change log", hint="write into another directory") from error
        if found is None:
            raise ChangeLogError(
                f"{path} is in the format {written}, not {_FORMAT}",
                hint="go on with the version of Freshet that wrote it, or write into another directory",
            )
        self._begun_at, self.checkpoint = found.begun_at, found.checkpoint
        if not found.is_of(self._heading):
            raise ChangeLogError(
                f"{path} is the log of {found}", hint="go on with the same words, or write into another directory"
            )

    def _begin_file(self) -> None:
        files = files_of(self._directory, self._heading.keyspace)
        number = _number_of(files[-1]) + 1 if files else 1
        path = self._directory / f"{self._heading.keyspace}-{number:016}{_SUFFIX}"
        begun = path.with_suffix(".begun")  # its heading is whole before it has its name
        self._file = os.open(begun, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND, 0o666)
        self._bytes, self._begun_at = 0, self._clock()
        self._add(msgspec.structs.replace(self._heading, begun_at=self._begun_at, checkpoint=self.checkpoint))
        self.sync()
        if os.path.lexists(path):  # nobody who locks the log has made it
            raise ChangeLogError(f"{path} is there already", hint="run one process for a keyspace and a directory")
        begun.rename(path)
        sync_directory(self._directory)
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
        """Removes what is kept no longer, but never the last file: it says where to go on, in its heading at least."""
        if self._keep_s is None:
            return
        for path in files_of(self._directory, self._heading.keyspace)[:-1]:
            if self._clock() - path.stat().st_mtime > self._keep_s:
                path.unlink()


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


def _event_of(line: bytes) -> StreamEvent | None:
    """The event in a line; None: it can't be read, or does not say where the log goes on."""
    try:
        event = _event.decode(line)
    except (ValueError, RecursionError):
        return None
    return event if event.checkpoint else None
