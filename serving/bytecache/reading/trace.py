"""A trace of the reads, as JSON lines: to replay them with another size or policy (``freshet bytes replay``).

Sampled by file, so that a file is wholly in the trace or not at all. ``anonymous``: names are hashed with a salt that
is not kept.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from serving.bytecache.reading.source import Identity

LINES_MAX: Final = 100_000
FILES_MAX: Final = 10


class TraceLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One read. ``at``: s since 1970; ``hit``: bytes that were here."""

    at: float
    file: str
    size: int
    start: int
    end: int
    hit: int


class Trace:
    """Writes ``PATH``, then ``PATH.1`` and so on: of `FILES_MAX` files the oldest is written over. Thread-safe.

    What its disk refuses is missing in it, and never reaches a reader.
    """

    def __init__(self, path: Path, *, share: float = 1.0, anonymous: bool = False) -> None:
        self._path = path
        self._below = int(share * 2**64)
        self._salt = secrets.token_bytes(16) if anonymous else b""
        self._lock = threading.Lock()
        self._lines = self._turn = 0
        self._file = path.open("ab", buffering=0)

    def record(self, path: str, identity: Identity, start: int, end: int, hit: int) -> None:
        """One read."""
        name = f"{path}\0{identity.version}"
        if xxhash.xxh3_64_intdigest(name.encode()) > self._below:
            return
        if self._salt:
            name = xxhash.xxh3_128_hexdigest(self._salt + name.encode())
        line = msgspec.json.encode(TraceLine(time.time(), name, identity.size, start, end, hit)) + b"\n"
        with self._lock, suppress(OSError):
            if self._lines >= LINES_MAX:
                self._lines = 0  # also if it can't be done now
                self._rotate()
            self._file.write(line)
            self._lines += 1

    def after_fork(self) -> None:
        """In the child, which writes on at the end of the same file."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Ends it."""
        self._file.close()

    def _rotate(self) -> None:
        self._turn = self._turn % (FILES_MAX - 1) + 1
        with suppress(FileNotFoundError):
            os.replace(self._path, self._path.with_name(f"{self._path.name}.{self._turn}"))
        full, self._file = self._file, self._path.open("wb", buffering=0)
        full.close()
