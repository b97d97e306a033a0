"""What is made of a snapshot whose place falls silent, lacks a file, or has nothing of a partition."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from consumers.snapshots.checking import check_snapshot
from consumers.snapshots.finding import Wanted
from consumers.snapshots.patience import Patience, Stopped
from consumers.snapshots.places import Place
from consumers.snapshots.restoring import restore_partition
from consumers.store.directory import partition_directory
from consumers.store.leader_epochs import kept_leader_epoch
from tests.consumers.snapshots.made import only, snapshot_of
from tests.data_at_rest.history import KEYSPACE, TOPIC_ID


def test_who_has_heard_all_is_given_up_no_more() -> None:
    """The store is being made of files that are here: it would be folded from the topic beside that."""
    patience = Patience()
    patience.hear()
    patience.settle()
    assert not patience.give_up()
    patience.hear()
    assert patience.give_up()
    for listen in (patience.hear, patience.settle):
        with pytest.raises(Stopped):
            listen()


def test_a_file_that_is_missing_is_damage_of_its_snapshot(tmp_path: Path) -> None:
    """`freshet snapshots verify` says so of the partition, and looks at the others."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, _ = snapshot_of(tmp_path, place)
    (tmp_path / "snapshots" / KEYSPACE / snapshot.name / "0" / "000001.sst").unlink()
    [(partition, error)] = check_snapshot(place, only(place), snapshot)
    assert partition == 0
    assert error is not None
    assert error.code == "snapshot_missing"


def test_a_snapshot_without_files_of_a_partition_is_no_beginning_of_it(tmp_path: Path) -> None:
    """It would be made into a store of which the head alone is missing."""
    snapshot, _ = snapshot_of(tmp_path, Place(str(tmp_path / "snapshots")))
    [held] = snapshot.partitions
    empty = msgspec.structs.replace(snapshot, partitions=(msgspec.structs.replace(held, files=()),))
    wanted = Wanted(0, TOPIC_ID, 1, 0, 1_000)
    refused = wanted.refusal(empty)
    assert wanted.refusal(snapshot) is None
    assert refused is not None
    assert refused.code == "snapshot_differs"


def test_a_store_that_is_made_from_a_snapshot_has_its_leader_epoch(tmp_path: Path) -> None:
    """By it Kafka says that its log was cut off since, and filled with something else."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, _ = snapshot_of(tmp_path, place)
    [held] = snapshot.partitions
    told = msgspec.structs.replace(snapshot, partitions=(msgspec.structs.replace(held, leader_epoch=5),))
    restore_partition(place, only(place), told, 0, tmp_path / "new")
    assert kept_leader_epoch(partition_directory(tmp_path / "new", KEYSPACE, 0), held.offset) == 5
