"""How a process that answers for long sets up Python's interpreter: its threads and its garbage collection."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SWITCH_INTERVAL_S: Final = 0.0001
"""How long a thread that folds or reads a source may keep the interpreter while the thread that answers wants it.

Python's default is fifty times that, and each turn of the event loop may have to wait for it.
"""

TURN_S: Final = 0.05
"""How long a thread waits for its turn at most: what has the turn may wait for a network."""

_turn: Final = threading.Lock()


@contextmanager
def at_work() -> Iterator[None]:
    """Work of many milliseconds in a thread, one thread at a time.

    Whichever thread is next gets the interpreter, so with several at work the event loop waits several times for each
    of its turns, and together they are no faster.
    """
    has_turn = _turn.acquire(timeout=TURN_S)
    try:
        yield
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
