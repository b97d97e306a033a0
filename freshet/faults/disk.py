"""A disk under the stores that can be full: a small tmpfs where we may mount one, else a limit on the size of files.

Both are real to the process above: ENOSPC from the file system, or EFBIG from the kernel at each write.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

SIZE_BYTES: Final = 192 << 20
FILL_NAME: Final = "fill"


class SmallDisk:
    """A tmpfs mounted on ``directory``; needs the right to mount."""

    kind = "tmpfs"

    def __init__(self, directory: Path, size_bytes: int = SIZE_BYTES) -> None:
        self.directory = directory
        self.size_bytes = size_bytes

    def __enter__(self) -> Self:
        """Raises `OSError` where mounting is refused."""
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

    def fill(self, pid: int) -> None:  # noqa: ARG002 - it is full for everybody
        """Takes all the space that is left."""
        with (self.directory / FILL_NAME).open("wb", buffering=0) as taken:
            for size in (1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        taken.write(bytes(size))

    def free(self, pid: int) -> None:  # noqa: ARG002
        """Gives it back."""
        (self.directory / FILL_NAME).unlink(missing_ok=True)


class FileSizeLimit:
    """Without root: the process that writes may not make a file larger than nothing (RLIMIT_FSIZE), its log too."""

    kind = "RLIMIT_FSIZE"

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
        """Sets the soft limit to nothing."""
        set_limit(pid, resource.RLIMIT_FSIZE, 0)

    def free(self, pid: int) -> None:
        """Takes it away; nothing if the process is gone."""
        with contextlib.suppress(ProcessLookupError):
            set_limit(pid, resource.RLIMIT_FSIZE, None)


def set_limit(pid: int, limit: int, soft: int | None) -> None:
    """Sets the soft ``limit`` (of `resource`) of a running process; None: as high as the hard one. Linux."""
    _, hard = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (hard if soft is None else soft, hard))


def open_files(pid: int) -> int:
    """How many files a process has open. Linux."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def may_mount(scratch: Path) -> bool:
    """Whether a tmpfs can be mounted here."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    try:
        with SmallDisk(scratch / "mount-probe", 1 << 16):
            return True
    except OSError:
        return False


def disk_for(directory: Path) -> SmallDisk | FileSizeLimit:
    """The realest disk that this machine allows."""
    return SmallDisk(directory) if may_mount(directory.parent) else FileSizeLimit(directory)
