"""The walk of README.md, pasted line by line: it works, and shows something at each step."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from freshet.local.process import free_ports
from lab.walk.page import walk_of
from lab.walk.terminal import Terminal
from tests.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "README.md").read_text(encoding="utf-8")
WALK = walk_of(PAGE)
STEP_S = PATIENCE_S * 4
"""Spark is among the steps."""


def test_the_page_has_the_walk() -> None:
    """The first block ends with what the test starts in its stead; the second is what it pastes."""
    assert WALK.prepare[0].startswith("make setup ")
    assert WALK.up.startswith("freshet up --local ")
    assert WALK.lines[0].startswith("freshet local sql")
    assert WALK.lines[-1].startswith("freshet verify shop")


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A shell's environment in an empty directory in which `freshet up --local` has said that everything is ready."""
    [port] = free_ports(1)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = {**os.environ, "PATH": path, "FRESHET_SERVE__PORT": str(port)}
    log = tmp_path / "up.log"
    with log.open("wb") as out:
        process = subprocess.Popen(["freshet", "up", "--local"], cwd=tmp_path, env=shell, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + STEP_S
        while "everything is ready" not in log.read_text(errors="replace"):
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.1)
        yield shell
    finally:
        process.terminate()
        code = process.wait(STEP_S)
    assert code == 0
    assert subprocess.run(["freshet", "local", "status"], cwd=tmp_path, env=shell, check=False).returncode == 1


def answers(shown: str) -> tuple[str, str, str]:
    """Who answered, how fresh, and the total, of what `freshet get` printed."""
    fields = dict(re.findall(r"^(\w+) +(.+)$", shown, re.MULTILINE))
    return fields["served_from"], fields["freshness"], fields["total"]


@pytest.mark.integration
@pytest.mark.slow
def test_the_walk_of_the_page_shows_what_it_says(tmp_path: Path, environment: dict[str, str]) -> None:
    """Cache, source after DDL, cache again, the own write proved, the same by HTTP, and a rebuild that agrees."""

    def paste(line: str) -> str:
        code, shown = terminal.paste(line.replace(":8480/", f":{environment['FRESHET_SERVE__PORT']}/"))
        assert code == 0, (line, shown)
        return shown

    def ask_until(line: str, source: str) -> tuple[str, str, str]:
        """Pasted again while the cache is on its way, as a person would."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := answers(paste(line)))[0] != source:
            assert time.monotonic() < deadline, found
        return found

    with Terminal(tmp_path, environment) as terminal:
        create, insert, get, alter, get_again, get_third, update, after, token, curl, verify = WALK.lines
        paste(create)
        assert "lamp" in paste(insert)
        assert ask_until(get, "cache") == ("cache", "eventual", "39.90")
        assert "0-1-" in paste(alter)
        assert answers(paste(get_again))[1:] == ("eventual", "39.90")
        assert ask_until(get_third, "cache") == ("cache", "eventual", "39.90")
        assert paste(update).startswith("0-1-")
        assert answers(paste(after))[1:] == ("fresh", "35.00")
        assert paste(token).startswith("v2.")
        told = paste(curl)
        assert '"freshness":"fresh"' in told
        assert '"total":"35.00"' in told
        assert "equal" in paste(verify)
        deadline = time.monotonic() + PATIENCE_S  # on a busy machine the page may be drawn without an owner's answer
        while not re.search(r"verified at [^<]+ UTC: equal<", page := paste("curl -s http://127.0.0.1:8480/")):
            assert time.monotonic() < deadline, re.findall(r"verified at [^<]*|of \d partitions[^<]*", page)
