"""The audit: one line in the log for each administrative action, and for each request that was refused.

A line says who, what, on which keyspace, and the outcome; never a secret, a key of a row or an image. Refused requests
can come as fast as a network carries them, so lines of the same caller and outcome are told a few at a time; the next
line says how many were left out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from stream.access.bucket import Bucket

log = structlog.get_logger(__name__)

LINES_PER_S: Final = 1.0
LINES_AT_ONCE: Final = 10.0
"""Of one caller and outcome."""
PAIRS_MAX: Final = 1_000
"""Callers with outcomes that are told apart; beyond it all others are one."""
TEXT_MAX: Final = 200
DONE: Final = "done"
BEGUN: Final = "begun"
"""Of what takes long: how it ends is in the log besides."""
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")


@dataclass(slots=True)
class _Told:
    bucket: Bucket
    left_out: int = 0


class Audit:
    """Writes the lines of one listener, called ``door`` in them."""

    def __init__(self, door: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._door, self._clock = door, clock
        self._told: dict[tuple[str, str], _Told] = {}

    def note(self, who: str, what: str, keyspace: str, outcome: str) -> None:
        """``outcome``: `DONE`, `BEGUN`, or the code with which it was refused or failed."""
        now = self._clock()
        told = self._of(who, outcome, now)
        if not told.bucket.take(now):
            told.left_out += 1
            return
        left_out = {"left_out": told.left_out} if told.left_out else {}
        told.left_out = 0
        write = log.info if outcome in (DONE, BEGUN) else log.warning
        write(
            "audit", door=self._door, who=_text(who), what=_text(what), keyspace=_text(keyspace), outcome=outcome,
            **left_out,
        )  # fmt: skip

    def _of(self, who: str, outcome: str, now: float) -> _Told:
        pair = who, outcome
        found = self._told.get(pair)
        if found is None:
            if len(self._told) >= PAIRS_MAX:
                quiet = [each for each, told in self._told.items() if not told.left_out and told.bucket.is_full(now)]
                for each in quiet:
                    del self._told[each]
            if len(self._told) >= PAIRS_MAX:
                pair = "", ""
            found = self._told.setdefault(pair, _Told(Bucket(LINES_PER_S, LINES_AT_ONCE)))
        return found


def _text(value: str) -> str:
    """As it may stand in a line: a caller chooses it."""
    return _UNPRINTABLE.sub("?", value[:TEXT_MAX])
