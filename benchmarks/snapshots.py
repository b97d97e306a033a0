"""Snapshots: what it takes to write one, to begin a store with it, and to compare two states of that size.

``python -m benchmarks.snapshots`` prints a table or, with ``--json``, one object. A store is folded from frames of rows
(``--entries``, a million by default) and checkpointed first. Each step is timed on the clock and in seconds of the
processor, of all threads. Threats to validity: one partition, one value size, a local directory as the place.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from consumers.process.opening import open_partition
from consumers.snapshots.places import Place
from consumers.snapshots.restoring import Snapshots
from consumers.snapshots.writing import write_snapshot
from consumers.store.store import PartitionStore
from spark_jobs.verify import verify_stores
from stream.kafka.topics import Topic
from stream.wire.codec import encode
from stream.wire.events import VALUE

ROWS = 10_000
"""Of one frame."""
KEYSPACE, TOPIC_ID = "shop", "topic-1"
COMMIT_ROWS = 200_000
IMAGE = b'{"id":%d,"city":"somewhere","name":"somebody %d","note":"%s"}'


def fold(data_dir: Path, entries: int) -> PartitionStore:
    """A store of so many rows of about 200 bytes, committed as a consumer does."""
    store = PartitionStore.open(data_dir, keyspace=KEYSPACE, partition=0, topic_id=TOPIC_ID)
    begin = {"shard": "shop/0", "epoch": 1, "ordinal": 1, "gtid": "MariaDB/0-1-1", "timestamp": 1}
    store.fold([(0, encode("EpochStart", begin | {"position": "MariaDB/0-1-0", "reason": "first_start"}))])
    for number in range(0, entries, ROWS):
        rows = range(number, min(number + ROWS, entries))
        frame = {
            "shard": "shop/0",
            "epoch": 1,
            "ordinal": number + 1,
            "keys": [b"shop.orders\0[%d]" % row for row in rows],
            "images": [IMAGE % (row, row * 7919, b"x" * 90) for row in rows],
            "operations": bytes([VALUE]) * len(rows),
            "ordinals": list(range(1, len(rows) + 1)),
            "transactions": [1] * len(rows),
            "gtids": [f"MariaDB/0-1-{row + 2}" for row in rows],
            "positions": [],
            "timestamps": [1_700_000_000] * len(rows),
            "origins": [],
        }  # fmt: skip
        store.fold([(number // ROWS + 1, encode("RowFrame", frame))])
        if store.pending_rows >= COMMIT_ROWS:
            store.commit()
    return store


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What ``work`` returns, and its seconds."""
    started, used = time.perf_counter(), time.process_time()
    found = work()
    return found, {
        "seconds": round(time.perf_counter() - started, 2),
        "processor_s": round(time.process_time() - used, 2),
    }


def measure(root: Path, entries: int) -> dict[str, Any]:
    """The figures of each step."""
    store = fold(root / "live", entries)
    checkpoint, place = root / "checkpoint", Place(str(root / "snapshots"))
    store.checkpoint(checkpoint)
    offset = store.state.head.offset
    store.close()
    topic = Topic("freshet.shop.events", TOPIC_ID, 1)
    snapshots = Snapshots({KEYSPACE: str(root / "snapshots")})
    snapshot, written = timed(lambda: write_snapshot(place, {0: checkpoint}, made_from="owners"))

    def begin() -> int:
        partition = open_partition(root / "new", KEYSPACE, 0, topic, (0, offset), 1 << 20, snapshots=snapshots)
        partition.store.close()
        return partition.store.committed_offset

    reached, begun = timed(begin)
    if reached != offset:
        raise AssertionError(f"the new store is at {reached}, not at {offset}")
    verdict, compared = timed(lambda: verify_stores({0: checkpoint}, {0: root / "new" / KEYSPACE / "0"}))
    if not verdict.equal:
        raise AssertionError("the new store differs")
    return {
        "entries": snapshot.entries,
        "bytes": snapshot.bytes,
        "files": len(snapshot.partitions[0].files),
        "write": written,
        "begin": begun,
        "compare": compared,
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snapshots", description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        found = measure(Path(directory), options.entries)
    if options.json:
        json.dump(found, sys.stdout)
        return
    print(f"{found['entries']} entries, {found['bytes']} bytes in {found['files']} files")
    for name in ("write", "begin", "compare"):
        print(f"{name:8} {found[name]['seconds']:8.2f} s  {found[name]['processor_s']:8.2f} s of the processor")


if __name__ == "__main__":
    main()
