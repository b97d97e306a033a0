"""What a start makes of the heads on disk."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from serving.bytecache.disk.blocks import missing_runs, unused_runs
from serving.bytecache.disk.layout import EMPTY_HEAD, EXTENT, HEAD, HEAD_BYTES, UNIT_BITS, cost_on_disk
from serving.bytecache.disk.loading import HEAD_FIELDS, kept_heads
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.disk.shard import Head
from serving.bytecache.disk.space import shared_memory

NOW = 1_000


@pytest.mark.parametrize("seed", range(20))
def test_all_heads_together_are_read_as_each_alone(seed: int) -> None:
    """Whole, damaged, expired, doubled and unknown heads, and holes: each is used or dropped as it stands alone."""
    chance = random.Random(seed)
    names = {i: CachedFile(i, f"f{i}", "v", chance.choice((1, 5_000, 3 * EXTENT - 7, 40 * EXTENT)), "", 0)
             for i in (1, 2, 2**62)}  # fmt: skip
    sealed = bool(seed % 2)
    raw = []
    for sequence in chance.sample(range(1, 1_000), 60):
        unit = chance.randrange(6)
        head = Head(chance.choice((1, 2, 3, 2**62)), unit, chance.randrange(2**16), chance.choice((0, 999, 1_001)),
                    chance.randrange(3), chance.randrange(4), 5, sequence).pack()  # fmt: skip
        if chance.random() < 0.2:
            at = chance.randrange(HEAD_BYTES)
            head = head[:at] + bytes([head[at] ^ 1 << chance.randrange(8)]) + head[at + 1 :]
        raw.append(EMPTY_HEAD if chance.random() < 0.2 else head)
    found = kept_heads(np.frombuffer(b"".join(raw), HEAD_FIELDS), names, {1}, sealed=sealed, now=NOW)

    expected: dict[int, tuple[int, int, int]] = {}
    usable = []
    for slot, each in enumerate(raw):
        fields = HEAD.unpack(each)
        stored = Head(*fields)
        opens = stored.key == 1 or (stored.key == 0 and not sealed)
        if stored.number in names and stored.pack() == each and stored.bits and opens and stored.expires in (0, 1_001):
            usable.append((stored.sequence, slot, stored))
    for _, slot, entry in sorted(usable):
        cost = cost_on_disk(entry.unit, entry.bits, names[entry.number].size, sealed=bool(entry.key))
        expected.setdefault(entry.number << UNIT_BITS | entry.unit, (slot, cost, entry.value))
    assert dict(zip(found.keys, zip(found.slots, found.costs, found.values, strict=True), strict=True)) == expected
    assert list(expected) == found.keys
    assert found.dropped == [i for i, each in enumerate(raw) if any(each) and i not in found.slots]
    assert sorted([*found.free, *found.slots]) == list(range(found.high))


def test_free_slots_are_looked_at_in_runs() -> None:
    """Every free slot is in one run, and what lies behind the last head is a run without an end."""
    assert list(unused_runs([], 0)) == [(0, None)]
    assert list(unused_runs([1, 2, 5, 7, 8], 9)) == [(1, 3), (5, 6), (7, 9), (9, None)]


def test_blocks_that_an_extent_lacks_are_cleared_in_runs() -> None:
    """Each block is in one run, or is here."""
    assert list(missing_runs(0xFFFF)) == []
    assert list(missing_runs(0b0111_0000_0001_0110)) == [(0, 1), (3, 4), (5, 12), (15, 16)]


def test_the_shared_index_is_not_in_core_dumps() -> None:
    """The kernel leaves the memory of heads out of a dump (``dd`` of its flags): it may be 256 MiB for each shard."""
    _, memory = shared_memory("freshet-dump-test", 1 << 20)
    memory[0] = 1
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if "freshet-dump-test" in line)
    flags = next(line for line in lines[at:] if line.startswith("VmFlags:"))
    assert "dd" in flags.split()
    memory.close()
