"""What `freshet rebuild`, `verify` and `export` leave where they were told to, and what they take away, run whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumers.owner.protocol import Verdict
from consumers.snapshots.finding import find_snapshots
from consumers.snapshots.manifest import Snapshot
from consumers.snapshots.places import Place
from consumers.snapshots.writing import write_snapshot
from consumers.store.leader_epochs import keep_leader_epoch
from freshet import auditing, cli
from freshet.auditing import Audit, Audited, audit
from spark_jobs.output import RebuildError, find_stores
from spark_jobs.rebuild import RebuildRequest, checkpoint_offsets, rebuild
from spark_jobs.session import SparkSettings
from tests.consumers.histories import key, marker, start
from tests.spark_jobs.in_memory import Happen, TopicInMemory
from tests.spark_jobs.test_export import rows_in
from tests.spark_jobs.test_streaming import differences
from tests.spark_jobs.test_verify import flip_one_byte
from tests.spark_jobs.test_whole_rebuilds import fails, filled_topic
from tests.spark_jobs.topics import items_of

Topics = Callable[[int], TopicInMemory]


@pytest.fixture
def filled(in_memory: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TopicInMemory:
    """A topic of two histories; the command runs in a directory of its own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return filled_topic(in_memory)


@pytest.fixture
def read(filled: TopicInMemory, monkeypatch: pytest.MonkeyPatch) -> list[Happen]:
    """What happens when micro-batches have been read in a command's Spark session: it is in memory."""
    happening: list[Happen] = []

    @contextmanager
    def session(*_: object) -> Iterator[Any]:
        yield filled.session([*happening])

    for command in ("rebuild", "export", "verify"):
        monkeypatch.setattr(f"freshet.commands.{command}.spark_settings", lambda *_, **__: SparkSettings())
    monkeypatch.setattr("spark_jobs.rebuild.spark_session", session)
    monkeypatch.setattr("spark_jobs.session.spark_session", session)
    return happening


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The object that a command printed."""
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def snapshots(place: Path) -> list[Snapshot]:
    """Those at a place."""
    return [each.snapshot for each in find_snapshots(Place(place.as_uri()), "shop") if each.snapshot is not None]


def partial_snapshot(filled: TopicInMemory, tmp_path: Path, ends: dict[int, int]) -> Path:
    """A place with a snapshot of what lies before offsets, made of owners' stores."""
    stores = tmp_path / f"stores-{ends[0]}"
    rebuild(filled.session(), RebuildRequest("shop", filled.kafka, stores, ends))
    write_snapshot(Place((tmp_path / "place").as_uri()), find_stores(stores), made_from="owners")
    return tmp_path / "place"


