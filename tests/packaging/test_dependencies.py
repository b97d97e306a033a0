"""Declared dependencies are exactly the imported packages. Exceptions are listed in the pyproject.toml files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import serving.client

ROOT = Path(__file__).parents[2]


def complaints(directory: Path) -> str:
    """What deptry finds in a directory, by the ``pyproject.toml`` there; "" for nothing."""
    command = [sys.executable, "-m", "deptry", "--no-ansi", "."]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def test_the_application_declares_what_it_imports() -> None:
    """The application declares every package that it imports and no others."""
    assert complaints(ROOT) == ""


def pins(lock: Path) -> dict[str, str]:
    """Package → version, of a lock file."""
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", lock.read_text(encoding="utf-8"), re.M))


def test_the_image_has_the_versions_that_are_tested() -> None:
    """Its lock is a part of the one for development: without tools, and without Spark, which is half of all bytes."""
    tested, image = pins(ROOT / "requirements.lock"), pins(ROOT / "docker" / "requirements.lock")
    assert image.items() <= tested.items()
    assert {"confluent-kafka", "fastavro", "rocksdict", "pydantic"} <= image.keys()
    assert not {"pyspark", "pytest", "mypy", "testcontainers"} & image.keys()


def test_the_image_installs_pinned_debian_packages_only() -> None:
    """What `apt-get install` is given stands in the lock, where each package has its version, the JRE among them."""
    commands = re.findall(r"apt-get install ([^&]*)", (ROOT / "docker" / "Dockerfile").read_text())
    given = [word for command in commands for word in command.replace("\\\n", " ").split() if word[:2] != "--"]
    assert given == ["$(grep", "'^#'", "/tmp/debian.lock)"]
    lines = (ROOT / "docker" / "debian.lock").read_text().splitlines()
    locked = [line for line in lines if not line.startswith("#")]
    assert [line for line in locked if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]+=[0-9][0-9A-Za-z.+:~-]*", line)] == []
    assert sum(line.startswith("openjdk-17-jre-headless=") for line in locked) == 1
    assert len({line.partition("=")[0] for line in locked}) == len(locked) > 20


def test_the_client_declares_what_it_imports_and_imports_no_room() -> None:
    """The client declares every package that it imports, and imports no room but `tokens`."""
    assert complaints(ROOT / "serving" / "client") == ""


def test_tokens_can_be_carried_under_another_name() -> None:
    """Modules of `tokens` import each other relatively, since in the client's wheel it is `freshet_client._tokens`."""
    files = (ROOT / "tokens").rglob("*.py")
    assert [file.name for file in files if re.search(r"^\s*(from|import) tokens\b", file.read_text(), re.M)] == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import msgspec\nimport rich", "'rich' imported"),
        ("import os", "'msgspec' defined as a dependency but not used"),
    ],
)
def test_an_undeclared_or_unused_package_would_be_found(tmp_path: Path, code: str, found: str) -> None:
    """deptry reports an undeclared and an unused package."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\ndependencies = ["msgspec"]\n')
    (tmp_path / "module.py").write_text(code)
    assert found in complaints(tmp_path)


def test_the_client_is_in_the_environment_that_make_setup_makes() -> None:
    """The pages' scripts run with `.venv` as they are: they import the distribution, not our folder."""
    import freshet_client

    assert set(freshet_client.__all__) == set(serving.client.__all__)
    assert freshet_client.FreshetClient.__module__ == "freshet_client.client"
