"""A disk that answers EIO: what it does, and what a store on it does: an error or the right value, and it goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from consumers.owner.client import OwnerConnection
from consumers.owner.protocol import OwnerError
from consumers.store.errors import StoreError
from consumers.store.store import PartitionStore
from lab.faults.disk import ERRORS, Disk, FailingDisk, can_mount_fuse, disk_for
from stream.kafka.connection import KafkaCluster
from tests.consumers.consuming import ConsumeProcess, Feed, assert_equal_to_uninterrupted, caught_up, until
from tests.consumers.histories import key, marker, start, value
from tests.lengths import length

KEYS = 200
ROUNDS = length(10, 25)
"""Of trouble, for each kind of it."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """The most capable disk that this machine allows."""
    with disk_for(tmp_path / "disk") as made:
        yield made


@contextlib.contextmanager
def trouble(disk: Disk, kind: str, share: float = 1.0, pid: int = 0) -> Iterator[None]:
    """The disk fails inside the context; if it can't fail, it is full."""
    if isinstance(disk, FailingDisk):
        disk.fail(kind, share)
        try:
            yield
        finally:
            disk.mend()
        return
    disk.fill(pid or os.getpid())
    try:
        yield
    finally:
        disk.free(pid or os.getpid())


def error_of(action: Callable[[], object]) -> int:
    """The number of the error, 0 for none."""
    try:
        action()
    except OSError as error:
        return error.errno or -1
    return 0


def test_the_disk_is_a_file_system_like_any_other_and_fails_only_when_told_to(tmp_path: Path) -> None:
    """Files, links, renames, lists, sizes, times; then each kind fails what it names and nothing else."""
    with disk_for(tmp_path / "disk") as disk:
        one, other = disk.directory / "one", disk.directory / "in" / "other"
        other.parent.mkdir()
        one.write_bytes(bytes(range(256)) * 8192)
        os.link(one, other)
        os.replace(other, other.with_name("moved"))
        os.truncate(one, 5)
        os.utime(one, (1, 2))
        assert other.with_name("moved").read_bytes() == b"\0\1\2\3\4"
        found = other.with_name("moved").stat()
        assert (found.st_nlink, found.st_size, found.st_mtime) == (2, 5, 2)
        assert sorted(os.listdir(disk.directory)) == ["in", "one"]
        assert error_of(other.read_bytes) == errno.ENOENT
        with one.open("r+b") as file:
            does = {
                "eio_read": lambda: os.pread(file.fileno(), 5, 0),
                "eio_write": lambda: os.pwrite(file.fileno(), b"x", 0),
                "eio_sync": lambda: os.fsync(file.fileno()),
                "eio_names": lambda: one.open("rb").close(),
            }
            if isinstance(disk, FailingDisk):
                for kind in does:
                    disk.fail(kind)
                    assert {name for name, act in does.items() if error_of(act) == errno.EIO} == {kind}
                    disk.mend()
                    assert not any(error_of(act) for act in does.values())
        shutil.rmtree(other.parent)
        assert os.listdir(disk.directory) == ["one"]
    assert not os.path.ismount(disk.directory)


def _seconds(act: Callable[[], object]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


def test_a_slow_disk_takes_its_time_until_it_is_mended(disk: Disk) -> None:
    """For what it reads, writes and syncs; names are looked up as fast as ever."""
    if not isinstance(disk, FailingDisk):
        pytest.skip("needs root and /dev/fuse")
    one = disk.directory / "one"
    one.write_bytes(b"x")
    disk.slow(0.2)
    with one.open("r+b", buffering=0) as file:
        acts: dict[str, Callable[[], object]] = {
            "read": lambda: os.pread(file.fileno(), 1, 0),
            "write": lambda: os.pwrite(file.fileno(), b"y", 0),
            "sync": lambda: os.fsync(file.fileno()),
            "names": (disk.directory / "two").touch,
        }
        took = {name: min(_seconds(act) for _ in range(3)) for name, act in acts.items()}
        assert {name for name, seconds in took.items() if seconds >= 0.2} == {"read", "write", "sync"}, took
        disk.mend()
        assert min(_seconds(acts["read"]) for _ in range(5)) < 0.2


HOLDER = """
import sys, time
from pathlib import Path
from lab.faults.disk import disk_for
with disk_for(Path(sys.argv[1])) as disk:
    (disk.directory / "file").write_text("there")
    print(disk.kind, flush=True)
    time.sleep(600)
"""


def test_the_disk_goes_with_the_process_that_mounted_it_however_that_ends(tmp_path: Path) -> None:
    """SIGKILL of the run leaves no mount of ours behind."""
    root = Path(__file__).parents[3]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "disk")], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert holder.stdout is not None
    kind = holder.stdout.readline().strip()
    mounted = os.path.ismount(tmp_path / "disk")
    assert mounted == ("tmpfs" in kind)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    if kind == FailingDisk.kind:
        until(lambda: not os.path.ismount(tmp_path / "disk") and not os.listdir(tmp_path / "disk"), "gone")
    elif mounted:
        subprocess.run(["umount", "--lazy", str(tmp_path / "disk")], check=True)


