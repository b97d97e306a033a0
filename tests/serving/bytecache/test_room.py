"""Room on the disk that the cache leaves to others, and reads that store nothing or store ahead."""

from __future__ import annotations

import errno
import os
import random
import signal
from pathlib import Path

import pytest

from serving.bytecache.disk import directory as directories
from serving.bytecache.disk import shard as shards
from serving.bytecache.disk.directory import Directory, DirectoryOptions
from serving.bytecache.disk.layout import EXTENT
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.policy.pools import Value
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.fetching import FetchRules
from serving.bytecache.reading.place import Owned
from serving.bytecache.shared.joined import Joined
from serving.bytecache.shared.opening import close_caches
from tests.consumers.consuming import until
from tests.serving.bytecache.stores import MIB, DirectoryStore, allocated_bytes, cache_of, open_directory


def filled(directory: Directory, count: int) -> None:
    """Stores ``count`` extents."""
    file = directory.enter("big", "1", count * EXTENT)
    assert file is not None
    for i in range(count):
        directory.store(file, i * 16, memoryview(random.Random(i).randbytes(EXTENT)), Value.NORMAL, 0)


def test_a_spill_gets_its_room_at_once_and_gives_it_back(tmp_path: Path) -> None:
    """What was reserved has left the disk when the call returns; afterwards the cache may take it again."""
    directory = open_directory(tmp_path / "cache", quota=64 * MIB)
    filled(directory, 60)
    assert directory.used > 50 * MIB
    assert directory.reserve(40 * MIB)
    assert directory.used <= 24 * MIB
    assert allocated_bytes(tmp_path / "cache") <= 24 * MIB
    filled(directory, 60)
    assert allocated_bytes(tmp_path / "cache") <= 24 * MIB
    directory.resize(48 * MIB)  # what is reserved stays reserved
    assert directory.used <= 8 * MIB
    assert not directory.reserve(MIB)
    directory.unreserve(40 * MIB)
    filled(directory, 60)
    assert directory.used > 30 * MIB
    directory.close()


def test_what_cannot_be_given_back_in_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the cache has, or more than it can let go of within its time: nothing stays reserved."""
    directory = open_directory(tmp_path / "cache", quota=64 * MIB)
    filled(directory, 60)
    assert not directory.reserve(60 * MIB)
    monkeypatch.setattr(directories, "RESERVE_S", -1.0)
    assert not directory.reserve(40 * MIB)
    assert directory.reserved == 0
    monkeypatch.undo()
    assert directory.reserve(40 * MIB)
    directory.close()


def test_the_room_of_a_process_that_dies_is_the_caches_again(tmp_path: Path) -> None:
    """An attached process holds its reservation by a connection: a kill ends it."""
    options = DirectoryOptions(quota=64 * MIB)
    owner = Joined(tmp_path / "cache", options)
    directory = owner.directory
    assert directory is not None
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        attached = Joined(tmp_path / "cache", options)
        fine = attached.directory is None and attached.reserve(40 * MIB) is not None
        fine = fine and attached.reserve(40 * MIB) is None
        os.write(told, b"y" if fine else b"n")
        signal.pause()
    assert os.read(ready, 1) == b"y"
    assert directory.reserved == 40 * MIB
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    until(lambda: directory.reserved == 0, "the room of the dead process")
    owner.close()


def test_a_reservation_outlives_the_owner(tmp_path: Path) -> None:
    """Who takes a directory over is asked for what was reserved with the owner before."""
    options = DirectoryOptions(quota=64 * MIB)
    owner, other = Joined(tmp_path / "cache", options), Joined(tmp_path / "cache", options)
    give_back = other.reserve(40 * MIB)
    assert give_back is not None
    owner.close()
    assert other.known("a") is None  # a call: it finds the owner gone
    assert other.directory is not None
    assert other.directory.reserved == 40 * MIB
    give_back()
    give_back()
    assert other.directory.reserved == 0
    other.close()


def test_a_reservation_outlives_the_owner_that_another_process_replaces(tmp_path: Path) -> None:
    """Who is attached to the new owner asks it for the same: else the cache would fill what a query spills into."""
    options = DirectoryOptions(quota=64 * MIB)
    owner, next_owner, attached = (Joined(tmp_path / "cache", options) for _ in range(3))
    give_back = attached.reserve(40 * MIB)
    assert give_back is not None
    owner.close()
    for each in (next_owner, attached):
        assert each.known("a") is None  # a call: it finds the owner gone
    assert attached.directory is None
    assert next_owner.directory is not None
    assert next_owner.directory.reserved == 40 * MIB
    give_back()
    until(lambda: next_owner.directory is not None and not next_owner.directory.reserved, "the room of the reservation")
    attached.close()
    next_owner.close()


def test_a_program_reserves_room_by_the_file_system(tmp_path: Path) -> None:
    """``with fs.reserved(…)``: meanwhile the cache has less; what is too much is refused with a code."""
    fs = FreshetFileSystem(target_protocol="file", dirs=(f"{tmp_path}/cache:64MiB",))
    (tmp_path / "a").write_bytes(b"a" * 60 * MIB)
    fs.cat_file(f"{tmp_path}/a")
    with fs.reserved(40 * MIB, f"{tmp_path}/cache"):
        assert fs.cache.places[0].directory.reserved == 40 * MIB  # type: ignore[attr-defined]
    assert fs.cache.places[0].directory.reserved == 0  # type: ignore[attr-defined]
    for wanted, name in ((60 * MIB, ""), (MIB, "/another")):
        with pytest.raises(ByteCacheError) as refused, fs.reserved(wanted, name):
            pass
        assert refused.value.code == "bytes_not_given"
    close_caches()


def test_a_full_file_system_makes_the_cache_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below ``min_free`` nothing more is stored, and what is stored leaves until there is room again: then it grows."""
    now = [1_000.0]
    monkeypatch.setattr(directories, "monotonic", lambda: now[0])
    directory = open_directory(tmp_path / "cache", quota=64 * MIB, min_free=100 * MIB)
    free = [1_000 * MIB]
    monkeypatch.setattr(directories, "free_bytes", lambda _: free[0])
    filled(directory, 50)
    before = directory.used
    free[0] = 99 * MIB
    file = directory.enter("more", "1", MIB)
    assert file is not None
    directory.store(file, 0, memoryview(bytes(MIB)), Value.NORMAL, 0)
    assert directory.read(file, 0, 1) is None
    assert directory.used <= before - MIB
    free[0] = 1_000 * MIB
    directory.store(file, 0, memoryview(bytes(MIB)), Value.NORMAL, 0)
    assert directory.read(file, 0, 1) == b"\0"
    directory._tend()
    assert directory.quota < 64 * MIB
    for _ in range(8):
        now[0] += shards.GROW_S
        directory._tend()
    assert directory.quota == 64 * MIB
    directory.close()


