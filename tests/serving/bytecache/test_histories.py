"""Any history of the byte cache against direct reads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from serving.bytecache.disk.layout import BLOCK
from serving.bytecache.reading.cache import ByteCache
from tests.lengths import LONG, length
from tests.serving.bytecache.stores import MIB, DirectoryStore, cache_of, open_directory

OPS = length(share=1_500, whole=500_000)


@pytest.mark.long
@pytest.mark.timeout(0 if LONG else 900)
@pytest.mark.parametrize("seed", range(2))
def test_any_history_of_reads_and_changes_gives_the_stores_bytes(
    store: DirectoryStore, tmp_path: Path, seed: int
) -> None:
    """Reads, overwrites, evictions, resizes, restarts and damage in any order: each read equals a direct one."""
    chance = random.Random(seed)
    (tmp_path / "key").write_text("0a" * 32)
    options: dict[str, Any] = {"key_file": str(tmp_path / "key") if seed % 2 else "", "shards": 1 + seed % 3}
    place, content = tmp_path / "cache", dict[str, bytes]()
    directory = open_directory(place, quota=12 * MIB, **options)
    cache, hits = cache_of(directory), 0
    for _ in range(OPS):
        path = f"f{chance.randrange(8)}"
        op = chance.random()
        if path not in content or op < 0.04:
            size = chance.choice((1, 100, 4_096, BLOCK, 100_001, MIB, 3 * MIB + 7) + (8 * MIB,) * (op < 0.001))
            content[path] = chance.randbytes(size)
            store.put(path, content[path])
        elif op < 0.05:
            cache.forget(path[:1], prefix=True)
        elif op < 0.06:
            directory.resize(chance.choice((9, 12, 20)) * MIB)
        elif op < 0.07:
            hits += cache.tallies.total().hits
            directory.close()
            directory = open_directory(place, quota=12 * MIB, **options)
            cache = cache_of(directory)
        elif op < 0.10:
            directory.writers.flush()
            data = chance.choice(list(place.glob("*/data")))
            with data.open("r+b") as raw:
                raw.seek(chance.randrange(max(1, data.stat().st_size)))
                raw.write(chance.randbytes(8))
        else:
            _read_some(cache, store, path, content[path], chance)
    assert hits > OPS // 20
    directory.close()


def _read_some(cache: ByteCache, store: DirectoryStore, path: str, data: bytes, chance: random.Random) -> None:
    file = cache.open(store, path)
    ranges = []
    for _ in range(chance.choice((1, 1, 1, 5))):
        start = chance.randrange(len(data))
        ranges.append((start, start + chance.choice((1, 300, 4_096, BLOCK, 250_000, 2 * MIB))))
    expected = [data[start:end] for start, end in ranges]
    if len(ranges) == 1 and chance.random() < 0.5:
        memory = bytearray(ranges[0][1] - ranges[0][0])
        assert memory[: cache.read_into(file, ranges[0][0], memoryview(memory))] == expected[0]
    elif len(ranges) == 1:
        assert [cache.read(file, *ranges[0])] == expected
    else:
        assert cache.read_many(file, ranges) == expected
