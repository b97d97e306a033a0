"""What an owner pays for a look-up by an index, beside a read by key: processor time of the answering thread.

``python -m benchmarks.lookups`` prints µs an answer: from the bytes of a request to the bytes of its answer, in one
process, of a store with many committed files. *Scan* are the 100 rows that share the first column of their key: the
mean, and the 99th percentile. With ``--against DIR``, a checkout of another commit, the two run in
turn, each in a process of its own, and the table shows the medians. Threats to validity: one partition, one connection
without a socket, all blocks in RocksDB's cache; RocksDB's own threads are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from time import thread_time
from typing import Any, Final

from benchmarks import child
from benchmarks.materialize import as_in_production
from benchmarks.percentiles import percentiles_ms
from benchmarks.workload import START_POSITION, START_SECONDS, TABLE, describe_table, each_key_once, gtid, image
from consumers.owner.connection import FrontConnection
from consumers.owner.framing import encode_frame
from consumers.owner.meaning import fingerprint
from consumers.owner.overlay import Overlay
from consumers.owner.partitions import Ownership, Partition
from consumers.owner.protocol import Get, GetRange, Hello, Request
from consumers.owner.ranges.indexed import meaning_with
from consumers.owner.server import OwnerServer
from consumers.store.index import Index, values_of
from consumers.store.store import PartitionStore
from stream.kafka.topics import Topic
from stream.wire.batch import BatchLimits, Framer
from stream.wire.events import (
    VALUE,
    BackfillTable,
    Column,
    DescribeTable,
    RowChange,
    SourceTransaction,
    Topology,
)
from stream.wire.keys import Layout, row_key
from tokens import Position, Vector

ROWS: Final = 60_000
FILES: Final = 8
ASKED: Final = 4_000
COLUMN: Final = ("version", "int", True)
"""Each row has another value in it, so a look-up finds one row."""
KEY: Final = ("id", "int", True)
LINES: Final = "bench.lines"
ORDERS: Final = 300
SCANNED: Final = 100
"""Lines of each order, which a scan of its prefix finds."""
LINES_KEY: Final = (("order", "int", True), ("line", "int", True))


def _store(directory: Path, topic: Topic) -> tuple[PartitionStore, list[tuple[int, int]]]:
    """A store in which the table is whole, in `FILES` files; and the id and version of each row."""
    index = Index(TABLE, (COLUMN[0],))
    store = PartitionStore.open(directory, keyspace="bench", partition=0, topic_id=topic.topic_id, indexes=[index])
    limits = BatchLimits(rows_max=500, bytes_max=256 << 10, batch_bytes=64 << 20)
    framer = Framer("bench/0", Layout(1), None, limits)
    framer.announce(Topology(("bench/0",)))
    framer.start_epoch(START_POSITION, START_SECONDS, "first_start")
    begin = [describe_table(), _backfill(2, complete=False)]
    end = [_backfill(ROWS + 3, complete=True), *_lines(ROWS + 4)]
    rows = list(each_key_once(ROWS, first=3))
    offset = 0
    for number in range(FILES):
        some = rows[number * ROWS // FILES : (number + 1) * ROWS // FILES]
        some = [*(begin if not number else ()), *some, *(end if number == FILES - 1 else ())]
        for transaction in some:
            framer.add(transaction, 0, framer.room(transaction))
        for _, value in framer.take().records:
            store.fold([(offset, value)])
            offset += 1
        store.commit()
    images = [json.loads(change.image) for each in rows for change in each.changes if isinstance(change, RowChange)]
    return store, [(image["id"], image["version"]) for image in images]


def _backfill(number: int, *, complete: bool, table: str = TABLE) -> SourceTransaction:
    return SourceTransaction(gtid(number), gtid(number), START_SECONDS, [BackfillTable(table, complete)])


def _lines(first: int) -> list[SourceTransaction]:
    """A whole table whose key has two columns, one transaction an order."""
    columns = tuple(Column(*column) for column in LINES_KEY)
    described = DescribeTable(LINES, columns, tuple(column.name for column in columns))
    made = [
        SourceTransaction(gtid(first), gtid(first), START_SECONDS, [described]),
        _backfill(first + 1, complete=False, table=LINES),
    ]
    for number, order in enumerate(range(ORDERS), first + 2):
        rows = [RowChange(row_key(LINES, [order, line]), VALUE, image(order, line, 40)) for line in range(SCANNED)]
        made.append(SourceTransaction(gtid(number), gtid(number), START_SECONDS, rows))
    return [*made, _backfill(first + 2 + ORDERS, complete=True, table=LINES)]


class _Sink:
    """Takes what a connection writes."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: bytes) -> None:
        self.size += len(data)

    def get_extra_info(self, *_: object) -> None: ...
    def set_write_buffer_limits(self, **_: int) -> None: ...
    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...


