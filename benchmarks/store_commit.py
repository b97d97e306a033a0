"""Compares ways to write into RocksDB: ingested files and write batches, and compaction styles for small files.

``python -m benchmarks.store_commit`` prints a table or, with ``--json``, one object. Times are CPU seconds of the
writing thread, so other load hardly matters. Pauses are wall-clock times in which another thread could not run. Written
bytes include compactions. Threats to validity: one value size, random keys, one store.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rocksdict import DBCompactionStyle, Options, Rdict, WriteBatch, WriteOptions

from consumers.store.rocks import tables
from consumers.store.rocks.database import Rocks
from consumers.store.rocks.tables import store_options

KEYS = 200_000
VALUE_BYTES = 190
BATCH_ROWS = 2_000
SEED = 5


def changes(rows: int, seed: int = SEED) -> Iterator[tuple[bytes, bytes]]:
    """Random keys with values of the size of an entry, half of which is compressible, as with JSON images."""
    source = random.Random(seed)
    filler = b'{"id":1,"name":"somebody","city":"somewhere","price":"12.50"}'[: VALUE_BYTES // 2]
    for _ in range(rows):
        yield b"shop.orders\0[%d]" % source.randrange(KEYS), source.randbytes(VALUE_BYTES - len(filler)) + filler


class Pauses:
    """A context that measures the longest time in which a second thread could not run, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        last = time.perf_counter()
        while not self._stop.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last)
            last = now

    def __enter__(self) -> Pauses:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def ingest(directory: Path, rows: int, every: int) -> None:
    """As the store does: collects rows in a dict and ingests a sorted file after ``every`` rows."""
    database = Rocks(directory / "db")
    table: dict[bytes, bytes] = {}
    for count, (key, value) in enumerate(changes(rows), 1):
        table[key] = value
        if count % every == 0:
            table[b"\0offset"] = b"%d" % count
            database.ingest(table, directory / "commit.sst")
            table = {}
    database.close()


def batches(directory: Path, rows: int, every: int, *, wal: bool) -> None:
    """Writes batches of 2,000 rows with the offset. Syncs the log, or flushes without one, after ``every`` rows."""
    options: Options = store_options()
    options.set_write_buffer_size(64 << 20)
    database = Rdict(str(directory / "db"), options)
    write = WriteOptions()
    write.disable_wal = not wal
    batch = WriteBatch(raw_mode=True)
    for count, (key, value) in enumerate(changes(rows), 1):
        batch.put(key, value)
        if count % BATCH_ROWS == 0:
            batch.put(b"\0offset", b"%d" % count)
            database.write(batch, write)
            batch = WriteBatch(raw_mode=True)
        if count % every == 0:
            database.flush_wal(sync=True) if wal else database.flush(wait=True)
    database.close()


def measure(name: str, work: Callable[[Path], None], rows: int, empty_s: float) -> dict[str, Any]:
    """Measures one way in a directory of its own. ``empty_s``: time to generate the rows, which is subtracted."""
    with tempfile.TemporaryDirectory() as directory, Pauses() as pauses:
        written, cpu, process = _written(), time.thread_time(), time.process_time()
        work(Path(directory))
        cpu, process = time.thread_time() - cpu - empty_s, time.process_time() - process - empty_s
        return {
            "way": name,
            "rows_per_cpu_s": round(rows / cpu),
            "rows_per_cpu_s_all_threads": round(rows / process),
            "longest_pause_ms": round(pauses.longest * 1000, 1),
            "written_per_row": round((_written() - written) / rows),
        }


def _written() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def small_commits(style: str, commits: int, rows: int) -> dict[str, Any]:
    """Write amplification of ``commits`` small files over a store of all keys, and the rate of look-ups after them."""

    def options(*, read_only: bool = False) -> Options:
        made = store_options(read_only=read_only)
        if style == "level":
            made.set_compaction_style(DBCompactionStyle.level())
        return made

    original, tables.store_options = tables.store_options, options
    try:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            database = Rocks(directory / "db")
            database.ingest({b"shop.orders\0[%d]" % n: b"x" * VALUE_BYTES for n in range(KEYS)}, directory / "c.sst")
            written, process = _written(), time.process_time()
            for number in range(commits):
                database.ingest(dict(changes(rows, number)), directory / "c.sst")
                time.sleep(0.02)  # leaves compactions time between commits, as in production
            cpu = time.process_time() - process
            written = _written() - written
            wanted = [b"shop.orders\0[%d]" % random.Random(n).randrange(KEYS) for n in range(20_000)]
            began = time.thread_time()
            for key in wanted:
                database.get(key)
            lookups = len(wanted) / (time.thread_time() - began)
            database.close()
    finally:
        tables.store_options = original
    useful = commits * rows * (VALUE_BYTES + 20)
    return {
        "compaction": style,
        "commits": commits,
        "rows_each": rows,
        "write_amplification": round(written / useful, 1),
        "cpu_ms_a_commit": round(cpu / commits * 1000, 1),
        "gets_per_cpu_s": round(lookups),
    }


def main() -> None:
    """Measures all ways and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args()
    sys.setswitchinterval(0.0005)
    began = time.thread_time()
    for _ in changes(wanted.rows):
        pass
    empty = time.thread_time() - began
    ways: list[tuple[str, Callable[[Path], None]]] = [
        (f"dict, file of {every // 1000}k rows ingested", lambda path, n=every: ingest(path, wanted.rows, n))  # type: ignore[misc]
        for every in (10_000, 50_000, 100_000)
    ]
    ways.append(("write batches, no WAL, flush every 50k", lambda path: batches(path, wanted.rows, 50_000, wal=False)))
    ways.append(("write batches, WAL synced every 50k", lambda path: batches(path, wanted.rows, 50_000, wal=True)))
    found: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "ways": [measure(name, work, wanted.rows, empty) for name, work in ways],
        "small_commits": [
            small_commits(style, commits, rows)
            for style in ("level", "universal")
            for commits, rows in ((100, 200), (60, 5_000))
        ],
    }
    if wanted.json:
        print(json.dumps(found))
        return
    for table in ("ways", "small_commits"):
        for row in found[table]:
            print("  ".join(f"{name}={value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
