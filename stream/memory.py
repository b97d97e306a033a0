"""Garbage collection of a process that runs for long: what was imported stays, and is not looked at again."""

from __future__ import annotations

import gc


def collect_seldom() -> None:
    """Leaves what there is now out of all collections, and has them run seldom: call it once, when all is imported.

    Requests and frames make many objects that live for a moment. Python's defaults look at everything after each few
    hundred thousand of these: 40 ms in which nobody is answered, and a fifth of a batch read's processor time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
