"""Shards that are handed over to their successors: where these begin, who ends whom, and who must be named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from consumers.fold.shards import is_succeeded, lineage_of_key
from serving.streams.choice import Choice
from serving.streams.encoding import Encoder
from stream.changes.assembling import Assembler
from stream.changes.checkpoint import Checkpoint
from stream.changes.items import Watermark
from stream.changes.start import Start
from stream.publish import handover, publisher
from stream.publish.handover import HISTORIES, Ancestor, descriptions_of, joint_position, told_before, with_histories
from stream.publish.publisher import Publisher
from stream.publish.resume import ResumeError
from stream.publish.topology import DeclaredTopology, TopologyError
from stream.shards.map import ShardMap
from stream.wire.events import (
    VALUE,
    VOID,
    Column,
    DescribeTable,
    ResumePoint,
    RowChange,
    Rows,
    SingleRows,
    SourceTransaction,
    Topology,
)
from stream.wire.keys import Layout, row_key
from tests.consumers.histories import Folded
from tests.stream.memory_log import KEYSPACE, MemoryLog
from tokens import Position

OLD, HIGH = f"{KEYSPACE}/-80", f"{KEYSPACE}/80-"
LOW, MIDDLE, WIDE = f"{KEYSPACE}/-40", f"{KEYSPACE}/40-80", f"{KEYSPACE}/40-"
WIDER = f"{KEYSPACE}/wider"
BEFORE = ShardMap.parse({OLD: "-80", HIGH: "80-"})
SPLIT = ShardMap.parse({LOW: "-40", MIDDLE: "40-80", HIGH: "80-"})
MERGED = ShardMap.parse({LOW: "-40", WIDE: "40-"})
NEW = ShardMap.parse({f"{KEYSPACE}/new": "-"})


class Behind(Exception):
    """The successor's server has not replicated enough."""


def never() -> tuple[str, int]:
    """A shard that is handed over does not begin at the server's present position."""
    raise AssertionError("the server's position was asked for")


def at(position: str) -> Any:
    """Begins a shard that succeeds nobody."""
    return lambda: (position, 10)


def published(log: MemoryLog, shard: str, position: str, **options: Any) -> None:
    """A shard that begins or goes on, and publishes one transaction."""
    with log.publisher(shard, **options) as out:
        out.open(at("MariaDB/"))
        change = RowChange(row_key("db.t", [1]), VALUE, b"{}")
        out.publish(SourceTransaction(position, position, 11, [change]))


def successor(log: MemoryLog, shard: str, found: ShardMap, *succeeds: str, over: tuple[str, ...] = ()) -> Publisher:
    """A publisher of a shard of a new map."""
    return log.publisher(shard, topology=DeclaredTopology((), succeeds, found, over or succeeds))


def begun(out: Publisher, can_begin: Any = lambda _: None) -> Any:
    """Where a successor begins."""
    with out:
        return out.open(never, can_begin)


def said(log: MemoryLog, shard: str) -> Any:
    """The last topology of a shard."""
    kept = (record for partition in range(2) for name, record in log.records(partition) if name == "Topology")
    return [record for record in kept if record["shard"] == shard][-1]


def split(log: MemoryLog) -> None:
    """Two shards, of which the first is split in two."""
    published(log, OLD, "MariaDB/1-1-7", topology=DeclaredTopology(map=BEFORE))
    published(log, HIGH, "MariaDB/2-2-9", topology=DeclaredTopology(map=BEFORE))
    for shard in (LOW, MIDDLE):
        resume = begun(successor(log, shard, SPLIT, OLD))
        assert (resume.position, resume.timestamp) == ("MariaDB/1-1-7", 11)


def test_each_successor_begins_where_its_ancestor_ended(log: MemoryLog) -> None:
    """However late it starts; the ancestor's positions are its own, and nothing of it is published twice."""
    split(log)
    for shard in (LOW, MIDDLE):
        assert said(log, shard)["ancestors"] == [{"shard": OLD, "epoch": 1}]
        assert begun(successor(log, shard, SPLIT, OLD)).position == "MariaDB/1-1-7", "a restart goes on"


