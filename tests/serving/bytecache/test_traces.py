"""Traces of reads: sampled by file, anonymous, rotated, and replayed as it was."""

from __future__ import annotations

import random
from pathlib import Path

import fsspec
import pytest

from serving.bytecache.disk.directory import Directory
from serving.bytecache.policy.simulate import simulate
from serving.bytecache.reading import trace as tracing
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.place import Owned
from serving.bytecache.reading.replay import lines, replayed, touches
from serving.bytecache.reading.source import Identity
from serving.bytecache.reading.trace import Trace
from serving.bytecache.shared.opening import close_caches
from tests.serving.bytecache.stores import MIB, DirectoryStore, aged, open_directory


@pytest.mark.parametrize("policy", ["s3fifo", "lru", "fifo", "lirs"])
def test_a_replay_with_the_same_settings_has_the_same_hits(store: DirectoryStore, tmp_path: Path, policy: str) -> None:
    """Of a cache of one shard, and reads of whole extents: each hit and each miss of the replay was one."""
    chance = random.Random(9)
    for i in range(30):
        store.put(f"f{i}", bytes([i]) * MIB)
    directory: Directory = open_directory(tmp_path / "cache", quota=12 * MIB, shards=1, policy=policy)
    trace = Trace(tmp_path / "trace")
    cache = ByteCache([Owned(directory)], trace=trace)
    for i in (min(29, int(chance.expovariate(0.12))) for _ in range(400)):
        assert cache.read(cache.open(store, f"f{i}"), 0, MIB) == bytes([i]) * MIB
        directory.writers.flush()
        directory.shards[0].settle()
    capacity = directory.shards[0]._pools.capacity
    directory.close()
    trace.close()
    total = cache.tallies.total()
    assert total.hits > 50
    assert total.misses > 50
    outcome, sizes = replayed(tmp_path / "trace", capacity, policy)
    assert (outcome.hits, outcome.misses, outcome.hit_bytes) == (total.hits, total.misses, total.hit_bytes)
    assert simulate(policy, 40 * MIB, touches(tmp_path / "trace")).misses == 30  # all of them fit
    assert set(sizes) == {0.5, 1, 2, 4}


def test_a_read_beyond_the_end_is_not_in_a_trace(store: DirectoryStore, tmp_path: Path) -> None:
    """It gives nothing; a line of it would be of a range that no file has, and nobody could replay the trace."""
    store.put("f", b"x" * 100)
    directory = open_directory(tmp_path / "cache", quota=12 * MIB, shards=1)
    trace = Trace(tmp_path / "trace")
    cache = ByteCache([Owned(directory)], trace=trace)
    file = cache.open(store, "f")
    assert cache.read_many(file, [(150, 200), (0, 10), (100, 100)]) == [b"", b"x" * 10, b""]
    directory.close()
    trace.close()
    assert [(line.start, line.end) for line in lines(tmp_path / "trace")] == [(0, 10)]


def test_a_file_is_in_a_sample_as_a_whole(tmp_path: Path) -> None:
    """Of many files a share is traced, within three points, each with all of its reads; names are not told."""
    for share in (1.0, 0.5, 0.1):
        path = tmp_path / f"trace{share}"
        trace = Trace(path, share=share, anonymous=True)
        for i in range(3_000):
            for start in (0, 10):
                trace.record(f"s3://secret/{i}", Identity("v", 100), start, start + 5, 0)
        trace.close()
        found = [line.file for line in lines(path)]
        assert all(found.count(name) == 2 for name in set(found[:50]))
        assert abs(len(found) / 6_000 - share) < 0.03
        assert b"secret" not in path.read_bytes()


def test_a_trace_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many lines the next file is begun; the oldest is written over."""
    monkeypatch.setattr(tracing, "LINES_MAX", 10)
    monkeypatch.setattr(tracing, "FILES_MAX", 3)
    trace = Trace(tmp_path / "trace")
    for i in range(95):
        trace.record("a", Identity("v", 1_000), i, i + 1, 0)
    trace.close()
    files = sorted(tmp_path.glob("trace*"))
    assert [file.name for file in files] == ["trace", "trace.1", "trace.2"]
    kept = sorted(line.start for file in files for line in lines(file))
    assert kept == list(range(70, 95))


def test_a_disk_that_refuses_a_trace_fails_no_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, and a folder that is gone when the trace turns: it goes on when there is room again."""
    monkeypatch.setattr(tracing, "LINES_MAX", 10)
    place = tmp_path / "traces"
    place.mkdir()
    trace = Trace(place / "trace")

    def record(count: int) -> None:
        for i in range(count):
            trace.record("a", Identity("v", 100), i, i + 5, 0)

    with monkeypatch.context() as refusing:
        full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 - the trace closes it
        refusing.setattr(trace, "_file", full)
        record(3)
        full.close()
    record(12)
    place.rename(tmp_path / "gone")
    record(12)
    place.mkdir()
    record(25)
    trace.close()
    assert len(list(lines(place / "trace"))) > 0


def test_settings_choose_what_is_traced(tmp_path: Path) -> None:
    """The options of the file system reach the trace: a share of the files, without their names."""
    for i in range(40):
        (tmp_path / f"f{i}").write_bytes(b"x" * 100)
    aged(*(tmp_path / f"f{i}" for i in range(40)))
    options = {"trace": str(tmp_path / "trace"), "trace_share": 0.5, "trace_anonymous": True}
    fs = fsspec.filesystem("freshet", target_protocol="file", dirs=(f"{tmp_path}/c:64MiB",), **options)
    try:
        for i in range(40):
            fs.cat_file(f"{tmp_path}/f{i}")
    finally:
        close_caches()
    found = list(lines(tmp_path / "trace"))
    assert 5 < len(found) < 35
    assert str(tmp_path) not in (tmp_path / "trace").read_text()
