"""Which shards a publisher finds in its topic, and which it declares: neighbours, ancestors, successors."""

from __future__ import annotations

from typing import Any

import pytest

from stream.publish import markers as markers_of
from stream.publish.topology import DeclaredTopology, TopologyError
from stream.shards.map import ShardMap
from stream.wire.codec import encode
from stream.wire.events import VALUE, RowChange, SourceTransaction, Topology
from stream.wire.keys import Layout, row_key
from tests.stream.memory_log import MemoryLog
from tests.stream.reopening import SHARD, foreign, home, reasons, start, txn


@pytest.mark.parametrize("ago", [0, 700, 40_000])
def test_an_undeclared_shard_is_found_wherever_it_published(log: MemoryLog, ago: int) -> None:
    """It may write the same keys, so both would be wrong; one that is declared or succeeded may be there."""
    log.commit([(home(log), encode("Marker", foreign("ks/old")))] * 300, 5)
    log.partitions[home(log)] += [None] * ago
    with pytest.raises(TopologyError) as caught:
        log.publisher().open(start)
    assert caught.value.code == "second_shard"
    assert reasons(log) == [[], []]
    with log.publisher(topology=DeclaredTopology(shards=("ks/old",))) as out:
        assert out.open(start).epoch == 1
    topology = next(record for name, record in log.records(home(log)) if name == "Topology")
    assert topology["shards"] == [SHARD, "ks/old"]


@pytest.mark.parametrize(("succeeds", "epoch"), [("ks/old", 3), ("ks/old@2", 2)])
def test_a_successor_names_its_ancestor_and_its_epoch(log: MemoryLog, succeeds: str, epoch: int) -> None:
    """As found in the topic, or as given; a restart repeats what was said."""
    log.commit([(home(log), encode("Marker", foreign("ks/old", number))) for number in (1, 3, 2)], 5)
    for _ in range(2):
        with log.publisher(topology=DeclaredTopology(succeeds=(succeeds,))) as out:
            out.open(start)
        said = [record for name, record in log.records(home(log)) if name == "Topology"][-1]
        assert said["ancestors"] == [{"shard": "ks/old", "epoch": epoch}]


def test_a_successor_of_nobody_is_refused(log: MemoryLog) -> None:
    """Without the ancestor's epoch its readers could not be taken along."""
    with pytest.raises(TopologyError) as caught:
        log.publisher(topology=DeclaredTopology(succeeds=("ks/old",))).open(start)
    assert caught.value.code == "ancestor_unknown"
    declared = DeclaredTopology(("ks/2", "ks/1"), ("ks/old@4",))
    assert declared.first(SHARD, {}).ancestors == (("ks/old", 4),)
    assert declared.first(SHARD, {}).shards == (SHARD, "ks/1", "ks/2")
    anew = declared.of_a_new_history(SHARD, {}, 9)
    assert (anew.ancestors, anew.succeeded) == ((), (("ks/old", 4),))
    forgotten = DeclaredTopology(succeeds=("ks/old",)).of_a_new_history(SHARD, {}, 9)
    assert forgotten.succeeded == (("ks/old", 9),), "whatever its epoch was, its positions are lost"
    assert DeclaredTopology(("ks/1",)).of_a_new_history(SHARD, {"ks/1": 3}, 9).succeeded == ()


OTHER = "ks/other"
RANGES = {SHARD: "-80", OTHER: "80-"}


def _topology(log: MemoryLog) -> Any:
    return [record for name, record in log.records(home(log)) if name == "Topology"][-1]


def test_the_map_is_declared_with_all_its_shards(log: MemoryLog) -> None:
    """Each partition has it before the first event, so that a key's shard follows from the key from there on."""
    with log.publisher(topology=DeclaredTopology(map=ShardMap.parse(RANGES))) as out:
        out.open(start)
    names = [name for name, _ in log.records(home(log))]
    assert names.index("Topology") < names.index("EpochStart")
    said = _topology(log)
    assert said["shards"] == sorted(RANGES)
    assert said["ranges"] == [{"shard": shard, "range": text} for shard, text in RANGES.items()]


