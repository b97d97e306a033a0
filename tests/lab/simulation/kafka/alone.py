"""Time for a test that has only one thread: it passes while that waits, and only then."""

from __future__ import annotations

import random
from collections.abc import Callable

from lab.simulation.kafka.cluster import Cluster


class Alone:
    """As `lab.simulation.kernel.waits.Waits`, for one thread, which may speak for several processes in turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.current = "test"

    def wait(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Nobody else runs, so what is not true yet comes with time or never."""
        if ready():
            return True
        assert timeout_s is not None, "nobody would ever end this wait"
        assert timeout_s < 1e6, "nobody would ever end this wait"
        self.now += timeout_s
        return ready()

    def let_pass(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds


def alone(seed: int = 1) -> tuple[Cluster, Alone]:
    """A cluster, and the time that it lives in."""
    waits = Alone()
    return Cluster(waits, random.Random(seed)), waits
