"""A publishing process for tests to kill: it publishes a deterministic sequence of transactions."""

from __future__ import annotations

import sys

from stream.kafka.connection import KafkaCluster
from stream.publish.publisher import Publisher
from stream.wire.batch import BatchLimits
from stream.wire.events import ABSENT, VALUE, RowChange, SourceTransaction, VoidTable
from stream.wire.keys import Layout, row_key
from tests.stream.committed import markers, ordinals, records, rows

GIANT_EVERY = 40
BATCH_BYTES = 20_000


def transaction(number: int) -> SourceTransaction:
    """The source's transaction ``number``, always the same; some are large, some void, some empty."""
    gtid = f"MariaDB/0-1-{number}"
    size = 600 if number % GIANT_EVERY == 0 else number % 4
    changes = [
        RowChange(
            row_key("shop.t", [number * 1000 + n]), ABSENT if n % 7 == 3 else VALUE, b"" if n % 7 == 3 else b"{%d}" % n
        )
        for n in range(size)
    ]
    if number % 25 == 0:
        changes.append(VoidTable("shop.t", "DDL"))  # type: ignore[arg-type]
    return SourceTransaction(gtid, gtid, 1_700_000_000 + number, list(changes))


def number_of(position: str) -> int:
    """The number of the transaction with this position."""
    return int(position.rpartition("-")[2])


def publisher(kafka: KafkaCluster, keyspace: str, partitions: int) -> Publisher:
    """A publisher with small batches, so that giant transactions span several."""
    return Publisher(
        kafka,
        keyspace,
        f"{keyspace}/0",
        Layout(partitions),
        batch_interval_s=0.01,
        limits=BatchLimits(batch_bytes=BATCH_BYTES),
    )


def main(kafka: KafkaCluster, keyspace: str, partitions: int, last: int) -> None:
    """Resume from the topic and publish up to transaction ``last``."""
    with publisher(kafka, keyspace, partitions) as out:
        resume = out.open(lambda: ("MariaDB/0-1-0", 1_700_000_000))
        print(f"resumed {resume.position} {resume.partial_events}", flush=True)
        for number in range(number_of(resume.position) + 1, last + 1):
            out.publish(transaction(number))
        out.flush()
    print("done", flush=True)


def assert_exactly_once(kafka: KafkaCluster, keyspace: str, partitions: int, last: int) -> None:
    """Every change of transactions 1..last is there once, in order, and the last marker says so."""
    found = records(kafka, keyspace, partitions)
    expected, ordinal = [], 1  # 1 is the epoch's start
    for number in range(1, last + 1):
        txn = transaction(number)
        for change in txn.changes:
            ordinal += 1
            if isinstance(change, RowChange):
                expected.append((ordinal, change.key, change.image, txn.gtid))
    assert rows(found) == expected
    for partition in range(partitions):
        assert ordinals(found[partition]) == sorted(set(ordinals(found[partition])))
        end = markers(found, partition)[-1]
        assert (end["position"], end["ordinal"], end["whole"]) == (f"MariaDB/0-1-{last}", ordinal, True)


if __name__ == "__main__":
    main(KafkaCluster(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