@pytest.mark.usefixtures("read")
@pytest.mark.parametrize("base", ["", "directory", "place"])
def test_a_rebuild_to_a_place_leaves_one_snapshot_and_nothing_else(
    base: str, filled: TopicInMemory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the topic's own word only if it was folded from the topic alone. A directory that was given stays."""
    place = partial_snapshot(filled, tmp_path, {0: 20, 1: 10})
    given = {"": [], "directory": ["--base", str(tmp_path / "stores-20")], "place": ["--base", place.as_uri()]}[base]
    to = (tmp_path / "made").as_uri()
    assert cli.run(["rebuild", "shop", "--to", to, "--json", *given]) == 0
    [made], said = snapshots(tmp_path / "made"), told(capsys)
    assert (said["snapshot"], said["place"]) == (made.name, to)
    assert (made.made_from, made.replayed, made.verified) == ("rebuild", base == "", False)
    assert said["messages"] == sum(filled.ends().values()) - 2 - (30 if base else 0)
    assert [*Path(".freshet/rebuilds").iterdir()] == []
    assert set(find_stores(tmp_path / "stores-20")) == {0, 1}


def test_a_killed_rebuild_from_a_place_is_gone_on_with_and_leaves_no_copy_of_it(
    filled: TopicInMemory, read: list[Happen], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was made of the snapshot is beside the target until the run ends well: the next one needs it."""
    uri, target = partial_snapshot(filled, tmp_path, {0: 20, 1: 10}).as_uri(), tmp_path / "out"
    command = ["rebuild", "shop", "--to", str(target), "--base", uri, "--json"]
    read.append(fails)
    assert cli.run(command) == 1
    assert (tmp_path / ".out.base").exists()
    read.clear()
    partial_snapshot(filled, tmp_path, {0: 21, 1: 11})
    capsys.readouterr()
    assert cli.run(command) == 0
    assert told(capsys)["messages"] == sum(filled.ends().values()) - 2 - 30
    assert differences(filled, target, tmp_path / "live") == []
    assert sorted(each.name for each in tmp_path.glob(".out*")) == []


@pytest.mark.usefixtures("read")
def test_a_rebuild_to_a_checkpoint_ends_and_begins_where_that_does(
    filled: TopicInMemory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint is an owner's, which goes on; and with offsets it ends before those."""
    partial_snapshot(filled, tmp_path, {0: 20, 1: 10})
    for number, words in enumerate(
        (["--to-checkpoint", str(tmp_path / "stores-20")], ["--offsets", '{"0":20,"1":10}'])
    ):
        to = tmp_path / f"out-{number}"
        assert cli.run(["rebuild", "shop", "--to", str(to), "--json", *words]) == 0
        said = told(capsys)
        assert (said["directory"], said["ends"]) == (str(to), {"0": 20, "1": 10})
        for each, store in find_stores(tmp_path / "stores-20").items():
            assert items_of(find_stores(to)[each]) == items_of(store)


@pytest.mark.usefixtures("read")
def test_an_export_tells_where_it_is(filled: TopicInMemory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of this run, and of all: also where there was nothing new."""
    rows = []
    for words in (["--offsets", '{"0": 20, "1": 10}'], [], []):
        assert cli.run(["export", "shop", "--to", str(tmp_path / "out"), "--json", *words]) == 0
        rows.append((said := told(capsys))["rows"])
        assert (said["directory"], said["total"]) == (str(tmp_path / "out"), sum(rows))
    assert said["ends"] == {str(each): end for each, end in filled.ends().items()}
    assert (sum(rows), rows[2]) == (len(rows_in(tmp_path / "out")), 0)


# -- audits -----------------------------------------------------------------------------------------------------------


class Owners:
    """Those of the keyspace ``shop``: what they have folded, and what they were told of it."""

    def __init__(self, topic: TopicInMemory, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._topic, self._root = topic, root
        self.place = root / "place"
        self.request = Audit("shop", topic.kafka, SparkSettings(), place=self.place.as_uri())
        self.upto = dict[int, int]()
        """Partition → offset before which they are; else they have all."""
        self.told: list[Verdict] = []
        monkeypatch.setattr(auditing, "asked_owners", lambda *_: {})
        monkeypatch.setattr(auditing, "checkpointed", lambda *_: self.stores())
        monkeypatch.setattr(auditing, "tell_verdicts", lambda *given: self.told.extend(given[-1]))

    def stores(self) -> dict[int, Path]:
        """Checkpoints of what they have folded; each says where it is in Kafka's log."""
        ends = self._topic.ends() | self.upto
        target = self._root / "-".join(map(str, ends.values()))
        if not target.exists():
            rebuild(self._topic.session(), RebuildRequest("shop", self._topic.kafka, target, ends))
        found = find_stores(target)
        for partition, offset in checkpoint_offsets(found).items():
            keep_leader_epoch(found[partition], offset, 7 + partition)
        return found

    def audited(self, **more: Any) -> Audited:
        """An audit of them."""
        return audit(replace(self.request, **more))

    def snapshot(self, **said: Any) -> Snapshot:
        """A snapshot of what they have."""
        return write_snapshot(Place(self.place.as_uri()), self.stores(), made_from="owners", **said)


@pytest.fixture
def owners(filled: TopicInMemory, read: list[Happen], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Owners:
    """Owners of the topic, and a Spark in memory for their audits."""
    assert read == []
    return Owners(filled, tmp_path / "owners", monkeypatch)


def more(topic: TopicInMemory) -> None:
    """Something new in each partition."""
    for partition in range(2):
        topic.write(partition, topic.history(first=5_000, frames=4))


def test_an_audit_begins_with_what_the_last_one_proved(owners: Owners, filled: TopicInMemory) -> None:
    """What lies before it may be gone; with ``whole`` it must not be. What owners say of themselves proves nothing."""
    first = owners.audited()
    assert (first.verdict.equal, first.since) == (True, "")
    [left] = snapshots(owners.place)
    assert (left.name, left.verified, left.made_from) == (first.snapshot, True, "rebuild")
    assert {each.partition: each.leader_epoch for each in left.partitions} == {0: 7, 1: 8}
    more(filled)
    owners.snapshot()
    for partition, offset in left.offsets.items():
        filled.delete_before(partition, offset)
    with pytest.raises(RebuildError) as refused:
        owners.audited(whole=True)
    assert refused.value.code == "history_incomplete"
    second = owners.audited()
    assert (second.verdict.equal, second.since) == (True, first.snapshot)
    [newest] = [each for each in snapshots(owners.place) if each.name == second.snapshot]
    assert newest.offsets == checkpoint_offsets(owners.stores())
    assert [each.equal for each in owners.told] == [True] * 4


def kept_base(owners: Owners) -> str:
    """A directory with earlier stores of theirs."""
    owners.upto = {0: 20, 1: 10}
    found = owners.stores()
    owners.upto = {}
    return str(found[0].parent)


def test_an_audit_may_begin_with_what_was_folded_from_the_topic_alone(owners: Owners, filled: TopicInMemory) -> None:
    """Nobody has compared it with a live state; but it is no word of those whose state is to be proved."""
    kept = owners.snapshot(replayed=True)
    more(filled)
    owners.snapshot()
    assert owners.audited().since == kept.name
    found = owners.audited(base=kept_base(owners))
    assert (found.since, found.snapshot) == ("", ""), "a base that was given goes before, and is not proved"
    owners.upto = {0: 20}
    assert owners.audited().since == "", "they are not as far as any"


def test_a_topic_that_lacks_what_the_live_state_began_with_is_refused(owners: Owners, filled: TopicInMemory) -> None:
    """What is left is whole, from the beginning of an epoch: but a fold of it is equal to no right state."""
    ends = filled.ends()
    told: dict[str, Any] = {"epoch": 2, "layout": "xxh3_64;partitions=2"}
    for partition in range(2):
        for shard in ("shop/0", "shop/1"):
            filled.write(partition, [start(epoch=2, shard=shard), marker(1, shard=shard, **told)])
    owners.stores()
    for partition, end in ends.items():
        filled.delete_before(partition, end)
    with pytest.raises(RebuildError, match="what the live state began with") as refused:
        owners.audited()
    assert refused.value.code == "history_incomplete"


def test_an_audit_does_not_begin_with_what_is_damaged(owners: Owners, filled: TopicInMemory) -> None:
    """It is logged, and the topic is folded from its start; of half of its stores nothing is used."""
    kept = owners.snapshot(verified=True)
    more(filled)
    file = owners.place / "shop" / kept.name / kept.partitions[1].files[0].name
    file.write_bytes(file.read_bytes()[:-1])
    with capture_logs() as logs:
        found = owners.audited()
    assert [each["code"] for each in logs if each["event"] == "a snapshot is not used"] == ["snapshot_damaged"]
    assert (found.verdict.equal, found.since, bool(found.snapshot)) == (True, "", True)


def test_an_audit_of_a_cut_topic_begins_with_an_older_snapshot_where_the_last_is_damaged(
    owners: Owners, filled: TopicInMemory
) -> None:
    """The topic's start is gone, so without the older one no audit would end with a verdict any more."""
    older = owners.snapshot(verified=True)
    more(filled)
    newer = owners.snapshot(verified=True)
    for partition, offset in older.offsets.items():
        filled.delete_before(partition, offset)
    file = owners.place / "shop" / newer.name / newer.partitions[1].files[0].name
    file.write_bytes(file.read_bytes()[:-1])
    found = owners.audited()
    assert (found.verdict.equal, found.since) == (True, older.name)


def test_a_wrong_entry_is_told_with_what_made_it_and_is_in_no_snapshot(
    owners: Owners, capsys: pytest.CaptureFixture[str]
) -> None:
    """The owners are told of each partition; the exit code is 1, whatever is equal."""
    flip_one_byte(owners.stores()[1], key(7))
    found = owners.audited()
    assert (found.verdict.differences, found.snapshot, snapshots(owners.place)) == (1, "", [])
    ends = checkpoint_offsets(owners.stores())
    told_of = [(each.partition, each.offset, each.equal) for each in owners.told]
    assert told_of == [(0, ends[0], True), (1, ends[1], False)]
    wrong: Any = found.verdict.partitions[1].first[0]
    assert wrong["key"] == "shop.items [7]"
    assert [each["ordinal"] for each in wrong["events"] if each["event"] == "row"][-1] == wrong["right"]["ordinal"]
    assert cli.run(["verify", "shop", "--json", "--whole"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["equal"], said["differences"], said["snapshot"]) == (False, 1, "")
