"""The FUSE protocol over /dev/fuse, without a library (linux/fuse.h, version 7.31).

One thread reads whole requests and answers them in order. It implements only what a passthrough needs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import Final

ROOT_ID: Final = 1
WRITE_BYTES_MAX: Final = 1 << 20
"""Largest WRITE or READ that the kernel sends."""
CACHE_S: Final = 1
"""How long the kernel may cache names and attributes. This is safe: they are changed through the mount only."""

_MINOR: Final = 31
_ASYNC_READ, _ATOMIC_O_TRUNC, _BIG_WRITES, _MAX_PAGES = 1 << 0, 1 << 3, 1 << 5, 1 << 22
_WANTED: Final = _ASYNC_READ | _ATOMIC_O_TRUNC | _BIG_WRITES | _MAX_PAGES
"""Without locks: the kernel handles flock and fcntl. Without write-back: each write reaches this process."""
OPENED_DIRECT: Final = 1
"""Flag of an opened file: bypasses the page cache, so that each read reaches this process."""

_HEADER: Final = Struct("<IIQQIIIHH")
_ANSWER: Final = Struct("<IiQ")
_INIT_IN: Final = Struct("<IIII")
_INIT_OUT: Final = Struct("<IIIIHHIIHHI28x")
_ATTRIBUTES: Final = Struct("<QQQQQQIIIIIIIIII")
_ENTRY: Final = Struct("<QQQQII")
_ATTRIBUTES_VALID: Final = Struct("<QII")
_DIRECTORY_ENTRY: Final = Struct("<QQII")
_STATFS: Final = Struct("<QQQQQIIII24x")
NS: Final = 1_000_000_000
"""Nanoseconds per second."""

MNT_DETACH: Final = 2
_MS_NOSUID, _MS_NODEV = 2, 4


class Op(IntEnum):
    """The kernel's requests, by number."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    RENAME2 = 45


KNOWN: Final = frozenset(Op)
UNANSWERED: Final = frozenset({Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT})


@dataclass(frozen=True, slots=True)
class FuseRequest:
    """One request: ``op`` (a number that may be missing in `Op`), its node, and the bytes of its arguments."""

    op: int
    unique: int
    node: int
    body: memoryview

    def names(self, skip: int = 0) -> list[str]:
        """The names that follow ``skip`` bytes of arguments."""
        return [os.fsdecode(name) for name in bytes(self.body[skip:]).split(b"\0")[:-1]]


class Unmounted(Exception):
    """The file system was unmounted from outside."""


