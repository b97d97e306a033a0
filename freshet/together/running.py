"""Several ``freshet`` processes as one: their lines with a prefix, started again when they die, ended together.

The processes have sessions of their own, so Ctrl-C reaches only this one, which then ends them. They are killed by the
kernel if this one is killed (`freshet.local.process`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

from freshet.local.process import spawn
from freshet.together.parts import Part
from tokens.errors import FreshetError

POLL_S: Final = 0.05
SETTLED_S: Final = 10.0
"""A part that has lived so long has started well."""
BACKOFF_S, BACKOFF_S_MAX = 1.0, 30.0
STOP_TIMEOUT_S: Final = 30.0


class PartFailed(FreshetError):
    """The consumer or the front could not start; code ``part_failed``. Its own lines said why."""

    code = "part_failed"


class _Running:
    """One part: its process, or when it is started again."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.process: subprocess.Popen[bytes] | None = None
        self.reader: threading.Thread | None = None
        self.started_at = 0.0
        self.start_at = 0.0
        self.backoff_s = BACKOFF_S
        self.has_settled = False


class Together:
    """Runs parts until it is told to stop. ``say(name, line)`` gets each line of a part, and what happens to it."""

    def __init__(
        self,
        parts: Sequence[Part],
        options: Sequence[str],
        say: Callable[[str, str], None],
        cwd: Path | None = None,
        tend: Callable[[], None] = lambda: None,
    ) -> None:
        """``options``: those of ``freshet`` itself, before the command (``--config``). ``tend`` is called often."""
        self._parts = [_Running(part) for part in parts]
        self._options = tuple(options)
        self._say = say
        self._cwd = cwd
        self._tend_more = tend
        self._asked_to_stop = 0

    def stop(self) -> None:
        """Ends all. Asked a second time, it kills what has not ended. May be called by any thread."""
        self._asked_to_stop += 1

    def run(self) -> None:
        """Returns when it was told to stop and all have ended. Raises `PartFailed`; then all have ended, too."""
        try:
            while not self._asked_to_stop:
                for each in self._parts:
                    self._tend(each)
                self._tend_more()
                time.sleep(POLL_S)
        finally:
            self._end()

    def _tend(self, each: _Running) -> None:
        now = time.monotonic()
        if each.process is None:
            if now >= each.start_at and not self._asked_to_stop:
                self._start(each, now)
        elif each.process.poll() is not None:
            self._note_end(each, now)
        elif now - each.started_at >= SETTLED_S:
            each.has_settled, each.backoff_s = True, BACKOFF_S

    def _start(self, each: _Running, now: float) -> None:
        command = [sys.executable, "-m", "freshet", *self._options, *each.part.arguments]
        each.started_at = now
        each.process = spawn(command, env={**os.environ, **dict(each.part.environment)}, cwd=self._cwd)
        assert each.process.stdout is not None
        each.reader = threading.Thread(
            target=_repeat, args=(each.process.stdout, each.part.name, self._say), name=each.part.name, daemon=True
        )
        each.reader.start()

    def _note_end(self, each: _Running, now: float) -> None:
        assert each.process is not None
        code = each.process.returncode
        _finish(each)
        each.process = None
        if each.part.needed and not each.has_settled:
            raise PartFailed(
                f"freshet {' '.join(each.part.arguments)} ended with exit code {code} while it was starting",
                hint=f"the lines above that begin with {each.part.name!r} say why",
            )
        self._say(each.part.name, f"ended with exit code {code}; starting it again in {each.backoff_s:.0f} s")
        each.start_at, each.backoff_s = now + each.backoff_s, min(each.backoff_s * 2, BACKOFF_S_MAX)

    def _end(self) -> None:
        """SIGTERM to all at once, then SIGKILL to those that are still there after a while or at the second request."""
        running = [each for each in self._parts if each.process is not None]
        for each in running:
            _signal(each, signal.SIGTERM)
        asked, deadline = self._asked_to_stop, time.monotonic() + STOP_TIMEOUT_S
        while any(each.process is not None and each.process.poll() is None for each in running):
            if time.monotonic() > deadline or self._asked_to_stop > max(asked, 1):
                for each in running:
                    if each.process is not None and each.process.poll() is None:
                        self._say(each.part.name, "did not end, killing it")
                        _signal(each, signal.SIGKILL)
                break
            time.sleep(POLL_S)
        for each in running:
            _finish(each)


def _signal(each: _Running, number: int) -> None:
    if each.process is not None and each.process.poll() is None:
        each.process.send_signal(number)


def _finish(each: _Running) -> None:
    """Waits for the process, and for its last lines."""
    if each.process is not None:
        each.process.wait()
    if each.reader is not None:
        each.reader.join(1.0)  # a worker that outlives it for a moment has the pipe, too


def _repeat(lines: IO[bytes], name: str, say: Callable[[str, str], None]) -> None:
    with lines:
        for line in lines:
            say(name, line.decode(errors="replace").rstrip("\r\n"))
