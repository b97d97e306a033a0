"""Steps of the wall clock of one of our processes: a preloaded libfaketime reads the offset from a file.

Only clock_gettime(2) and time(2), which Python calls, see the step; the monotonic clock does not step. Waits until a
wall time keep their length, unlike with a real step (docs/operating/faults.md). Needs the dev dependency
``libfaketime``, whose wheel has a library for Linux on x86-64 only; elsewhere clocks do not step.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Final

SEEN_AFTER_S: Final = 1
"""How often a process reads its offset, in seconds."""
STEPS_S: Final = {"forward": 5_400.0, "back": -45.0, "far_back": -129_600.0}
"""Kind → step in seconds: an hour and a half, three quarters of a minute back, a day and a half back."""

_NOT_FAKED: Final = (
    b"gettimeofday",
    b"timespec_get",
    b"pthread_cond_init",
    b"pthread_cond_timedwait",
    b"pthread_cond_destroy",
)
"""Functions that must not be faked. librdkafka and RocksDB compute the end of a wait with them, and glibc compares it
with the real clock: a wait would last for hours, or not at all. So a copy of the library hides these names.
"""
_PROBE_S: Final = 1_000_000
_PROBE_TIMEOUT_S: Final = 30.0
_SHARED: Final = ("/dev/shm/sem.faketime_sem_{pid}", "/dev/shm/faketime_shm_{pid}")
"""Shared memory that the library leaves behind for each killed process."""


class WallClocks:
    """The wall clocks of our processes. The offset of each is a file in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.missing = ""
        """Why clocks cannot step here; "" if they can."""
        self._library = directory / "libfaketime.so.1"
        found = find_library()
        if found is not None:
            code = found.read_bytes()
            for name in _NOT_FAKED:
                code = code.replace(name + b"\0", name.upper() + b"\0")
            self._library.write_bytes(code)
        if found is None or not self._works():
            self.missing = "libfaketime can't be loaded here"

    def environment(self, role: str) -> dict[str, str]:
        """The environment variables with which a process's clock can step."""
        if self.missing:
            return {}
        file = self._file(role)
        if not file.exists():
            self.step(role, 0.0)
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_CACHE_DURATION": str(SEEN_AFTER_S),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def step(self, role: str, offset_s: float) -> None:
        """Sets the process's wall clock ``offset_s`` ahead of the machine's."""
        beside = self._file(role).with_suffix(".new")
        beside.write_text(f"{offset_s:+.3f}\n")
        os.replace(beside, self._file(role))

    def forget(self, pid: int) -> None:
        """Removes the shared memory that an exited process has left."""
        for name in _SHARED:
            with contextlib.suppress(OSError):
                os.unlink(name.format(pid=pid))

    def _file(self, role: str) -> Path:
        return self._directory / f"{role}.offset"

    def _works(self) -> bool:
        """Whether a probe process sees the clock that it was given."""
        self.step("probe", _PROBE_S)
        probe = [sys.executable, "-I", "-S", "-c", "import os, time; print(os.getpid(), time.time())"]
        try:
            done = subprocess.run(
                probe,
                env={**os.environ, **self.environment("probe")},
                capture_output=True,
                text=True,
                timeout=_PROBE_TIMEOUT_S,
                check=True,
            )
            pid, now_s = done.stdout.split()
        except (OSError, subprocess.SubprocessError, ValueError):
            return False
        self.forget(int(pid))
        return abs(float(now_s) - time.time() - _PROBE_S) < _PROBE_TIMEOUT_S * 2


def find_library() -> Path | None:
    """The library in the wheel of ``libfaketime``; None if it is not installed or not for this system."""
    found = find_spec("libfaketime")
    if found is None or found.origin is None:
        return None
    library = Path(found.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    return library if library.exists() and sys.platform == "linux" else None
