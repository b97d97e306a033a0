"""What a simulated server must know of the kernel: the time, who is asking, and how to block the asker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Waits(Protocol):
    """The part of `lab.simulation.kernel.scheduler.Kernel` that simulated Kafka, MariaDB and files use."""

    @property
    def now(self) -> float:
        """Virtual monotonic time in seconds. It moves only while every thread waits."""

    @property
    def current(self) -> str:
        """The name of the process whose thread or task runs; "" for the driver of the history."""

    def wait(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Blocks the calling thread until ``ready()`` or the timeout; other threads run meanwhile.

        Returns ``ready()``. Even if it is true at once, another thread may run first: each call is a place where
        threads may interleave. A killed process's threads never return from here.
        """
