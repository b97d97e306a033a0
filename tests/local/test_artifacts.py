"""Server files: only pinned files are used, and an interrupted download leaves no partial cache."""

from __future__ import annotations

import errno
import hashlib
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from freshet.local import artifacts
from freshet.local.artifacts import Pin
from freshet.local.cache import cache_dir, made_once
from freshet.local.errors import ArtifactError


class Repository:
    """A Maven repository of small jars, in place of the download; counts what is fetched."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.fetched: list[str] = []
        self.fail_first = 0
        monkeypatch.setattr(artifacts, "download", self.download)
        monkeypatch.setattr(artifacts, "BACKOFF_S", 0.0)

    def content(self, artifact: str) -> bytes:
        """The jar of an artifact."""
        path = self.directory / f"{artifact}.zip"
        if not path.exists():
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(zipfile.ZipInfo(f"{artifact}.txt"), artifact)
        return path.read_bytes()

    def pin(self, artifact: str) -> Pin:
        """Its pin."""
        return Pin("org.example", artifact, "1", hashlib.sha256(self.content(artifact)).hexdigest())

    def download(self, coordinate: Sequence[str], repository: Path) -> Path:
        """As `artifacts.download`."""
        artifact = coordinate[1]
        self.fetched.append(artifact)
        if len(self.fetched) <= self.fail_first:
            raise OSError("connection reset")
        repository.mkdir(parents=True)
        (repository / "jar").write_bytes(self.content(artifact))
        return repository / "jar"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository, an empty cache, and the pins `test` of two jars."""
    monkeypatch.setenv("FRESHET_CACHE", str(tmp_path / "cache"))
    made = Repository(tmp_path, monkeypatch)
    write_pins(tmp_path, monkeypatch, made.pin("a"), made.pin("b"))
    return made


def write_pins(directory: Path, monkeypatch: pytest.MonkeyPatch, *pins: Pin) -> None:
    """Put a pin file in the place of the project's."""
    lines = [f"{pin.group}:{pin.artifact}:{pin.version} {pin.sha256}" for pin in pins]
    (directory / "test.pins").write_text("# a comment\n" + "\n".join(lines) + "\n")
    monkeypatch.setattr(artifacts, "_pin_file", lambda name: directory / f"{name}.pins")


def test_jars_are_fetched_once(repository: Repository) -> None:
    """The second call downloads nothing."""
    assert not artifacts.is_cached("test")
    first = artifacts.jars("test")
    assert [jar.name for jar in first] == ["a-1.jar", "b-1.jar"]
    assert artifacts.is_cached("test")
    assert artifacts.jars("test") == first
    assert sorted(repository.fetched) == ["a", "b"]


def test_two_at_once_fetch_once(repository: Repository) -> None:
    """Concurrent callers wait for one download."""
    threads = [threading.Thread(target=artifacts.jars, args=("test",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(repository.fetched) == ["a", "b"]


def test_a_passing_network_failure_is_retried(repository: Repository) -> None:
    """A reset connection is retried."""
    repository.fail_first = 3
    assert len(artifacts.jars("test")) == 2


def test_a_full_disk_is_not_retried(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is reported at once, with the directory and FRESHET_CACHE in the hint."""

    def full(coordinate: Sequence[str], place: Path) -> Path:  # noqa: ARG001
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(artifacts, "download", full)
    with pytest.raises(ArtifactError, match=r"cannot write [ab]-1.jar into .*: No space left") as caught:
        artifacts.jars("test")
    assert "FRESHET_CACHE" in caught.value.hint
    assert repository.fetched == []


def test_a_file_with_another_digest_is_refused(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with another digest does not get into the cache, and the error names it."""
    write_pins(tmp_path, monkeypatch, repository.pin("a"), Pin("org.example", "b", "1", "0" * 64))
    with pytest.raises(ArtifactError, match=r"org\.example:b:1.*SHA-256") as caught:
        artifacts.jars("test")
    assert caught.value.hint
    assert not artifacts.is_cached("test")


def test_an_interrupted_download_is_continued(repository: Repository) -> None:
    """After an interruption verified files are kept, and a damaged one is fetched again."""
    staging = artifacts._home("test").with_suffix(".partial")
    staging.mkdir(parents=True)
    (staging / "a-1.jar").write_bytes(repository.content("a"))
    (staging / "b-1.jar").write_bytes(repository.content("b")[:10])
    artifacts.jars("test")
    assert repository.fetched == ["b"]


def test_archives_are_unpacked_once(repository: Repository) -> None:
    """The unpacked directory is complete or absent."""
    home = artifacts.unpacked("test")
    assert sorted(path.name for path in home.iterdir()) == ["a.txt", "b.txt"]
    assert artifacts.unpacked("test") == home
    assert sorted(repository.fetched) == ["a", "b"]


def test_what_a_killed_run_has_unpacked_is_made_anew(repository: Repository) -> None:
    """Half of it would be taken for all."""
    staging = artifacts._home("test").with_suffix(".unpacking")
    staging.mkdir(parents=True)
    (staging / "half").touch()
    assert sorted(path.name for path in artifacts.unpacked("test").iterdir()) == ["a.txt", "b.txt"]
    assert sorted(repository.fetched) == ["a", "b"]


def test_what_a_killed_run_was_making_is_made_anew(tmp_path: Path) -> None:
    """An empty data directory of a server, say: once, and from nothing."""
    made: list[Path] = []

    def make(directory: Path) -> None:
        directory.mkdir()
        (directory / "file").touch()
        made.append(directory)

    (tmp_path / "data.new").mkdir()
    (tmp_path / "data.new" / "half").touch()
    for _ in range(2):
        assert [each.name for each in made_once(tmp_path / "data", make).iterdir()] == ["file"]
    assert made == [tmp_path / "data.new"]


@pytest.mark.parametrize("name", ["kafka", "mariadb", "spark", "delta", "streams", "registry"])
def test_the_projects_pins_can_be_read(name: str) -> None:
    """The project's pin files are valid, and no artifact is pinned twice."""
    pins = artifacts.read_pins(name)
    assert pins
    assert len({(pin.group, pin.artifact) for pin in pins}) == len(pins)


def test_a_damaged_pin_file_names_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for a damaged pin file names the line."""
    (tmp_path / "test.pins").write_text("# fine\norg.example:a 123\n")
    monkeypatch.setattr(artifacts, "_pin_file", lambda name: tmp_path / f"{name}.pins")
    with pytest.raises(ArtifactError, match=r"test\.pins line 2"):
        artifacts.read_pins("test")


def test_the_cache_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is FRESHET_CACHE, else below XDG_CACHE_HOME, else below ~/.cache."""
    monkeypatch.setenv("FRESHET_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert cache_dir() == tmp_path / "a"
    monkeypatch.delenv("FRESHET_CACHE")
    assert cache_dir() == tmp_path / "b" / "freshet"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == tmp_path / "c" / ".cache" / "freshet"
