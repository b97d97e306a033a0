"""Which snapshot a fold begins with, and when one may be called the topic's own word."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from consumers.fold.state import FOLD_VERSION
from consumers.snapshots.errors import SnapshotError
from consumers.snapshots.finding import Found
from consumers.snapshots.manifest import Snapshot, SnapshotFile, SnapshotPartition
from consumers.snapshots.places import Place
from consumers.store.errors import RebuildNeededError, ResourcesError, StoreCorruptError, StoreLockedError
from freshet.commands.rebuild import _is_replayed
from freshet.snapshots import Needed, base_stores, clear_useless, farthest
from spark_jobs.offsets import TopicBounds
from spark_jobs.output import Begun, RebuildError, exclusive, staged
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
        assert chosen[0][1].name == name
        assert len(refused) == sum(each.snapshot.offsets[0] > end for each in made if each.snapshot)
        assert len(chosen) == len(made) - len(refused)


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


@pytest.mark.parametrize("is_begun", [False, True])
def test_the_base_of_a_run_that_never_began_is_made_anew(
    is_begun: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It may be half of another snapshot. What a run has begun with stays, for the one that goes on."""
    target, found = tmp_path / "out", snapshot("2026-01-01", 50)
    (tmp_path / ".out.base" / "old").mkdir(parents=True)
    if is_begun:
        target.mkdir()
    kept: list[bool] = []
    monkeypatch.setattr("freshet.snapshots.farthest", lambda *_: ([(found, found.snapshot)], []))
    monkeypatch.setattr(
        "consumers.snapshots.restoring.restore_all", lambda *given: kept.append((given[-1] / "old").exists())
    )
    assert base_stores("file:///snapshots", "shop", KAFKA, target, Needed()) == tmp_path / ".out.base"
    assert kept == [is_begun]


def test_a_run_that_goes_on_needs_no_snapshot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its stores hold what it began with: none may be at the place any more, and a copy would be made for nothing."""
    target = tmp_path / "out"
    with exclusive(target), staged(target, Begun("shop", "t1", str(tmp_path / ".out.base"), {})):
        pass
    monkeypatch.setattr("freshet.snapshots.farthest", lambda *_: ([], ["none fits"]))
    assert base_stores("file:///snapshots", "shop", KAFKA, target, Needed()) == tmp_path / ".out.base"
    with pytest.raises(SnapshotError, match="none fits"):
        base_stores("file:///snapshots", "shop", KAFKA, tmp_path / "another", Needed())


@pytest.mark.parametrize(
    ("codes", "made"),
    [
        ([], "2026-01-03"),
        (["snapshot_damaged", "snapshot_missing"], "2026-01-01"),
        (["snapshot_damaged"] * 3, "snapshot_damaged"),
        (["snapshot_unreachable"], "snapshot_unreachable"),
    ],
)
def test_a_damaged_snapshot_gives_way_to_an_older_one(
    codes: list[str], made: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would end each rebuild of a topic that is cut, though an older one would do. Nothing of it is used."""
    found = [snapshot(f"2026-01-0{number}", 10 * number) for number in (1, 2, 3)]
    left = iter(codes)

    def restore(_: Place, each: Found, __: Snapshot, root: Path) -> None:
        assert not root.exists()
        (root / each.name).mkdir(parents=True)
        if (code := next(left, "")) != "":
            raise SnapshotError("it can't be used", code=code)

    monkeypatch.setattr("consumers.snapshots.finding.find_snapshots", lambda *_: found)
    monkeypatch.setattr("consumers.snapshots.restoring.restore_all", restore)
    with pytest.raises(SnapshotError) if "_" in made else nullcontext() as refused:
        base_stores("file:///snapshots", "shop", KAFKA, tmp_path / "out", Needed())
    if refused is not None:
        assert refused.value.code == made
    else:
        assert [each.name for each in (tmp_path / ".out.base").iterdir()] == [made]


@pytest.mark.parametrize(("end", "is_kept"), [(None, True), (6, True), (5, True), (4, False)])
def test_a_killed_run_that_is_past_the_end_is_of_no_use(
    end: int | None, is_kept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A store goes back nowhere. One that is right at the end only has to be completed."""
    target = tmp_path / "out"
    target.mkdir()
    (tmp_path / ".out.base").mkdir()
    found = SimpleNamespace(chosen=SimpleNamespace(start={0: 5}))
    monkeypatch.setattr("spark_jobs.rebuild.prepare", lambda *_, **__: found)
    clear_useless(RebuildRequest("shop", KAFKA, target, None if end is None else {0: end}))
    assert (target.exists(), (tmp_path / ".out.base").exists()) == (is_kept, is_kept)


@pytest.mark.parametrize(
    ("cause", "is_kept"),
    [
        (StoreLockedError("another process has it"), True),
        (ResourcesError("no file handles"), True),
        (StoreCorruptError("a checksum differs"), False),
        (RebuildNeededError("of another topic"), False),
        (None, False),
    ],
)
def test_a_store_that_can_not_be_opened_now_is_not_thrown_away(
    cause: Exception | None, is_kept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It may be the work of hours; one that is damaged, or of another history, is of no use."""
    target = tmp_path / "out"
    (target / "shop").mkdir(parents=True)

    def prepared(_: RebuildRequest, *, anew: bool = False) -> None:
        if not anew:
            raise RebuildError("the store can't be read") from cause

    monkeypatch.setattr("spark_jobs.rebuild.prepare", prepared)
    request = RebuildRequest("shop", KAFKA, target)
    if is_kept:
        with pytest.raises(RebuildError, match="can't be read"):
            clear_useless(request)
    else:
        clear_useless(request)
    assert target.exists() is is_kept
