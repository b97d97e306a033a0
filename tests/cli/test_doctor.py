"""The doctor: what is missing, and how to get it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from freshet import cli
from freshet.checks import machine
from freshet.checks.finding import Check, healthy
from freshet.local import java
from freshet.local.java import inspect_java


@pytest.fixture(autouse=True)
def forget_java() -> Iterator[None]:
    """Clears the cached findings about Java between tests."""
    inspect_java.cache_clear()
    yield
    inspect_java.cache_clear()


def fake_java(directory: Path, version: str) -> Path:
    """A program that says it is a Java of some version; returns its JAVA_HOME."""
    (directory / "bin").mkdir(parents=True)
    path = directory / "bin" / "java"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --list-modules ] && echo java.base@{version}\necho \'openjdk version "{version}"\' >&2\n'
    )
    path.chmod(0o755)
    return directory


def named(checks: list[Check], name: str) -> Check:
    """The check of a name."""
    return next(check for check in checks if check.name == name)


def test_a_machine_without_java_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Java the check is ``missing`` and names the package to install."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "WELL_KNOWN", ())
    checks = machine.examine(tmp_path)
    assert named(checks, "java").status == "missing"
    assert "openjdk-17-jre-headless" in named(checks, "java").fix
    assert not healthy(checks)


@pytest.mark.parametrize(
    ("version", "status"),
    [("17.0.9", "ok"), ("21", "ok"), ("11.0.2", "missing"), ("24", "missing"), ("1.8.0_402", "missing")],
)
def test_only_java_17_and_21_are_accepted(
    version: str, status: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Java 17 and 21 are ok, others missing, and the finding names the version."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", version)))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(java, "WELL_KNOWN", ())
    check = named(machine.examine(tmp_path), "java")
    assert check.status == status
    assert version in check.found


def test_a_wrong_java_home_does_not_hide_a_good_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A usable Java outside JAVA_HOME is used, with a warning about JAVA_HOME."""
    good = fake_java(tmp_path / "good", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(good / "bin"))
    monkeypatch.setattr(java, "WELL_KNOWN", ())
    checks = machine.examine(tmp_path)
    assert str(good) in named(checks, "java").found
    assert named(checks, "JAVA_HOME").status == "warning"


def test_a_trimmed_java_is_noticed_before_spark_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A runtime without jdk.incubator.vector is a warning that names Spark."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jre", "17.0.9")))
    check = named(machine.examine(tmp_path), "jdk.incubator.vector")
    assert check.status == "warning"
    assert "Spark" in check.found


def test_a_cache_that_cannot_be_written_is_essential(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache that cannot be written is ``missing``, and the fix names FRESHET_CACHE."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("FRESHET_CACHE", str(tmp_path / "file" / "cache"))
    check = named(machine.examine(tmp_path), "cache")
    assert check.status == "missing"
    assert "FRESHET_CACHE" in check.fix


def test_the_doctor_says_what_will_be_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty cache is ok, and the finding announces the download of the first start."""
    monkeypatch.setenv("FRESHET_CACHE", str(tmp_path / "empty"))
    check = named(machine.examine(tmp_path), "cache")
    assert check.status == "ok"
    assert "MB) will be fetched" in check.found


def test_packages_that_are_installed_can_be_imported() -> None:
    """Every dependency of the project is checked under its import name."""
    [check] = machine._packages()
    assert check.status == "ok", check.found


def test_json_and_exit_code_agree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`freshet doctor --json` is one object; exit code 1 exactly if it is not healthy."""
    monkeypatch.chdir(tmp_path)
    assert cli.run(["doctor", "--json"]) == (0 if json.loads(capsys.readouterr().out)["healthy"] else 1)
    monkeypatch.setenv("FRESHET_CACHE", os.devnull)
    assert cli.run(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["healthy"] is False
