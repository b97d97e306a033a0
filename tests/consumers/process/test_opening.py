"""What opening a partition's store leaves behind: of stores that were set aside, and of one that can't be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.process.opening import open_partition, set_aside
from consumers.store.errors import DiskFullError, RebuildNeededError, StoreCorruptError
from consumers.store.store import PartitionStore
from stream.kafka.topics import Topic
from tests.consumers.owning import KEYSPACE

TOPIC = Topic(f"freshet.{KEYSPACE}.events", "t", 1)
DAMAGED = StoreCorruptError("a block's checksum is wrong", hint="none")
REPLACED = RebuildNeededError("it is of another topic", code="topic_changed")


def opened(data_dir: Path) -> PartitionStore:
    """The partition's store."""
    return PartitionStore.open(data_dir, keyspace=KEYSPACE, partition=0, topic_id=TOPIC.topic_id)


def test_of_the_stores_that_were_set_aside_only_the_last_is_kept(tmp_path: Path) -> None:
    """Whatever each was set aside for: all of them together would fill the disk."""
    for error, why in ((DAMAGED, "corrupt"), (REPLACED, "replaced"), (DAMAGED, "corrupt")):
        opened(tmp_path).close()
        set_aside(tmp_path, KEYSPACE, 0, error)
        [kept] = (tmp_path / KEYSPACE).glob("0.*")
        assert kept.name.startswith(f"0.{why}-")


def test_a_store_that_can_not_begin_is_closed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt, once there is space, would find it locked by this very process."""

    def full(*_: object) -> None:
        raise DiskFullError("no space left", hint="make some")

    with monkeypatch.context() as patched:
        patched.setattr(PartitionStore, "begin_at", full)
        with pytest.raises(DiskFullError):
            open_partition(tmp_path, KEYSPACE, 0, TOPIC, (5, 9), 0)
    partition = open_partition(tmp_path, KEYSPACE, 0, TOPIC, (5, 9), 0)
    assert partition.position == 5
    partition.store.close(commit=False)