def test_rows_of_another_shards_keys_are_not_published(log: MemoryLog) -> None:
    """A key's shard follows from the key: a row that lies elsewhere is none that a reader could mean."""
    found = ShardMap.parse(RANGES)
    keys = [row_key("shop.items", [number]) for number in range(20)]
    changes = [RowChange(key, VALUE, b"{}") for key in keys]
    with log.publisher(topology=DeclaredTopology(map=found)) as out:
        out.open(start)
        out.publish(SourceTransaction("MariaDB/0-1-9", "MariaDB/0-1-9", 9, changes))
        out.flush()
        left_out = out.stats.left_out
    published = {
        key
        for partition in range(len(log.partitions))
        for name, record in log.records(partition)
        if name == "RowFrame"
        for key in record["keys"]
    }
    assert published == {key for key in keys if found.shard_of(Layout(len(log.partitions)).keyspace_id(key)) == SHARD}
    assert 0 < len(published) < len(keys)
    assert left_out == len(keys) - len(published)


def test_a_shard_keeps_its_range(log: MemoryLog) -> None:
    """What sessions have seen of it counts for its keys: with others it needs another name."""
    with log.publisher() as out:
        out.open(start)
    with log.publisher(topology=DeclaredTopology(map=ShardMap.parse(RANGES))) as out:
        out.open(start)
    with log.publisher(topology=DeclaredTopology(map=ShardMap.parse({SHARD: "-80", "a": "80-c0", "b": "c0-"}))) as out:
        out.open(start)
    assert [each["range"] for each in _topology(log)["ranges"]] == ["-80", "80-c0", "c0-"]
    for other in (ShardMap.parse({SHARD: "-40", OTHER: "40-"}), None):
        with pytest.raises(TopologyError, match="the keys of -80") as caught:
            log.publisher(topology=DeclaredTopology(("a", "b", OTHER), map=other)).open(start)
        assert caught.value.code == "range_changed"


def test_the_epoch_of_another_shard_is_the_highest_that_was_seen() -> None:
    """Markers of a window may be read in any order of partitions."""
    found = markers_of.Markers()
    for epoch in (2, 5, 3):
        assert not found.see(SHARD, 0, encode("Marker", foreign("ks/9", epoch)))
    assert found.others == {"ks/9": 5}


def test_a_restart_declares_the_shards_that_are_configured_now(log: MemoryLog) -> None:
    """A shard that was added to the settings is named from the next start on, and ancestors stay as they were."""
    log.commit([(home(log), encode("Marker", foreign("ks/old")))], 5)
    with log.publisher(topology=DeclaredTopology(succeeds=("ks/old",))) as out:
        out.open(start)
    with log.publisher(topology=DeclaredTopology(("ks/2",), ("ks/old",))) as out:
        out.open(start)
        out.publish(txn(1))
    said = [record for name, record in log.records(home(log)) if name == "Topology"][-1]
    assert said["shards"] == [SHARD, "ks/2"]
    assert said["ancestors"] == [{"shard": "ks/old", "epoch": 3}]
    assert DeclaredTopology(("ks/2",)).resumed(SHARD, None).shards == (SHARD, "ks/2")


@pytest.mark.parametrize("known", [None, {"ancestors": [], "succeeded": [{"shard": "ks/older", "epoch": 1}]}])
def test_a_shard_that_has_begun_cannot_succeed_another_one(known: dict[str, Any] | None) -> None:
    """Sessions of the other one have been answered as strangers. Passing the setting over would go on doing so."""
    with pytest.raises(TopologyError) as caught:
        DeclaredTopology(succeeds=("ks/old@3",)).resumed(SHARD, known)
    assert caught.value.code == "succession_too_late"
    over = {"ancestors": [], "succeeded": [{"shard": "ks/old", "epoch": 3}]}
    assert DeclaredTopology(succeeds=("ks/old@3",)).resumed(SHARD, over).succeeded == (("ks/old", 3),)


@pytest.mark.parametrize(
    ("succeeds", "takes_over"), [((), False), (("a", "b"), True), (("a", "b@3"), False), (("a@2", "b@3"), False)]
)
def test_nobody_is_handed_over_where_an_epoch_is_given(succeeds: tuple[str, ...], takes_over: bool) -> None:
    """An epoch is given of a shard whose history is gone: there is no position at which its successor could begin."""
    assert DeclaredTopology(succeeds=succeeds).takes_over is takes_over


@pytest.mark.parametrize(("succeeded", "ancestor"), [(3, 2), (2, 3)])
def test_an_ancestor_of_several_epochs_is_over_in_the_highest_of_them(succeeded: int, ancestor: int) -> None:
    """What it published in that one would otherwise be folded as if it went on."""
    before = Topology((SHARD,), (("ks/old", ancestor),), (("ks/old", succeeded),))
    assert before.in_a_new_epoch() == Topology((SHARD,), (), (("ks/old", 3),))
