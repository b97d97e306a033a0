"""Each cause that pauses folding, and that each pause ends, with a real topic and stores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from consumers.owner.partitions import DISK_FULL, Ownership
from consumers.process.loop import Consumption, ConsumptionSettings
from consumers.process.run import make_checkpoint
from consumers.store.errors import DiskFullError, DiskIOError, StoreCorruptError
from consumers.store.rocks.database import Rocks
from stream.kafka.connection import KafkaCluster
from tests.consumers.consuming import Feed, until
from tests.consumers.process.test_rebalance_errors import Silent
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration


@contextmanager
def consuming(kafka: KafkaCluster, keyspace: str, data: Path) -> Iterator[Consumption]:
    """A consumption in a thread, ready; ends with the block."""
    settings = ConsumptionSettings(kafka=kafka, keyspaces=(keyspace,), data_dir=data, group=keyspace)
    consumption = Consumption(settings, Ownership(data), Silent(), lambda _: None)
    thread = threading.Thread(target=consumption.run)
    thread.start()
    try:
        until(lambda: consumption.ready.done() or not thread.is_alive(), "ready")
        yield consumption
        assert thread.is_alive()
    finally:
        consumption.stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_checkpoint_that_commits_what_was_left_ends_the_pause(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a checkpoint commits the rest before the commit is retried, nothing is left to commit but folding resumes."""
    full = threading.Event()
    ingest = Rocks.ingest

    def ingest_if_space(self: Rocks, entries: Mapping[bytes, bytes], scratch: Path, *of_indexes: Any) -> int:
        if full.is_set():
            raise DiskFullError("no space left", hint="make some")
        return ingest(self, entries, scratch, *of_indexes)

    monkeypatch.setattr(Rocks, "ingest", ingest_if_space)
    feed = Feed(kafka, keyspace_name, partitions=1)
    with consuming(kafka, keyspace_name, tmp_path) as consumption:
        full.set()
        feed.load(20)
        [partition] = consumption.ownership
        until(lambda: partition.state == DISK_FULL, "paused")

        def checkpoint() -> None:
            full.clear()
            make_checkpoint(tmp_path / "checkpoints", partition)

        consumption.call(checkpoint).result(PATIENCE_S)
        feed.load(20)
        until(lambda: partition.store.visible.lineages[feed.shard].ordinal == feed.ordinal, "folding goes on")


def test_a_damaged_store_that_closes_with_an_error_is_still_rebuilt(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB repeats its error when it is closed; that must not end the process."""
    close: Callable[[Rocks], None] = Rocks.close
    damaged = threading.Event()

    def close_with_an_error(self: Rocks) -> None:
        close(self)
        if damaged.is_set():
            damaged.clear()
            raise DiskIOError("Input/output error", hint="look at the kernel's log")

    monkeypatch.setattr(Rocks, "close", close_with_an_error)
    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.load(20)
    with consuming(kafka, keyspace_name, tmp_path) as consumption:
        [partition] = consumption.ownership
        damaged.set()
        partition.store.broken = StoreCorruptError("a block's checksum is wrong", hint="none")
        until(lambda: consumption.rebuilds == 1, "set aside")
        until(lambda: [each.ready for each in consumption.ownership] == [True], "ready again")
        [partition] = consumption.ownership
        until(lambda: partition.store.visible.lineages[feed.shard].ordinal == feed.ordinal, "folded again")
        assert consumption.rebuilds == 1, "as the metric says"
