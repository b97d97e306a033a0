"""What a contributor is told is what is checked."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
[LONGEST] = re.findall(r"subject is one sentence of at most (\d+) char", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))


@pytest.mark.parametrize(
    ("message", "is_taken"),
    [
        ("x" * int(LONGEST), True),
        ("x" * int(LONGEST) + "y", False),
        ("A sentence with a stop.", False),
        (f"A sentence\n\n{'A body has lines of any length. ' * 20}", True),
    ],
)
def test_the_hook_takes_the_subjects_that_the_page_allows(message: str, is_taken: bool, tmp_path: Path) -> None:
    """One with another bound than is practised is switched off, and checks nothing any more."""
    [entry] = [each["entry"] for each in HOOKS if each["id"] == "subject"]
    (tmp_path / "message").write_text(message + "\n")
    checked = subprocess.run([*shlex.split(entry), tmp_path / "message"], capture_output=True, check=False)
    assert (checked.returncode == 0) is is_taken
