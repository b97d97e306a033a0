"""The cache directory for downloaded servers, and file locks for processes that share it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
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
