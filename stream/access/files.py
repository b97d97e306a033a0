"""Whether files have changed, by what the file system says of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

Signature = tuple[tuple[int, int, int], ...]


def signature_of(paths: Iterable[str | Path]) -> Signature:
    """Changes when a file does, vanishes or comes back. Never raises."""
    return tuple(map(_state, paths))


def _state(path: str | Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino
