"""What the byte cache does where not all is warm: cold reads, overlaps, hit ratios, and three ways to read a disk.

``python -m benchmarks.byte_cases`` prints a line for each figure or, with ``--json``, one object. ``--only``: sections.

- ``ratios``: hit ratios of the policies on the yardstick's traces (100,000 keys by Zipf's law, a million reads, five
  scans), beside the ratio that another S3-FIFO reached on them. Exact: they depend on no clock.
- ``cold``: a file in a store that needs 50 ms for a call, read once and again, beside fsspec's ``blockcache``.
- ``overlaps``: random overlapping reads; what was fetched beside what is unique in it. Exact.
- ``media``: pread, mmap, mmap with huge pages and O_DIRECT into bytes that are checksummed, in turn, by the clock.
- ``shards``: warm reads of eight threads with 1 to 16 shards, in turn, by the clock.
- ``saturated``: times of warm reads, alone and beside a process that fills the cache: `benchmarks.byte_saturated`.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

import fsspec
import xxhash
from fsspec.implementations.local import LocalFileSystem

from benchmarks.byte_saturated import saturated
from serving.bytecache.disk.layout import BLOCK
from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.filesystem.remote import SETTLED_S
from serving.bytecache.policy.pools import POLICIES
from serving.bytecache.policy.simulate import Touch, simulate
from serving.bytecache.reading.plan import blocks_of
from serving.bytecache.reading.replay import zipf
from serving.bytecache.shared.opening import close_caches

YARDSTICK: Final = {
    (0.8, 0, 1_000): 31.51,
    (0.8, 0, 10_000): 54.55,
    (0.8, 0, 33_333): 71.81,
    (0.8, 5, 1_000): 25.21,
    (0.8, 5, 10_000): 43.68,
    (0.8, 5, 33_333): 58.04,
    (1.0, 5, 1_000): 47.81,
}
"""(exponent, scans, entries of the cache) → percent of an S3-FIFO. At most half a point less is wanted."""
LATENCY_S: Final = 0.05
COLD_BYTES: Final = 32 << 20
MEDIA_BYTES: Final = 256 << 20
SIZES: Final = {4 << 10: 4_000, 64 << 10: 1_500, 1 << 20: 150}
ROUNDS: Final = 5
Figures = dict[str, float]


class FarFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Local files, `LATENCY_S` away. Counts its calls."""

    protocol = "far"
    cachable = False
    calls = 0

    def _far(self) -> None:
        type(self).calls += 1
        time.sleep(LATENCY_S)

    def info(self, path: str, **given: Any) -> dict[str, Any]:
        self._far()
        found: dict[str, Any] = super().info(path, **given)
        return found

    def _open(self, path: str, *args: Any, **given: Any) -> Any:
        opened: Any = super()._open(path, *args, **given)
        read = opened.f.read

        def far(*size: int) -> Any:
            self._far()
            return read(*size)

        opened.read = far
        return opened


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.byte_cases", description=__doc__)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {}
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory(prefix="freshet-bench-") as folder:
            found[name] = SECTIONS[name](Path(folder))
        if not options.json:
            for what, figure in found[name].items():
                print(f"{name:<9} {what:<46} {figure:>14,.2f}", flush=True)
    if options.json:
        print(json.dumps(found))


def _ratios(_: Path) -> Figures:
    found = {}
    for (exponent, scans, entries), wanted in YARDSTICK.items():
        trace = zipf(exponent, 100_000, 1_000_000, scans, 7)
        for policy in POLICIES:
            ratio = 100 * simulate(policy, entries, map(Touch, trace)).ratio
            found[f"zipf {exponent}, {scans} scans, {entries:,}: {policy} %"] = ratio
        found[f"zipf {exponent}, {scans} scans, {entries:,}: wanted %"] = wanted - 0.5
    return found


def _cold(folder: Path) -> Figures:
    path = folder / "data"
    path.write_bytes(random.Random(1).randbytes(COLD_BYTES))
    time.sleep(SETTLED_S + 0.1)  # what was changed just now is not cached
    fsspec.register_implementation("far", FarFileSystem, clobber=True)
    found: Figures = {}
    far: Any = FarFileSystem
    ours = FreshetFileSystem(fs=far(), dirs=(f"{folder}/cache:256MiB",))
    block = {"cache_storage": f"{folder}/blocks"}
    cases: dict[str, Callable[[], Any]] = {
        "freshet": lambda: ours.open(str(path)),
        "blockcache": lambda: fsspec.open(f"blockcache::far://{path}", blockcache=block).open(),
    }
    for name, opened in cases.items():
        for turn in ("first", "second"):
            calls, began = FarFileSystem.calls, time.perf_counter()
            file = opened()
            while file.read(1 << 20):
                pass
            with suppress(AttributeError):  # blockcache's own, of some versions
                file.close()
            found[f"{name}, {turn} scan in 1 MiB reads, s"] = time.perf_counter() - began
            found[f"{name}, {turn} scan, calls of the store"] = FarFileSystem.calls - calls
        found[f"{name}, second scan faster by"] = (
            found[f"{name}, first scan in 1 MiB reads, s"] / found[f"{name}, second scan in 1 MiB reads, s"]
        )
    close_caches()
    return found


