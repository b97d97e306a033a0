"""Dead letters that can't be written stop their partition, never the group membership or another partition."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from consumers.owner.partitions import DEAD_LETTERS, READY, Ownership
from consumers.owner.protocol import OwnerError
from consumers.process.loop import Consumption, ConsumptionSettings
from consumers.process.run import make_checkpoint
from stream.kafka.connection import KafkaCluster
from tests.consumers.consuming import Feed, until
from tests.consumers.process.test_rebalance_errors import Silent
from tests.patience import PATIENCE_S


class Away(Silent):
    """A Kafka output whose dead letters are not written until the test says so."""

    def __init__(self) -> None:
        self.burials: list[Future[None]] = []

    def bury(self, *_: Any) -> Future[None]:
        """Pending."""
        self.burials.append(Future())
        return self.burials[-1]


def test_a_letter_that_waits_holds_its_partition_only(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """The other partition is folded and committed, no commit passes the letter, and the rest follows it."""
    feed = Feed(kafka, keyspace_name, partitions=2)
    feed.load(20)
    output = Away()
    settings = ConsumptionSettings(
        kafka=kafka, keyspaces=(keyspace_name,), data_dir=tmp_path, group=keyspace_name, commit_interval_s=0.05
    )
    consumption = Consumption(settings, Ownership(tmp_path), output, lambda _: None)
    thread = threading.Thread(target=consumption.run)
    thread.start()
    try:
        until(lambda: consumption.ready.done() or not thread.is_alive(), "ready")
        until(lambda: not any(each.store.is_dirty for each in consumption.ownership), "committed")
        sick, well = consumption.ownership.of(keyspace_name)
        committed = sick.store.committed_offset
        feed.put(0, b"garbage")
        feed.flush()
        until(lambda: sick.state == DEAD_LETTERS, "held")
        feed.load(40)

        def others_go_on() -> bool:
            ordinal = well.store.visible.lineages[feed.shard].watermark_ordinal
            return ordinal == feed.ordinal and not well.store.is_dirty

        until(others_go_on, "the other partition goes on")
        assert sick.store.committed_offset == committed
        failed = consumption.call(lambda: make_checkpoint(tmp_path / "checkpoints", sick)).exception(PATIENCE_S)
        assert isinstance(failed, OwnerError), "a checkpoint would commit"
        output.burials[0].set_result(None)
        until(lambda: sick.state == READY, "goes on")
        until(lambda: sick.store.visible.lineages[feed.shard].watermark_ordinal == feed.ordinal, "folded")
        assert len(output.burials) == 1, "nothing was folded twice"
    finally:
        consumption.stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_letter_that_was_never_written_is_found_again(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """Stopping meanwhile commits nothing past it: the next process buries it."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.put(0, b"garbage")
    feed.load(5)
    settings = ConsumptionSettings(kafka=kafka, keyspaces=(keyspace_name,), data_dir=tmp_path, group=keyspace_name)
    for expected in (1, 1):
        output = Away()
        consumption = Consumption(settings, Ownership(tmp_path), output, lambda _: None)
        thread = threading.Thread(target=consumption.run)
        thread.start()
        try:
            until(lambda c=consumption: [each.state for each in c.ownership] == [DEAD_LETTERS], "held")  # type: ignore[misc]
        finally:
            consumption.stop()
            thread.join(PATIENCE_S)
        assert len(output.burials) == expected
