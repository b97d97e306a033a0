"""Signals that come while nothing may be raised (threads are started, modules imported), or while output is written.

A handler runs within whatever it interrupts. What it raises is lost where that swallows errors, and a lock that is held
there is one for which it waits for ever.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Final

SIGNALS = (signal.SIGINT, signal.SIGTERM)
IMPORTED_S: Final = 0.01
"""How often it is looked whether an import has ended amid which a signal came."""


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raises ``KeyboardInterrupt``; amid an import when that has ended. A handler of signals.

    Native modules (fastavro's for one) swallow what is raised while they begin, and classes turn it into a
    ``RuntimeError``. Whoever handles the signal by then is told of it; `raise_deferred` if nobody will.
    """
    if not _is_amid_import(frame):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise KeyboardInterrupt
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
    signal.setitimer(signal.ITIMER_REAL, IMPORTED_S)


def raise_deferred() -> None:
    """Raises ``KeyboardInterrupt`` if a signal that came amid an import has not struck yet.

    For a process that ends, or becomes another program, which would get the alarm.
    """
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    if left_s:
        raise KeyboardInterrupt


def _is_amid_import(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls ``stop`` at each SIGTERM and SIGINT, in a thread of its own, where it may wait for locks.

    It raises nothing.
    """
    told: SimpleQueue[bool] = SimpleQueue()  # its `put` may interrupt itself

    def heed() -> None:
        while told.get():
            stop()

    thread = threading.Thread(target=heed, name="signals", daemon=True)
    try:
        with _handled_by(lambda *_: told.put(True), SIGNALS):
            thread.start()
            yield
    finally:
        told.put(False)
        if thread.ident is not None:
            thread.join()


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None], numbers: Iterable[signal.Signals]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier or signal.SIG_DFL)


@contextmanager
def signals_held(at_most: int | None = None) -> Iterator[None]:
    """SIGINT and SIGTERM that come meanwhile strike at its end. Does nothing outside of the main thread.

    An exception of a signal handler within `threading.Thread.start` becomes a KeyError (CPython's ``_limbo``), and the
    thread runs on without its pool. ``at_most``: one more than so many signals ends the process at once, for what may
    never come to its end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, _: object) -> None:
        held.append(number)
        if at_most is not None and len(held) > at_most:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]  # as after nohup
    try:
        with _handled_by(hold, heeded):
            yield
    finally:
        if held:
            signal.raise_signal(held[0])


def write_whole() -> None:
    """Buffer what PYTHONUNBUFFERED leaves raw, by lines: of a write that a signal cuts short the rest is lost there."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(getattr(stream, "buffer", None), io.RawIOBase):
            whole = io.BufferedWriter(stream.buffer)
            setattr(sys, name, io.TextIOWrapper(whole, stream.encoding, stream.errors, line_buffering=True))