def _overlaps(folder: Path) -> Figures:
    path, chance = folder / "data", random.Random(3)
    path.write_bytes(chance.randbytes(COLD_BYTES))
    time.sleep(SETTLED_S + 0.1)  # what was changed just now is not cached
    fs = FreshetFileSystem(target_protocol="file", dirs=(f"{folder}/cache:256MiB",))
    file, cache = fs.open_cached(str(path)), fs.cache
    touched: set[int] = set()
    for _ in range(2_000):
        start = chance.randrange(COLD_BYTES)
        end = min(COLD_BYTES, start + chance.choice((100, 5_000, 70_000, 300_000)))
        cache.read(file, start, end)
        touched.update(blocks_of(start, end))
    fetched, unique = file.tally.source_bytes, len(touched) * BLOCK
    given = file.tally.hit_bytes + file.tally.miss_bytes
    close_caches()
    return {"MiB given": given / 2**20, "MiB fetched": fetched / 2**20, "MiB fetched twice": (fetched - unique) / 2**20}


def _media(folder: Path) -> Figures:
    path = folder / "data"
    with path.open("wb") as file:
        for i in range(MEDIA_BYTES >> 20):
            file.write(random.Random(i).randbytes(1 << 20))
    check, found = xxhash.xxh3_64_intdigest, dict[str, list[float]]()
    with _readers(path) as readers:
        for size, count in SIZES.items():
            places = [random.Random(size + i).randrange(MEDIA_BYTES // size) * size for i in range(count)]
            for _ in range(ROUNDS):
                for name, read in readers.items():
                    began = time.perf_counter()
                    for place in places:
                        check(read(place, size))
                    rate = count / (time.perf_counter() - began)
                    found.setdefault(f"{name}, {size >> 10} KiB, reads/s", []).append(rate)
    return {name: median(rates) for name, rates in found.items()}


@contextmanager
def _readers(path: Path) -> Iterator[dict[str, Callable[[int, int], Any]]]:
    file = os.open(path, os.O_RDONLY)
    plain, huge = (mmap.mmap(file, MEDIA_BYTES, prot=mmap.PROT_READ) for _ in range(2))
    huge.madvise(mmap.MADV_HUGEPAGE)  # of a file: taken where the kernel has CONFIG_READ_ONLY_THP_FOR_FS
    buffer = mmap.mmap(-1, 1 << 20)  # O_DIRECT wants aligned memory
    readers: dict[str, Callable[[int, int], Any]] = {
        "pread": lambda at, size: os.pread(file, size, at),
        "mmap, copied": lambda at, size: plain[at : at + size],
        "mmap, huge pages, copied": lambda at, size: huge[at : at + size],
    }
    try:
        direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # tmpfs of an old kernel
        direct = -1

    def unbuffered(at: int, size: int) -> bytes:
        os.preadv(direct, [memoryview(buffer)[:size]], at)
        return buffer[:size]

    if direct >= 0:
        readers["O_DIRECT"] = unbuffered
    try:
        yield readers
    finally:
        for mapping in (plain, huge):
            mapping.close()
        for each in (file, direct):
            if each >= 0:
                os.close(each)


def _shards(folder: Path) -> Figures:
    path, found = folder / "data", dict[str, list[float]]()
    path.write_bytes(random.Random(1).randbytes(COLD_BYTES))
    time.sleep(SETTLED_S + 0.1)  # what was changed just now is not cached
    places = [random.Random(i).randrange(COLD_BYTES >> 16) << 16 for i in range(1_000)]
    reads = {}
    for shards in (1, 4, 8, 16):
        fs = FreshetFileSystem(target_protocol="file", dirs=(f"{folder}/{shards}:256MiB",), shards=shards)
        fs.cat_file(str(path))
        reads[shards] = fs.open_cached(str(path)), fs.cache
    for _ in range(ROUNDS):
        for shards, (file, cache) in reads.items():

            def run(file: Any = file, cache: Any = cache) -> None:
                for place in places:
                    cache.read(file, place, place + BLOCK)

            threads = [threading.Thread(target=run) for _ in range(8)]
            began = time.perf_counter()
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            rate = 8 * len(places) / (time.perf_counter() - began)
            found.setdefault(f"{shards} shards, 8 threads, 64 KiB, reads/s", []).append(rate)
    close_caches()
    return {name: median(rates) for name, rates in found.items()}


SECTIONS: Final[dict[str, Callable[[Path], Figures]]] = {
    "ratios": _ratios,
    "cold": _cold,
    "overlaps": _overlaps,
    "media": _media,
    "shards": _shards,
    "saturated": saturated,
}

if __name__ == "__main__":
    main()
