"""Commits by their schedule, without Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.owner.overlay import Overlay
from consumers.owner.partitions import RETRY_S, Partition
from consumers.owner.protocol import OwnerError
from consumers.process.committing import IDLE_FACTOR, PENDING_BYTES_MAX, STEP_S, Committer, in_turn
from consumers.process.loop import ConsumptionSettings
from consumers.process.run import ConsumerProcess, OwnerSettings, make_checkpoint
from consumers.store.directory import kept
from consumers.store.errors import DiskFullError, StoreError
from consumers.store.leader_epochs import UNKNOWN
from consumers.store.manifest import Manifest
from consumers.store.rocks.database import Rocks
from consumers.store.store import PartitionStore, StoreView
from consumers.workers import worker_settings
from stream.kafka.connection import KafkaCluster
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


def test_what_a_process_killed_amid_a_checkpoint_has_left_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever offset: its links keep files that the store has long replaced."""
    root, there = tmp_path / "checkpoints", tmp_path / "checkpoints" / "shop" / "0"

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with closing(open_at(tmp_path)) as store:
        partition = Partition("shop", 0, Topic("shop", "topic-1", 1), store, Overlay(1_000))
        fold(store, start())
        with monkeypatch.context() as patched:
            patched.setattr("consumers.store.store.write_manifest", killed)
            with pytest.raises(KeyboardInterrupt):
                make_checkpoint(root, partition)
        [half] = there.iterdir()
        assert half.name.endswith(".new")
        fold(store, marker(2))
        place = make_checkpoint(root, partition)
        assert list(there.iterdir()) == [Path(place.directory)]


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


def test_a_checkpoint_is_there_as_long_as_it_is_read(tmp_path: Path) -> None:
    """Others that are made meanwhile don't remove it; those that nobody reads any more they do."""
    root = tmp_path / "checkpoints"
    with closing(open_at(tmp_path)) as store:
        partition = Partition("shop", 0, Topic("shop", "topic-1", 1), store, Overlay(1_000))
        fold(store, start())

        def made(offset: int) -> Path:
            fold(store, *(marker(at) for at in range(store.state.head.offset, offset)))
            return Path(make_checkpoint(root, partition).directory)

        first = made(2)
        with kept([first]), kept([first]):
            for offset in (3, 4, 5):
                made(offset)
            assert sorted(int(each.name) for each in first.parent.iterdir()) == [2, 4, 5]
            with StoreView(first) as view:
                assert view.head.offset == 2
        made(6)
        assert sorted(int(each.name) for each in first.parent.iterdir()) == [5, 6]
        with pytest.raises(StoreError) as gone, kept([first]):
            pass
        assert gone.value.code == "checkpoint_missing"