def test_a_disk_that_was_full_is_filled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the cache gave up comes back step by step, without a restart; if the disk is still full it is less again."""
    now = [1_000.0]
    monkeypatch.setattr(shards, "monotonic", lambda: now[0])
    directory = open_directory(tmp_path / "cache", quota=64 * MIB, shards=1)
    [shard] = directory.shards
    whole = shard.quota

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    def later(steps: int) -> None:
        for _ in range(steps):
            now[0] += shards.GROW_S
            directory._tend()

    with monkeypatch.context() as patch:
        patch.setattr("serving.bytecache.disk.blocks.write_together", full)
        filled(directory, 20)
        assert shard.quota == 0
        directory._tend()
        assert shard.quota == 0
        later(5)
        before = shard.quota
        assert 0 < before < whole
        filled(directory, 20)
        assert shard.quota == 0
    filled(directory, 3)
    assert directory.used < MIB
    later(40)
    assert shard.quota == whole
    filled(directory, 20)
    assert directory.used > 20 * MIB
    directory.close()


def test_a_reader_that_is_read_only_stores_nothing(store: DirectoryStore, directory: Directory) -> None:
    """What is here is a hit, what is not is read of the store each time."""
    store.put("a", b"a" * MIB)
    writing, reading = cache_of(directory), ByteCache([Owned(directory)], FetchRules(read_only=True))
    writing.read(writing.open(store, "a"), 0, 10)
    directory.writers.flush()
    store.asked.clear()
    file = reading.open(store, "a")
    assert reading.read(file, 0, 10) == b"a" * 10
    assert store.asked == []
    for _ in range(2):
        assert reading.read(file, MIB - 5, MIB) == b"a" * 5
        directory.writers.flush()
    assert len(store.asked) == 2


def test_what_was_fetched_ahead_is_a_hit(store: DirectoryStore, directory: Directory) -> None:
    """``prefetch`` fetches each missing byte once and gives none; the read afterwards asks nothing."""
    data = random.Random(1).randbytes(5 * MIB + 7)
    store.put("a", data)
    cache = cache_of(directory, request_bytes=MIB)
    file = cache.open(store, "a")
    cache.read(file, MIB, MIB + 1)
    assert cache.prefetch(file, 0, 10**9) == len(data) - 65_536
    assert store.bytes_asked == len(data)
    assert max(end - start for _, start, end in store.asked) <= MIB
    directory.writers.flush()
    store.asked.clear()
    assert cache.prefetch(file, 0, len(data)) == 0
    assert cache.read(file, 0, len(data)) == data
    assert store.asked == []


def test_the_medium_decides_how_many_writers_there_are(tmp_path: Path) -> None:
    """A disk that seeks gets one write at a time, an SSD several."""
    for medium, writers in (("disk", 1), ("ssd", 4)):
        directory = open_directory(tmp_path / medium, medium=medium)
        assert directory.writers.threads == writers
        directory.close()