class Twin:
    """A store on the disk, and a plain dict of what was folded into it."""

    def __init__(self, data: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.images: dict[int, bytes] = {}
        self.codes: set[str] = set()
        self._data, self._folded = data, 0
        self.store: PartitionStore | None = self._open()
        self.fold(2)

    def _open(self) -> PartitionStore:
        return PartitionStore.open(self._data, keyspace="shop", partition=0, topic_id="t")

    def fold(self, count: int) -> None:
        """More of the topic."""
        assert self.store is not None
        for offset in range(self._folded, self._folded + count):
            self.store.fold([self._record(offset)])
            self._folded = offset + 1
            if offset > 1:
                self.images[offset * 7 % KEYS] = self._record(offset)[1]

    def _record(self, offset: int) -> tuple[int, bytes]:
        first = (start(), marker(1))
        message = first[offset] if offset < 2 else value(offset * 7 % KEYS, b'{"n":%d}' % offset * 5, offset)
        return offset, message

    def reopen(self) -> None:
        """As a process that was started again: the store's offset, and the tail once more."""
        store, self.store = self.store, None
        if store is not None:
            store.close()
        self.store = self._open()
        at = self.store.state.head.offset
        assert at <= self._folded
        self.store.fold([self._record(offset) for offset in range(at, self._folded)])

    def read(self) -> None:
        """A few keys: each is right, or an error."""
        assert self.store is not None
        for number in self.random.sample(range(KEYS), 20):
            self.is_right(number)

    def is_right(self, number: int) -> None:
        """The value of a key is that of the last message about it."""
        assert self.store is not None
        found = self.store.get(key(number))
        last = self.images.get(number)
        assert (found is None) == (last is None)
        if found is not None and last is not None:
            image = found[found.index(b'{"n"') :]
            assert image in last, (number, found)

    def attempt(self, action: Callable[[], object]) -> None:
        """``action`` may fail, but only of the disk."""
        try:
            action()
        except StoreError as error:
            self.codes.add(error.code)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", ERRORS)
def test_a_store_on_a_failing_disk_says_so_or_is_right_and_goes_on_when_the_disk_is_well(disk: Disk, kind: str) -> None:
    """Commits, reads, scans, restarts while a share of the operations fails: no wrong value, no torn store."""
    twin = Twin(disk.directory, 1)
    for round_ in range(ROUNDS):
        with trouble(disk, kind, twin.random.choice((1.0, 0.3, 0.05))):
            for _ in range(6):
                if twin.store is None or twin.random.random() < 0.15:
                    twin.attempt(twin.reopen)
                if twin.store is not None:
                    twin.fold(twin.random.randrange(30))
                    twin.attempt(twin.store.commit)
                    twin.attempt(twin.read)
                    twin.attempt(lambda: dict(twin.store.items()) if twin.store else None)
        if twin.store is None:
            twin.reopen()
        assert twin.store is not None
        with contextlib.suppress(StoreError):
            twin.store.commit()  # what RocksDB met in the background may end this one
        twin.store.commit()
        assert twin.store.broken is None, round_
        for number in range(KEYS):
            twin.is_right(number)
    assert twin.codes <= {"store_io"} if isinstance(disk, FailingDisk) else twin.codes <= {"disk_full"}
    assert twin.codes
    whole = twin.store.digest() if twin.store else None
    twin.reopen()
    assert twin.store is not None
    assert twin.store.digest() == whole
    twin.store.close()


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eio_write", "eio_read"])
def test_a_consumer_on_a_disk_that_fails_waits_and_goes_on(
    kafka: KafkaCluster, keyspace_name: str, disk: Disk, kind: str, tmp_path: Path
) -> None:
    """Everything is folded once when the disk is well again; meanwhile an answer is right or an error."""
    feed = Feed(kafka, keyspace_name, partitions=2)
    with ConsumeProcess(kafka, keyspace_name, disk.directory / "data", log_dir=tmp_path) as process:
        address = process.ready()
        feed.load(200)
        until(lambda: caught_up(kafka, keyspace_name, address), "folded")
        with trouble(disk, kind, pid=process.process.pid):
            feed.load(200)
            until(
                lambda: any(line.get("code") in ("store_io", "disk_full") for line in process.lines()),
                "the trouble is said",
            )
            with contextlib.suppress(OwnerError), OwnerConnection(address) as owner:
                owner.get(keyspace_name, 0, [b"shop.items\0[2]"])
        assert process.process.poll() is None
        until(lambda: caught_up(kafka, keyspace_name, address), "goes on")
        assert process.terminate() == 0
        assert not any("Traceback" in str(line) or "exception" in line for line in process.lines())
        names = {path.name for path in (disk.directory / "data" / keyspace_name).iterdir()}
        assert names == {"0", "1"}, "no store had to be set aside"
    assert_equal_to_uninterrupted(kafka, feed, disk.directory / "data", tmp_path / "scratch")


def test_a_machine_that_may_not_mount_says_so(tmp_path: Path) -> None:
    """What stands for the disk names what it can't do."""
    kind = disk_for(tmp_path / "any").kind
    assert can_mount_fuse(tmp_path) == (kind == FailingDisk.kind)
    assert can_mount_fuse(tmp_path) or "not fail" in kind
