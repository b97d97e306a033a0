"""How fast this machine runs plain Python right now: the yardstick logged around each round.

Absolute figures don't travel between machines or moments; a round whose two calibrations differ by much was disturbed.
"""

from __future__ import annotations

from time import perf_counter

STEPS = 1_000_000
PASSES = 5


def spin() -> float:
    """Million steps a second of a fixed integer loop on one core: the best of five passes, about 0.3 s in all."""
    return max(_pass() for _ in range(PASSES))


def _pass() -> float:
    value = 1
    began = perf_counter()
    for _ in range(STEPS):
        value = (value * 1_103_515_245 + 12_345) & 0x7FFFFFFF
    return STEPS / (perf_counter() - began) / 1e6