def test_two_workers_make_no_checkpoint_of_one_partition_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have one place for them, and a partition is with two of them while it is handed over: one would remove
    what the other has half made."""
    root, checkpoint = tmp_path / "checkpoints", PartitionStore.checkpoint
    with closing(open_at(tmp_path / "one")) as store, closing(open_at(tmp_path / "other")) as others:
        topic = Topic("shop", "topic-1", 1)
        mine, theirs = (Partition("shop", 0, topic, each, Overlay(1_000)) for each in (store, others))
        fold(store, start())
        fold(others, start())

        def meanwhile(made: PartitionStore, path: Path) -> Manifest:
            if made is store:
                with pytest.raises(OwnerError) as refused:
                    make_checkpoint(root, theirs)
                assert refused.value.code == "too_busy"
            return checkpoint(made, path)

        monkeypatch.setattr(PartitionStore, "checkpoint", meanwhile)
        assert make_checkpoint(root, mine) == make_checkpoint(root, theirs)


@pytest.mark.parametrize("number", [None, 0, 1])
def test_a_process_makes_checkpoints_where_all_workers_do(number: int | None, tmp_path: Path) -> None:
    """In the data directory, so that a copy of it has the partitions of all of them, as of a process without."""
    consume = ConsumptionSettings(KafkaCluster("nowhere:1"), ("shop",), tmp_path / "data")
    if number is not None:
        consume, _ = worker_settings(number, consume, OwnerSettings())
    process: Any = ConsumerProcess(consume, OwnerSettings())

    def called(work: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work())
        return done

    process.consumption = SimpleNamespace(call=called)
    with closing(open_at(consume.data_dir)) as store:
        fold(store, start())
        partition = Partition("shop", 0, Topic("shop", "topic-1", 1), store, Overlay(1_000))
        [place] = asyncio.run(process._make_checkpoints([partition]))
    assert Path(place.directory).parent == tmp_path / "data" / "checkpoints" / "shop" / "0"


def test_a_checkpoint_of_an_earlier_store_is_not_replaced_while_it_is_read(tmp_path: Path) -> None:
    """It may have another state at the same offset."""
    root = tmp_path / "checkpoints"
    with closing(open_at(tmp_path)) as store:
        partition = Partition("shop", 0, Topic("shop", "topic-1", 1), store, Overlay(1_000))
        fold(store, start())
        earlier = Path(make_checkpoint(root, partition).directory)
        partition.checkpointed = UNKNOWN
        with kept([earlier]), pytest.raises(OwnerError) as refused:
            make_checkpoint(root, partition)
        assert (refused.value.code, earlier.is_dir()) == ("too_busy", True)
        assert make_checkpoint(root, partition).directory == str(earlier)


class Scripted:
    """A store that has something to commit, which fails as often as the test says."""

    is_dirty = True

    def __init__(self, pending_rows: int, pending_bytes: int = 0) -> None:
        self.pending_rows, self.pending_bytes, self.fails = pending_rows, pending_bytes, 0

    def freeze(self) -> bool:
        """There is something."""
        return True

    def write(self) -> bool:
        """Done, or not."""
        if self.fails:
            self.fails -= 1
            raise DiskFullError("no space left", hint="make some")
        return True


def partition_of(store: Scripted) -> Partition:
    """That has committed at 100 s."""
    partition = Partition("shop", 0, Topic("shop", "topic-1", 1), store, Overlay(1_000))  # type: ignore[arg-type]
    partition.committed_at = 100.0
    return partition


def commits(committer: Committer, partition: Partition, now: float) -> bool:
    """Whether a commit is due; it has ended then. Raises what it raised."""
    committer.advance(partition, now)
    if partition.committing is None:
        return False
    wait([partition.committing])
    committer.advance(partition, now)
    return True


def test_a_commit_is_due_so_long_after_the_last_one() -> None:
    """And later where only watermarks have moved: else quiet tables would be written all the time."""
    store = Scripted(1)
    partition = partition_of(store)
    with closing(Committer(1_000, 2.0)) as committer:
        assert [commits(committer, partition, now) for now in (101.9, 102.0, 103.9, 104.0)] == [
            False,
            True,
            False,
            True,
        ]
        store.pending_rows, idle = 0, 104.0 + 2 * IDLE_FACTOR
        assert [commits(committer, partition, now) for now in (idle - 0.1, idle)] == [False, True]


def test_commits_that_time_makes_due_are_spread_over_the_interval() -> None:
    """A commit takes a core and the disk for milliseconds: those of all partitions together would hold up readers."""
    partitions = [partition_of(Scripted(1)) for _ in range(4)]
    committed: dict[int, list[float]] = {each: [] for each in range(4)}
    with closing(Committer(1_000, 2.0)) as committer:
        committer.share(4)
        for step in range(4 * 10 + 1):
            now = 102.0 + step / 10
            for number, partition in enumerate(partitions):
                if commits(committer, partition, now):
                    committed[number].append(round(now, 1))
    assert committed == {0: [102.0, 104.0, 106.0], 1: [102.5, 104.5], 2: [103.0, 105.0], 3: [103.5, 105.5]}


def test_many_partitions_are_all_committed_within_the_interval() -> None:
    """While little arrives, the fold looks twenty times a second at what is due: one at a time would be too few."""
    partitions = [partition_of(Scripted(1)) for _ in range(100)]
    with closing(Committer(1_000, 1.0)) as committer:
        committer.share(len(partitions))
        found = [sum(commits(committer, each, 102.0 + step / 20) for each in partitions) for step in range(20)]
    assert sum(found) == len(partitions)
    assert max(found) <= 6


@pytest.mark.parametrize("step_s", [STEP_S * 1.1, STEP_S * 2, 2.0])
def test_where_steps_are_slow_each_partition_is_committed_in_turn(step_s: float) -> None:
    """Those that come first are due again before the last ones were reached: of these nothing was ever committed."""
    partitions = [partition_of(Scripted(1)) for _ in range(50)]
    committed = [0] * len(partitions)
    with closing(Committer(1_000, 1.0)) as committer:
        committer.share(len(partitions))
        for step in range(100):
            for partition in in_turn(partitions):
                committed[partitions.index(partition)] += commits(committer, partition, 102.0 + step * step_s)
    assert min(committed) > 1
    assert max(committed) <= 2 * min(committed)


def test_a_commit_of_many_rows_waits_for_no_other() -> None:
    """Its memtable would grow. One that is due by time alone does."""
    first, full, small = (partition_of(Scripted(rows)) for rows in (1, 1_000, 1))
    with closing(Committer(1_000, 2.0)) as committer:
        committer.share(3)
        assert [commits(committer, each, 102.0) for each in (first, full, small)] == [True, True, False]


def test_after_a_commit_that_succeeds_the_pause_is_short_again() -> None:
    """It has grown with each that failed, for whatever kept them from it."""
    store = Scripted(1)
    partition, store.fails = partition_of(store), 2
    with closing(Committer(1, 0.0)) as committer:
        for pause_s in (RETRY_S * 2, RETRY_S * 4):
            with pytest.raises(DiskFullError):
                commits(committer, partition, 200.0)
            assert partition.commit_retry_s == pause_s
        assert commits(committer, partition, 200.0)
    assert partition.commit_retry_s == RETRY_S


@pytest.mark.parametrize("pending", [(20, 0), (0, PENDING_BYTES_MAX)])
def test_a_memtable_grows_no_further_in_rows_nor_in_bytes(pending: tuple[int, int]) -> None:
    """Either is enough: while one is written, the next one would else take any memory."""
    with closing(Committer(10, 0.0)) as committer:
        assert not committer._may_grow(partition_of(Scripted(*pending)))
        assert committer._may_grow(partition_of(Scripted(19, PENDING_BYTES_MAX - 1)))
