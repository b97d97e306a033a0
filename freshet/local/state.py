"""The state file of ``freshet local up``: which servers it started, and whether a process is still one of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from freshet.local.errors import LocalServerError

STOP_TIMEOUT_S = 30.0
START_TIME_TOLERANCE_S = 2.0  # the system tells when it was booted in whole seconds


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A server started by ``local up``. ``started_s``: since boot; ``pid`` may belong to another process by now."""

    name: str
    pid: int
    started_s: float
    address: str
    data_dir: str
    log: str

    def process(self) -> psutil.Process | None:
        """The server's process, or None: one with the same pid, start time and data directory among its arguments."""
        try:
            process = psutil.Process(self.pid)
            same_time = abs(_started_s(process) - self.started_s) < START_TIME_TOLERANCE_S
            same_data = any(self.data_dir in argument for argument in process.cmdline())
            return process if same_time and same_data and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None
        except psutil.AccessDenied:
            return None  # another user's process has taken the pid

    def stop(self) -> bool:
        """SIGTERM, then SIGKILL after `STOP_TIMEOUT_S`. False if the server was not running."""
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


def record_of(name: str, pid: int, address: str, data_dir: Path, log: Path) -> ServerRecord:
    """The record of a server that was just started."""
    return ServerRecord(name, pid, _started_s(psutil.Process(pid)), address, str(data_dir), str(log))


def _started_s(process: psutil.Process) -> float:
    """Seconds from boot to its start. The time of day would be another one once the clock is stepped."""
    return float(process.create_time() - psutil.boot_time())


def read_state(path: Path) -> list[ServerRecord]:
    """The servers in the state file; empty if there is no file. Raises `LocalServerError` if it cannot be read."""
    if not path.exists():
        return []
    try:
        return [ServerRecord(**record) for record in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise LocalServerError(
            f"cannot read {path}: {error}",
            hint="stop its servers by hand (their pids are in the file), then remove the file",
        ) from None


def write_state(path: Path, servers: Iterable[ServerRecord]) -> None:
    """Replaces the state file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps([asdict(server) for server in servers], indent=2) + "\n")
    os.replace(scratch, path)