def measure() -> dict[str, float]:
    """µs of a read by key, and of a look-up by an index."""
    as_in_production()
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        topic = Topic("freshet.bench.events", "bench", 1)
        store, rows = _store(Path(directory), topic)
        try:
            return asyncio.run(_measure(Path(directory), topic, store, rows))
        finally:
            store.close(commit=False)


async def _measure(
    directory: Path, topic: Topic, store: PartitionStore, rows: list[tuple[int, int]]
) -> dict[str, float]:
    ownership = Ownership(directory)
    ownership.add(Partition("bench", 0, topic, store, Overlay(1 << 20), ready=True))
    server = OwnerServer(ownership, _no_checkpoints)
    connection, sink = FrontConnection(server), _Sink()
    connection.connection_made(sink)  # type: ignore[arg-type]
    connection.data_received(encode_frame(Hello(0)))
    demand = str(Vector({"bench/0": (1, Position.parse(gtid(ROWS)))}))
    of_key = fingerprint([KEY])
    of_index = meaning_with(of_key, [COLUMN])
    leading = TABLE.encode() + b"\0"

    def by_key(row: tuple[int, int]) -> Request:
        return Get(1, "bench", 0, [row_key(TABLE, [row[0]])], demand, 0, {TABLE: of_key}, topic.topic_id)

    def by_index(row: tuple[int, int]) -> Request:
        equal = values_of([row[1]])
        asked = GetRange(1, "bench", 0, 1, leading, 0, limit=100, vector=demand, meaning=of_index, equal=equal)
        asked.topic_id, asked.index = topic.topic_id, [COLUMN[0]]
        return asked

    def by_none(row: tuple[int, int]) -> Request:
        return by_index((row[0], row[1] + 10 * ROWS))

    def by_prefix(order: int) -> Request:
        asked = GetRange(1, "bench", 0, 1, row_key(LINES, [order]), 1, limit=SCANNED, vector=demand)
        asked.topic_id, asked.meaning = topic.topic_id, fingerprint(LINES_KEY)
        return asked

    found: dict[str, float] = {}
    for name, request in (("key", by_key), ("index", by_index), ("no row", by_none)):
        found[name] = await _time(server, connection, sink, _frames(rows, request), is_empty=name == "no row")
    return found | await _scan(server, connection, sink, [encode_frame(by_prefix(order)) for order in range(ORDERS)])


def _frames(rows: list[tuple[int, int]], request: Callable[[tuple[int, int]], Request]) -> list[bytes]:
    return [encode_frame(request(row)) for row in Random(3).choices(rows, k=ASKED)]


async def _time(
    server: OwnerServer, connection: FrontConnection, sink: _Sink, frames: list[bytes], *, is_empty: bool
) -> float:
    """µs a request; the fastest of some passes over all of them."""
    passes = []
    for _ in range(5):
        before = sink.size, server.answered.get("fresh", 0)
        began = thread_time()
        for frame in frames:
            await _ask(server, connection, frame)
        passes.append(thread_time() - began)
        if server.answered.get("fresh", 0) - before[1] != len(frames):
            raise AssertionError(f"not all are fresh: {server.answered}")
        if (sink.size - before[0] < 150 * len(frames)) != is_empty:
            raise AssertionError("answers have another size than they should")
    return 1e6 * min(passes) / len(frames)


async def _scan(server: OwnerServer, connection: FrontConnection, sink: _Sink, frames: list[bytes]) -> dict[str, float]:
    """µs of a scan of a prefix, and their 99th percentile, over some passes."""
    before = sink.size, server.answered.get("fresh", 0)
    times = []
    for frame in frames * 5:
        began = thread_time()
        await _ask(server, connection, frame)
        times.append(thread_time() - began)
    if server.answered.get("fresh", 0) - before[1] != len(times):
        raise AssertionError(f"not all are fresh: {server.answered}")
    if sink.size - before[0] < 100 * SCANNED * len(times):
        raise AssertionError("scans have not all rows")
    return {"scan": 1e6 * sum(times) / len(times), "scan p99": 1e3 * percentiles_ms(times)["p99_ms"]}


async def _ask(server: OwnerServer, connection: FrontConnection, frame: bytes) -> None:
    connection.data_received(frame)
    while server.waiting:  # noqa: ASYNC110 - the time until the answer counts
        await asyncio.sleep(0)


async def _no_checkpoints(_: list[Partition]) -> list[Any]:
    return []


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="a checkout of another commit: it is measured in turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure()))
        return
    rounds = child.in_turn(__file__, given.against, given.rounds)
    for name, found in rounds.items():
        each = {what: median(one[what] for one in found) for what in found[0]}
        shares = f"index {each['index'] / each['key']:.2f}, no row {each['no row'] / each['key']:.2f} of a read by key"
        print(f"{name:8}", "   ".join(f"{what} {time:.1f}" for what, time in each.items()), f"  {shares}", flush=True)


if __name__ == "__main__":
    main()
