"""Snapshots that Spark makes from the topic, and that it begins with."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from consumers.snapshots.finding import find_snapshots
from consumers.snapshots.places import Place
from consumers.snapshots.restoring import restore_all
from consumers.snapshots.writing import write_snapshot
from consumers.store.errors import ResourcesError
from freshet.settings import Settings
from freshet.snapshots import Needed, base_stores, clear_useless, work_directory
from spark_jobs.output import RebuildError, exclusive, find_stores, staged
from spark_jobs.partition import FoldTask
from spark_jobs.rebuild import RebuildRequest, prepare
from tests.spark_jobs.test_live_verify import FRESHET
from tests.spark_jobs.topics import TestTopic, history, in_arrow, items_of
from tokens.errors import FreshetError

Topics = Callable[[int], TestTopic]


def test_a_rebuild_becomes_a_snapshot_that_the_next_one_begins_with(topic: Topics, tmp_path: Path) -> None:
    """`--to URI` makes a snapshot of the live state, `--base URI` needs nothing of the topic from before it."""
    filled = topic(2)
    for partition in range(2):
        filled.write(partition, history(partitions=2))
    uri = (tmp_path / "snapshots").as_uri()
    command = ["rebuild", "--keyspace", filled.keyspace, "--bootstrap", filled.kafka.bootstrap, "--master", "local[1]"]

    def rebuild(*to: str) -> subprocess.CompletedProcess[str]:
        given = [*FRESHET, *command, "--json", "--to", *to]
        return subprocess.run(given, cwd=tmp_path, capture_output=True, text=True, check=False)

    useless = RebuildRequest(filled.keyspace, filled.kafka, work_directory(Settings(), filled.keyspace, uri))
    with exclusive(tmp_path / useless.target), staged(tmp_path / useless.target, useless.begun("another topic's")):
        pass
    first = rebuild(uri)
    assert first.returncode == 0, first.stderr
    place = Place(uri)
    [found] = find_snapshots(place, filled.keyspace)
    assert found.snapshot is not None
    assert found.snapshot.name == json.loads(first.stdout)["snapshot"]
    assert found.snapshot.offsets == filled.ends()
    assert (found.snapshot.verified, found.snapshot.is_witness) == (False, True)
    stores = restore_all(place, found, found.snapshot, tmp_path / "restored")
    for partition, directory in stores.items():
        assert items_of(directory) == filled.folded(partition, tmp_path / "live")[0]
    for partition in range(2):
        filled.write(partition, history(first=5000, partitions=2))
        wanted = filled.folded(partition, tmp_path / "whole")[0]
        filled.delete_before(partition, found.snapshot.offsets[partition])
        (tmp_path / f"wanted-{partition}").write_text(repr(wanted))
    second = rebuild(str(tmp_path / "out"), "--base", uri)
    assert second.returncode == 0, second.stderr
    for partition in range(2):
        held = items_of(tmp_path / "out" / filled.keyspace / str(partition))
        assert repr(held) == (tmp_path / f"wanted-{partition}").read_text()
    assert [each.name for each in tmp_path.glob(".freshet/rebuilds/*")] == []
    assert list(tmp_path.glob(".out*")) == []


CAUSES = ("nothing", "retention", "another topic", "another base", "past the end", "damaged")


@pytest.mark.parametrize("cause", CAUSES)
def test_a_killed_rebuild_to_a_place_blocks_no_later_one(topic: Topics, tmp_path: Path, cause: str) -> None:
    """Its work directory is Freshet's own: one of no use goes, with the old snapshot beside it, and no other does."""
    filled, place = topic(1), Place((tmp_path / "snapshots").as_uri())
    filled.write(0, history())
    _snapshot(filled, place, tmp_path / "old", 10)
    target, needed = tmp_path / "data" / "rebuilds" / "shop", Needed()
    base = base_stores(place.uri, filled.keyspace, filled.kafka, target, needed)
    request = RebuildRequest(filled.keyspace, filled.kafka, target, base=base)
    with staged(target, request.begun(filled.topic_id())) as staging:
        _fold(filled, staging, 15)  # and there it was killed
    if cause == "retention":
        _snapshot(filled, place, tmp_path / "new", 20)
        filled.delete_before(0, 18)
    elif cause == "another topic":
        filled.create_again()
        filled.write(0, history())
        request = RebuildRequest(filled.keyspace, filled.kafka, target)
    elif cause == "another base":
        request = RebuildRequest(filled.keyspace, filled.kafka, target)
    elif cause == "past the end":
        request = RebuildRequest(filled.keyspace, filled.kafka, target, {0: 12}, base)
    elif cause == "damaged":
        (target / "streaming.json").write_text("{")
    with exclusive(target), pytest.raises(RebuildError, match="another rebuild is writing"):
        clear_useless(request)
    clear_useless(request)
    assert target.exists() is (cause == "nothing")
    if request.base is not None:
        base_stores(place.uri, filled.keyspace, filled.kafka, target, needed)
    else:
        assert list(target.parent.iterdir()) == []
    begins = {"nothing": 15, "retention": 20, "past the end": 10, "damaged": 10}
    assert prepare(request).chosen.start == {0: begins.get(cause, 0)}


@pytest.mark.parametrize("trouble", ["a store that does not open now", "a base that is not there"])
def test_what_a_killed_rebuild_left_is_kept_where_nothing_says_that_it_is_of_no_use(
    topic: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """It may be the work of hours: a passing error, or a run that could not begin anew either, does not remove it."""
    filled, target = topic(1), tmp_path / "data" / "rebuilds" / "shop"
    filled.write(0, history())
    request = RebuildRequest(filled.keyspace, filled.kafka, target)
    target.parent.mkdir(parents=True)
    with staged(target, request.begun(filled.topic_id())) as staging:
        _fold(filled, staging, 15)

    def fails(*_: object) -> None:
        raise ResourcesError("too many open files")

    base = tmp_path / "typo" if trouble == "a base that is not there" else None
    with monkeypatch.context() as patched:
        patched.setattr("spark_jobs.rebuild.StoreView", fails)
        with pytest.raises(FreshetError):
            clear_useless(replace(request, base=base))
    clear_useless(request)
    assert prepare(request).chosen.start == {0: 15}


def _snapshot(filled: TestTopic, place: Place, directory: Path, end: int) -> None:
    _fold(filled, directory, end)
    write_snapshot(place, find_stores(directory), made_from="rebuild")


def _fold(filled: TestTopic, directory: Path, end: int) -> None:
    task = FoldTask(filled.keyspace, filled.topic_id(), str(directory), {0: 0}, {0: 0})
    with task.open(0) as fold:
        fold.fold(*in_arrow(range(end), history()[:end]))
        fold.finish()
