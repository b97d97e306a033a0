"""The kernel: threads, time, and an event loop for each process."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

from lab.simulation.kernel.loop import VirtualLoop
from lab.simulation.kernel.network import Network
from lab.simulation.kernel.switching import Process, Switching

EPOCH_S: Final = 1_800_000_000.0
"""The wall clock when a history begins."""


class Kernel(Switching):
    """Runs one history. Implements `lab.simulation.kernel.waits.Waits`."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.network = Network(self)
        self._loops: dict[Process, VirtualLoop] = {}
        self.clock_errors_s: dict[str, float] = {}
        """Process → by how much its wall clock is ahead of the history's; negative: behind."""

    @property
    def time(self) -> float:
        """The wall clock of the running process."""
        return EPOCH_S + self.now + self.clock_errors_s.get(self.current_process.name, 0.0)

    @property
    def loop(self) -> VirtualLoop:
        """The event loop of the running process."""
        return self.loop_of(self.current_process)

    def loop_of(self, process: str | Process) -> VirtualLoop:
        """The event loop of a process. It runs as soon as something is to do."""
        of = process if isinstance(process, Process) else self.process(process)
        found = self._loops.get(of)
        if found is None:
            found = self._loops[of] = VirtualLoop(self, of, self.network)
        return found

    def run_task(self, process: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Starts ``work`` as a task of the process's event loop. An error that it ends with goes to `errors`."""
        loop = self.loop_of(process)

        def start() -> None:
            loop.create_task(work()).add_done_callback(loop.judge)

        loop.call_soon(start)

    def close(self) -> None:
        """Ends all threads and tasks."""
        super().close()
        for loop in self._loops.values():
            loop.forget()
        self._loops = {}
