"""How a process that answers for long sets itself up: its threads, its garbage collection, its open files."""

from __future__ import annotations

import gc
import resource
import sys
import threading
import time
from collections.abc import Generator, Iterable
from typing import Final, TypeVar

Row = TypeVar("Row")

SWITCH_INTERVAL_S: Final = 0.0001
"""How long a thread that folds or reads a source may keep the interpreter while the thread that answers wants it.

Python's default is fifty times that, and each turn of the event loop may have to wait for it.
"""

TURN_S: Final = 0.05
"""How long a thread waits for its turn at most: what has the turn may wait for a network."""

ROWS_A_SPELL: Final = 8
"""Rows that a thread works on before it rests, if others wait for answers: a fifth of a millisecond or so."""

REST_S: Final = 0.0003
"""How long it rests then."""

_turn: Final = threading.Lock()
_others_wait_until = 0.0


def others_wait(until: float) -> None:
    """Who works on many rows rests in between until then (`time.monotonic`): not only he who asked waits."""
    global _others_wait_until
    _others_wait_until = until


def at_work_on(rows: Iterable[Row]) -> Generator[Row]:
    """The rows, on which a thread works for many milliseconds, one thread at a time.

    Whichever thread is next gets the interpreter, so with several at work the event loop waits several times for each
    of its turns, and together they are no faster.

    The event loop gives the interpreter away at each call of the kernel, a dozen times for one answer, and has to wait
    for it each time that a thread is at work. So while others wait for answers the thread rests more than it works.
    """
    has_turn = _turn.acquire(timeout=TURN_S)
    try:
        for number, row in enumerate(rows, 1):
            yield row
            if not number % ROWS_A_SPELL and time.monotonic() < _others_wait_until:
                time.sleep(REST_S)
    finally:
        if has_turn:
            _turn.release()


def prepare_to_answer() -> None:
    """Call it once, when all is imported.

    What there is now is left out of all collections. Requests and frames make many objects that live for a moment.
    Python's defaults look at everything after each few hundred thousand of these: 40 ms in which nobody is answered,
    and a fifth of a batch read's processor time. So that is seldom; and what is young is looked at a little at a time,
    since refused requests leave cycles: with fifty thousand objects at once a thread, or the loop, took 20 to 60 ms.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 5, 5_000)


def raise_open_files() -> int:
    """Raises the number of files that the process may have open to what the system allows it; returns that.

    A shell's, or systemd's, is 1,024 as long as nobody asks for more, and what is allowed is mostly a multiple. Some
    systems refuse what they say is allowed: macOS, and Linux if ``fs.nr_open`` was lowered. Then it stays as it is.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (ValueError, OSError):
        return now
    return most
