"""Ctrl-C at a moment: what a command does then, and what it leaves."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.consumers.consuming import until
from tests.marked import marked
from tests.patience import PATIENCE_S

PYTHON_STARTS = ("Could not import runpy module", "Fatal Python error: init_")
"""What Python says if a signal comes while it starts itself, before any of our lines: it ends with 1 then."""


class Moment(NamedTuple):
    """Seconds after the start, and until the signal comes again, amid the shutdown; None: it doesn't."""

    after_s: float
    again_s: float | None

    @classmethod
    def of(cls, rng: random.Random, most_s: float) -> Moment:
        """Amid imports, or later, as often; half of them twice."""
        return cls(
            rng.choice((rng.uniform(0, min(3, most_s)), rng.uniform(3, most_s))), rng.choice((None, rng.uniform(0, 2)))
        )


def interrupted(
    command: Sequence[str],
    moment: Moment,
    mark: str,
    about: str,
    *,
    cwd: Path,
    environment: Mapping[str, str],
    codes: Collection[int],
) -> str:
    """Runs ``freshet`` with ``command`` until the moment; what it printed. ``mark`` is in its ``environment``.

    Nothing of it may be left, its exit code is one of ``codes``, and it prints no traceback. Before its first line of
    Python the signal ends it.
    """
    about, log = f"{about}, {' '.join(command)}, {moment}", cwd / "said.log"
    with log.open("wb") as out:
        line = [sys.executable, "-m", "freshet", *command]
        process = subprocess.Popen(line, cwd=cwd, env={**os.environ, **environment}, stdout=out, stderr=out)
        began = time.monotonic()
        for seconds in (moment.after_s, None if moment.again_s is None else moment.after_s + moment.again_s):
            if seconds is not None:
                until(lambda at=seconds: process.poll() is not None or time.monotonic() - began > at, "the moment")  # type: ignore[misc]
                process.send_signal(signal.SIGINT)
        code = process.wait(PATIENCE_S)
        until(lambda: not marked(mark), f"nothing is left: {about}: {marked(mark)}")
    said = log.read_text(errors="replace")
    if not any(start in said for start in PYTHON_STARTS):
        assert "Traceback" not in said or code == -signal.SIGINT, (about, said)
        assert code in (*codes, -signal.SIGINT), (about, code, said)
    return said
