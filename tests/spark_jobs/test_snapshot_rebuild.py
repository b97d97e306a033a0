"""Snapshots that Spark makes from the topic, and that it begins with."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from consumers.snapshots.finding import find_snapshots
from consumers.snapshots.places import Place
from consumers.snapshots.restoring import restore_all
from tests.spark_jobs.test_live_verify import FRESHET
from tests.spark_jobs.topics import TestTopic, history, items_of

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
