"""A disk that fails on demand: a FUSE file system that passes requests through to a directory, or answers EIO.

    python -m lab.faults.failing_disk SOURCE MOUNTPOINT

Prints ``mounted`` when it is ready. A line on stdin, such as ``write=1 read=0.3``, sets the share of the operations of
each group (`GROUPS`) that fails from now on; ``slow=0.05`` has each read, write and sync take 50 ms, one after another.
The answer is a line with the number of failures so far. When stdin ends, it unmounts and exits, so it does not outlive
the process that started it. Needs root and /dev/fuse.

Each node is an O_PATH handle, so renames and deletions need no bookkeeping. Files are opened past the page cache.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import select
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

from lab.faults.fuse import (
    KNOWN,
    NS,
    OPENED_DIRECT,
    ROOT_ID,
    UNANSWERED,
    Device,
    FuseRequest,
    Op,
    Unmounted,
    attributes_out,
    directory_out,
    entry,
    statfs_out,
)

_CHANGED_NAMES: Final = (Op.CREATE, Op.MKDIR, Op.LINK, Op.UNLINK, Op.RMDIR, Op.RENAME, Op.RENAME2)
GROUPS: Final[dict[str, frozenset[int]]] = {
    "read": frozenset({Op.READ, Op.READDIR}),
    "write": frozenset({Op.WRITE, Op.SETATTR}),
    "sync": frozenset({Op.FSYNC, Op.FSYNCDIR}),
    "names": frozenset({Op.OPEN, Op.OPENDIR, *_CHANGED_NAMES}),
    "stat": frozenset({Op.LOOKUP, Op.GETATTR, Op.STATFS}),
}
"""Group → requests that fail together. Closing files and forgetting nodes never fails."""
SLOW: Final = "slow"
_SLOWED: Final = GROUPS["read"] | GROUPS["write"] | GROUPS["sync"]
_GROUP_OF: Final = {op: group for group, ops in GROUPS.items() for op in ops}

_IS_SET: Final = {"mode": 1, "uid": 2, "gid": 4, "size": 8, "atime": 16, "mtime": 32, "handle": 64}
_ATIME_NOW, _MTIME_NOW = 128, 256
_SETATTR: Final = Struct("<IIQQQQQQIIIIIIII")
_OPEN, _CREATE, _OPENED = Struct("<II"), Struct("<IIII"), Struct("<QII")
_IO, _WRITTEN, _HANDLE = Struct("<QQIIQII"), Struct("<II"), Struct("<Q")
_FSYNC, _MKDIR, _TWO = Struct("<QII"), Struct("<II"), Struct("<QQ")
_FDATASYNC: Final = 1
_RENAME_FLAGS: Final = Struct("<QII")


@dataclass(slots=True)
class _Node:
    """A file that the kernel refers to: an O_PATH handle, (device, inode), and the kernel's number of references."""

    handle: int
    place: tuple[int, int]
    lookups: int = 0

    @property
    def path(self) -> str:
        return f"/proc/self/fd/{self.handle}"


