"""Snapshots that an earlier version wrote: read the same, or refused by their fold version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from consumers.fold.state import FOLD_VERSION
from consumers.snapshots.finding import Wanted, find_snapshots
from consumers.snapshots.manifest import CHECKSUM, MANIFEST_NAME, SNAPSHOT_FORMAT
from consumers.snapshots.places import Place
from consumers.snapshots.restoring import restore_partition
from consumers.store.manifest import checksum_of
from consumers.store.store import StoreView
from tests.data_at_rest.history import FIXTURES, KEYSPACE, TOPIC_ID, unpack
from tests.data_at_rest.keep_snapshot import KEPT_SNAPSHOT, NAME

KEPT = sorted(path.name.removesuffix(".tar.gz") for path in FIXTURES.glob("snapshot*.tar.gz"))


def test_the_current_format_of_snapshots_is_kept() -> None:
    """A new version of format or fold needs a new fixture: `python -m tests.data_at_rest.keep_snapshot`."""
    assert KEPT_SNAPSHOT in KEPT


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_snapshot_reads_the_same(tmp_path: Path, name: str) -> None:
    """Its manifest says what it said; its state is what it was, or refused because the log now folds to other bytes."""
    place = Place(str(unpack(name, tmp_path)))
    [found] = find_snapshots(place, KEYSPACE)
    snapshot = found.snapshot
    assert snapshot is not None
    told = json.loads((FIXTURES / f"{name}.json").read_text())
    assert (snapshot.name, snapshot.topic_id, snapshot.fold_version) == (NAME, TOPIC_ID, told["fold_version"])
    assert (snapshot.format, snapshot.entries, snapshot.verified) == (1, told["count"], True)
    [held] = snapshot.partitions
    assert (held.offset, held.digest) == (told["offset"], told["digest"])
    refusal = Wanted(0, TOPIC_ID, 1, 0, 1_000_000).refusal(snapshot)
    if snapshot.fold_version != FOLD_VERSION:
        assert refusal is not None
        assert refusal.code == "snapshot_differs"
        return
    assert refusal is None
    restore_partition(place, found, snapshot, 0, tmp_path / "new")
    with StoreView(tmp_path / "new" / KEYSPACE / "0") as view:
        assert view.digest() == (told["digest"], told["count"])


def test_a_field_that_a_newer_version_adds_is_ignored(tmp_path: Path) -> None:
    """The manifest of a format may gain fields."""
    root = unpack(KEPT_SNAPSHOT, tmp_path)
    path = root / KEYSPACE / NAME / MANIFEST_NAME
    fields = json.loads(path.read_text())
    del fields[CHECKSUM]
    fields["later"] = {"of": ["a newer version"]}
    path.write_text(json.dumps(fields | {CHECKSUM: checksum_of(fields)}))
    [found] = find_snapshots(Place(str(root)), KEYSPACE)
    assert found.snapshot is not None
    assert found.snapshot.format == SNAPSHOT_FORMAT
    shutil.rmtree(root)
