"""The cache directory for downloaded servers and what is made of them, which processes share by file locks."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """The cache directory: ``FRESHET_CACHE``, else ``$XDG_CACHE_HOME/freshet``, else ``~/.cache/freshet``."""
    if given := os.environ.get("FRESHET_CACHE"):
        return Path(given).expanduser().resolve()
    xdg = os.environ.get("XDG_CACHE_HOME")
    root = Path(xdg).expanduser() if xdg else Path.home() / ".cache"
    return root.resolve() / "freshet"


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds the file lock ``path``, which is created if absent. The kernel releases it if the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)


def made_once(directory: Path, make: Callable[[Path], None]) -> Path:
    """``directory``; the first of the processes that want it has ``make`` fill a new one, which takes its place."""
    if not directory.is_dir():
        with exclusive(directory.with_name(f"{directory.name}.lock")):
            if not directory.is_dir():
                staging = directory.with_name(f"{directory.name}.new")
                shutil.rmtree(staging, ignore_errors=True)
                make(staging)
                staging.rename(directory)
    return directory
