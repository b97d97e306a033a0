"""Warm reads of the byte cache beside pread and other caches, in turn; and the load of a large index.

``python -m benchmarks.bytes`` prints a table or, with ``--json``, one object. Rates of one thread are reads per second
of processor time, so other load matters less; those of eight threads are by the clock. In each round every case reads
the same random places of one file, which is in the page cache. The result is the median over the rounds.

Bias: fsspec's caches verify nothing and have no quota. pread is the ceiling. diskcache is measured only where it is
installed. One file, 64 MiB, all of it cached: neither the policy nor the disk is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

import fsspec

from serving.bytecache.disk.layout import BLOCKS, HEAD_BYTES
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.disk.shard import Head, Shard
from serving.bytecache.filesystem.remote import SETTLED_S
from serving.bytecache.policy.pools import Pools
from serving.bytecache.shared.opening import close_caches

FILE_BYTES: Final = 64 << 20
READS: Final = {4 << 10: 20_000, 64 << 10: 8_000, 1 << 20: 600}
THREADS: Final = 8
Read = Callable[[int, int], bytes]
ATTACHED: Final = "attached"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bytes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--entries", type=int, default=1_000_000, help="of the index that is loaded")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(f"--{ATTACHED}", default="", help=argparse.SUPPRESS)  # the process that is attached
    options = parser.parse_args()
    if options.attached:
        _serve_attached(json.loads(options.attached))
        return
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as folder:
        reads, load = _reads(Path(folder), options.rounds), _load(Path(folder), options.entries)
    if options.json:
        print(json.dumps({"reads": reads, "load": load}))
        return
    for size, cases in reads.items():
        print(f"{size >> 10} KiB")
        for name, rate in cases.items():
            beside = cases[f"pread, {THREADS} threads" if "threads" in name else "pread"]
            print(f"  {name:<28} {rate:>12,.0f}/s   {rate / beside:.2f} of pread")
    print(f"index: {load}")


def _reads(folder: Path, rounds: int) -> dict[int, dict[str, float]]:
    path = folder / "data"
    path.write_bytes(random.Random(1).randbytes(FILE_BYTES))
    time.sleep(SETTLED_S + 0.1)  # what was changed just now is not cached
    (folder / "key").write_text("0b" * 32)
    plain = {"target_protocol": "file", "dirs": (f"{folder}/plain:256MiB",)}
    sealed = {"target_protocol": "file", "dirs": (f"{folder}/sealed:256MiB",), "key_file": str(folder / "key")}
    cases: dict[str, Read] = {"pread": _pread(path), "freshet": _cached(plain, path)}
    cases["freshet, encrypted"] = _cached(sealed, path)
    cases["fsspec blockcache"] = _opened(f"blockcache::file://{path}", blockcache={"cache_storage": f"{folder}/blocks"})
    cases["fsspec filecache"] = _opened(f"filecache::file://{path}", filecache={"cache_storage": f"{folder}/files"})
    with suppress(ImportError):
        cases["diskcache"] = _diskcache(folder / "diskcache", path)
    found: dict[int, dict[str, list[float]]] = {size: {} for size in READS}
    command = [sys.executable, "-m", "benchmarks.bytes", f"--{ATTACHED}", json.dumps([plain, str(path)])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        for _ in range(rounds):
            for size, count in READS.items():
                places = _places(size, count)
                for name, read in cases.items():
                    found[size].setdefault(name, []).append(_rate(read, size, places))
                found[size].setdefault("freshet, attached", []).append(_ask(child, size))
                for name in ("pread", "freshet"):
                    rate = _threads(cases[name], size, places)
                    found[size].setdefault(f"{name}, {THREADS} threads", []).append(rate)
        assert child.stdin is not None
        child.stdin.close()
    close_caches()
    return {size: {name: median(rates) for name, rates in cases.items()} for size, cases in found.items()}


def _places(size: int, count: int) -> list[int]:
    chance = random.Random(size)
    return [chance.randrange(FILE_BYTES // size) * size for _ in range(count)]


def _rate(read: Read, size: int, places: list[int]) -> float:
    began = time.process_time()
    for place in places:
        read(place, size)
    return len(places) / (time.process_time() - began)


def _threads(read: Read, size: int, places: list[int]) -> float:
    def run() -> None:
        for place in places:
            read(place, size)

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    began = time.perf_counter()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return THREADS * len(places) / (time.perf_counter() - began)


def _pread(path: Path) -> Read:
    file = os.open(path, os.O_RDONLY)
    return lambda start, size: os.pread(file, size, start)


def _cached(options: dict[str, Any], path: Path) -> Read:
    fs = fsspec.filesystem("freshet", **options)
    data = fs.cat_file(str(path))
    file, cache = fs.open_cached(str(path)), fs.cache
    assert cache.read(file, 0, FILE_BYTES) == data
    return lambda start, size: cache.read(file, start, start + size)


def _opened(url: str, **options: Any) -> Read:
    file = fsspec.open(url, **options).open()
    file.read()

    def read(start: int, size: int) -> bytes:
        file.seek(start)
        return bytes(file.read(size))

    return read


def _diskcache(place: Path, path: Path) -> Read:
    import diskcache  # type: ignore[import-not-found]

    cache, data = diskcache.Cache(str(place)), path.read_bytes()
    for size in READS:
        for start in range(0, FILE_BYTES, size):
            cache[start, size] = data[start : start + size]
    return lambda start, size: cache[start, size]


def _serve_attached(given: list[Any]) -> None:
    options, path = given
    read = _cached(options | {"dirs": tuple(options["dirs"])}, Path(path))
    for line in sys.stdin:
        print(_rate(read, int(line), _places(int(line), READS[int(line)])), flush=True)


def _ask(child: subprocess.Popen[str], size: int) -> float:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{size}\n")
    child.stdin.flush()
    return float(child.stdout.readline())


def _load(folder: Path, entries: int) -> dict[str, float]:
    """Processor time of loading one shard's index, as a killed process left it; and its memory."""
    import tracemalloc

    place, files = folder / "index", 1_000
    place.mkdir()
    order = random.Random(2).sample(range(1, entries + 1), entries)
    bits, each = 2**BLOCKS - 1, -(-entries // files)
    with (place / "heads").open("wb") as heads:
        for i, sequence in enumerate(order):
            heads.write(Head(1 + i // each, i % each * 2, bits, 0, 0, 1, 1, sequence).pack())
    assert (place / "heads").stat().st_size == entries * HEAD_BYTES
    names = {i + 1: CachedFile(i + 1, f"s3://bucket/{i}", "v", each << 20, "", 0) for i in range(files)}
    found = {}
    for measured in ("seconds", "bytes_an_entry"):
        shard = Shard(place, entries, Pools("s3fifo", entries << 21), {}, 1, entries << 21, 0)
        if measured == "bytes_an_entry":
            tracemalloc.start()
        began = time.process_time()
        shard.load(names, keep_all=False)
        assert len(shard.table) == entries
        found[measured] = round(time.process_time() - began, 2)
        if measured == "bytes_an_entry":
            found[measured] = round(tracemalloc.get_traced_memory()[0] / entries, 1)
            tracemalloc.stop()
        shard.close()
    return {"entries": entries, **found}


if __name__ == "__main__":
    main()
