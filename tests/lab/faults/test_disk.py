"""The disks under the stores: full means full, and space again means space again."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.faults.disk import FileSizeLimit, SmallDisk, can_mount_tmpfs, disk_for, open_files, set_limit

WRITER = """
import sys
for number, line in enumerate(sys.stdin):
    try:
        with open(f"{sys.argv[1]}/{number}", "wb") as file:
            file.write(bytes(100_000))
            file.flush()
        print("written", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk | FileSizeLimit]:
    """The disk that this machine allows, small."""
    made = SmallDisk(tmp_path / "disk", 1 << 20) if can_mount_tmpfs(tmp_path) else FileSizeLimit(tmp_path / "disk")
    with made:
        yield made


class Writer:
    """A process that writes a file when it is told to."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def write(self) -> str:
        """``written``, or the error's number."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def test_a_full_disk_refuses_writes_until_it_is_freed(disk: SmallDisk | FileSizeLimit) -> None:
    """As a process above sees it."""
    with Writer(disk.directory) as writer:
        assert writer.write() == "written"
        disk.fill(writer.process.pid)
        assert writer.write() in ("28", "27")
        disk.free(writer.process.pid)
        assert writer.write() == "written"


def test_without_the_right_to_mount_a_limit_on_files_takes_the_disks_place(tmp_path: Path) -> None:
    """EFBIG at each write, for the one process."""
    with FileSizeLimit(tmp_path / "disk") as disk, Writer(disk.directory) as writer:
        assert writer.write() == "written"
        disk.fill(writer.process.pid)
        assert writer.write() == "27"
        disk.free(writer.process.pid)
        assert writer.write() == "written"
        gone = writer.process.pid
    disk.free(gone)
    assert isinstance(disk_for(tmp_path / "any"), FileSizeLimit) == (not can_mount_tmpfs(tmp_path))


def test_no_file_can_be_opened_beyond_what_is_open(tmp_path: Path) -> None:
    """EMFILE, until the limit is lifted."""
    with Writer(tmp_path) as writer:
        assert writer.write() == "written"
        set_limit(writer.process.pid, resource.RLIMIT_NOFILE, open_files(writer.process.pid))
        assert writer.write() == "24"
        set_limit(writer.process.pid, resource.RLIMIT_NOFILE, None)
        assert writer.write() == "written"
