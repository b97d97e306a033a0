"""What a rebuild's task spends its time and memory on, without Spark and Kafka: ``python -m benchmarks.spark_task``.

Frames of one partition are given to `spark_jobs.partition.PartitionFold` as Spark's tasks give them. Each part is timed
in seconds of the processor: decoding alone, the fold with its spills, and the end (digest). ``split``: what two tasks
that share a partition's keys would need each, if all that is about an entry were halved and the rest, reading and
decoding, done by both; the lower bound of it, since choosing the keys costs too. ``--memory-mb`` limits the process's
data, as a cluster limits a task. Threats to validity: one process, no reading from Kafka, no Arrow.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from spark_jobs.partition import FoldTask, PartitionFold
from stream.wire.codec import decode, encode
from stream.wire.events import VALUE

KEYSPACE: Final = "shop"
BATCH: Final = 5_000
"""Messages at once, as Spark's consumers poll them; fewer of large frames."""
BATCH_BYTES: Final = 32 << 20


def messages(entries: int, rows: int, size: int) -> Iterator[bytes]:
    """The beginning of a shard, and frames of ``rows`` rows each, of so many bytes each."""
    begin = {"shard": "shop/0", "epoch": 1, "ordinal": 1, "gtid": "MariaDB/0-1-1", "timestamp": 1}
    yield encode("EpochStart", begin | {"position": "MariaDB/0-1-0", "reason": "first_start"})
    for first in range(0, entries, rows):
        numbers = range(first, min(first + rows, entries))
        frame = {
            "shard": "shop/0",
            "epoch": 1,
            "ordinal": first + 1,
            "keys": [b"shop.orders\0[%d]" % (number * 7_919 % entries) for number in numbers],
            "images": [(b'{"id":%d,"note":"' % number).ljust(size - 2, b"x") + b'"}' for number in numbers],
            "operations": bytes([VALUE]) * len(numbers),
            "ordinals": list(range(1, len(numbers) + 1)),
            "transactions": [1] * len(numbers),
            "gtids": [f"MariaDB/0-1-{number + 2}" for number in numbers],
            "positions": [],
            "timestamps": [1_700_000_000] * len(numbers),
            "origins": [],
        }  # fmt: skip
        yield encode("RowFrame", frame)


def batches(entries: int, rows: int, size: int) -> Iterator[list[bytes]]:
    """`messages` as a task gets them."""
    batch: list[bytes] = []
    taken = 0
    for message in messages(entries, rows, size):
        batch.append(message)
        taken += len(message)
        if len(batch) == BATCH or taken >= BATCH_BYTES:
            yield batch
            batch, taken = [], 0
    yield batch


def measure(root: Path, entries: int, rows: int, size: int) -> dict[str, Any]:
    """Seconds of the processor by part, and the largest resident memory in MB."""
    task = FoldTask(KEYSPACE, "topic-1", str(root), {0: 0}, {0: 0})
    decoding = folding = 0.0
    offset = 0
    with PartitionFold(task, 0) as fold:
        for batch in batches(entries, rows, size):
            started = time.process_time()
            for message in batch:
                decode(message)
            decoded = time.process_time()
            decoding += decoded - started
            given = pa.array(range(offset, offset + len(batch)), pa.int64()), pa.array(batch, pa.binary())
            started = time.process_time()
            fold.fold(*given)
            folding += time.process_time() - started
            offset += len(batch)
        started = time.process_time()
        summary = fold.finish()
        ending = time.process_time() - started
    if summary.rows < entries:
        raise AssertionError(f"{summary.rows} of {entries} rows were folded")
    whole, shared = folding + ending, min(decoding, folding)  # the fold decodes small frames in runs, which costs less
    return {
        "entries": entries,
        "rows_a_frame": rows,
        "bytes": entries * size,
        "decode_s": round(decoding, 2),
        "fold_s": round(folding, 2),
        "end_s": round(ending, 2),
        "split": round((shared + (whole - shared) / 2) / whole, 2),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_task", description=__doc__)
    parser.add_argument("--entries", type=int, default=300_000)
    parser.add_argument("--rows", type=int, default=1, help="rows of a frame")
    parser.add_argument("--bytes", type=int, default=200, help="bytes of a value")
    parser.add_argument("--memory-mb", type=int, default=0, help="limit of the process's data")
    options = parser.parse_args()
    if options.memory_mb:
        resource.setrlimit(resource.RLIMIT_DATA, (options.memory_mb << 20,) * 2)
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        json.dump(measure(Path(directory), options.entries, options.rows, options.bytes), sys.stdout)
    print()


if __name__ == "__main__":
    main()
