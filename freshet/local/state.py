"""Which servers ``freshet local up`` left running: a file with their pids, and how to be sure it is they."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from freshet.local.errors import LocalServerError

STOP_TIMEOUT_S = 30.0
START_TIME_TOLERANCE_S = 2.0  # the kernel counts from boot, and the clock may have been stepped since


@dataclass(frozen=True, slots=True)
class Running:
    """A server started by ``local up``: ``pid`` alone may be another process by now, so its start time too."""

    name: str
    pid: int
    started_s: float
    address: str
    data_dir: str
    log: str

    def process(self) -> psutil.Process | None:
        """The process, if it still is this server: same pid, start time, and its data directory as argument."""
        try:
            process = psutil.Process(self.pid)
            same_time = abs(process.create_time() - self.started_s) < START_TIME_TOLERANCE_S
            same_data = any(self.data_dir in argument for argument in process.cmdline())
            return process if same_time and same_data and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None
        except psutil.AccessDenied:
            return None  # another user's process has taken the pid

    def stop(self) -> bool:
        """SIGTERM, then SIGKILL at the deadline; False if it was not running."""
        process = self.process()
        if process is None:
            return False
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_S)
        return True


def running(name: str, pid: int, address: str, data_dir: Path, log: Path) -> Running:
    """The record of a server that was just started."""
    return Running(name, pid, psutil.Process(pid).create_time(), address, str(data_dir), str(log))


def read_state(path: Path) -> list[Running]:
    """The servers in the state file, none if there is no file; LocalServerError if it cannot be read."""
    if not path.exists():
        return []
    try:
        return [Running(**record) for record in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise LocalServerError(
            f"cannot read {path}: {error}", hint="stop its servers by hand (their pids are in it), then remove it"
        ) from None


def write_state(path: Path, servers: Iterable[Running]) -> None:
    """Replace the state file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps([asdict(server) for server in servers], indent=2) + "\n")
    os.replace(scratch, path)
