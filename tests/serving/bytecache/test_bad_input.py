"""Directories and stores that are not as they should be: each is an error with a code, or a read from elsewhere."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from serving.bytecache.disk import directory as directories
from serving.bytecache.disk import extents, reads, space
from serving.bytecache.disk.directory import Directory, DirectoryOptions
from serving.bytecache.disk.layout import BLOCK
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.policy.locality import ranked
from serving.bytecache.policy.pools import Value
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.fetching import FetchRules
from serving.bytecache.reading.files import ReadOptions
from serving.bytecache.reading.source import Identity
from serving.bytecache.shared.attached import Attached
from serving.bytecache.shared.joined import Joined
from tests.serving.bytecache.stores import MIB, DirectoryStore, cache_of, open_directory

OPTIONS = DirectoryOptions(quota=32 * MIB, shards=1)


class Clock:
    """A clock that each call of the disk moves on by ``slow`` seconds."""

    def __init__(self) -> None:
        self.now, self.slow = 1_000.0, 0.0

    def __call__(self) -> float:
        self.now += self.slow
        return self.now


def kept(directory: Directory) -> Any:
    """A file of one block, stored."""
    file = directory.enter("a", "1", 1_000)
    assert file is not None
    directory.store(file, 0, memoryview(b"a" * 1_000), Value.NORMAL, 0)
    return file


def test_a_slow_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three reads beyond the limit isolate a directory: then it is a miss without a call; later it is tried again."""
    directory, clock = open_directory(tmp_path / "cache"), Clock()
    file = kept(directory)
    monkeypatch.setattr(directories, "monotonic", clock)
    monkeypatch.setattr(reads, "monotonic", clock)
    clock.slow = 6.0
    for _ in range(3):
        assert directory.read(file, 0, 10) == b"a" * 10
    assert directory.health.errors == 3
    calls: list[int] = []

    def counted(file: int, length: int, at: int) -> bytes:
        calls.append(at)
        return os.pread(file, length, at)

    monkeypatch.setattr(extents, "_pread", counted)
    clock.slow = 0.0
    assert directory.read(file, 0, 10) is None
    assert not directory.read_into(file, 0, memoryview(bytearray(1_000)))
    assert directory.block(file, 0) is None
    assert calls == []
    clock.now += 31
    assert directory.read(file, 0, 10) == b"a" * 10
    assert directory.health.in_a_row == 0
    directory.close()


def test_a_slow_disk_gets_no_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three writes beyond the limit isolate a directory, too."""
    directory, clock = open_directory(tmp_path / "cache"), Clock()
    file = directory.enter("a", "1", 10 * BLOCK)
    assert file is not None
    monkeypatch.setattr(directories, "monotonic", clock)
    monkeypatch.setattr("serving.bytecache.disk.shard.monotonic", clock)
    clock.slow = 6.0
    for i in range(5):
        directory.store(file, i, memoryview(bytes(BLOCK)), Value.NORMAL, 0)
    assert sum(shard.counts.written_bytes for shard in directory.shards) == 3 * BLOCK
    directory.close()


@pytest.mark.parametrize("attached", [False, True])
def test_a_disk_that_fails_to_read_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attached: bool
) -> None:
    """An input error is a miss, of the owner and of who is attached; after three the disk is asked no more."""
    owner = Joined(tmp_path / "cache", OPTIONS)
    place = Attached(tmp_path / "cache", (), 64 << 20) if attached else owner
    assert owner.directory is not None
    kept(owner.directory)
    file = place.enter("a", "1", 1_000, "")
    assert file is not None
    assert place.read(file, 0, 10) == b"a" * 10
    calls: list[int] = []

    def failing(*_: object) -> bytes:
        calls.append(1)
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(extents, "_pread", failing)
    for _ in range(10):
        assert place.read(file, 0, 10) is None
    assert len(calls) <= 4
    monkeypatch.undo()
    if isinstance(place, Attached):
        place.close()
    owner.close()


def test_a_directory_that_was_removed_is_no_error_of_a_read(store: DirectoryStore, tmp_path: Path) -> None:
    """What was open is read on; what is new is read of the store; the next process begins anew."""
    data = random.Random(1).randbytes(3 * MIB)
    store.put("a", data)
    store.put("b", data)
    directory = open_directory(tmp_path / "cache")
    cache = cache_of(directory)
    file = cache.open(store, "a")
    assert cache.read(file, 0, MIB) == data[:MIB]
    directory.writers.flush()
    shutil.rmtree(tmp_path / "cache")
    assert cache.read(file, 0, 3 * MIB) == data
    assert cache.read(cache.open(store, "b"), 5, 3 * MIB) == data[5:]
    directory.close()
    again = open_directory(tmp_path / "cache")
    assert cache_of(again).read(cache_of(again).open(store, "a"), 0, 10) == data[:10]
    again.close()


def test_a_file_system_without_holes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first start tells it, with a code; the lock is free afterwards."""

    def none(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "operation not supported")

    monkeypatch.setattr("serving.bytecache.disk.marker.punch_hole", none)
    for _ in range(2):
        with pytest.raises(ByteCacheError) as refused:
            open_directory(tmp_path / "cache")
        assert refused.value.code == "bytes_no_holes"
    monkeypatch.undo()
    open_directory(tmp_path / "cache").close()


