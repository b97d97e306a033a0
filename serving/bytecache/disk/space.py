"""What a file system can do and has: holes, free space, the medium below it. And memory that processes share."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

Medium = Literal["auto", "ssd", "disk"]

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk without room, or of a user who may take no more of it: nothing is wrong with it."""
_PUNCH_HOLE: Final = 0x02 | 0x01
"""``FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`` (linux/falloc.h)."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def punch_hole(file: int, at: int, length: int) -> None:
    """Gives the space back; the bytes read as zeros. Raises ``OSError``, ``EOPNOTSUPP`` where there are no holes."""
    while _libc.fallocate(file, _PUNCH_HOLE, at, length) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def free_bytes(directory: Path) -> int:
    """What this user can still write there."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def is_rotational(directory: Path) -> bool:
    """Whether the medium seeks slowly. Where the kernel does not say: no."""
    device = os.stat(directory).st_dev
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for queue in (place / "queue/rotational", place / "../queue/rotational"):
        try:
            return queue.read_text().strip() == "1"
        except OSError:
            continue
    return False


def write_all(file: int, data: bytes | bytearray | memoryview, at: int) -> None:
    """As ``os.pwrite``, until all is written."""
    written = os.pwrite(file, data, at)
    while written < len(data):
        written += os.pwrite(file, memoryview(data)[written:], at + written)


def write_together(file: int, parts: Sequence[bytes | memoryview], at: int) -> None:
    """As `write_all`, for what follows each other. In one call the kernel keeps it in larger pieces, read faster."""
    written = os.pwritev(file, parts, at)
    if written < sum(map(len, parts)):
        write_all(file, memoryview(b"".join(parts))[written:], at + written)


def shared_memory(name: str, length: int) -> tuple[int, mmap.mmap]:
    """Memory behind a file descriptor: (descriptor, mapping). It is left out of core dumps."""
    file = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, length)
        memory = mmap.mmap(file, length)
    except OSError:
        os.close(file)
        raise
    memory.madvise(mmap.MADV_DONTDUMP)
    return file, memory
