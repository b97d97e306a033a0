"""Signals that come while nothing may be raised (threads are started, modules imported), or while output is written."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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

    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, hold) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if held:
            signal.raise_signal(held[0])


def write_whole() -> None:
    """Buffer what PYTHONUNBUFFERED leaves raw, by lines: of a write that a signal cuts short the rest is lost there."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(getattr(stream, "buffer", None), io.RawIOBase):
            whole = io.BufferedWriter(stream.buffer)
            setattr(sys, name, io.TextIOWrapper(whole, stream.encoding, stream.errors, line_buffering=True))
