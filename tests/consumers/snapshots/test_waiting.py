"""What is made of a snapshot whose place falls silent, lacks a file, or has nothing of a partition."""

from __future__ import annotations

from concurrent.futures import wait
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from consumers.fold.state import FOLD_VERSION
from consumers.process.restoring import BackgroundRestores, StillRestoring
from consumers.snapshots.checking import check_snapshot
from consumers.snapshots.errors import SnapshotError
from consumers.snapshots.finding import Wanted, find_snapshots
from consumers.snapshots.patience import Patience, Stopped
from consumers.snapshots.places import Place
from consumers.snapshots.pruning import remove_snapshot
from consumers.snapshots.restoring import Snapshots, restore_partition
from consumers.snapshots.writing import UPLOADS, write_snapshot
from consumers.store.directory import partition_directory
from consumers.store.leader_epochs import kept_leader_epoch
from consumers.store.store import PartitionStore
from stream.kafka.topics import Topic
from tests.consumers.snapshots import made
from tests.consumers.snapshots.made import only, snapshot_of
from tests.data_at_rest.history import KEYSPACE, TOPIC_ID, messages


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


def test_what_was_made_for_a_topic_is_nothing_for_the_one_that_took_its_name(tmp_path: Path) -> None:
    """The snapshots are looked through again: one of them may be of the new topic."""
    restores = BackgroundRestores(Snapshots({KEYSPACE: str(tmp_path / "snapshots")}))

    def restored(topic_id: str) -> bool:
        return restores.restore(tmp_path / "data", KEYSPACE, 0, Topic("t", topic_id, 1), (0, 9))

    for topic_id in ("old", "new"):
        with pytest.raises(StillRestoring):
            restored(topic_id)
        wait([restores._started[KEYSPACE, 0].result])
    assert not restored("new")


def test_a_file_that_is_missing_is_damage_of_its_snapshot(tmp_path: Path) -> None:
    """`freshet snapshots verify` says so of the partition, and looks at the others."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, _ = snapshot_of(tmp_path, place)
    (tmp_path / "snapshots" / KEYSPACE / snapshot.name / "0" / "000001.sst").unlink()
    [(partition, error)] = check_snapshot(place, only(place), snapshot)
    assert partition == 0
    assert error is not None
    assert error.code == "snapshot_missing"


def test_what_is_copied_to_a_place_leaves_the_disk_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot of a terabyte takes the room of a few files, however slow its place is."""
    place, put, kept = Place(str(tmp_path / "snapshots")), Place.put, list[int]()

    def counted(self: Place, file: Path, name: str) -> None:
        kept.append(len([*file.parent.glob("*.sst")]))
        put(self, file, name)

    monkeypatch.setattr(made, "SMALL_FILES", 100)
    monkeypatch.setattr(Place, "put", counted)
    snapshot_of(tmp_path, place)
    assert len(kept) > 2 * UPLOADS
    assert max(kept) <= UPLOADS + 1


def test_what_is_gone_already_can_be_removed(tmp_path: Path) -> None:
    """Two prune at once, or one was killed: neither is told of a place that does not answer."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot_of(tmp_path, place)
    found = only(place)
    for _ in range(2):
        remove_snapshot(place, found)
    assert place.names(KEYSPACE) == []


def test_a_place_that_is_away_is_no_damage_of_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told of damage removes it."""

    def away(*_: object) -> None:
        raise SnapshotError("it does not answer")

    place = Place(str(tmp_path / "snapshots"))
    snapshot, _ = snapshot_of(tmp_path, place)
    found = only(place)
    monkeypatch.setattr(Place, "get", away)
    with pytest.raises(SnapshotError, match="it does not answer"):
        list(check_snapshot(place, found, snapshot))


@pytest.mark.parametrize("flipped", [False, True])
def test_a_snapshot_of_another_fold_version_is_checked_as_far_as_it_can_be(
    flipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of before an upgrade are whole: who is told of damage removes them, and could not go back."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, _ = snapshot_of(tmp_path, place)
    for module in ("store.view", "snapshots.checking"):
        monkeypatch.setattr(f"consumers.{module}.FOLD_VERSION", FOLD_VERSION + 1)
    if flipped:
        path = tmp_path / "snapshots" / only(place).path_of(snapshot.partitions[0].files[-1].name)
        path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    [(_, error)] = check_snapshot(place, only(place), snapshot)
    assert (error and error.code) == ("snapshot_damaged" if flipped else None)
    with pytest.raises(SnapshotError, match="fold version" if not flipped else "differs") as refused:
        restore_partition(place, only(place), snapshot, 0, tmp_path / "new")
    assert refused.value.code == ("snapshot_damaged" if flipped else "snapshot_differs")


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


@pytest.mark.parametrize(("topic_id", "is_one"), [(TOPIC_ID, True), ("another", False)])
def test_a_snapshot_is_of_one_history_also_where_a_partition_had_no_message(
    topic_id: str, is_one: bool, tmp_path: Path
) -> None:
    """Such a partition knows no layout, the others do. Of stores of several topics there is none."""
    place, stores = Place(str(tmp_path / "snapshots")), {}
    for partition, upto, of_topic in ((0, 60, TOPIC_ID), (1, 0, topic_id)):
        open_at: dict[str, Any] = {"keyspace": KEYSPACE, "partition": partition, "topic_id": of_topic}
        stores[partition] = tmp_path / str(partition)
        with closing(PartitionStore.open(tmp_path / "data", **open_at)) as store:
            store.fold(list(enumerate(messages()[:upto])))
            store.checkpoint(stores[partition])
    if is_one:
        snapshot = write_snapshot(place, stores, made_from="owners")
        assert (snapshot.offsets, bool(snapshot.layout)) == ({0: 60, 1: 0}, True)
        return
    with pytest.raises(SnapshotError) as refused:
        write_snapshot(place, stores, made_from="owners")
    assert refused.value.code == "snapshot_differs"
    assert [each.snapshot for each in find_snapshots(place, KEYSPACE)] == [None]


def test_a_store_that_is_made_from_a_snapshot_has_its_leader_epoch(tmp_path: Path) -> None:
    """By it Kafka says that its log was cut off since, and filled with something else."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, _ = snapshot_of(tmp_path, place)
    [held] = snapshot.partitions
    told = msgspec.structs.replace(snapshot, partitions=(msgspec.structs.replace(held, leader_epoch=5),))
    restore_partition(place, only(place), told, 0, tmp_path / "new")
    assert kept_leader_epoch(partition_directory(tmp_path / "new", KEYSPACE, 0), held.offset) == 5
