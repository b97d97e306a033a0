"""What planted bugs broke without a test that noticed."""

from __future__ import annotations

import time
from pathlib import Path

from serving.bytecache.disk.layout import BLOCK
from serving.bytecache.policy.pools import Value
from tests.serving.bytecache.stores import MIB, open_directory


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
