"""What a schedule does to a cluster beside the faults of one installation: nodes are drained, added, upgraded."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

from lab.blackbox.recording import Recorder
from lab.cluster.rig import FOLLOWER, READY_S_MAX, SOURCE, ClusterStack
from lab.demo.row_traffic import RowTraffic
from lab.faults.disk import Disk
from lab.faults.injector import AFTERMATH_S, Injector
from lab.faults.schedule import Fault

POLL_S: Final = 0.1


class ClusterInjector(Injector):
    """Runs one schedule against a cluster, and writes down when each fault began and ended."""

    def __init__(
        self,
        stack: ClusterStack,
        disk: Disk,
        traffic: RowTraffic,
        recorder: Recorder,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(stack, disk, traffic, seed, say)
        self._cluster, self._recorder = stack, recorder
        self._upgrading = threading.Lock()

    @contextlib.contextmanager
    def _fault(self, fault: Fault) -> Iterator[None]:
        """A rolling upgrade goes on once the process before is back: a drain may take longer than was planned."""
        with self._upgrading if fault.kind == "upgrade" else contextlib.nullcontext(), self._recorded(fault):
            yield

    @contextlib.contextmanager
    def _recorded(self, fault: Fault) -> Iterator[None]:
        began = self._recorder.now()
        with super()._fault(fault):
            yield
        deadline = time.monotonic() + READY_S_MAX
        while fault.target in self._cluster.nodes and not self._cluster.answers(fault.target):  # it starts again
            if time.monotonic() > deadline:
                self.errors.append(f"{fault.target} did not answer again after {fault.kind}")
                break
            time.sleep(POLL_S)
        self._recorder.fault(began, fault.target, fault.kind)

    def _at_role(self, fault: Fault, undo: ExitStack) -> None:
        role = fault.target
        if fault.kind == "join":
            self._restart_role(role)
            undo.callback(self._leave, role)
        elif fault.kind == "drain":
            self._leave(role)
            undo.callback(self._restart_role, role)
        elif fault.kind == "upgrade":
            self._leave(role)
            self._cluster.old.discard(role)
            undo.callback(self._restart_role, role)
        else:
            super()._at_role(fault, undo)

    def _leave(self, role: str) -> None:
        """Drains a node and stops it; what is no node is stopped. A drain may only fail while something else does."""
        process = self._cluster.roles[role].process
        if role not in (SOURCE, FOLLOWER) and process is not None and self._wait_until_started(role):
            failed = self._cluster.drain(role)
            since = time.monotonic() - AFTERMATH_S
            others = [*(each for each in self._now if each != role), *self._ended_after(since, role)]
            if failed and not others:
                self.errors.append(f"{role} was not drained: {failed}")
        with self._lock:
            self._down.add(role)
        self._cluster.stop_role(role)

    def _ended_after(self, since: float, role: str) -> list[str]:
        return [name for name, at in dict(self._ended_at_s).items() if at > since and not name.startswith(f"{role} ")]
