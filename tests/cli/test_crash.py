"""A process that a library ends tells where it was: nobody can ask it later."""

from __future__ import annotations

import signal
import subprocess
import sys

CRASHING = """
import ctypes
import freshet.cli
from freshet.__main__ import main

freshet.cli.main = lambda: ctypes.string_at(0)
main()
"""


def test_a_bad_access_to_memory_is_told_with_the_place_of_each_thread() -> None:
    """Without that the log would just end."""
    done = subprocess.run([sys.executable, "-c", CRASHING], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    assert "most recent call first" in done.stderr
