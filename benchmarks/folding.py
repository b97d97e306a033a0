"""What a row costs to fold and to commit, from memory through a real store: processor time of the folding thread.

``python -m benchmarks.folding`` prints µs a row. With ``--against DIR``, a checkout of another commit, the two run in
turn, each in a process of its own, and the table shows the medians of both: on a busy machine only such pairs say
anything. Threats to validity: one partition, one table, no Kafka; RocksDB's own threads are not counted.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any, Final

from benchmarks import child
from benchmarks.materialize import as_in_production
from benchmarks.workload import START_POSITION, START_SECONDS, TABLE, describe_table, each_key_once, transactions
from consumers.store.index import Index, values_of
from consumers.store.store import PartitionStore
from stream.shards.map import IDS, IdRange, ShardMap
from stream.wire.batch import BatchLimits, Framer
from stream.wire.events import RowChange, SourceTransaction, Topology
from stream.wire.keys import Layout

ROWS: Final = 200_000
COMMIT_ROWS: Final = 50_000
POLL_BYTES: Final = 4 << 20
POLL_MESSAGES: Final = 8_000
OWN: Final = 500
"""Rows of a frame by the publisher's own limit."""


@dataclass(frozen=True, slots=True)
class Case:
    """A log of one partition. ``frames``: of each batch; the batches of ``shards`` shards take turns."""

    rows_a_frame: int
    frames: int
    shards: int = 1
    repeats: bool = True
    """Whether each key changes four times, or comes once."""
    indexes: int = 0
    """How many the store keeps."""
    asked: bool = False
    """Whether somebody looks for a row by the first of them before each step."""
    commit_rows: int = COMMIT_ROWS
    mapped: bool = False
    """Whether the shards declare which keys each has."""
    of_mysql: bool = False
    """Whether positions are sets of GTIDs, which are others than the GTIDs."""


INDEXES: Final = (Index(TABLE, ("version",)), Index(TABLE, ("owner",)))

CASES: Final = {
    f"{rows} x {frames}, {shards} shard{'s' * (shards > 1)}": Case(rows, frames, shards)
    for rows, frames in ((700, 1), (200, 1), (20, 5), (1, 50), (1, 500), (1, 5))
    for shards in (1, 4)
} | {
    "own, keys once": Case(OWN, 4, repeats=False),
    "1 x 50, keys once": Case(1, 50, repeats=False),
    "own": Case(OWN, 4),
    "own, of MySQL": Case(OWN, 4, of_mysql=True),
    "20 x 5, of MySQL": Case(20, 5, of_mysql=True),
    "1 x 50, of MySQL": Case(1, 50, of_mysql=True),
    "own, small commits": Case(OWN, 4, commit_rows=10_000),
    "own, small commits, 4 shards": Case(OWN, 4, shards=4, commit_rows=10_000),
    "own, small commits, 4 mapped": Case(OWN, 4, shards=4, commit_rows=10_000, mapped=True),
    "own, an index": Case(OWN, 4, indexes=1),
    "own, keys once, an index": Case(OWN, 4, repeats=False, indexes=1),
    "own, an index that is asked": Case(OWN, 4, indexes=1, asked=True),
    "own, keys once, asked": Case(OWN, 4, repeats=False, indexes=1, asked=True),
}


def log_of(case: Case) -> list[tuple[int, bytes]]:
    """The messages of the case with their offsets, which have gaps as Kafka's transactions leave them."""
    known = map_of(case)
    framers = [_framer(case, shard, known) for shard in range(case.shards)]
    values = [framer.take() for framer in framers]
    batches = [[value for _, value in batch.records] for batch in values]
    waiting: list[list[SourceTransaction]] = [[] for _ in framers]
    keys = ROWS // 4 if case.repeats else ROWS
    for number, transaction in enumerate(_transactions(case, keys)):
        shard = number % case.shards if known is None else _shard_of(known, transaction)
        waiting[shard].append(transaction)
        if len(waiting[shard]) == case.rows_a_frame * case.frames:
            batches.append(_batch(framers[shard], waiting[shard]))
    offset, records = 0, []
    for batch in batches:
        for value in batch:
            records.append((offset, value))
            offset += 1
        offset += 1
    return records


