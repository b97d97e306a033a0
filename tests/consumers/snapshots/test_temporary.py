"""What jobs put below TMPDIR: nothing stays of one that ends, and nothing for long of one that is killed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from consumers.snapshots.temporary import temporary_directory

KILLED = """
import os, signal
from consumers.snapshots.temporary import temporary_directory

with temporary_directory("verify") as directory:
    (directory / "store" / "db").mkdir(parents=True)
    (directory / "store" / "db" / "1.sst").write_bytes(b"much")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TMPDIR of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_nothing_stays_of_what_has_ended(here: Path) -> None:
    """Also if it ends by an error."""
    with temporary_directory("verify") as directory:
        (directory / "file").touch()
    with pytest.raises(IsADirectoryError), temporary_directory("verify") as directory:
        directory.read_bytes()
    assert list(here.iterdir()) == []


def test_what_a_killed_process_leaves_is_removed_by_the_next_one(here: Path) -> None:
    """A killed audit leaves a copy of the state, which nobody would find. One that runs keeps its own."""
    subprocess.run([sys.executable, "-c", KILLED], env=os.environ | {"TMPDIR": str(here)}, check=False, timeout=60)
    [killed] = here.iterdir()
    assert (killed / "held" / "store" / "db" / "1.sst").exists()
    with temporary_directory("check") as other:
        assert killed.exists()
        with temporary_directory("verify"), temporary_directory("verify"):
            assert not killed.exists()
            assert other.exists()
            assert len(list(here.iterdir())) == 3
    assert list(here.iterdir()) == []


def test_what_is_not_certainly_abandoned_stays(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A directory that is just being made, and a link that somebody has put beside: it leads to others' files."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "lock").touch()
    (elsewhere / "held").mkdir()
    (here / "freshet-verify-link").symlink_to(elsewhere)
    (here / "freshet-verify-new").mkdir()
    with temporary_directory("verify"):
        pass
    assert {each.name for each in here.iterdir()} == {"freshet-verify-link", "freshet-verify-new"}
    assert (elsewhere / "held").exists()


def test_what_somebody_still_writes_into_is_removed_by_the_next_one(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's virtual machine outlives the end of its job by a moment."""
    with monkeypatch.context() as moment, temporary_directory("spark") as directory:
        (directory / "file").touch()
        moment.setattr("os.rmdir", Mock(side_effect=OSError(errno.ENOTEMPTY, "not empty")))
    assert [each.exists() for each in (directory, directory.parent / "lock")] == [True, True]
    with temporary_directory("spark"):
        assert not directory.exists()
    assert list(here.iterdir()) == []


def test_who_removes_what_others_left_keeps_no_file_open(here: Path) -> None:
    """A process that makes a snapshot each hour would once have no file left."""
    opened = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        left = here / "freshet-verify-left"
        (left / "held").mkdir(parents=True)
        (left / "lock").touch()
        with temporary_directory("verify"):
            assert not left.exists()
    assert set(os.listdir("/proc/self/fd")) == opened