def test_what_the_kernel_refuses_to_punch_is_told() -> None:
    """The kernel's own refusal reaches the check: a pipe has no holes."""
    reading, writing = os.pipe()
    with pytest.raises(OSError, match=r"."):
        space.punch_hole(writing, 0, 4_096)
    os.close(reading)
    os.close(writing)


def test_a_store_that_lies_about_the_length(store: DirectoryStore, directory: Directory) -> None:
    """Announced longer than it is: ``short_read``, and nothing is kept. Announced shorter: no byte beyond that."""
    data = random.Random(2).randbytes(100_000)
    store.put("a", data)
    cache, told = cache_of(directory), [0]

    def lies(path: str, timeout_s: float | None = None) -> Identity:  # noqa: ARG001
        return Identity(f"{path}{told[0]}", told[0])

    store.identity = lies  # type: ignore[method-assign]
    for told[0] in (100_001, 200_000, 10**9):
        file = cache.open(store, "a")
        with pytest.raises(ByteCacheError) as short:
            cache.read(file, 99_000, 100_001)
        assert short.value.code == "short_read"
        assert file.entry is not None
        assert directory.block(file.entry, 1) is None
    for told[0] in (50_000, 100_000):
        assert cache.read(cache.open(store, "a"), 0, 10**9) == data[: told[0]]


def test_who_waits_for_a_store_that_hangs_is_not_held(store: DirectoryStore, directory: Directory) -> None:
    """The one who asked hangs as the store does; who waits for it has a deadline of its own, and others read on."""
    store.put("a", b"a" * MIB)
    store.put("b", b"b" * MIB)
    cache, hangs, goes_on = cache_of(directory), threading.Event(), threading.Event()

    def hang() -> None:
        if threading.current_thread().name == "hanging":
            hangs.set()
            goes_on.wait(240)

    store.before_fetch = hang
    found: list[bytes] = []
    thread = threading.Thread(
        name="hanging", target=lambda: found.append(cache.read(cache.open(store, "a"), 0, 10)), daemon=True
    )
    thread.start()
    assert hangs.wait(240)
    with pytest.raises(TimeoutError):
        cache.read(cache.open(store, "a", ReadOptions(deadline_s=0.01)), 0, 10)
    assert cache.read(cache.open(store, "b"), 0, 10) == b"b" * 10
    goes_on.set()
    thread.join(240)
    assert found == [b"a" * 10]


def test_a_store_that_fails_and_recovers(store: DirectoryStore, directory: Directory) -> None:
    """Its error is the caller's, as it is; what is cached is read on where the version need not be asked for."""
    store.put("a", b"a" * MIB)
    cache = cache_of(directory)
    file = cache.open(store, "a")
    cache.read(file, 0, 10)
    directory.writers.flush()

    def fails() -> None:
        raise ConnectionError("500 Internal Server Error")

    store.before_fetch = fails
    assert cache.read(file, 0, 20) == b"a" * 20
    with pytest.raises(ConnectionError, match="500"):
        cache.read(file, MIB - 1, MIB)
    store.before_fetch = lambda: None
    assert cache.read(file, MIB - 1, MIB) == b"a"


