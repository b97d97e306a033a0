"""Directories for what a process needs until it ends, below TMPDIR. What a killed one leaves, the next one removes."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Final

_LOCK_NAME: Final = "lock"
_HELD_NAME: Final = "held"


@contextmanager
def temporary_directory(what: str) -> Iterator[Path]:
    """A new directory below ``freshet-<what>-…``, removed at the end of the block, or by the next one for ``what``.

    The kernel releases the lock of one whose process ends, in whatever way. Raises ``OSError``.
    """
    _remove_abandoned(what)
    outer = Path(tempfile.mkdtemp(prefix=f"freshet-{what}-"))
    try:
        lock = os.open(outer / "new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        outer.rmdir()
        raise
    try:
        flock(lock, LOCK_EX | LOCK_NB)
        os.rename(outer / "new", outer / _LOCK_NAME)  # so nobody finds it before it is locked
        held = outer / _HELD_NAME
        held.mkdir()
        yield held
    finally:
        with suppress(OSError):  # somebody still writes below it: the next one removes it
            _remove(outer)
        os.close(lock)


def _remove_abandoned(what: str) -> None:
    """Removes this user's directories for ``what`` that no process has locked."""
    for outer in Path(tempfile.gettempdir()).glob(f"freshet-{what}-*"):
        with suppress(OSError):
            found = outer.lstat()
            if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):  # others may put links into TMPDIR
                continue
            lock = os.open(outer / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                flock(lock, LOCK_EX | LOCK_NB)
                _remove(outer)
            finally:
                os.close(lock)


def _remove(outer: Path) -> None:
    """The lock goes last: what can't be removed is tried again. Raises ``OSError``."""
    with suppress(FileNotFoundError):
        shutil.rmtree(outer / _HELD_NAME)
    shutil.rmtree(outer)
