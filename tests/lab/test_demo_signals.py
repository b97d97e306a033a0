"""A signal ends the demo in order at any moment."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_while_the_demo_starts_is_no_error(number: int, code: int, word: str) -> None:
    """The servers that are starting are stopped, and the exit code is that of any interrupted command."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "freshet", "demo"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    line = demo.stdout.readline()
    assert "starting Kafka and MariaDB in" in line
    demo.send_signal(number)
    _, said = demo.communicate(timeout=PATIENCE_S)
    assert "error[" not in said
    assert said.splitlines()[-1] == word
    assert demo.returncode == code
    assert not Path(line.split(" in ")[1].split(" ")[0]).exists()