def test_a_streams_clock_goes_on_without_a_shard_that_is_over(log: MemoryLog) -> None:
    """Its last marker stays as it is: the watermarks of readers that saw it would stand still for good."""
    published(log, OLD, "MariaDB/1-1-7", topology=DeclaredTopology(map=BEFORE))
    published(log, HIGH, "MariaDB/2-2-9", topology=DeclaredTopology(map=BEFORE))
    assembler = Assembler(Start(Checkpoint(KEYSPACE, log.topic_id, (0, 0), {})))

    def watermark() -> Watermark:
        for partition, kept in enumerate(log.partitions):
            for offset, each in enumerate(kept):
                assembler.feed(partition, offset, None if each is None else each.content)
        return [item for item in assembler.take() if isinstance(item, Watermark)][-1]

    assert not any(mark.is_over for mark in watermark().marks.values())
    high = log.publisher(HIGH, topology=DeclaredTopology(map=SPLIT))
    after_split = [successor(log, LOW, SPLIT, OLD), successor(log, MIDDLE, SPLIT, OLD), high]
    for out, position in zip(after_split, ("MariaDB/1-1-8", "MariaDB/1-1-8", "MariaDB/2-2-10"), strict=True):
        with out:
            out.open(never, lambda _: None)
            change = RowChange(row_key("db.t", [1]), VALUE, b"{}")
            out.publish(SourceTransaction(position, position, 50, [change]))
    last = watermark()
    assert {shard for shard, mark in last.marks.items() if mark.is_over} == {OLD}
    told = Encoder(Choice(None, None, False, None, (), False), Layout(2), {}).watermark(last, last.checkpoint)
    assert last.marks[OLD].timestamp < json.loads(told)["timestamp"] == 50


def test_nobody_publishes_a_shard_that_was_handed_over(log: MemoryLog) -> None:
    """Its source may be started again by mistake: what it published then would be told twice."""
    split(log)
    before = [len(kept) for kept in log.partitions]
    with pytest.raises(TopologyError) as caught:
        log.publisher(OLD, topology=DeclaredTopology(map=BEFORE)).open(never)
    assert caught.value.code == "shard_handed_over"
    assert [len(kept) for kept in log.partitions] == before


def test_an_ancestor_goes_on_while_the_successors_server_lags(log: MemoryLog) -> None:
    """It is ended only once the new server has what it has published; what came meanwhile is waited for, too."""
    published(log, OLD, "MariaDB/1-1-7", topology=DeclaredTopology(map=BEFORE))
    asked: list[str] = []

    def refuse(position: str) -> None:
        asked.append(position)
        raise Behind

    for number in (7, 8):
        with pytest.raises(Behind):
            successor(log, LOW, SPLIT, OLD).open(never, refuse)
        assert asked[-1] == f"MariaDB/1-1-{number}"
        published(log, OLD, f"MariaDB/1-1-{number + 1}", topology=DeclaredTopology(map=BEFORE))
    assert begun(successor(log, LOW, SPLIT, OLD)).position == "MariaDB/1-1-9"


def test_a_merge_begins_after_all_of_its_ancestors(log: MemoryLog) -> None:
    """It takes their ancestors over, too: readers' tokens of before the split still count."""
    split(log)
    published(log, MIDDLE, "MariaDB/1-1-7,4-4-2", topology=DeclaredTopology((), (OLD,), SPLIT, (OLD,)))
    resume = begun(successor(log, WIDE, MERGED, MIDDLE, HIGH))
    assert resume.position == "MariaDB/1-1-7,2-2-9,4-4-2"
    assert {each["shard"] for each in said(log, WIDE)["ancestors"]} == {OLD, MIDDLE, HIGH}
    for shard in (MIDDLE, HIGH):
        with pytest.raises(TopologyError) as caught:
            log.publisher(shard, topology=DeclaredTopology((), (), SPLIT, (OLD,))).open(never)
        assert caught.value.code == "shard_handed_over", "all of them have ended"


def test_what_an_ancestor_publishes_before_its_end_is_its_own(log: MemoryLog) -> None:
    """It goes on until it is ended: its successor begins at its last position, not at the one that was looked at."""
    published(log, OLD, "MariaDB/1-1-7", topology=DeclaredTopology(map=BEFORE))
    asked: list[str] = []

    def meanwhile(position: str) -> None:
        asked.append(position)
        if len(asked) == 1:
            published(log, OLD, "MariaDB/1-1-8", topology=DeclaredTopology(map=BEFORE))

    assert begun(successor(log, LOW, SPLIT, OLD), meanwhile).position == "MariaDB/1-1-8"
    assert asked == ["MariaDB/1-1-7", "MariaDB/1-1-8"], "the server must have all of it"


