"""A directory with so many entries that it takes long to open: nobody waits for it who can read elsewhere."""

from __future__ import annotations

import errno
import gc
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from serving.bytecache.disk.directory import DirectoryOptions, lock_directory
from serving.bytecache.disk.shard import Shard
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.shared.joined import Joined
from tests.patience import PATIENCE_S
from tests.serving.bytecache.stores import MIB, DirectoryStore

OPTIONS = DirectoryOptions(quota=32 * MIB, shards=1)
DATA = random.Random(1).randbytes(MIB)


@dataclass
class Loading:
    """The load of an index: ``begun`` when it has, and it goes on with ``goes_on``."""

    begun: threading.Event
    goes_on: threading.Event


@pytest.fixture
def place(store: DirectoryStore, tmp_path: Path) -> Path:
    """A directory that holds the file ``a``, and that nobody has open."""
    store.put("a", DATA)
    joined = Joined(tmp_path / "cache", OPTIONS)
    cache = ByteCache([joined])
    cache.read(cache.open(store, "a"), 0, MIB)
    joined.close()
    store.asked.clear()
    return tmp_path / "cache"


@pytest.fixture
def loading(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loading]:
    """Every directory is a large one, and its load stands still for now."""
    del place
    found, load = Loading(threading.Event(), threading.Event()), Shard.load

    def slow(*given: Any, **more: Any) -> None:
        found.begun.set()
        assert found.goes_on.wait(PATIENCE_S)
        load(*given, **more)

    monkeypatch.setattr(Shard, "load", slow)
    monkeypatch.setattr("serving.bytecache.shared.joined.LARGE_BYTES", -1)
    monkeypatch.setattr("serving.bytecache.shared.joined.OPEN_WAIT_S", 0.01)
    yield found
    found.goes_on.set()


def test_a_large_directory_is_read_past_until_it_is_open(store: DirectoryStore, place: Path, loading: Loading) -> None:
    """Meanwhile reads come from the store, and keep nothing; what must know the directory waits. Then it is read."""
    joined = Joined(place, OPTIONS, at_once=False)
    assert loading.begun.wait(PATIENCE_S)
    cache = ByteCache([joined])
    file = cache.open(store, "a")
    assert [cache.read(file, 5, 10), cache.read(file, 5, 10)] == [DATA[5:10]] * 2
    assert len(store.asked) == 2
    assert joined.directory is None
    told: list[object] = []
    waiting = [
        threading.Thread(target=lambda: told.append(joined.forget("none", prefix=False))),
        threading.Thread(target=lambda: told.append(joined.describe(files=False))),
    ]
    for each in waiting:
        each.start()
    assert not told
    loading.goes_on.set()
    for each in waiting:
        each.join(PATIENCE_S)
    assert 0 in told
    assert None not in told
    store.asked.clear()
    assert cache.read(cache.open(store, "a"), 0, MIB) == DATA
    assert store.asked == []
    joined.close()


def test_who_takes_over_a_large_directory_reads_on(store: DirectoryStore, place: Path, loading: Loading) -> None:
    """The owner ended: what is known of its blocks is read, the rest comes from the store until the index is loaded."""
    loading.goes_on.set()
    owner = Joined(place, OPTIONS)
    other = Joined(place, OPTIONS, at_once=False)
    assert owner.directory is not None
    cache = ByteCache([other])
    file = cache.open(store, "a")
    assert cache.read(file, 0, MIB) == DATA
    loading.goes_on.clear()
    owner.close()
    store.put("b", DATA)
    assert cache.read(cache.open(store, "b"), 0, 10) == DATA[:10]
    assert cache.read(file, 7, MIB) == DATA[7:]
    assert [path for path, _, _ in store.asked] == ["b"]
    loading.goes_on.set()
    assert other.describe(files=False) is not None
    assert other.directory is not None
    other.close()


