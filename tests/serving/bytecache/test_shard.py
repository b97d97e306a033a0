"""What a shard's files take beside its data: no more than the slots in use need."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from serving.bytecache.disk.directory import Directory
from serving.bytecache.disk.layout import EXTENT
from serving.bytecache.policy.pools import Value
from tests.serving.bytecache.stores import MIB, allocated_bytes, open_directory

QUOTA = 24 * MIB


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that many small files had filled, of which three are left; nobody has it open."""
    directory = open_directory(tmp_path / "cache", QUOTA, shards=1)
    small_ones(directory)
    directory.forget(directory.matching("small/", prefix=True))
    directory.close()
    return tmp_path / "cache"


def small_ones(directory: Directory, count: int = 2_500) -> None:
    """Stores small files, three to be kept."""
    for i in range(count):
        file = directory.enter(f"kept{i}" if i < 3 else f"small/{i}", "v", 1_000)
        assert file is not None
        directory.store(file, 0, memoryview(bytes(1_000)), Value.NORMAL, 0)


def large_one(directory: Directory) -> None:
    """Stores more than there is room for."""
    file = directory.enter("large", "v", 30 * EXTENT)
    assert file is not None
    for i in range(30):
        directory.store(file, i * 16, memoryview(random.Random(i).randbytes(EXTENT)), Value.NORMAL, 0)


def test_what_many_small_files_left_counts_after_a_restart(place: Path) -> None:
    """Checksums and heads of slots that are free go at the start: a large file then keeps within the quota."""
    directory = open_directory(place, QUOTA, shards=1)
    assert os.stat(place / "0/sums").st_size < 10_000
    assert all(directory.names.by_path[f"kept{i}"] for i in range(3))
    large_one(directory)
    assert allocated_bytes(place) <= QUOTA
    directory.close()


def test_what_many_small_files_took_is_room_again(tmp_path: Path) -> None:
    """Without a restart: once they have left a large file has the quota for itself, and no slot is given twice."""
    directory = open_directory(tmp_path / "cache", QUOTA, shards=1)
    small_ones(directory)
    [shard] = directory.shards
    directory.forget(directory.matching("small/", prefix=True))
    shard.tend()
    assert directory.used < MIB
    assert allocated_bytes(tmp_path / "cache") < MIB
    large_one(directory)
    small_ones(directory, 100)
    assert sorted([*shard.table.values(), *shard._free]) == list(range(shard._high))
    assert directory.used > QUOTA * 0.8
    assert allocated_bytes(tmp_path / "cache") <= QUOTA
    assert directory.verify()[1] == 0
    for i in range(3):
        assert directory.read(directory.names.by_path[f"kept{i}"], 0, 1_000) == bytes(1_000)
    directory.close()


def test_who_looks_ends_no_file(place: Path) -> None:
    """Slots of a key that it lacks look free to it."""
    directory = open_directory(place, QUOTA, shards=1)
    small_ones(directory, 200)
    directory.close()
    before = os.stat(place / "0/sums").st_size
    directory = open_directory(place, QUOTA, shards=1, keep_all=True)
    directory.forget(directory.matching("", prefix=True))
    directory.shards[0].tend()
    assert os.stat(place / "0/sums").st_size == before
    directory.close()