def _transactions(case: Case, keys: int) -> Iterator[SourceTransaction]:
    found = transactions(ROWS, keys, shards=case.shards) if case.repeats else each_key_once(keys)
    return map(_as_of_mysql, found, count(1)) if case.of_mysql else found


def _as_of_mysql(transaction: SourceTransaction, number: int) -> SourceTransaction:
    server = "MySQL56/3e11fa47-71ca-11e1-9e33-c80aa9429562"
    return replace(transaction, gtid=f"{server}:{number}", position=f"{server}:1-{number}")


def map_of(case: Case) -> ShardMap | None:
    """Equal ranges for all shards."""
    step = IDS // case.shards
    ranges = ((f"bench/{number}", IdRange(number * step, (number + 1) * step)) for number in range(case.shards))
    return ShardMap(ranges) if case.mapped else None


def _shard_of(known: ShardMap, transaction: SourceTransaction) -> int:
    """The shard of the transaction's only row."""
    [change] = transaction.changes
    assert isinstance(change, RowChange)
    return known.shards.index(known.shard_of(Layout(1).keyspace_id(change.key)))


def _framer(case: Case, shard: int, known: ShardMap | None) -> Framer:
    names = tuple(f"bench/{number}" for number in range(case.shards))
    limits = BatchLimits(rows_max=case.rows_a_frame, bytes_max=256 << 10, batch_bytes=64 << 20)
    framer = Framer(names[shard], Layout(1), None, limits)
    framer.announce(Topology(names, ranges=tuple(known.texts().items()) if known is not None else ()))
    framer.start_epoch(START_POSITION, START_SECONDS, "first_start")
    described = describe_table()
    framer.add(described, 0, framer.room(described))
    return framer


def _batch(framer: Framer, waiting: list[SourceTransaction]) -> list[bytes]:
    for transaction in waiting:
        framer.add(transaction, 0, framer.room(transaction))
    waiting.clear()
    return [value for _, value in framer.take().records]


def measure(case: Case) -> dict[str, float]:
    """µs a row of the fold and of the commits."""
    polls, rows = list(_polls(log_of(case))), ROWS
    as_in_production()
    folding = committing = 0.0
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        store = PartitionStore.open(
            Path(directory), keyspace="bench", partition=0, topic_id="bench", indexes=INDEXES[: case.indexes]
        )
        for number, poll in enumerate(polls, 1):
            if case.asked:
                store.having(INDEXES[0], values_of([number]), 1)
            began = thread_time()
            rejections = store.fold(poll)
            folding += thread_time() - began
            if rejections:
                raise AssertionError(rejections[:3])
            if store.pending_rows >= case.commit_rows or number == len(polls):
                began = thread_time()
                store.commit()
                committing += thread_time() - began
        store.close()
    return {"fold": 1e6 * folding / rows, "commit": 1e6 * committing / rows}


def _polls(records: list[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    taken: list[tuple[int, bytes]] = []
    size = 0
    for record in records:
        taken.append(record)
        size += len(record[1])
        if size >= POLL_BYTES or len(taken) >= POLL_MESSAGES:
            yield taken
            taken, size = [], 0
    if taken:
        yield taken


def main() -> None:
    """Measures the cases and prints them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="a checkout of another commit: it is measured in turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="", help="only cases whose name has this in it")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(CASES[given.one])))
        return
    roots = {"before": given.against.resolve(), "after": child.ROOT} if given.against else {"": child.ROOT}
    for name in CASES:
        if given.cases in name:
            found: dict[str, list[dict[str, float]]] = {root: [] for root in roots}
            for _ in range(given.rounds):
                for root, path in roots.items():
                    found[root].append(child.in_checkout(path, __file__, "--one", name))
            print(f"{name:28}", _line(found), flush=True)


def _line(found: dict[str, list[dict[str, Any]]]) -> str:
    texts = [
        f"{what} " + " -> ".join(f"{median(each[what] for each in rounds):.2f}" for rounds in found.values())
        for what in ("fold", "commit")
    ]
    return "   ".join(texts)


if __name__ == "__main__":
    main()
