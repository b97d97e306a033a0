"""Histories over several processes, which end with the one that started them, in whatever way that ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeVar

from freshet.signals import signals_held

Part = TypeVar("Part")
Result = TypeVar("Result")


def mapped(work: Callable[[Part], Result], parts: Iterable[Part], jobs: int) -> Generator[Result, None, None]:
    """``map(work, parts)`` over ``jobs`` processes; with one job in this process.

    Who closes it, or is interrupted, does not wait for what is under way: that ends at once.
    """
    if jobs <= 1:
        yield from map(work, parts)
        return
    context = get_context("spawn")
    told, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with, initargs=(told,))
    try:
        with signals_held():
            results = pool.map(work, parts)
        yield from results
        pool.shutdown()
    finally:
        held.close()  # ends the processes that still run
        pool.shutdown(cancel_futures=True)
        told.close()


def _end_with(told: Connection) -> None:
    """Called first in each process, which ends when the other end of ``told`` is closed, also by a kill -9."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, too, and by its end these
    threading.Thread(target=_wait_for_end, args=(told,), name="parent", daemon=True).start()


def _wait_for_end(told: Connection) -> None:
    with suppress(EOFError, OSError):
        told.recv()  # nothing is ever said
    os._exit(1)
