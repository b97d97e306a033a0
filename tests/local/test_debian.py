"""Where packages of Debian are fetched from, and that they run with their own libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from freshet.local import debian
from freshet.local.errors import ArtifactError


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "sources.list",
            "# deb http://old.example/debian s main\ndeb [arch=amd64] http://m.example/debian s main\n",
        ),
        ("sources.list.d/debian.sources", "Types: deb\nURIs: http://m.example/debian\nSuites: stable\n"),
        ("sources.list.d/a.list", "deb http://m.example/debian-security s main\ndeb http://m.example/debian/ s main\n"),
    ],
)
def test_the_mirror_is_the_one_that_this_machine_uses(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both forms of lists are read; comments, security updates and other archives are passed over."""
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "other.list").write_text("deb https://x.example/apt s main\n")
    (tmp_path / name).write_text(text)
    monkeypatch.setattr(debian, "SOURCES", tmp_path)
    assert debian._mirror().rstrip("/") == "http://m.example/debian"


def test_a_machine_without_debian_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No list names an archive of Debian, or there is no apt-get: the error says to give a running server."""
    monkeypatch.setattr(debian, "SOURCES", tmp_path)
    with pytest.raises(ArtifactError) as caught:
        debian._mirror()
    assert "running server" in caught.value.hint
    monkeypatch.setattr(debian, "KEYRING", tmp_path)
    assert not debian.is_available()
    monkeypatch.setattr(debian, "KEYRING", tmp_path / "none")
    monkeypatch.setenv("FRESHET_CACHE", str(tmp_path / "cache"))
    assert not debian.is_available()
    with pytest.raises(ArtifactError, match="can't be had here"):
        debian.unpacked("hello", "sid")


def test_what_a_machine_prefers_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default release or pins in its apt.conf would find no package of another suite."""
    (tmp_path / "sources.list").write_text("deb http://m.example/debian s main\n")
    monkeypatch.setattr(debian, "SOURCES", tmp_path)
    monkeypatch.setattr(debian, "is_available", lambda: True)
    monkeypatch.setenv("FRESHET_CACHE", str(tmp_path / "cache"))
    asked: list[list[str]] = []

    def run_tool(_name: str, command: list[str]) -> str:
        asked.append(command)
        (tmp_path / "cache" / "servers" / "hello-sid.new" / "root").mkdir(exist_ok=True)
        return ""

    monkeypatch.setattr(debian, "run_tool", run_tool)
    assert debian.unpacked("hello", "sid").is_dir()
    for command in asked:
        assert {"-oAPT::Default-Release=", "-oDir::Etc::PreferencesParts=/dev/null"} <= {*command}


def test_a_program_is_run_by_the_loader_of_its_tree(tmp_path: Path) -> None:
    """Not by this machine's, whose libraries may be older. A tree without libraries is an error."""
    with pytest.raises(ArtifactError, match="no libraries"):
        debian.command(tmp_path, "usr/bin/x")
    libraries = tmp_path / "usr" / "lib" / "x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    for name in ("libc.so.6", "ld-linux-x86-64.so.2"):
        (libraries / name).touch()
    loader, option, path, program = debian.command(tmp_path, "usr/bin/x")
    assert (loader, option) == (str(libraries / "ld-linux-x86-64.so.2"), "--library-path")
    assert (path, program) == (str(libraries), str(tmp_path / "usr/bin/x"))
