"""Ctrl-C at a moment: what a command does then, and what it leaves."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.consumers.consuming import until
from tests.marked import marked
from tests.patience import PATIENCE_S

PYTHON_STARTS = ("Could not import runpy module", "Fatal Python error: init_")
"""What Python says if a signal comes while it starts itself, before any of our lines: it ends with 1 then."""
LOADED = ("/freshet/cli.py", "/site-packages/")
"""A traceback of what comes before our first line has none of these."""
INTERRUPTED = 128 + signal.SIGINT


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
    is_service: bool,
    by_itself: Collection[int] = (),
) -> str:
    """Runs ``freshet`` with ``command`` until the moment; what it printed. ``mark`` is in its ``environment``.

    Nothing of it may be left, and it ends as `check_end` says. ``by_itself``: what it may end with without a signal.
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
    if code not in by_itself:
        check_end(code, said, about, is_service=is_service)
    return said


def check_end(code: int, said: str, about: str, *, is_service: bool) -> None:
    """A service has done its work (0), and says that it stopped; another command says ``interrupted`` (130). No more.

    Before our first line of Python, and after the last one, the signal ends it.
    """
    if any(start in said for start in PYTHON_STARTS):
        return
    if code == -signal.SIGINT:
        assert not any(each in said for each in LOADED), (about, said)
        return
    last = (said.splitlines() or [""])[-1]
    assert "Traceback" not in said, (about, said)
    assert not any(line.startswith("error[") for line in said.splitlines()), (about, said)
    assert (code, is_last_word(last, is_service=is_service)) == (0 if is_service else INTERRUPTED, True), (about, said)


def is_last_word(line: str, *, is_service: bool) -> bool:
    """Whether a line says that it ended at the user's will; of a service as a line of its log, or what it has done."""
    if not is_service:
        return line == "interrupted"
    has_done = line.startswith("exported ")
    return has_done or line == "stopped" or line.endswith("| stopped") or '"event": "stopped"' in line


@contextmanager
def up(settings: Path) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """A running `freshet up`, and what it has printed. At the end nothing of it may be left."""
    log = settings.with_name(f"up-{time.monotonic_ns()}.log")
    with log.open("wb") as out:
        command = [sys.executable, "-m", "freshet", "--config", str(settings), "up"]
        process = subprocess.Popen(command, stderr=out, stdout=out)
    try:
        yield process, lambda: log.read_text(errors="replace")
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
