"""Steps of the wall clock as one of our processes sees it: libfaketime, preloaded, reads the offset from a file.

Only the wall clock steps, for whoever reads it by clock_gettime(2) or time(2), as Python does; the monotonic clock goes
on. Waits keep their length, which a real step would change for those until a wall time (docs/operating/faults.md).
Needs the dev dependency ``libfaketime``, whose wheel holds a library for Linux on x86-64; elsewhere there are no steps.
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
"""A process reads its offset anew once a second."""
STEPS_S: Final = {"forward": 5_400.0, "back": -45.0, "far_back": -129_600.0}
"""Kind → step in seconds: an hour and a half, three quarters of a minute, a day and a half."""

_NOT_FAKED: Final = (
    b"gettimeofday",
    b"timespec_get",
    b"pthread_cond_init",
    b"pthread_cond_timedwait",
    b"pthread_cond_destroy",
)
"""librdkafka and RocksDB take the end of a wait from these, and glibc compares it with the real clock: waits would last
for hours, or not at all. So a copy of the library lacks them, and both live by the real clock.
"""
_PROBE_S: Final = 1_000_000
_PROBE_TIMEOUT_S: Final = 30.0
_SHARED: Final = ("/dev/shm/sem.faketime_sem_{pid}", "/dev/shm/faketime_shm_{pid}")
"""What the library leaves behind of each process that is killed."""


class WallClocks:
    """The clocks of processes, each with a file in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.missing = ""
        """Why there are no steps; "" if there are."""
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
        """What a process has to be started with so that its clock can step."""
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
        """From now on the process's clock is ``offset_s`` ahead of the machine's."""
        beside = self._file(role).with_suffix(".new")
        beside.write_text(f"{offset_s:+.3f}\n")
        os.replace(beside, self._file(role))

    def forget(self, pid: int) -> None:
        """Clears away what a process that has ended left in shared memory."""
        for name in _SHARED:
            with contextlib.suppress(OSError):
                os.unlink(name.format(pid=pid))

    def _file(self, role: str) -> Path:
        return self._directory / f"{role}.offset"

    def _works(self) -> bool:
        """Whether a process that is started so has the clock that it was given."""
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
            pid, said = done.stdout.split()
        except (OSError, subprocess.SubprocessError, ValueError):
            return False
        self.forget(int(pid))
        return abs(float(said) - time.time() - _PROBE_S) < _PROBE_TIMEOUT_S * 2


def find_library() -> Path | None:
    """The library in the wheel of ``libfaketime``, if it is installed."""
    found = find_spec("libfaketime")
    if found is None or found.origin is None:
        return None
    library = Path(found.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    return library if library.exists() and sys.platform == "linux" else None
