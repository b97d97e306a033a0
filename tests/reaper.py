"""Kills what a session of tests has left behind, once the session has ended in whatever way, also by a kill -9.

Most servers are killed by the kernel with whoever started them (`freshet.local.process`). Not so what a test starts by
itself, what detaches, and what changes its user. All of them inherit a variable of the session's environment. This
module is also the program that waits for the session's end, beside it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

SESSION: Final = "FRESHET_TEST_SESSION"
GIVE_UP_S: Final = 20.0
"""What has not ended so long after its kill hangs in the kernel."""


def begin() -> None:
    """For a session of tests. A worker of xdist, or a session within a test, belongs to the outermost one."""
    if SESSION in os.environ or sys.platform != "linux":
        return
    session = f"{os.getpid()}-{time.time_ns()}"
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), session]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    os.environ[SESSION] = session


def left(session: str) -> list[int]:
    """The pids of all processes that were started in the session and run."""
    wanted, found = f"{SESSION}={session}".encode(), []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with suppress(OSError):  # it has ended, or is another user's
                if wanted in (place / "environ").read_bytes().split(b"\0"):
                    found.append(int(place.name))
    return found


def _wait_and_kill(pid: int, session: str) -> None:
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    give_up = time.monotonic() + GIVE_UP_S
    while (found := left(session)) and time.monotonic() < give_up:
        for each in found:
            with suppress(OSError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    _wait_and_kill(int(sys.argv[1]), sys.argv[2])