def test_a_version_that_cannot_be_asked_for_after_the_fetch(store: DirectoryStore, directory: Directory) -> None:
    """Without the version after the fetch nobody knows whose bytes they are: an error, and nothing is kept."""
    store.put("a", b"a" * MIB)
    cache = cache_of(directory)
    file = cache.open(store, "a")
    identity = store.identity

    def lost(path: str, timeout_s: float | None = None) -> Identity:  # noqa: ARG001
        raise FileNotFoundError(path)

    store.identity = lost  # type: ignore[method-assign]
    with pytest.raises(FileNotFoundError):
        cache.read(file, 0, 10)
    store.identity = identity  # type: ignore[method-assign]
    directory.writers.flush()
    assert file.entry is not None
    assert directory.block(file.entry, 0) is None


def test_a_store_that_returns_more_than_was_asked(store: DirectoryStore, directory: Directory) -> None:
    """A server that ignores ranges: its bytes are not taken for the range's, nor is it asked for them again."""
    store.put("a", random.Random(3).randbytes(MIB))
    cache = cache_of(directory)

    def whole(
        path: str,
        ranges: Sequence[tuple[int, int]],
        timeout_s: float | None = None,  # noqa: ARG001
    ) -> Sequence[bytes]:
        return [(store.root / path).read_bytes() for _ in ranges]

    store.fetch = whole  # type: ignore[method-assign]
    file = cache.open(store, "a")
    with pytest.raises(ByteCacheError, match="ignores ranges") as wrong:
        cache.read(file, BLOCK, BLOCK + 10)
    assert wrong.value.code == "no_ranges"
    assert file.tally.source_calls == 1
    assert cache.read(file, 0, MIB) == (store.root / "a").read_bytes()


def test_a_key_file_that_is_gone_is_told(tmp_path: Path) -> None:
    """The next start does not go on without encryption: it is refused with a code, and what is there stays."""
    (tmp_path / "key").write_text("0b" * 32)
    directory = open_directory(tmp_path / "cache", key_file=str(tmp_path / "key"))
    kept(directory)
    directory.close()
    (tmp_path / "key").rename(tmp_path / "away")
    with pytest.raises(ByteCacheError) as refused:
        open_directory(tmp_path / "cache", key_file=str(tmp_path / "key"))
    assert refused.value.code == "bad_key_file"
    (tmp_path / "away").rename(tmp_path / "key")
    again = open_directory(tmp_path / "cache", key_file=str(tmp_path / "key"))
    assert again.read(kept(again), 0, 10) == b"a" * 10
    again.close()


@pytest.mark.parametrize("immutable", [False, True])
def test_a_file_whose_name_is_no_text_is_read_past_the_cache(
    store: DirectoryStore, tmp_path: Path, immutable: bool
) -> None:
    """Local files may have any bytes as their name: neither the log takes it nor an owner, and no reader is told."""
    name = os.fsdecode(b"caf\xe9")
    store.put(name, b"bytes")
    owners = [Joined(tmp_path / each, OPTIONS) for each in ("one", "two")]
    attached = [Attached(tmp_path / each, (), MIB) for each in ("one", "two")]
    for places in (owners[:1], owners, attached[:1], attached):
        cache = ByteCache(places, FetchRules(hosts=("a", "b"), host="a"))
        for _ in range(2):
            store.asked.clear()
            file = cache.open(store, name, ReadOptions(immutable=immutable))
            assert cache.read(file, 1, 3) == b"yt"
            assert store.asked == [(name, 1, 3)]
        assert cache.forget(name) == 0
    assert ranked(("a", "b"), name, 0)
    for reader in attached:
        reader.close()
    for owner in owners:
        owner.close()


@pytest.mark.parametrize("given", [{}, {"tag": "\udce9"}, {"scope": "\udce9"}])
def test_a_version_that_is_no_text_is_read_past_the_cache(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    """A server's ETag may have any bytes: it can't be written down or told to an owner, and is no error of a read."""
    store.put("a", b"bytes")
    if not given:
        monkeypatch.setattr(store, "identity", lambda *_: Identity("\udce9", 5))
    owner, attached = Joined(tmp_path / "cache", OPTIONS), Attached(tmp_path / "cache", (), MIB)
    for place in (owner, attached):
        cache = ByteCache([place])
        for _ in range(2):
            store.asked.clear()
            assert cache.read(cache.open(store, "a", ReadOptions(**given)), 1, 3) == b"yt"  # type: ignore[arg-type]
            assert store.asked == [("a", 1, 3)]
    attached.close()
    owner.close()
