"""A publisher over a log in memory, which is opened again and again, and what it left there."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from stream.publish.publisher import PublisherLost
from stream.wire.batch import BatchLimits
from stream.wire.events import Change, RowChange, SourceTransaction
from stream.wire.keys import Layout, row_key
from tests.stream.memory_log import KEYSPACE, MemoryLog

SHARD = f"{KEYSPACE}/0"
GIANT = 40
LIMITS = BatchLimits(batch_bytes=2_000)


def start() -> tuple[str, int]:
    """Where a new epoch begins."""
    return "MariaDB/0-1-0", 1_700_000_000


def txn(number: int, *changes: Change, rows: int = 2, **more: Any) -> SourceTransaction:
    """Transaction ``number``, always the same."""
    gtid = f"MariaDB/0-1-{number}"
    written = [RowChange(row_key("shop.t", [number * 100 + n]), 1, b'{"n":%d}' % n) for n in range(rows)]
    return SourceTransaction(gtid, gtid, 1_700_000_000 + number, [*changes, *written], **more)


def number_of(position: str) -> int:
    """The number of the transaction at this position."""
    return int(position.rpartition("-")[2])


def rows_of(log: MemoryLog, epoch: int = 1) -> list[tuple[int, bytes]]:
    """(ordinal, key) of every row of an epoch, by ordinal; each partition has them in order."""
    found = []
    for partition in range(len(log.partitions)):
        mine = [
            (record["ordinal"] + ordinal, key)
            for name, record in log.records(partition)
            if name == "RowFrame" and record["epoch"] == epoch
            for ordinal, key in zip(record["ordinals"], record["keys"], strict=True)
        ]
        assert all(before < after for (before, _), (after, _) in pairwise(mine))
        found += mine
    return sorted(found)


def reasons(log: MemoryLog) -> list[list[tuple[int, str]]]:
    """Of each partition: (epoch, why it began)."""
    return [
        [
            (record["epoch"], record["reason"])
            for name, record in log.records(partition)
            if name == "EpochStart" and record["shard"] == SHARD
        ]
        for partition in range(len(log.partitions))
    ]


def publish(log: MemoryLog, last: int, **options: Any) -> None:
    """Publishes up to transaction ``last``; starts again whenever the publisher is lost."""
    while True:
        try:
            with log.publisher(limits=LIMITS, **options) as out:
                resumed = out.open(start)
                for number in range(number_of(resumed.position) + 1, last + 1):
                    out.publish(txn(number, rows=GIANT if number % 3 == 0 else 2))
                return
        except PublisherLost:
            log.commits_left = 1_000_000


def home(log: MemoryLog, shard: str = SHARD) -> int:
    """The partition that holds a shard's states."""
    return Layout(len(log.partitions)).home_partition(shard)


def foreign(shard: str, epoch: int = 3) -> dict[str, Any]:
    """A marker of another shard."""
    return {
        "shard": shard,
        "epoch": epoch,
        "ordinal": 5,
        "position": "MariaDB/0-1-5",
        "timestamp": 1,
        "low_water": "MariaDB/0-1-1",
        "layout": str(Layout(2)),
        "whole": True,
        "continuity": 7,
        "previous": 0,
        "reader_version": 1,
        "as_of_ms": 0,
    }
