"""A server that is started often keeps an archive of the classes that it loads."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from freshet.local.java import UNUSED_S, class_archive


class Training:
    """Stands for a server's first start; ``content``: what its Java writes at the end, None: nothing."""

    def __init__(self, content: str | None) -> None:
        self.content = content
        self.starts = 0

    def __call__(self, flag: str) -> None:
        self.starts += 1
        if self.content is not None:
            Path(flag.removeprefix("-XX:ArchiveClassesAtExit=")).write_text(self.content)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory."""
    monkeypatch.setenv("FRESHET_CACHE", str(tmp_path))
    return tmp_path / "servers"


def test_the_first_start_makes_the_archive_and_others_use_it() -> None:
    """Only one start takes longer."""
    train = Training("classes")
    (flag,) = class_archive("kafka", "a.jar", train)
    assert class_archive("kafka", "a.jar", train) == (flag,)
    assert Path(flag.removeprefix("-XX:SharedArchiveFile=")).read_text() == "classes"
    assert train.starts == 1


def test_a_runtime_that_makes_none_is_asked_once() -> None:
    """Some builds of Java have no archives: the server starts as ever."""
    train = Training(None)
    assert class_archive("kafka", "a.jar", train) == class_archive("kafka", "a.jar", train) == ()
    assert train.starts == 1


def test_an_archive_that_nobody_uses_is_removed(cache: Path) -> None:
    """What was made for a version of long ago does not stay in the cache for ever; what another checkout uses does."""
    for jar in ("old.jar", "other.jar"):
        class_archive("kafka", jar, Training(jar))
    long_ago = time.time() - UNUSED_S - 1
    for each in cache.glob("*.jsa"):
        os.utime(each, (long_ago, long_ago))
    class_archive("kafka", "other.jar", Training(None))
    class_archive("kafka", "new.jar", Training("new.jar"))
    assert sorted(path.read_text() for path in cache.glob("*.jsa")) == ["new.jar", "other.jar"]


def test_a_start_that_was_killed_leaves_nothing_that_is_used(cache: Path) -> None:
    """The archive gets its name when it is whole."""

    def killed(flag: str) -> None:
        Path(flag.removeprefix("-XX:ArchiveClassesAtExit=")).write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        class_archive("kafka", "a.jar", killed)
    assert not list(cache.glob("*.jsa"))
    train = Training("whole")
    class_archive("kafka", "a.jar", train)
    assert [path.read_text() for path in cache.glob("*.jsa")] == ["whole"]
