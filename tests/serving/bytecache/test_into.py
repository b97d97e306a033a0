"""Reads into the caller's own memory."""

from __future__ import annotations

import random
from pathlib import Path

import fsspec
import pytest

from serving.bytecache.disk.directory import Directory
from serving.bytecache.disk.layout import BLOCK, CELL, EXTENT, GRANULE
from serving.bytecache.shared.opening import close_caches
from tests.serving.bytecache.stores import MIB, DirectoryStore, cache_of, open_directory


@pytest.mark.parametrize("key", ["", "0b" * 32])
def test_any_range_is_read_into_the_callers_memory(store: DirectoryStore, tmp_path: Path, key: str) -> None:
    """Aligned or not, over extents, past the end: the same bytes as a read, and nothing is fetched again."""
    (tmp_path / "key").write_text(key)
    directory = open_directory(tmp_path / "cache", key_file=str(tmp_path / "key") if key else "")
    data = random.Random(1).randbytes(2 * EXTENT + 70_001)
    store.put("a", data)
    cache = cache_of(directory)
    file = cache.open(store, "a")
    cache.read(file, 0, len(data))
    directory.writers.flush()
    store.asked.clear()
    chance = random.Random(2)
    edges = [0, 1, GRANULE, CELL, BLOCK, EXTENT - 1, EXTENT, EXTENT + BLOCK, 2 * EXTENT, 2 * EXTENT + BLOCK, len(data)]
    for _ in range(300):
        start, length = chance.choice(edges), chance.choice([0, 1, 100, GRANULE, CELL, BLOCK, EXTENT, 3 * EXTENT])
        memory = bytearray(b"?" * length)
        count = cache.read_into(file, start, memoryview(memory))
        assert count == min(length, len(data) - start)
        assert memory[:count] == data[start : start + count]
        assert memory[count:] == b"?" * (length - count)
    assert store.asked == []
    assert cache.tallies.total().hit_bytes + cache.tallies.total().miss_bytes >= len(data)
    directory.close()


@pytest.mark.parametrize("key", ["", "0b" * 32])
def test_a_damaged_block_is_not_left_in_the_callers_memory(store: DirectoryStore, tmp_path: Path, key: str) -> None:
    """What does not verify is fetched anew, into the same memory."""
    (tmp_path / "key").write_text(key)
    directory = open_directory(tmp_path / "cache", shards=1, key_file=str(tmp_path / "key") if key else "")
    data = random.Random(1).randbytes(MIB)
    store.put("a", data)
    cache = cache_of(directory)
    file = cache.open(store, "a")
    cache.read(file, 0, MIB)
    directory.writers.flush()
    with (tmp_path / "cache" / "0" / "data").open("r+b") as raw:
        raw.seek(3 * BLOCK + 17)
        byte = raw.read(1)[0]
        raw.seek(3 * BLOCK + 17)
        raw.write(bytes([byte ^ 1]))
    memory = bytearray(MIB)
    assert cache.read_into(file, 0, memoryview(memory)) == MIB
    assert memory == data
    assert directory.health.damaged == 1
    directory.close()


def test_a_well_placed_range_is_not_copied(
    store: DirectoryStore, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range on granules goes from the disk's cache into the caller's memory: no read that makes bytes of its own."""
    store.put("a", random.Random(1).randbytes(MIB + 5_000))
    cache = cache_of(directory)
    file = cache.open(store, "a")
    cache.read(file, 0, 2 * MIB)
    directory.writers.flush()

    def copies(*_: object) -> bytes:
        raise AssertionError("it was read as bytes")

    monkeypatch.setattr(cache, "read", copies)
    memory = memoryview(bytearray(2 * MIB))
    for start, length in ((0, MIB), (GRANULE, 3 * GRANULE), (MIB - BLOCK, 2 * BLOCK), (MIB, MIB)):
        assert cache.read_into(file, start, memory[:length]) == min(length, MIB + 5_000 - start)


def test_an_open_file_fills_a_buffer(tmp_path: Path) -> None:
    """``readinto`` as of any file: what it returns, where it goes on, and the end."""
    data = random.Random(1).randbytes(100_000)
    (tmp_path / "a").write_bytes(data)
    with fsspec.open(f"freshet::file://{tmp_path}/a", freshet={"dirs": f"{tmp_path}/cache:32MiB"}) as file:
        memory = bytearray(65_536)
        for _ in range(2):
            file.seek(0)
            assert file.readinto(memory) == 65_536
            assert memory == data[:65_536]
            assert file.readinto(memory) == len(data) - 65_536
            assert memory[: len(data) - 65_536] == data[65_536:]
            assert file.readinto(memory) == 0
    close_caches()