def test_what_is_wrong_with_a_large_directory_is_told_at_the_start(
    place: Path, loading: Loading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its format, for example: before the index is loaded, which takes long."""
    del loading
    monkeypatch.setattr("serving.bytecache.shared.joined.OPEN_WAIT_S", PATIENCE_S)
    marker = place / "freshet-bytes.json"
    marker.write_text('{"format_version": 99}')
    with pytest.raises(ByteCacheError) as refused:
        Joined(place, OPTIONS, at_once=False)
    assert refused.value.code == "bytes_dir_newer"


def test_a_child_that_is_forked_amid_an_opening_does_not_keep_the_directory(place: Path, loading: Loading) -> None:
    """The lock is its parent's: when that lets it go, or is killed, the directory is free."""
    joined = Joined(place, OPTIONS, at_once=False)
    assert loading.begun.wait(PATIENCE_S)
    ends, told = os.pipe()
    child = os.fork()
    if child == 0:
        held = joined._held
        joined.after_fork()
        is_held = held is None or Path(f"/proc/self/fd/{held}").exists()
        os.close(told)
        os.read(ends, 1)
        os._exit(is_held)
    loading.goes_on.set()
    joined.close()
    lock = lock_directory(place)
    os.close(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lock is not None
    os.close(lock)


def test_a_directory_is_opened_later_where_no_thread_can_be_had(
    store: DirectoryStore, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads go past it meanwhile, and nobody is told of threads."""
    joined = Joined(place, OPTIONS)
    other = Joined(place, OPTIONS)
    monkeypatch.setattr("serving.bytecache.shared.joined.LARGE_BYTES", -1)
    monkeypatch.setattr("serving.bytecache.shared.joined.RETRY_S", 0.0)
    start, refused = threading.Thread.start, [0]

    def none_left(thread: threading.Thread) -> None:
        if thread.name == "freshet-bytes-open":
            refused[0] += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    cache = ByteCache([other])
    joined.close()
    with monkeypatch.context() as machine:
        machine.setattr(threading.Thread, "start", none_left)
        assert cache.read(cache.open(store, "a"), 5, 10) == DATA[5:10]
        with pytest.raises(ByteCacheError) as told:
            other.forget("a", prefix=False)
        assert told.value.code == "bytes_dir_in_use"
        with pytest.raises(ByteCacheError) as at_start:
            Joined(place, OPTIONS, at_once=False)
        assert at_start.value.code == "bytes_dir_denied"
    assert refused[0] >= 3
    assert other.forget("none", prefix=False) == 0
    assert other.directory is not None
    other.close()


@pytest.mark.parametrize("at_once", [True, False])
def test_nobody_with_a_key_hands_over_to_an_owner_without(place: Path, at_once: bool) -> None:
    """It would store what is to be sealed in the clear. That is told at the start, at once: it would stay so."""
    owner = Joined(place, OPTIONS)
    (place.parent / "key").write_text("0a" * 32)
    for key_file in (str(place.parent / "key"), "ephemeral"):
        with pytest.raises(ByteCacheError, match="other keys") as refused:
            Joined(place, replace(OPTIONS, key_file=key_file), at_once=at_once)
        assert refused.value.code == "bytes_dir_in_use"
    owner.close()


def test_readers_do_not_wait_for_an_owner_that_is_looked_for(
    store: DirectoryStore, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has the lock and answers nothing: files are read past the directory until it can be had."""
    monkeypatch.setattr("serving.bytecache.shared.joined.OPEN_WAIT_S", 0.01)
    lock = lock_directory(place)
    assert lock is not None
    joined = Joined(place, OPTIONS, at_once=False)
    cache = ByteCache([joined])
    for _ in range(3):
        assert cache.read(cache.open(store, "a"), 5, 10) == DATA[5:10]
    assert len(store.asked) == 3
    assert joined._opening is not None, "it is still looked for"
    os.close(lock)
    assert joined.describe(files=False) is not None
    assert cache.read(cache.open(store, "a"), 5, 10) == DATA[5:10]
    assert len(store.asked) == 3
    joined.close()


def opened_in(place: Path) -> list[str]:
    """What this process has open below ``place`` and of shared memory, without what nobody refers to."""
    gc.collect()
    links = [Path("/proc/self/fd") / each for each in os.listdir("/proc/self/fd")]
    shown = [os.readlink(each) for each in links if each.is_symlink()]  # the listing's own is closed by now
    return sorted(each for each in shown if each.startswith((str(place), "/dev/shm/", "/memfd:")))


def test_a_directory_on_a_full_disk_is_opened(
    store: DirectoryStore, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was entered before and never stored can't be taken down as gone: reads go on all the same."""
    before = Joined(place, OPTIONS)
    assert before.enter("entered", "v", 10, "") is not None
    before.close()
    monkeypatch.setattr("serving.bytecache.disk.names.write_all", Mock(side_effect=OSError(errno.ENOSPC, "full")))
    joined = Joined(place, OPTIONS)
    cache = ByteCache([joined])
    assert cache.read(cache.open(store, "a"), 0, MIB) == DATA
    assert store.asked == []
    assert joined.known("entered") is None
    joined.close()


@pytest.mark.parametrize(
    "broken",
    ["names.Names._load", "shard.shared_memory", "space.mmap.mmap", "shard.kept_heads", "shard.Shard._make_room",
     "directory.is_rotational"],
)  # fmt: skip
def test_an_opening_that_fails_leaves_no_descriptor(
    store: DirectoryStore, place: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """Wherever it fails; each read may try again. Once the fault is over, the directory is read."""
    open_before = opened_in(place)
    with monkeypatch.context() as patch:
        patch.setattr(f"serving.bytecache.disk.{broken}", Mock(side_effect=OSError(errno.EIO, "the disk")))
        for _ in range(2):
            with pytest.raises(ByteCacheError, match="the disk"):
                Joined(place, OPTIONS)
    assert opened_in(place) == open_before
    joined = Joined(place, OPTIONS)
    cache = ByteCache([joined])
    assert cache.read(cache.open(store, "a"), 0, MIB) == DATA
    assert store.asked == []
    joined.close()


def test_writers_that_get_too_few_threads_leave_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that went on would write into files that are closed, or into others by then."""
    start, left = threading.Thread.start, iter([True] * 2)

    def few(thread: threading.Thread) -> None:
        if thread.name == "freshet-bytes-write" and not next(left, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    open_before, running_before = opened_in(place), set(threading.enumerate())
    with pytest.raises(RuntimeError):
        Joined(place, replace(OPTIONS, medium="ssd"))
    assert set(threading.enumerate()) <= running_before
    assert opened_in(place) == open_before


def test_a_file_system_without_locks_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network's without its lock service. No file is left open by those who try."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ByteCacheError, match=r"cannot lock .*: No locks available"):
        lock_directory(tmp_path / "bytes")
    assert len(os.listdir("/proc/self/fd")) == before
