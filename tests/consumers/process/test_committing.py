"""Commits by their schedule, without Kafka."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from consumers.owner.overlay import Overlay
from consumers.owner.partitions import Partition
from consumers.process.committing import Committer
from consumers.process.run import make_checkpoint
from consumers.store.errors import DiskFullError
from consumers.store.leader_epochs import UNKNOWN
from consumers.store.rocks.database import Rocks
from consumers.store.store import PartitionStore, StoreView
from stream.kafka.topics import Topic
from tests.consumers.histories import marker, start
from tests.consumers.store.test_dropping import fold, open_at


def test_what_a_failed_checkpoint_has_frozen_is_committed_without_a_leader_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With that of the commit before, Kafka would say after a change of leaders that its log was cut off."""

    def full(*_: Any) -> int:
        raise DiskFullError("no space left", hint="make some")

    committer = Committer(1, 0.0)
    with closing(committer), closing(open_at(tmp_path)) as store:
        partition = Partition("shop", 0, Topic("shop", "topic-1", 1), store, Overlay(1_000))

        def committed_epoch() -> int:
            while committer.advance(partition, time.monotonic()) is None:
                time.sleep(0.01)
            return partition.frozen_epoch

        fold(store, start())
        partition.leader_epoch = 1
        assert committed_epoch() == 1
        fold(store, marker(2))
        partition.leader_epoch = 2
        with monkeypatch.context() as patched:
            patched.setattr(Rocks, "ingest", full)
            with pytest.raises(DiskFullError):
                make_checkpoint(tmp_path / "checkpoints", partition)
        assert committed_epoch() == UNKNOWN
        assert store.committed_offset == 2


def test_a_checkpoint_is_of_the_store_that_is_open_and_of_its_topic(tmp_path: Path) -> None:
    """What an earlier store left at the same offset, or one of a topic that was deleted, is no word of this one."""
    root, kept = tmp_path / "checkpoints", tmp_path / "checkpoints" / "shop" / "0"
    for number, (topic_id, offsets) in enumerate((("old", (3, 4)), ("topic-1", (1, 1)), ("topic-1", (1, 2)))):
        opened = PartitionStore.open(tmp_path / str(number), keyspace="shop", partition=0, topic_id=topic_id)
        with closing(opened) as store:
            partition = Partition("shop", 0, Topic("shop", topic_id, 1), store, Overlay(1_000))
            fold(store, start(sequence=number))
            for offset in offsets:
                fold(store, *(marker(at) for at in range(store.state.head.offset, offset)))
                found = make_checkpoint(root, partition)
                assert found.offset == offset
                with StoreView(Path(found.directory)) as view:
                    assert view.digest() == store.digest()
    assert sorted(int(each.name) for each in kept.iterdir()) == [1, 2]