class Device:
    """/dev/fuse, mounted on a directory until `close`. Raises ``OSError`` if mounting is refused."""

    def __init__(self, mountpoint: Path) -> None:
        self.mountpoint = mountpoint
        self.handle = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        self._buffer = memoryview(bytearray(WRITE_BYTES_MAX + 4096 * 2))
        mode = stat.S_IFMT(os.stat(mountpoint).st_mode)
        options = f"fd={self.handle},rootmode={mode:o},user_id={os.getuid()},group_id={os.getgid()}"
        options += ",allow_other,default_permissions"
        try:
            mount("freshet-failing-disk", mountpoint, "fuse", options)
        except OSError:
            os.close(self.handle)
            raise

    def read(self) -> FuseRequest | None:
        """The next request, valid until the next call; None if there is none now, or if it was withdrawn.

        Raises `Unmounted`.
        """
        try:
            size = os.readv(self.handle, [self._buffer])
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR, errno.ENOENT):
                return None
            if error.errno == errno.ENODEV:
                raise Unmounted from error
            raise
        _, op, unique, node, *_ = _HEADER.unpack_from(self._buffer)
        return FuseRequest(op, unique, node, self._buffer[_HEADER.size : size])

    def answer(self, request: FuseRequest, *parts: bytes | memoryview) -> None:
        """Answers with success; ``parts`` are the answer's bytes."""
        self._write(request, 0, parts)

    def refuse(self, request: FuseRequest, number: int) -> None:
        """Answers with an error number of `errno`."""
        self._write(request, -number, ())

    def _write(self, request: FuseRequest, error: int, parts: tuple[bytes | memoryview, ...]) -> None:
        size = _ANSWER.size + sum(len(part) for part in parts)
        try:
            os.writev(self.handle, [_ANSWER.pack(size, error, request.unique), *parts])
        except OSError as failed:
            if failed.errno not in (errno.ENOENT, errno.ENODEV):  # the caller was killed, or it is unmounted
                raise

    def begin(self, request: FuseRequest) -> None:
        """Answers INIT. Raises `OSError` if the kernel's protocol is too old."""
        major, minor, read_ahead, offered = _INIT_IN.unpack_from(request.body)
        if (major, minor < _MINOR) != (7, False):
            raise OSError(errno.EPROTO, f"the kernel has FUSE {major}.{minor}, but 7.{_MINOR} or later is needed")
        pages = WRITE_BYTES_MAX // 4096
        fields = (7, _MINOR, read_ahead, offered & _WANTED, 16, 12, WRITE_BYTES_MAX, 1, pages, 0, 0)
        self.answer(request, _INIT_OUT.pack(*fields))

    def close(self) -> None:
        """Unmounts and ends the file system. Processes that still use it get ENOTCONN."""
        unmount(self.mountpoint)
        os.close(self.handle)


def attributes(found: os.stat_result) -> bytes:
    """``struct fuse_attr``."""
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    return _ATTRIBUTES.pack(
        found.st_ino,
        found.st_size,
        found.st_blocks,
        *(each // NS for each in times),
        *(each % NS for each in times),
        found.st_mode,
        found.st_nlink,
        found.st_uid,
        found.st_gid,
        found.st_rdev,
        found.st_blksize,
        0,
    )


def entry(node: int, found: os.stat_result) -> bytes:
    """``struct fuse_entry_out``."""
    return _ENTRY.pack(node, 0, CACHE_S, CACHE_S, 0, 0) + attributes(found)


def attributes_out(found: os.stat_result) -> bytes:
    """``struct fuse_attr_out``."""
    return _ATTRIBUTES_VALID.pack(CACHE_S, 0, 0) + attributes(found)


def statfs_out(found: os.statvfs_result) -> bytes:
    """``struct fuse_statfs_out``."""
    return _STATFS.pack(
        found.f_blocks,
        found.f_bfree,
        found.f_bavail,
        found.f_files,
        found.f_ffree,
        found.f_bsize,
        found.f_namemax,
        found.f_frsize,
        0,
    )


def directory_out(listed: list[tuple[str, int, int]], start: int, bytes_max: int) -> bytes:
    """``struct fuse_dirent`` of each (name, inode, type) from index ``start`` on, up to ``bytes_max``."""
    out = bytearray()
    for number, (name, inode, kind) in enumerate(listed[start:], start + 1):
        raw = os.fsencode(name)
        size = _DIRECTORY_ENTRY.size + len(raw)
        padded = (size + 7) & ~7
        if len(out) + padded > bytes_max:
            break
        out += _DIRECTORY_ENTRY.pack(inode, number, len(raw), kind) + raw + bytes(padded - size)
    return bytes(out)


_libc: Final = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str, options: str) -> None:
    """mount(2); raises ``OSError``."""
    arguments = (source.encode(), os.fsencode(target), kind.encode(), _MS_NOSUID | _MS_NODEV, options.encode())
    if _libc.mount(arguments[0], arguments[1], arguments[2], ctypes.c_ulong(arguments[3]), arguments[4]):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


def unmount(target: Path) -> None:
    """Lazy umount2(2), also while it is in use. Does nothing if nothing is mounted there."""
    _libc.umount2(os.fsencode(target), MNT_DETACH)
