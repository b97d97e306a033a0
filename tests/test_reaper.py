"""Nothing outlives a session of tests, not even what detached from it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.reaper import SESSION, left

A_SESSION = f"""
import os, subprocess, sys, time
from tests.reaper import begin
begin()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(os.environ[{SESSION!r}], flush=True)
time.sleep(600)
"""


def test_what_detached_from_a_session_ends_with_it() -> None:
    """A kill -9 of the session leaves no process of its, whatever session of the system that is in."""
    environment = {name: value for name, value in os.environ.items() if name != SESSION}
    with subprocess.Popen(
        [sys.executable, "-c", A_SESSION],
        env=environment,
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        session = process.stdout.readline().strip()
        deadline = time.monotonic() + PATIENCE_S
        while len(left(session)) != 1:  # a child has no environment for an instant
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
    while left(session):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_this_session_has_a_reaper() -> None:
    """So that what an interrupted session leaves is killed; a worker of xdist has that of the whole session."""
    assert os.environ[SESSION]
