"""How fast this machine runs plain Python now: a calibration that is logged around each round.

Absolute figures cannot be compared between machines or times. If a round's two calibrations differ much, the round was
disturbed.
"""

from __future__ import annotations

from time import perf_counter

STEPS = 1_000_000
PASSES = 5


def spin() -> float:
    """Million steps per second of a fixed integer loop on one core: the best of five passes, which take about 0.3 s."""
    return max(_pass() for _ in range(PASSES))


def _pass() -> float:
    value = 1
    began = perf_counter()
    for _ in range(STEPS):
        value = (value * 1_103_515_245 + 12_345) & 0x7FFFFFFF
    return STEPS / (perf_counter() - began) / 1e6