class Passthrough:
    """The file system over the directory ``source``."""

    def __init__(self, source: Path, device: Device) -> None:
        self.failed: Counter[str] = Counter()
        """Group → operations that failed with EIO."""
        self._share: dict[str, float] = {}
        self._slow_s = 0.0
        self._random = random.Random(0)
        self._device = device
        root = os.open(source, os.O_PATH | os.O_DIRECTORY)
        found = os.fstat(root)
        self._nodes = {ROOT_ID: _Node(root, (found.st_dev, found.st_ino), 1)}
        self._numbers = {self._nodes[ROOT_ID].place: ROOT_ID}
        self._next = ROOT_ID + 1
        self._listed: dict[int, list[tuple[str, int, int]]] = {}
        self._does: dict[int, Callable[[FuseRequest], tuple[bytes | memoryview, ...]]] = {
            op: getattr(self, f"_{op.name.lower()}") for op in KNOWN - {Op.INIT, Op.INTERRUPT, Op.DESTROY}
        }

    def set(self, share: dict[str, float]) -> None:
        """Sets group → share (0 to 1) of its operations that fails from now on; other groups do not fail.

        `SLOW` → the seconds that an operation takes.
        """
        self._share, self._slow_s = share, share.get(SLOW, 0.0)

    def handle(self) -> None:
        """Answers the next request, if any. Raises `lab.faults.fuse.Unmounted`."""
        request = self._device.read()
        if request is None:
            return
        if request.op == Op.INIT:
            self._device.begin(request)
            return
        if self._slow_s and request.op in _SLOWED:
            time.sleep(self._slow_s)
        try:
            self._fail(request.op)
            parts = self._does.get(request.op, _unknown)(request)
        except OSError as error:
            if request.op not in UNANSWERED:
                self._device.refuse(request, error.errno or errno.EIO)
        else:
            if request.op not in UNANSWERED:
                self._device.answer(request, *parts)

    def _fail(self, op: int) -> None:
        group = _GROUP_OF.get(op, "")
        share = self._share.get(group, 0.0)
        if share and self._random.random() < share:
            self.failed[group] += 1
            raise OSError(errno.EIO, "on demand")

    def _at(self, number: int) -> _Node:
        return self._nodes[number]

    def _entered(self, parent: int, name: str) -> bytes:
        """The answer that names a node; counts one more reference of the kernel to it."""
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self._at(parent).handle)
        found = os.fstat(handle)
        place = (found.st_dev, found.st_ino)
        number = self._numbers.get(place)
        if number is None:
            number, self._next = self._next, self._next + 1
            self._numbers[place] = number
            self._nodes[number] = _Node(handle, place)
        else:
            os.close(handle)
        self._nodes[number].lookups += 1
        return entry(number, found)

    def _forgotten(self, number: int, times: int) -> None:
        node = self._nodes.get(number)
        if node is None or number == ROOT_ID:
            return
        node.lookups -= times
        if node.lookups <= 0:
            os.close(node.handle)
            del self._nodes[number], self._numbers[node.place]

    def _lookup(self, request: FuseRequest) -> tuple[bytes]:
        return (self._entered(request.node, request.names()[0]),)

    def _forget(self, request: FuseRequest) -> tuple[()]:
        self._forgotten(request.node, _HANDLE.unpack_from(request.body)[0])
        return ()

    def _batch_forget(self, request: FuseRequest) -> tuple[()]:
        [count] = Struct("<I").unpack_from(request.body)
        for at in range(count):
            self._forgotten(*_TWO.unpack_from(request.body, 8 + at * _TWO.size))
        return ()

    def _getattr(self, request: FuseRequest) -> tuple[bytes]:
        return (attributes_out(os.fstat(self._at(request.node).handle)),)

    def _setattr(self, request: FuseRequest) -> tuple[bytes]:
        valid, _, handle, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = _SETATTR.unpack_from(
            request.body
        )
        node = self._at(request.node)
        is_set = {name: bool(valid & bit) for name, bit in _IS_SET.items()}
        if is_set["mode"]:
            os.chmod(node.path, stat.S_IMODE(mode))
        if is_set["uid"] or is_set["gid"]:
            os.chown(node.path, uid if is_set["uid"] else -1, gid if is_set["gid"] else -1)
        if is_set["size"]:
            os.truncate(handle if is_set["handle"] else node.path, size)
        if is_set["atime"] or is_set["mtime"]:
            before, now = os.fstat(node.handle), time.time_ns()
            accessed = now if valid & _ATIME_NOW else atime * NS + atime_ns
            changed = now if valid & _MTIME_NOW else mtime * NS + mtime_ns
            os.utime(
                node.path,
                ns=(
                    accessed if is_set["atime"] else before.st_atime_ns,
                    changed if is_set["mtime"] else before.st_mtime_ns,
                ),
            )
        return (attributes_out(os.fstat(node.handle)),)

    def _mkdir(self, request: FuseRequest) -> tuple[bytes]:
        mode, _ = _MKDIR.unpack_from(request.body)
        [name] = request.names(_MKDIR.size)
        os.mkdir(name, mode, dir_fd=self._at(request.node).handle)
        return (self._entered(request.node, name),)

    def _unlink(self, request: FuseRequest) -> tuple[()]:
        os.unlink(request.names()[0], dir_fd=self._at(request.node).handle)
        return ()

    def _rmdir(self, request: FuseRequest) -> tuple[()]:
        os.rmdir(request.names()[0], dir_fd=self._at(request.node).handle)
        return ()

    def _rename(self, request: FuseRequest, skip: int = _HANDLE.size) -> tuple[()]:
        [target] = _HANDLE.unpack_from(request.body)
        old, new = request.names(skip)
        os.rename(old, new, src_dir_fd=self._at(request.node).handle, dst_dir_fd=self._at(target).handle)
        return ()

    def _rename2(self, request: FuseRequest) -> tuple[()]:
        if _RENAME_FLAGS.unpack_from(request.body)[1]:
            raise OSError(errno.EINVAL, "rename flags are not supported")
        return self._rename(request, _RENAME_FLAGS.size)

    def _link(self, request: FuseRequest) -> tuple[bytes]:
        [linked] = _HANDLE.unpack_from(request.body)
        [name] = request.names(_HANDLE.size)
        os.link(self._at(linked).path, name, dst_dir_fd=self._at(request.node).handle, follow_symlinks=True)
        return (self._entered(request.node, name),)

    def _open(self, request: FuseRequest) -> tuple[bytes]:
        flags, _ = _OPEN.unpack_from(request.body)
        handle = os.open(self._at(request.node).path, flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_DIRECT))
        return (_OPENED.pack(handle, OPENED_DIRECT, 0),)

    def _create(self, request: FuseRequest) -> tuple[bytes]:
        flags, mode, *_ = _CREATE.unpack_from(request.body)
        [name] = request.names(_CREATE.size)
        handle = os.open(name, (flags | os.O_CREAT) & ~os.O_DIRECT, mode, dir_fd=self._at(request.node).handle)
        return (self._entered(request.node, name) + _OPENED.pack(handle, OPENED_DIRECT, 0),)

    def _read(self, request: FuseRequest) -> tuple[bytes]:
        handle, offset, size, *_ = _IO.unpack_from(request.body)
        return (os.pread(handle, size, offset),)

    def _write(self, request: FuseRequest) -> tuple[bytes]:
        handle, offset, size, *_ = _IO.unpack_from(request.body)
        done = os.pwrite(handle, request.body[_IO.size : _IO.size + size], offset)
        return (_WRITTEN.pack(done, 0),)

    def _statfs(self, request: FuseRequest) -> tuple[bytes]:
        return (statfs_out(os.statvfs(self._at(request.node).path)),)

    def _release(self, request: FuseRequest) -> tuple[()]:
        os.close(_HANDLE.unpack_from(request.body)[0])
        return ()

    def _fsync(self, request: FuseRequest) -> tuple[()]:
        handle, flags, _ = _FSYNC.unpack_from(request.body)
        (os.fdatasync if flags & _FDATASYNC else os.fsync)(handle)
        return ()

    def _opendir(self, request: FuseRequest) -> tuple[bytes]:
        return (_OPENED.pack(os.open(self._at(request.node).path, os.O_RDONLY | os.O_DIRECTORY), 0, 0),)

    def _readdir(self, request: FuseRequest) -> tuple[bytes]:
        handle, offset, size, *_ = _IO.unpack_from(request.body)
        if offset == 0 or handle not in self._listed:
            here = os.fstat(handle).st_ino
            self._listed[handle] = [(".", here, stat.S_IFDIR >> 12), ("..", here, stat.S_IFDIR >> 12)]
            with os.scandir(handle) as found:
                self._listed[handle] += [(each.name, each.inode(), _kind(each)) for each in found]
        return (directory_out(self._listed[handle], offset, size),)

    def _releasedir(self, request: FuseRequest) -> tuple[()]:
        [handle] = _HANDLE.unpack_from(request.body)
        self._listed.pop(handle, None)
        os.close(handle)
        return ()

    def _fsyncdir(self, request: FuseRequest) -> tuple[()]:
        return self._fsync(request)


