"""Which snapshot a fold begins with, and when one may be called the topic's own word."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from consumers.fold.state import FOLD_VERSION
from consumers.snapshots.finding import Found
from consumers.snapshots.manifest import Snapshot, SnapshotFile, SnapshotPartition
from consumers.snapshots.places import Place
from freshet.commands.rebuild import _is_replayed
from freshet.snapshots import Needed, farthest
from spark_jobs.offsets import TopicBounds
from spark_jobs.output import Begun, exclusive, staged
from spark_jobs.rebuild import RebuildRequest
from stream.kafka.connection import KafkaCluster

KAFKA = KafkaCluster("127.0.0.1:1")
BOUNDS = TopicBounds("t", "t1", {0: 0}, {0: 99})


@pytest.fixture(autouse=True)
def topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic of which nothing is gone."""
    monkeypatch.setattr("spark_jobs.offsets.topic_bounds", lambda *_: BOUNDS)


def snapshot(name: str, offset: int) -> Found:
    """A snapshot of one partition."""
    file = SnapshotFile("0/1.sst", "", "", 1, 1, "", 1, "")
    partition = SnapshotPartition(0, 0, offset, 1, "", {}, (file,))
    return Found(
        f"shop/{name}",
        Snapshot(
            name=name,
            keyspace="shop",
            topic_id="t1",
            layout="xxh3_64;partitions=1",
            fold_version=FOLD_VERSION,
            created="2026-01-02T03:04:05+00:00",
            made_from="owners",
            verified=False,
            partitions=(partition,),
        ),
    )


def test_a_fold_begins_with_the_snapshot_that_is_farthest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that was made later may hold less: of owners that were behind, say."""
    made = [snapshot("2026-01-01", 50), snapshot("2026-01-02", 40), snapshot("2026-01-03", 60)]
    monkeypatch.setattr("consumers.snapshots.finding.find_snapshots", lambda *_: made)
    place = Place(str(tmp_path))
    for end, name in ((99, "2026-01-03"), (55, "2026-01-01"), (45, "2026-01-02")):
        chosen, refused = farthest(place, "shop", KAFKA, Needed(ends={0: end}))
        assert chosen is not None
        assert (chosen[1].name, len(refused)) == (
            name,
            sum(each.snapshot.offsets[0] > end for each in made if each.snapshot),
        )


@pytest.mark.parametrize(
    ("base", "begins", "is_replayed"), [("", {}, True), ("checkpoint", {}, False), ("", {0: 5}, True)]
)
def test_a_rebuild_from_a_base_is_not_the_topics_word(
    base: str, begins: Mapping[int, int], is_replayed: bool, tmp_path: Path
) -> None:
    """An audit would begin with it, and compare the owners' state with what the owners said."""
    target = tmp_path / "out"
    with exclusive(target), staged(target, Begun("shop", "t1", base, begins)):
        pass
    assert _is_replayed(RebuildRequest("shop", KAFKA, target)) is is_replayed
