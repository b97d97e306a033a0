"""A terminal into which lines are pasted, one after the other."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

_END = "--- ended "


class Terminal:
    """A bash, whose errors and progress are this process's. A context manager, which ends it."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shell.kill()
        self._shell.communicate()

    def paste(self, line: str) -> tuple[int, str]:
        """The exit code of a line, and what it printed."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{line}\ncode=$?; echo; echo '{_END}'$code\n")
        shown: list[str] = []
        for each in self._shell.stdout:
            if each.startswith(_END):
                return int(each.removeprefix(_END)), "".join(shown).rstrip("\n")
            shown.append(each)
        raise EOFError(f"the shell has ended at {line!r}: {''.join(shown)}")
