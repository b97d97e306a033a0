"""A Chromium for tests: FRESHET_TEST_CHROMIUM, else one on PATH, else Debian's, unpacked in the cache."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from freshet.local import debian
from tests.patience import PATIENCE_S
from tests.servers.choice import used

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ON_PATH: Final = ("chromium", "chromium-browser", "google-chrome")
PACKAGE, SUITE = "chromium-headless-shell", "trixie"
"""Chromium without windows, and so without what draws them: two thirds of the bytes."""
HOME: Final = Path("usr/lib/chromium")


def can_be_had() -> bool:
    """Whether this machine has one, or can fetch one."""
    has_own = bool(os.environ.get("FRESHET_TEST_CHROMIUM")) or any(map(shutil.which, ON_PATH))
    return has_own or debian.is_cached(PACKAGE, SUITE) or debian.is_available()


@contextmanager
def chromium() -> Iterator[Browser | None]:
    """A running browser; None if there can be none."""
    if not can_be_had():
        used["chromium"] = "NOT RUN: no FRESHET_TEST_CHROMIUM, none on PATH, no apt-get to fetch one with"
        yield None
        return
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="freshet-chromium-") as directory, sync_playwright() as playwright:
        program, environment = _program(Path(directory))
        # No sandbox: Chromium refuses one to root, and it visits nothing but a front of ours.
        browser = playwright.chromium.launch(
            executable_path=program,
            env={**os.environ, **environment},
            chromium_sandbox=False,
            timeout=PATIENCE_S * 1_000,
        )
        used["chromium"] += f", {browser.version}"
        try:
            yield browser
        finally:
            browser.close()


def _program(directory: Path) -> tuple[str, dict[str, str]]:
    if given := os.environ.get("FRESHET_TEST_CHROMIUM"):
        used["chromium"] = f"given by FRESHET_TEST_CHROMIUM ({given})"
        return given, {}
    for name in ON_PATH:
        if found := shutil.which(name):
            used["chromium"] = found
            return found, {}
    used["chromium"] = f"{PACKAGE} of Debian {SUITE}"
    root = debian.unpacked(PACKAGE, SUITE)
    return str(_script(root, directory)), {"FONTCONFIG_SYSROOT": str(root)}


def _script(root: Path, directory: Path) -> Path:
    """A script that runs the tree's browser with the tree's libraries.

    Chromium looks for its files beside what the kernel runs, which is the loader, so the loader lies there, too. Its
    own processes it would start as that alone: it is told to take the script.
    """
    loader, option, libraries, program = debian.command(root, str(HOME / PACKAGE))
    libraries += f":{libraries}/pulseaudio"  # which is found by an absolute path otherwise
    beside = root / HOME / "loader"
    if not beside.exists():
        staging = directory / "loader"
        shutil.copy2(loader, staging)
        shutil.move(staging, beside)
    script = directory / "chromium"
    command = shlex.join([str(beside), option, libraries, program])
    script.write_text(f'#!/bin/sh\nexec {command} --browser-subprocess-path="$0" --no-zygote "$@"\n')
    script.chmod(0o755)
    return script
