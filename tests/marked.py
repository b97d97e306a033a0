"""Processes that a test has started, at whatever remove: found by a variable of their environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psutil

MARK: Final = "FRESHET_TEST_MARK"


def marked(mark: str) -> list[psutil.Process]:
    """All processes that were started with ``mark`` in their environment, and still run."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.status() != psutil.STATUS_ZOMBIE and each.environ().get(MARK) == mark:
                found.append(each)
    return found


def runs(mark: str, name: str) -> bool:
    """Whether a program whose name has ``name`` in it runs with the mark."""
    for each in marked(mark):
        with suppress(psutil.Error):  # it may have ended since
            if name in each.name():
                return True
    return False


@contextmanager
def mark_of(*parts: object) -> Iterator[str]:
    """A mark that no other test has; at the end whatever still runs with it is killed."""
    mark = "-".join(map(str, (os.getpid(), *parts)))
    try:
        yield mark
    finally:
        for each in marked(mark):
            with suppress(psutil.Error):
                each.kill()