def _kind(found: os.DirEntry[str]) -> int:
    """The type of a directory entry, as in ``d_type``."""
    if found.is_symlink():
        return stat.S_IFLNK >> 12
    return (stat.S_IFDIR if found.is_dir() else stat.S_IFREG) >> 12


def _unknown(request: FuseRequest) -> tuple[()]:
    """Refuses with ENOSYS: the kernel then stops sending this request."""
    raise OSError(errno.ENOSYS, f"request {request.op} is not supported")


def parse(line: str) -> dict[str, float]:
    """What `Passthrough.set` takes, from a line such as ``write=1 read=0.3``. Raises `ValueError`."""
    shares = {}
    for word in line.split():
        group, _, share = word.partition("=")
        if group not in GROUPS and group != SLOW:
            raise ValueError(f"unknown group {group}; groups are {', '.join(GROUPS)}")
        shares[group] = float(share or 1)
    return shares


def serve(passthrough: Passthrough, device: Device) -> None:
    """Answers the kernel, and lines on stdin, until stdin ends. Raises `Unmounted`."""
    commands = sys.stdin.fileno()
    poll = select.poll()
    for handle in (device.handle, commands):
        poll.register(handle, select.POLLIN)
    print("mounted", flush=True)
    while True:
        for handle, _ in poll.poll():
            if handle == device.handle:
                passthrough.handle()
            elif not (line := os.read(commands, 4096)):
                return
            else:
                try:
                    passthrough.set(parse(line.decode()))
                    print(sum(passthrough.failed.values()), flush=True)
                except ValueError as error:
                    print(f"error: {error}", flush=True)


def main(arguments: list[str]) -> int:
    """Mounts, serves and unmounts. Returns the exit code."""
    if len(arguments) != 2:
        print("usage: python -m lab.faults.failing_disk SOURCE MOUNTPOINT", file=sys.stderr)
        return 2
    source, mountpoint = map(Path, arguments)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.umask(0)  # the kernel has already applied the caller's umask
    try:
        device = Device(mountpoint)
    except OSError as error:
        print(f"cannot mount a FUSE file system on {mountpoint}: {error}", file=sys.stderr)
        return 1
    try:
        serve(Passthrough(source, device), device)
    except Unmounted:
        return 0
    finally:
        device.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
