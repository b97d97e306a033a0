"""Disks for the stores that can be full or fail.

With the right to mount, a FUSE file system over a tmpfs, which can be full (ENOSPC) and fail (EIO). Without FUSE, a
tmpfs alone, which can only be full. Otherwise a limit on the size of files: each write fails with EFBIG.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

from lab.faults.failing_disk import SLOW
from lab.faults.fuse import unmount

SIZE_BYTES: Final = 192 << 20
FILL_NAME: Final = "fill"
START_S_MAX: Final = 20.0

ERRORS: Final[Mapping[str, tuple[str, ...]]] = {
    "eio_read": ("read",),
    "eio_write": ("write",),
    "eio_sync": ("sync",),
    "eio_names": ("names",),
    "eio_all": ("read", "write", "sync", "names", "stat"),
}
"""Kind of fault → groups of operations (`lab.faults.failing_disk.GROUPS`) that fail with EIO."""


class SmallDisk:
    """A tmpfs mounted on ``directory``. Needs the right to mount."""

    kind = "tmpfs, which can be full but not fail"

    def __init__(self, directory: Path, size_bytes: int = SIZE_BYTES) -> None:
        self.directory = directory
        self.size_bytes = size_bytes

    def __enter__(self) -> Self:
        """Raises `OSError` if mounting is refused."""
        self.directory.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={self.size_bytes}", "freshet-faults", str(self.directory)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"cannot mount a tmpfs: {done.stderr.strip()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["umount", "--lazy", str(self.directory)], capture_output=True, check=False)

    def fill(self, pid: int) -> None:  # noqa: ARG002 - it is full for every process
        """Takes all the space that is left."""
        fill_up(self.directory / FILL_NAME)

    def free(self, pid: int) -> None:  # noqa: ARG002
        """Gives it back."""
        (self.directory / FILL_NAME).unlink(missing_ok=True)


class FailingDisk:
    """A FUSE file system on ``directory`` over a `SmallDisk` that is not reachable by path. It can be full, and fail.

    Its server and its mount end with this process, also after SIGKILL.
    """

    kind = "a FUSE file system on tmpfs"

    def __init__(self, directory: Path, size_bytes: int = SIZE_BYTES) -> None:
        self.directory = directory
        self.failed = 0
        """Operations that failed with EIO, as of the last `fail` or `mend`."""
        self._size_bytes = size_bytes
        self._serving: subprocess.Popen[str] | None = None
        self._below: int | None = None

    def __enter__(self) -> Self:
        """Raises `OSError` if mounting is refused."""
        self.directory.mkdir(parents=True, exist_ok=True)
        below = self.directory.with_name(f"{self.directory.name}-below")
        with SmallDisk(below, self._size_bytes):  # unmounted lazily on exit: the open handle keeps it alive
            self._below = os.open(below, os.O_RDONLY | os.O_DIRECTORY)
            command = [sys.executable, "-m", "lab.faults.failing_disk", str(below), str(self.directory)]
            self._serving = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=Path(__file__).parents[2],
                start_new_session=True,
            )
            answer = self._answer()
            if answer != "mounted":
                self.__exit__(None, None, None)
                raise OSError(answer)
        below.rmdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._serving is not None and self._serving.stdin is not None and self._serving.stdout is not None:
            with contextlib.suppress(OSError):
                self._serving.stdin.close()
            try:
                self._serving.wait(START_S_MAX)
            except subprocess.TimeoutExpired:
                self._serving.kill()
                self._serving.wait()
            self._serving.stdout.close()
            unmount(self.directory)  # its server has done so, unless it was killed
        if self._below is not None:
            os.close(self._below)
            self._below = None

    def fail(self, kind: str, share: float = 1.0) -> None:
        """From now on a ``share`` (0 to 1) of the operations of ``kind`` (`ERRORS`) fails.

        Raises `OSError` if the file system's server has exited.
        """
        self._set_shares(" ".join(f"{group}={share}" for group in ERRORS[kind]))

    def slow(self, seconds: float) -> None:
        """From now on each read, write and sync takes so long, one after the other. Raises `OSError` as `fail` does."""
        self._set_shares(f"{SLOW}={seconds}")

    def mend(self) -> None:
        """From now on no operation fails or is slow. Raises `OSError` if the file system's server has exited."""
        self._set_shares("")

    def _set_shares(self, line: str) -> None:
        if self._serving is None or self._serving.stdin is None:
            raise OSError("the file system is not mounted")
        print(line, file=self._serving.stdin, flush=True)
        self.failed = int(self._answer())

    def _answer(self) -> str:
        assert self._serving is not None
        assert self._serving.stdout is not None
        ready, _, _ = select.select([self._serving.stdout], [], [], START_S_MAX)
        if not ready:
            raise OSError("the FUSE server does not answer")
        answer = self._serving.stdout.readline().strip()
        if not answer:
            raise OSError("the FUSE server has exited")
        return answer

    def fill(self, pid: int) -> None:  # noqa: ARG002 - it is full for every process
        """Takes all the space that is left."""
        assert self._below is not None
        fill_up(Path(f"/proc/self/fd/{self._below}") / FILL_NAME)

    def free(self, pid: int) -> None:  # noqa: ARG002
        """Gives it back."""
        assert self._below is not None
        os.unlink(FILL_NAME, dir_fd=self._below)


class FileSizeLimit:
    """A stand-in without root: the process may not write to any file (RLIMIT_FSIZE 0), not even its log."""

    kind = "RLIMIT_FSIZE, which can be full but not fail"

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def fill(self, pid: int) -> None:
        """Sets the soft limit to 0."""
        set_limit(pid, resource.RLIMIT_FSIZE, 0)

    def free(self, pid: int) -> None:
        """Lifts the limit. Does nothing if the process is gone."""
        with contextlib.suppress(ProcessLookupError):
            set_limit(pid, resource.RLIMIT_FSIZE, None)


def set_limit(pid: int, limit: int, soft: int | None) -> None:
    """Sets the soft ``limit`` (of `resource`) of a running process; None: as high as the hard one. Linux only."""
    _, hard = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (hard if soft is None else soft, hard))


def open_files(pid: int) -> int:
    """How many files a process has open. Linux only."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def can_mount_tmpfs(scratch: Path) -> bool:
    """Whether a tmpfs can be mounted here."""
    return _works(SmallDisk(scratch / "mount-probe", 1 << 16)) if _is_root() else False


def can_mount_fuse(scratch: Path) -> bool:
    """Whether a FUSE file system over a tmpfs can be mounted here."""
    return _works(FailingDisk(scratch / "mount-probe", 1 << 16)) if _is_root() else False


def _is_root() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None


def _works(disk: SmallDisk | FailingDisk) -> bool:
    try:
        with disk:
            return True
    except OSError:
        return False


Disk: TypeAlias = FailingDisk | SmallDisk | FileSizeLimit


def disk_for(directory: Path) -> Disk:
    """The most capable disk that this machine allows, not yet entered."""
    if can_mount_fuse(directory.parent):
        return FailingDisk(directory)
    return SmallDisk(directory) if can_mount_tmpfs(directory.parent) else FileSizeLimit(directory)


def fill_up(path: Path) -> None:
    """Writes a file that takes all the space that is left."""
    with path.open("wb", buffering=0) as taken:
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    taken.write(bytes(size))