def operations(log: MemoryLog, shard: str) -> list[int]:
    """The operation of each row that a shard has published; each transaction here has one row of one key."""
    found = (record for partition in range(2) for name, record in log.records(partition) if name == "RowFrame")
    return [operation for record in found if record["shard"] == shard for operation in record["operations"]]


def inserted(gtid: str, position: str, key: bytes, *, in_run: bool) -> SourceTransaction:
    """A transaction of one row, alone or as sources give several at once."""
    if not in_run:
        return SourceTransaction(gtid, position, 12, [RowChange(key, VALUE, b"{}")])
    said: Any = {"gtids": [gtid], "positions": [position], "timestamps": [12]}
    return SingleRows(gtid, position, 12, Rows([key], bytearray([VALUE]), [b"{}"]), **said)


@pytest.mark.parametrize("in_run", [False, True])
def test_what_one_ancestor_of_a_merge_has_told_is_told_again_without_images(log: MemoryLog, *, in_run: bool) -> None:
    """Its rows may have changed since, in a transaction that is not told again: the old image would be proven fresh."""
    split(log)
    whole = ShardMap.parse({LOW: "-40", WIDE: "40-"})
    again = ShardMap.parse({LOW: "-40", WIDER: "40-"})
    published(log, HIGH, "MariaDB/1-1-9,2-2-9", topology=DeclaredTopology((), (), SPLIT, (OLD,)))
    published(log, HIGH, "MariaDB/1-1-9,2-2-10", topology=DeclaredTopology((), (), SPLIT, (OLD,)))
    begins = "MariaDB/1-1-7,2-2-10"
    keys = (row_key("db.t", [number]) for number in range(20))
    key = next(each for each in keys if whole.shard_of(Layout(2).keyspace_id(each, 0)) == WIDE)
    merged = [(WIDE, whole, (MIDDLE, HIGH))] * 2 + [(WIDER, again, (WIDE,))] * 2
    for (shard, found, ancestors), gtid in zip(merged, ["1-1-8", "", "1-1-9", "2-2-11"], strict=True):
        with successor(log, shard, found, *ancestors, over=(OLD, MIDDLE, HIGH, *ancestors)) as out:
            assert out.open(never, lambda _: None).position == begins, "what they share counts as far as both have it"
            if gtid:
                begins = str(Position.parse(begins).append(f"MariaDB/{gtid}"))
                out.publish(inserted(f"MariaDB/{gtid}", begins, key, in_run=in_run))
    assert operations(log, WIDE) == [VOID]
    assert operations(log, WIDER) == [VOID, VALUE], "its own successor goes on so, and ends with it"


