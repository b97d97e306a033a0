"""Walks README in a clean clone with an empty HOME, and prints a recording of it: times, sizes, what was shown."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from lab.walk.page import Walk, walk_of
from lab.walk.terminal import Terminal

READY_S: Final = 1_800.0
POLL_S: Final = 0.1
MIB: Final = 1 << 20


class Failed(Exception):
    """A line of the page did not do what it should."""


def main(
    repository: Annotated[str, typer.Argument(help="What is cloned.")] = ".",
    directory: Annotated[Path | None, typer.Option(help="Where to; it must be empty, and stays.")] = None,
) -> None:
    """Walk README, and print the recording."""
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        _walk(repository, directory.resolve())
        return
    with tempfile.TemporaryDirectory(prefix="walk-") as made:
        _walk(repository, Path(made))


def _walk(repository: str, directory: Path) -> None:
    home, clone = directory / "home", directory / "freshet"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FRESHET_", "XDG_"))}
    environment |= {"HOME": str(home)}
    environment.pop("VIRTUAL_ENV", None)
    began = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", repository, str(clone)], check=True)
    walk = walk_of((clone / "README.md").read_text(encoding="utf-8"))
    with Terminal(clone, environment) as first, Terminal(clone, environment) as second:
        first.paste("set -m")  # else what runs in the background would not hear of Ctrl-C
        for line in walk.prepare:
            at = time.monotonic()
            _pasted(first, line)
            print(f"[{time.monotonic() - at:7.1f} s] $ {line}", flush=True)
        _, place = first.paste("echo $PWD; echo $PATH")
        tried, path = place.split()
        second.paste(f"cd {tried}; export PATH={path}")
        print(f"set up, with the clone: {time.monotonic() - began:.0f} s", flush=True)
        own_row_s = _everything(walk, first, second, Path(tried))
    print(f"from the clone to the first own row: {own_row_s - began:.0f} s")
    kept = {".venv": clone / ".venv", "uv's cache": home / ".cache/uv", "servers": home / ".cache/freshet"}
    for name, where in kept.items():
        print(f"{name}: {_megabytes(where)} MB")
    print(f".venv and uv's cache together: {_megabytes(clone / '.venv', home / '.cache/uv')} MB")


def _everything(walk: Walk, first: Terminal, second: Terminal, tried: Path) -> float:
    """Starts everything and walks; when the first own row came from the cache, by the monotonic clock."""
    log, own_row_s, began = tried / "up.log", 0.0, time.monotonic()
    _, pid = first.paste(f"{walk.up.partition('#')[0].strip()} > up.log 2>&1 & echo $!")
    try:
        _until_ready(log, began)
        for line in walk.lines:
            print(f"[{time.monotonic() - began:6.1f} s] $ {line}", flush=True)
            shown = _pasted(second, line)
            for each in filter(str.strip, shown.splitlines()):
                print(f"  {each}", flush=True)
            if not own_row_s and re.search(r"^served_from +cache", shown, re.MULTILINE):
                own_row_s = time.monotonic()
    finally:
        os.kill(int(pid), signal.SIGINT)
    deadline = time.monotonic() + READY_S
    while "| stopped" not in log.read_text(errors="replace"):
        if time.monotonic() > deadline:
            raise Failed("Ctrl-C does not end it")
        time.sleep(POLL_S)
    return own_row_s


def _until_ready(log: Path, began: float) -> None:
    """Prints the lines of `up` itself as they come."""
    told = 0
    while True:
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        for line in lines[told:]:
            if line.startswith("up "):
                print(f"[{time.monotonic() - began:6.1f} s] {line}", flush=True)
        told = len(lines)
        if any("everything is ready" in line for line in lines):
            return
        if time.monotonic() - began > READY_S or any(line.startswith("error[") for line in lines):
            raise Failed("\n".join(lines[-20:]))
        time.sleep(POLL_S)


def _pasted(terminal: Terminal, line: str) -> str:
    code, shown = terminal.paste(line)
    if code:
        raise Failed(f"{line}\n{shown}")
    return shown


def _megabytes(*places: Path) -> int:
    """What files take; one that has several names counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for place in places:
        for folder, _, names in os.walk(place):
            for name in names:
                found = os.lstat(os.path.join(folder, name))
                sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(sizes.values()) // MIB


if __name__ == "__main__":
    typer.run(main)
