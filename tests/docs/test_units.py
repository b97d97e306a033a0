"""The units of systemd in ``docker/systemd/``: commands and settings that exist, and nothing malformed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from freshet.settings import Settings
from tests.docs.test_docs import NO_SETTINGS, fields_of, problem_of

DIRECTORY = Path(__file__).parents[2] / "docker" / "systemd"
UNITS = sorted(DIRECTORY.glob("*.service"))


def values_of(unit: Path, key: str) -> list[str]:
    """What a unit says of ``key``, which may stand there more than once."""
    return re.findall(rf"^{key}=(.*)$", unit.read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("unit", UNITS, ids=lambda each: each.stem)
def test_it_starts_a_command_that_exists(unit: Path) -> None:
    """As the command line has it; the instance stands for a keyspace."""
    [command] = values_of(unit, "ExecStart")
    assert problem_of(command.replace("/opt/freshet/.venv/bin/freshet", "freshet").replace("%i", "shop")) == ""


@pytest.mark.parametrize("unit", UNITS, ids=lambda each: each.stem)
def test_its_environment_is_settings(unit: Path) -> None:
    """Each variable is one that Freshet reads, and none of them is a secret: units can be read by anybody."""
    names = [value.partition("=")[0] for value in values_of(unit, "Environment")]
    assert names
    known = {f"FRESHET_{name.upper().replace('.', '__')}" for name in fields_of(Settings)} | NO_SETTINGS
    assert set(names) <= known
    assert not re.search("PASSWORD|TOKEN|SECRET", " ".join(names))


@pytest.mark.parametrize("unit", UNITS, ids=lambda each: each.stem)
def test_it_is_started_again_for_ever_and_keeps_its_files_to_itself(unit: Path) -> None:
    """An outage of an hour must not be the end; stores hold rows."""
    assert values_of(unit, "Restart") == ["always"]
    assert values_of(unit, "StartLimitIntervalSec") == ["0"]
    assert (values_of(unit, "UMask"), values_of(unit, "StateDirectoryMode")) == (["0077"], ["0700"])


def test_the_drop_in_that_is_shown_takes_the_units_own_command_away() -> None:
    """Without the empty line first there are two commands, which systemd refuses for all services but of one kind."""
    page = (DIRECTORY.parents[1] / "docs/operating/running.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"^```ini\n(\[Service\]\n.*?)^```", page, re.M | re.S)
    section, *commands = shown.splitlines()
    assert (section, commands[0], len(commands)) == ("[Service]", "ExecStart=", 2)
    assert problem_of(commands[1].removeprefix("ExecStart=").replace("/opt/freshet/.venv/bin/freshet", "freshet")) == ""


def test_systemd_finds_nothing_wrong_with_them(tmp_path: Path) -> None:
    """By its own check where it is installed; elsewhere each line is one of a section, a key or a comment."""
    for unit in [*UNITS, DIRECTORY / "freshet.target"]:
        text = unit.read_text(encoding="utf-8")
        assert [line for line in text.splitlines() if not re.match(r"$|#|\[\w+\]$|[A-Z]\w+=", line)] == []
        (tmp_path / unit.name).write_text(text.replace("/opt/freshet/.venv/bin/freshet", "/bin/true"))
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        names = [str(tmp_path / unit.name.replace("@", "@shop")) for unit in UNITS]
        done = subprocess.run([analyze, "verify", *names], capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == ""