@pytest.mark.parametrize("lost", ["declarations_lost", "open_map_lost"])
def test_a_shard_that_is_over_and_fades_stops_no_other(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Retention takes its declarations before its last state: its keys are unknown, as if nothing were left."""
    split(log)

    def faded(*_: object) -> Ancestor:
        raise ResumeError("retention", code=lost)

    monkeypatch.setattr(handover, "read_ancestor", faded)
    published(
        log, f"{KEYSPACE}/new", "MariaDB/5-5-1", topology=DeclaredTopology(map=NEW, over=(OLD, LOW, MIDDLE, HIGH))
    )


def test_a_merge_that_is_killed_between_two_ends_goes_on(log: MemoryLog) -> None:
    """The first ancestor is over for good, the second one still publishes; both are ended once."""
    split(log)
    log.commits_left = 1
    with pytest.raises(Exception, match="killed"):
        successor(log, WIDE, MERGED, MIDDLE, HIGH).open(never, lambda _: None)
    log.commits_left = 100
    published(log, HIGH, "MariaDB/2-2-10", topology=DeclaredTopology(map=SPLIT, over=(OLD,)))
    resume = begun(successor(log, WIDE, MERGED, MIDDLE, HIGH))
    assert resume.position == "MariaDB/1-1-7,2-2-10"


def test_ending_an_ancestor_waits_for_kafka_no_longer_than_its_successor(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that is stopped while Kafka hangs ends in seconds, also while it ends another shard."""
    published(log, OLD, "MariaDB/1-1-7", topology=DeclaredTopology(map=BEFORE))
    stops: dict[str, object] = {}
    plain = vars(publisher)["ShardProducer"]

    def producer(*given: Any) -> Any:
        stops[given[2]] = given[5]
        return plain(*given)

    monkeypatch.setattr(publisher, "ShardProducer", producer)
    begun(successor(log, LOW, SPLIT, OLD))
    assert stops[OLD] is stops[LOW]


def test_a_shard_whose_keys_one_gets_must_be_named(log: MemoryLog) -> None:
    """Else its readers' positions would count for nothing, and they might be told what they have seen replaced."""
    published(log, OLD, "MariaDB/1-1-7", topology=DeclaredTopology(map=BEFORE))
    begun(successor(log, LOW, SPLIT, OLD))
    with pytest.raises(TopologyError) as caught:
        log.publisher(MIDDLE, topology=DeclaredTopology(map=SPLIT, over=(OLD,))).open(at("MariaDB/"))
    assert caught.value.code == "ancestor_missing"
    published(log, HIGH, "MariaDB/2-2-9", topology=DeclaredTopology(map=SPLIT, over=(OLD,)))
    assert OLD in said(log, HIGH)["shards"], "a neighbour knows it, so its readers' tokens concern no key here"


def test_an_ancestor_that_ended_long_ago_is_found(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only places of a topic are looked at for shards that nobody names; one that is named may lie between them."""
    monkeypatch.setattr("stream.publish.markers.WINDOW_RECORDS", 4)
    monkeypatch.setattr("stream.publish.markers.SAMPLES", 2)
    published(log, HIGH, "MariaDB/2-2-1", topology=DeclaredTopology(map=BEFORE))
    published(log, OLD, "MariaDB/1-1-7", topology=DeclaredTopology(map=BEFORE))
    for number in range(2, 30):
        published(log, HIGH, f"MariaDB/2-2-{number}", topology=DeclaredTopology(map=BEFORE))
    assert begun(successor(log, LOW, SPLIT, OLD)).position == "MariaDB/1-1-7"


def test_an_ancestor_without_a_state_is_refused(log: MemoryLog) -> None:
    """There is no position at which its successor could begin."""
    published(log, HIGH, "MariaDB/2-2-9", topology=DeclaredTopology(map=BEFORE))
    with pytest.raises(TopologyError) as caught:
        successor(log, LOW, SPLIT, OLD).open(never, lambda _: None)
    assert caught.value.code == "ancestor_unknown"


def restarted(log: MemoryLog, shard: str, **options: Any) -> ResumePoint:
    """A successor of `OLD` that is started as ever, and may begin at its server's present position."""
    declared = DeclaredTopology((), (OLD,), SPLIT, (OLD,))
    with log.publisher(shard, topology=declared, **options) as out:
        return out.open(at("MariaDB/1-1-99"), lambda _: None)


def over(log: MemoryLog, shard: str) -> tuple[Any, Any]:
    """Whose positions count as those of a shard, and whose are lost, by what it has said last."""
    return said(log, shard)["ancestors"], said(log, shard)["succeeded"]


def test_successors_that_were_away_for_longer_than_retention_begin_anew(log: MemoryLog) -> None:
    """Nothing is left of them, or of what they succeed: they can't be told from shards that never began."""
    split(log)
    log.lows = [len(kept) for kept in log.partitions]
    for shard in (LOW, MIDDLE):
        assert restarted(log, shard).position == "MariaDB/1-1-99"
        assert over(log, shard) == ([], [{"shard": OLD, "epoch": 1}]), "a session's positions there are lost"
        assert restarted(log, shard).position == "MariaDB/1-1-99", "and they go on after that"


@pytest.mark.parametrize("successors", [("b",), ("-80", "80-")], ids=["another name", "a split"])
def test_stores_that_outlive_a_forgotten_ancestor_know_whose_keys_are_whose(
    log: MemoryLog, successors: tuple[str, ...]
) -> None:
    """A successor that starts first when its ancestor is forgotten: both would count there, and no key be served."""
    log.clock.seconds = 1_900_000_000
    names = tuple(f"{KEYSPACE}/{each}" for each in successors)
    is_split = len(names) > 1
    before = ShardMap.parse({WIDER: "-"}) if is_split else None
    after = ShardMap.parse(dict(zip(names, successors, strict=True))) if is_split else None
    stores, folded = (Folded(), Folded()), [0, 0]

    def fold() -> None:
        for partition, kept in enumerate(log.partitions):
            for each in kept[folded[partition] :]:
                if each is not None:
                    stores[partition].fold(each.content)
            folded[partition] = len(kept)

    published(log, WIDER, "MariaDB/1-1-7", topology=DeclaredTopology(map=before))
    fold()
    log.lows = [len(kept) for kept in log.partitions]
    log.clock.seconds += 30 * 86_400
    for name in names:
        declared = DeclaredTopology((), (WIDER,), after, (WIDER,) if after else ())
        with log.publisher(name, topology=declared) as out:
            out.open(at("MariaDB/1-1-99"), lambda _: None)
    fold()
    key = row_key("db.t", [1])
    for store in stores:
        head = store.state.head
        assert is_succeeded(head, WIDER, 1_900_000_000)
        shard, lineage = lineage_of_key(head, key, 1)
        assert shard in names
        assert lineage is not None
        assert store.rejection_codes == []


def test_an_ancestor_that_is_not_in_a_whole_topic_is_a_mistake_until_somebody_says_otherwise(log: MemoryLog) -> None:
    """A wrong name or keyspace looks like a Kafka that was set up anew: only an operator knows which it is."""
    published(log, HIGH, "MariaDB/2-2-9", topology=DeclaredTopology(map=SPLIT, over=(OLD,)))
    for shard in (LOW, MIDDLE):
        with pytest.raises(TopologyError) as caught:
            restarted(log, shard)
        assert (caught.value.code, "--new-epoch" in caught.value.hint) == ("ancestor_unknown", True)
        assert restarted(log, shard, new_epoch=True).position == "MariaDB/1-1-99"
        assert over(log, shard) == ([], [{"shard": OLD, "epoch": 1}])
        assert restarted(log, shard).position == "MariaDB/1-1-99"


def test_a_shard_never_begins_anew_beside_one_that_it_succeeds(log: MemoryLog) -> None:
    """It would publish what the other one still does: the one that is left is not passed over for the lost one."""
    published(log, HIGH, "MariaDB/2-2-9", topology=DeclaredTopology(map=BEFORE))
    log.lows = [1, 1]
    both = log.publisher(WIDER, topology=DeclaredTopology((), (OLD, HIGH), NEW, (OLD, HIGH)), new_epoch=True)
    with pytest.raises(TopologyError) as caught:
        both.open(never, lambda _: None)
    assert (caught.value.code, OLD in str(caught.value)) == ("ancestor_unknown", True)


def ended(shard: str, position: str, over: tuple[str, ...] = (), own: dict[str, list[str]] | None = None) -> Ancestor:
    """A shard that has succeeded those of ``over``. ``own``: whose histories are whose, if it tells that."""
    annotations = {HISTORIES: json.dumps(own)} if own is not None else {}
    said: Any = {"ancestors": [{"shard": each, "epoch": 1} for each in over], "succeeded": [], "ranges": []}
    return Ancestor(ResumePoint(shard, 1, 1, position, 1, "", annotations=annotations), said, {})


UUIDS = [f"0000000{number}-0000-0000-0000-000000000000" for number in range(3)]


@pytest.mark.parametrize(
    ("ends", "begins"),
    [
        (["MariaDB/1-1-7"], "MariaDB/1-1-7"),
        (["", "MariaDB/1-1-7"], "MariaDB/1-1-7"),
        (["MariaDB/1-1-7", "MariaDB/2-2-9"], "MariaDB/1-1-7,2-2-9"),
        (["MariaDB/1-1-7,3-3-1", "MariaDB/1-1-5,2-2-9"], "MariaDB/1-1-5,2-2-9,3-3-1"),
        (
            [f"MySQL56/{UUIDS[0]}:1-5,{UUIDS[1]}:1-7", f"MySQL56/{UUIDS[0]}:1-9:11,{UUIDS[2]}:1"],
            f"MySQL56/{UUIDS[0]}:1-5,{UUIDS[1]}:1-7,{UUIDS[2]}:1",
        ),
    ],
)
def test_what_several_ancestors_have_counts_as_far_as_all_have_it(ends: list[str], begins: str) -> None:
    """What only one of them has is its own; what they share would be lost to the keys of the one that is behind."""
    found = [ended(f"{KEYSPACE}/{number}", position) for number, position in enumerate(ends)]
    assert joint_position(found) == joint_position(found[::-1]) == begins


def test_positions_of_two_kinds_of_servers_are_refused() -> None:
    """No server has both."""
    with pytest.raises(TopologyError) as caught:
        joint_position([ended(LOW, "MariaDB/1-1-7"), ended(MIDDLE, f"MySQL56/{UUIDS[0]}:1")])
    assert caught.value.code == "ancestors_differ"


@pytest.mark.parametrize(
    ("ahead", "own", "begins"),
    [
        ("MariaDB/1-1-7,3-3-1", {OLD: ["1"], LOW: ["3"]}, "MariaDB/3-3-1,4-4-9"),
        ("MariaDB/1-1-7,3-3-1", {LOW: ["3"]}, "MariaDB/3-3-1,4-4-9"),
        ("MariaDB/1-1-7,3-3-1", None, "MariaDB/1-1-7,3-3-1,4-4-9"),
        ("MariaDB/2-2-5,3-3-1", {OLD: ["1"], HIGH: ["2"], LOW: ["3"]}, "MariaDB/2-2-5,3-3-1,4-4-9"),
    ],
    ids=["the old shard's", "nobody's", "of a version before", "of another ancestor"],
)
def test_a_history_that_came_up_after_a_split_is_not_taken_for_one_of_its_halves_own(
    ahead: str, own: dict[str, list[str]] | None, begins: str
) -> None:
    """The other half has yet to tell it to its keys: the successor of both begins before it."""
    low = ended(LOW, ahead, (OLD, HIGH), own)
    middle = ended(MIDDLE, "MariaDB/4-4-9", (OLD,), {OLD: ["1"], MIDDLE: ["4"]})
    assert joint_position([low, middle]) == joint_position([middle, low]) == begins
    told = {"MariaDB/3-3-1,4-4-9": "MariaDB/1-1-7,3-3-1,4-4-9"}.get(begins, "")
    assert told_before([low, middle]) == told


def test_a_server_that_takes_anothers_place_after_a_split_is_known_by_its_uuid() -> None:
    """Its transactions are the old shard's, whatever half has them first."""
    own = {OLD: [UUIDS[0]], LOW: [UUIDS[1]]}
    low = ended(LOW, f"MySQL56/{UUIDS[0]}:1-7,{UUIDS[1]}:1,{UUIDS[2]}:1-3", (OLD,), own)
    middle = ended(MIDDLE, f"MySQL56/{UUIDS[0]}:1-5", (OLD,), {OLD: [UUIDS[0]], MIDDLE: []})
    assert joint_position([low, middle]) == f"MySQL56/{UUIDS[0]}:1-5,{UUIDS[1]}:1"


def test_what_a_shards_servers_wrote_before_stays_its_own() -> None:
    """A shard that moves to another server has both histories: a merge would take the first one for nobody's."""
    held = with_histories(json.dumps({OLD: ["1"], LOW: ["3"]}), LOW, ["5"])
    assert json.loads(held) == {OLD: ["1"], LOW: ["3", "5"]}


@pytest.mark.parametrize("turn", [1, -1])
def test_a_common_ancestor_counts_in_the_highest_epoch_that_was_declared(turn: int) -> None:
    """Whichever of the merged shards comes last: of a lower epoch readers' positions would be of no history here."""
    said: Any = {"succeeded": [], "ranges": []}
    merged = [
        Ancestor(ResumePoint(shard, 1, 1, "", 1, ""), said | {"ancestors": [{"shard": OLD, "epoch": epoch}]}, {})
        for shard, epoch in ((LOW, 1), (MIDDLE, 2))
    ]
    begun = handover.successor(Topology((HIGH,)), merged[::turn])
    assert dict(begun.ancestors) == {OLD: 2, LOW: 1, MIDDLE: 1}


def test_a_table_that_ancestors_describe_differently_is_not_described_to_their_successor() -> None:
    """What follows in the log may be of either form, and would be read by the wrong one."""
    same, one, other = (
        DescribeTable(table, (Column("id", "int", True), Column(name, "int", True)), ("id",))
        for table, name in (("db.same", "a"), ("db.t", "a"), ("db.t", "b"))
    )
    point = ResumePoint(LOW, 1, 1, "", 1, "")
    ends = [Ancestor(point, None, {"db.same": same, "db.t": each}) for each in (one, other)]
    assert descriptions_of(ends) == descriptions_of(ends[::-1]) == {"db.same": same}


def test_a_split_shard_without_any_transaction_is_merged_again(log: MemoryLog) -> None:
    """What its server wrote later, and only one half has told, is told to the keys of the other one."""
    with log.publisher(OLD, topology=DeclaredTopology(map=BEFORE)) as out:
        out.open(at("MariaDB/"))
        out.annotate({HISTORIES: with_histories("", OLD, ["1"])})
        out.advance("MariaDB/", 10)
    published(log, HIGH, "MariaDB/2-2-9", topology=DeclaredTopology(map=BEFORE))
    for shard, own, position in ((LOW, "3", "MariaDB/1-1-7,3-3-1"), (MIDDLE, "4", "MariaDB/4-4-2")):
        with successor(log, shard, SPLIT, OLD) as out:
            held = out.open(never, lambda _: None).annotations[HISTORIES]
            out.annotate({HISTORIES: with_histories(held, shard, [own])})
            out.publish(SourceTransaction(position, position, 12, [RowChange(row_key("db.t", [1]), VALUE, b"{}")]))
    whole = ShardMap.parse({f"{KEYSPACE}/again": "-80", HIGH: "80-"})
    with successor(log, f"{KEYSPACE}/again", whole, LOW, MIDDLE, over=(OLD, LOW, MIDDLE)) as out:
        resume = out.open(never, lambda _: None)
    assert resume.position == "MariaDB/3-3-1,4-4-2"
    owned = {OLD: ["1"], LOW: ["3"], MIDDLE: ["4"], f"{KEYSPACE}/again": []}
    assert json.loads(resume.annotations[HISTORIES]) == owned, "a shard that ends at once is of no version before"


def test_a_shard_whose_history_only_one_half_has_lost_is_still_an_ancestor() -> None:
    """The other half's positions of it count, so readers' tokens of it must go on to count, too."""
    lost = [{"shard": OLD, "epoch": 1}]
    low: Any = {"ancestors": [], "succeeded": lost, "ranges": []}
    middle: Any = {"ancestors": lost, "succeeded": [], "ranges": []}
    merged = [Ancestor(ResumePoint(shard, 1, 1, "", 1, ""), told, {}) for shard, told in ((LOW, low), (MIDDLE, middle))]
    found = handover.successor(Topology((WIDE,)), merged)
    assert (dict(found.ancestors), found.succeeded) == ({OLD: 1, LOW: 1, MIDDLE: 1}, ())


def test_a_neighbour_of_before_the_map_that_is_over_need_not_be_named(log: MemoryLog) -> None:
    """It has told no range, so it may have had any key. Its neighbour's sessions have known it all the time."""
    first, second, third = (f"{KEYSPACE}/{name}" for name in "abc")
    published(log, first, "MariaDB/1-1-1", topology=DeclaredTopology((second,)))
    published(log, second, "MariaDB/2-2-1", topology=DeclaredTopology((first,)))
    mapped = ShardMap.parse({first: "-80", third: "80-"})
    begun(successor(log, third, mapped, second))
    published(log, first, "MariaDB/1-1-2", topology=DeclaredTopology(map=mapped, over=(second,)))
    assert said(log, first)["shards"] == [first, second, third]


def test_a_shard_that_is_over_and_not_named_hides_none_that_is(log: MemoryLog) -> None:
    """Settings may name some of the shards that are over: a restart would take the others for strangers."""
    split(log)
    begun(successor(log, WIDE, MERGED, MIDDLE, HIGH, over=(OLD, MIDDLE, HIGH)))
    published(log, LOW, "MariaDB/1-1-8", topology=DeclaredTopology((), (OLD,), MERGED, (MIDDLE,)))
    assert {MIDDLE, HIGH} <= set(said(log, LOW)["shards"])


def test_a_successor_that_is_killed_before_it_describes_its_tables_is_told_its_ancestors_again(log: MemoryLog) -> None:
    """What follows in the log was written to such tables; without them its rows would be read by those of now."""
    table = DescribeTable("db.t", (Column("id", "int", True),), ("id",))
    with log.publisher(OLD, topology=DeclaredTopology(map=BEFORE)) as out:
        out.open(at("MariaDB/"))
        out.publish(SourceTransaction("MariaDB/1-1-7", "MariaDB/1-1-7", 11, [table]))
    for _ in range(2):
        assert begun(successor(log, LOW, SPLIT, OLD)).descriptions == {"db.t": table}
