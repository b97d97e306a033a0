"""What planted bugs broke without a test that noticed."""

from __future__ import annotations

import time
from pathlib import Path

from serving.bytecache.disk.directory import Directory
from serving.bytecache.disk.layout import BLOCK, EXPIRES_MAX
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.disk.writing import Write, Writers
from serving.bytecache.policy.pools import Value
from serving.bytecache.reading.files import ReadOptions
from tests.patience import PATIENCE_S
from tests.serving.bytecache.stores import MIB, DirectoryStore, cache_of, open_directory


def test_an_extent_that_leaves_for_its_own_next_block_promises_no_earlier_one(tmp_path: Path) -> None:
    """Room for a block is made by the extent that it belongs to: the new head tells of the new block only."""
    directory = open_directory(tmp_path / "cache", quota=16 * MIB, shards=1, policy="fifo")
    file = directory.enter("a", "1", 64 * MIB)
    assert file is not None
    directory.store(file, 0, memoryview(bytes(BLOCK)), Value.NORMAL, 0)
    block, shard = 16, directory.shards[0]
    while not shard.counts.evicted and shard._pools.cost + 2 * BLOCK < shard._pools.capacity:
        directory.store(file, block, memoryview(bytes(BLOCK)), Value.NORMAL, 0)
        block += 1
    before = shard.counts.evicted
    for i in range(1, 16):
        directory.store(file, i, memoryview(bytes([i]) * BLOCK), Value.NORMAL, 0)
    assert shard.counts.evicted > before
    assert [i for i in range(16) if directory.block(file, i) is not None]
    assert directory.health.damaged == 0
    directory.close()


def test_the_earlier_expiry_counts_for_an_extent(tmp_path: Path) -> None:
    """Blocks that come later with a longer life, or none, do not keep the earlier ones."""
    directory = open_directory(tmp_path / "cache")
    file = directory.enter("a", "1", MIB)
    assert file is not None
    soon = int(time.time()) + 100
    for i, expires in enumerate((soon, soon + 1_000, 0)):
        directory.store(file, i, memoryview(bytes(BLOCK)), Value.NORMAL, expires)
    shard = directory.shard_of(file.number, 0)
    assert [shard._head(slot).expires for slot in shard.table.values()] == [soon]
    directory.close()


def test_a_hit_of_another_process_counts_once(tmp_path: Path) -> None:
    """The owner takes it out of the shared memory: at its next look it is not read again."""
    directory = open_directory(tmp_path / "cache")
    file = directory.enter("a", "1", MIB)
    assert file is not None
    directory.store(file, 0, memoryview(bytes(BLOCK)), Value.NORMAL, 0)
    shard = directory.shard_of(file.number, 0)
    (slot,) = shard.table.values()
    shard._heat[slot] = 1
    for _ in range(3):
        shard.tend()
    assert (shard._heat[slot], shard._kept_heat[slot]) == (0, 1)
    directory.close()


def test_a_life_of_centuries_ends_with_what_a_head_can_name(store: DirectoryStore, directory: Directory) -> None:
    """What is kept that long is kept, and no writer ends of it."""
    store.put("a", b"a" * MIB)
    cache = cache_of(directory)
    file = cache.open(store, "a", ReadOptions(ttl_s=10**30))
    assert file.entry is not None
    for i in range(8):  # more than there are writers
        cache.read(file, i * BLOCK, i * BLOCK + 10)
        assert directory.writers.flush(PATIENCE_S)
        assert directory.block(file.entry, i) == b"a" * BLOCK
    shard = directory.shard_of(file.entry.number, 0)
    assert {shard._head(slot).expires for slot in shard.table.values()} == {EXPIRES_MAX}


def test_a_directory_takes_any_expiry_of_another_process(directory: Directory) -> None:
    """Its version may be another one: what it says must not end the thread that serves it."""
    file = directory.enter("a", "1", MIB)
    assert file is not None
    directory.store(file, 0, memoryview(bytes(BLOCK)), Value.NORMAL, EXPIRES_MAX + 1)
    assert directory.block(file, 0) == bytes(BLOCK)
    directory.store(file, 1, memoryview(bytes(BLOCK)), Value.INDEX, -1)
    assert directory.block(file, 1) is None


def test_a_write_that_fails_is_counted_and_the_next_one_is_stored() -> None:
    """Whatever it raises: without its threads the cache would store nothing more, and say nothing."""
    stored: list[int] = []

    def store(write: Write) -> None:
        if not write.first:
            raise ValueError("a defect")
        stored.append(write.first)

    writers = Writers(store, lambda: None, 1, MIB)
    file = CachedFile(1, "a", "1", MIB, "", 0)
    for first in range(2):
        assert writers.submit(Write(file, first, memoryview(bytes(BLOCK)), Value.NORMAL, 0))
    assert writers.flush(PATIENCE_S)
    assert (stored, writers.counts.dropped, writers.counts.dropped_bytes) == ([1], 1, BLOCK)
    writers.close()
