"""A change stream gives out whole transactions, each once, in the order of their shard, from wherever it begins."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.changes.assembling import Assembler, LogReplaced
from stream.changes.checkpoint import Checkpoint, Place, anchor_of
from stream.changes.items import Item, RecordEvent, RowEvent, Transaction, Unreadable, Watermark
from stream.changes.pieces import TOO_LARGE
from stream.changes.start import AfterPosition, FromTime, Start
from stream.changes.starting import _marker
from stream.wire.batch import BatchLimits
from stream.wire.codec import PartitionReader, decode, encode
from stream.wire.events import (
    ABSENT,
    NO_ROW,
    VALUE,
    VOID,
    Change,
    KeylessRow,
    RowChange,
    SourceTransaction,
    Topology,
    VoidTable,
)
from stream.wire.keys import Layout, row_key
from tests.stream.changes.topics import TINY, Log, follow, framer_of, transactions
from tests.stream.histories import histories, record
from tokens import Position

SHARD, OTHER = "shop/0", "shop/1"
layouts = st.integers(1, 4).map(Layout)


def seen(transaction: Transaction) -> tuple[str, str, list[object]]:
    """GTID, position, and what changed, as `told` has it."""
    changes: list[object] = []
    for event in transaction.events:
        if isinstance(event, RowEvent):
            changes.append((event.key, event.operation, event.image))
        else:
            head = {"shard", "epoch", "ordinal", "gtid", "timestamp"}
            changes.append((event.name, {name: value for name, value in event.fields.items() if name not in head}))
    return transaction.gtid, transaction.position, changes


def told(txn: SourceTransaction) -> tuple[str, str, list[object]]:
    """What a reader must see of a source's transaction."""
    changes = [record(txn, change) for change in txn.changes]
    says_position = any(name == "row" or "position" in fields for name, fields in changes)
    return (
        txn.gtid,
        txn.position if says_position else txn.gtid,
        [fields[:3] if name == "row" else (name, fields) for name, fields in changes],
    )


def logged(histories_of: dict[str, list[SourceTransaction]], layout: Layout, choose: random.Random) -> Log:
    """A topic in which the batches of several shards are mixed."""
    log, left = Log(layout), {shard: list(history) for shard, history in histories_of.items()}
    framers = {shard: framer_of(shard, layout) for shard in left}
    while shards := [shard for shard, history in left.items() if history]:
        shard = choose.choice(shards)
        log.publish(framers[shard], left[shard].pop(0))
    for framer in framers.values():
        framer.stamp(1)
        log.publish(framer)
    return log


@given(st.lists(histories(), min_size=2, max_size=2), layouts, st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_what_is_whole_before_the_offsets_of_a_watermark_has_been_told(
    lists: list[list[SourceTransaction]], layout: Layout, choose: random.Random
) -> None:
    """So a stream ends there, though a shard's source died amid a transaction and never speaks again."""
    log = logged(dict(zip((SHARD, OTHER), lists, strict=True)), layout, choose)
    dead = framer_of("shop/dead", layout)
    large = SourceTransaction(
        "MariaDB/0-9-1",
        "MariaDB/0-9-1",
        1_600_000_001,
        [RowChange(row_key("shop.t", [key]), VALUE, b"{}") for key in range(200)],
    )
    dead.add(large, 0, dead.room(large, 0))
    log.publish(dead)  # the first batch, and no more
    whole = [seen(each) for each in transactions(follow(log, log.beginning(), choose))]
    ends, framer = log.ends, framer_of("shop/2", layout)
    log.publish(framer, SourceTransaction("MariaDB/0-3-1", "MariaDB/0-3-1", 1_600_000_001, large.changes[:5]))
    found: list[Item] = []
    for item in follow(log, log.beginning(), choose):
        found.append(item)
        if isinstance(item, Watermark) and all(at >= end for at, end in zip(item.read, ends, strict=True)):
            break
    else:
        raise AssertionError("no watermark says that all of it was read")
    told_by_then = [seen(each) for each in transactions(found)]
    assert all(each in told_by_then for each in whole)
    assert large.gtid not in [gtid for gtid, _, _ in told_by_then]


def only_told(transaction: Transaction, histories_of: dict[str, list[SourceTransaction]]) -> bool:
    """Whether a transaction is exactly one of its source's."""
    return seen(transaction) in map(told, histories_of[transaction.shard])


@settings(max_examples=20)
@given(histories(), histories(), layouts, st.randoms(use_true_random=False))
def test_every_transaction_comes_whole_once_and_in_order(
    first: list[SourceTransaction], second: list[SourceTransaction], layout: Layout, choose: random.Random
) -> None:
    """However partitions are read and batches are split, each shard's history comes out as its source told it."""
    both = {SHARD: first, OTHER: second}
    log = logged(both, layout, choose)
    items = list(follow(log, log.beginning(), choose))
    for shard, history in both.items():
        assert list(map(seen, transactions(items, shard))) == [told(txn) for txn in history if txn.changes]
    last = items[-1]
    assert isinstance(last, Watermark)
    assert {shard: mark.position for shard, mark in last.marks.items()} == {
        shard: history[-1].position for shard, history in both.items()
    }


@settings(max_examples=20)
@given(histories(), histories(), layouts, st.randoms(use_true_random=False))
def test_any_checkpoint_goes_on_exactly_after_its_event(
    first: list[SourceTransaction], second: list[SourceTransaction], layout: Layout, choose: random.Random
) -> None:
    """A reader that ends anywhere, and goes on from its last event's checkpoint, misses and repeats nothing.

    Each checkpoint lies right behind markers, and knows them again.
    """
    both = {SHARD: first, OTHER: second}
    log = logged(both, layout, choose)
    found: list[Transaction] = []
    start, restarts = log.beginning(), 0
    while True:
        for item in follow(log, start, choose):
            if isinstance(item, Transaction):
                found.append(item)
            checkpoint = item.checkpoint
            for messages, at, anchor in zip(
                log.partitions, checkpoint.offsets, checkpoint.anchors or (0,) * 9, strict=False
            ):
                is_behind_one = at > 0 and decode(messages[at - 1])[0] == "Marker"
                assert (is_behind_one and anchor == anchor_of(messages[at - 1])) or (at, anchor) == (0, 0)
            if choose.random() < 0.3 and restarts < 20:
                start = Start(Checkpoint.parse(str(item.checkpoint)))
                restarts += 1
                break
        else:
            break
    for shard, history in both.items():
        assert list(map(seen, transactions(found, shard))) == [told(txn) for txn in history if txn.changes]


def key_of(change: Change) -> bytes:
    """The key of a row."""
    assert isinstance(change, RowChange)
    return change.key


@pytest.mark.parametrize("is_succeeded", [False, True])
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_checkpoint_of_one_partition_that_was_read_first_leaves_out_nothing(
    *, ahead: int, is_succeeded: bool
) -> None:
    """Whoever goes on there is shown the markers again that the other partition had not reached.

    Its shard may never write another one: it was stopped, or another shard has taken its place.
    """
    layout = Layout(2)
    log, framer = Log(layout), framer_of(SHARD, layout)
    history = []
    for txn in (rows_txn(number, 9) for number in range(1, 4)):  # all rows in the partition that is read last
        rows = [each for each in txn.changes if layout.partition_of(key_of(each), 0) != ahead]
        history.append(replace(txn, changes=rows))
        log.publish(framer, history[-1])
    if is_succeeded:
        successor = framer_of(OTHER, layout)
        successor.announce(Topology((OTHER,), ((SHARD, 1),)))
        log.publish(successor, rows_txn(9, 4))
    found, start = list[Item](), log.beginning()
    for first in (ahead, 1 - ahead):
        assembler = Assembler(start)
        for partition in (first, 1 - first)[: 1 if first == ahead else 2]:
            for offset, message in enumerate(log.partitions[partition]):
                assembler.feed(partition, offset, message)
        items = assembler.take()
        found += items
        start = Start(Checkpoint.parse(str(items[-1].checkpoint)))
    assert list(map(seen, transactions(found, SHARD))) == [told(txn) for txn in history]


@settings(max_examples=20)
@given(histories(), layouts, st.randoms(use_true_random=False), st.integers(1, 12))
def test_a_stream_from_a_position_begins_right_after_it(
    history: list[SourceTransaction], layout: Layout, choose: random.Random, number: int
) -> None:
    """What follows the position comes, all of it; what is at or before it does not, but for a void of it."""
    history = [SourceTransaction(each.gtid, each.gtid, each.timestamp, each.changes) for each in history]
    log = logged({SHARD: history}, layout, choose)
    start = Start(log.beginning().checkpoint, {SHARD: AfterPosition(1, Position.parse(f"MariaDB/0-1-{number}"))})
    expected = [told(txn) for txn in history[number:] if txn.changes]
    own = history[number - 1].changes if number <= len(history) else ()
    if (void := next((at for at, each in enumerate(own) if isinstance(each, VoidTable)), None)) is not None:
        changes = [each for each in own[void:] if not isinstance(each, KeylessRow)]
        expected.insert(0, told(replace(history[number - 1], changes=changes)))
    assert list(map(seen, transactions(follow(log, start, choose)))) == expected


@settings(max_examples=20)
@given(histories(), layouts, st.randoms(use_true_random=False), st.integers(-6, 6))
def test_a_stream_from_a_second_drops_nothing_once_it_began(
    history: list[SourceTransaction], layout: Layout, choose: random.Random, second: int
) -> None:
    """It begins at the latest with the first transaction of that second or later, and then leaves out nothing.

    One without changes is a beginning, too, if its marker is read before what follows.
    """
    log = logged({SHARD: history}, layout, choose)
    wanted = 1_700_000_000 + second
    earliest = next((at for at, txn in enumerate(history) if txn.timestamp >= wanted), len(history))
    latest = next((at for at, txn in enumerate(history) if txn.timestamp >= wanted and txn.changes), len(history))
    start = Start(log.beginning().checkpoint, skip_others=FromTime(wanted))
    found = list(map(seen, transactions(follow(log, start, choose))))
    told_from = [[told(txn) for txn in history[at:] if txn.changes] for at in range(earliest, latest + 1)]
    assert found in told_from


@pytest.mark.parametrize("start", [FromTime(1_700_000_009), AfterPosition(1, Position.parse("MariaDB/0-1-2"))])
def test_no_watermark_tells_of_a_shard_before_the_beginning(start: FromTime | AfterPosition) -> None:
    """What follows it might be left out: a copy would take itself for one of that position, and lack a change.

    The simulator's history: Kafka is away while a reader begins some seconds back, and old commits are published late.
    """
    layout = Layout(1)
    log, framer = Log(layout), framer_of(SHARD, layout)
    for number, second in ((1, 0), (2, 5), (3, 9)):
        gtid = f"MariaDB/0-1-{number}"
        change = RowChange(row_key("shop.accounts", [number]), VALUE, b"{}")
        log.publish(framer, SourceTransaction(gtid, gtid, 1_700_000_000 + second, (change,)))
    begin = log.beginning().checkpoint
    assembler = Assembler(Start(begin, {SHARD: start}))
    items: list[Item] = []
    for offset, message in enumerate(log.partitions[0]):
        assembler.feed(0, offset, message)
        items += assembler.take()
    assert [each.position for each in transactions(items)] == ["MariaDB/0-1-3"]
    first = next(each for each in items if isinstance(each, Watermark) and each.marks)
    known = Position.parse(first.marks[SHARD].position)
    assert known.contains(Position.parse("MariaDB/0-1-2"))


def test_a_marker_at_the_beginning_ends_the_wait_for_it() -> None:
    """A quiet shard has no transaction behind the position that a stream begins after: its marker says enough."""
    layout = Layout(1)
    log, framer = Log(layout), framer_of(SHARD, layout)
    log.publish(framer, rows_txn(1, 1))
    skips = {SHARD: AfterPosition(1, Position.parse("MariaDB/0-1-1"))}
    assembler = Assembler(Start(log.beginning().checkpoint, skips))
    for offset, message in enumerate(log.partitions[0]):
        assembler.feed(0, offset, message)
    [reached] = assembler.take()
    assert isinstance(reached, Watermark)
    assert set(reached.marks) == {SHARD}
    assert not assembler.left_out


@pytest.mark.parametrize("begins_at", [0, 5])
@pytest.mark.parametrize("is_in_a_later_epoch", [False, True])
def test_a_shard_that_is_over_is_forgotten(begins_at: int, is_in_a_later_epoch: bool) -> None:
    """Nobody waits for the beginning of a shard that others have succeeded, and no watermark is as old as its end.

    A stream that waits shares no reader of Kafka, and lends none: resharding would have cost each later stream one.
    """
    layout = Layout(2)
    log, old, new = Log(layout), framer_of(SHARD, layout), framer_of(OTHER, layout)
    log.publish(old, rows_txn(1, 4))
    before = {SHARD: Place(1, 4)} if begins_at else {}
    at = log.ends if begins_at else (0, 0)
    topology = Topology((OTHER,), ((SHARD, 1),))
    new.announce(topology.in_a_new_epoch() if is_in_a_later_epoch else topology)
    skip = FromTime(begins_at)
    assembler = Assembler(Start(Checkpoint("shop", "topic-id", at, before), dict.fromkeys(before, skip), skip))
    assert assembler.left_out.keys() == before.keys()
    log.publish(new, rows_txn(2, 4))
    for partition, messages in enumerate(log.partitions):
        for offset, message in enumerate(messages):
            assembler.feed(partition, offset, message)
    last = assembler.take()[-1]
    assert not assembler.left_out
    assert isinstance(last, Watermark)
    assert SHARD not in last.checkpoint.places
    assert {shard: mark.is_over for shard, mark in last.marks.items()} == (
        {OTHER: False} if begins_at else {SHARD: True, OTHER: False}
    )


@settings(max_examples=20)
@given(histories(), layouts, st.randoms(use_true_random=False), st.data())
def test_a_stream_that_begins_at_markers_gives_out_no_part_of_a_transaction(
    history: list[SourceTransaction], layout: Layout, choose: random.Random, data: st.DataObject
) -> None:
    """From the whole markers before any offsets on, everything above the highest of them is complete."""
    log = logged({SHARD: history}, layout, choose)
    offsets, places = [], []
    for messages in log.partitions:
        marks = [
            (at, Place(fields["epoch"], fields["ordinal"]))
            for at, (name, fields) in enumerate(map(decode, messages))
            if name == "Marker" and fields["whole"]
        ]
        at, place = data.draw(st.sampled_from(marks))
        offsets.append(at + 1)
        places.append(place)
    base = max(places)
    start = Start(Checkpoint("shop", "topic-id", tuple(offsets), {SHARD: base}))
    given_out = transactions(follow(log, start, choose))
    ends, expected = 0, []
    for txn in history:
        ends += len(txn.changes)
        if ends > base.ordinal and txn.changes:
            expected.append(told(txn))
    assert list(map(seen, given_out)) == expected


def rows_txn(number: int, count: int, size: int = 100) -> SourceTransaction:
    """``count`` rows of ``size`` bytes."""
    rows = [RowChange(row_key("shop.t", [number * 1000 + n]), VALUE, b"%0*d" % (size, n)) for n in range(count)]
    return SourceTransaction(f"MariaDB/0-1-{number}", f"MariaDB/0-1-{number}", 1_700_000_000 + number, rows)


def giants(held_bytes_max: int) -> list[Transaction]:
    """A transaction of 60 kB between two small ones, read with little memory."""
    layout = Layout(2)
    log, framer = Log(layout), framer_of(SHARD, layout, BatchLimits(rows_max=10, batch_bytes=2_000))
    for txn in (rows_txn(1, 2), rows_txn(2, 200), rows_txn(3, 2)):
        log.publish(framer, txn)
    return transactions(follow(log, log.beginning(), random.Random(7), held_bytes_max=held_bytes_max))


def test_a_transaction_above_the_memory_loses_images_and_no_key() -> None:
    """Rows of a transaction that is too large come as changed, image unknown; what was given out before has its own."""
    small, giant, last = giants(50_000)
    assert [event.operation for event in giant.events if isinstance(event, RowEvent)] == [VOID] * 200
    assert {event.operation for event in small.events if isinstance(event, RowEvent)} == {VALUE}
    assert len(last.events) == 2


def test_a_transaction_far_above_the_memory_becomes_a_void_of_its_table() -> None:
    """Memory is bounded even by the keys: then the whole table is said to have changed."""
    small, giant, last = giants(10_000)
    voids = [event for event in giant.events if isinstance(event, RecordEvent)]
    assert {(event.name, event.fields["table"], event.fields["reason"]) for event in voids} == {
        ("TableVoid", "shop.t", TOO_LARGE)
    }
    assert len(small.events) == len(last.events) == 2


def changing(count: int, choose: random.Random, size_max: int = 60) -> list[SourceTransaction]:
    """Transactions over few keys, each row with what it was before: nothing, an image, or that it is not known."""
    history, state = list[SourceTransaction](), dict[bytes, bytes]()
    for number in range(1, count + 1):
        changes = list[Change]()
        for key in sorted(row_key("shop.t", [each]) for each in choose.sample(range(30), choose.randint(1, 12))):
            before = state.get(key, NO_ROW) if choose.random() < 0.9 else None
            if key in state and choose.random() < 0.3:
                del state[key]
                changes.append(RowChange(key, ABSENT, before=before))
            else:
                state[key] = b"%0*d" % (choose.randint(1, size_max), number)
                changes.append(RowChange(key, VALUE, state[key], before))
        gtid = f"MariaDB/0-1-{number}"
        history.append(SourceTransaction(gtid, gtid, 1_700_000_000 + number, changes))
    return history


@pytest.mark.parametrize("seed", range(20))
def test_each_row_comes_with_what_it_was_before(seed: int) -> None:
    """From the beginning and from any checkpoint, however the transaction is cut into frames and batches."""
    choose = random.Random(seed)
    layout = Layout(choose.randint(1, 3))
    log, framer, history = Log(layout), framer_of(SHARD, layout), changing(30, choose)
    for txn in history:
        log.publish(framer, txn)
    wanted = [
        [(each.key, each.operation, each.image, each.before) for each in txn.changes if isinstance(each, RowChange)]
        for txn in history
    ]
    found, start = list[list[object]](), log.beginning()
    while len(found) < len(wanted):
        for each in transactions(follow(log, start, choose)):
            found.append([event[1:] for event in each.events])
            if choose.random() < 0.1:
                start = Start(each.checkpoint)
                break
    assert found == wanted


@pytest.mark.parametrize("limits", [BatchLimits(), BatchLimits(rows_max=10, batch_bytes=10_000)])
def test_what_rows_were_before_takes_no_more_memory_than_may_be_held(limits: BatchLimits) -> None:
    """It goes with the images, and keys stay, however many messages it comes in; what is held afterwards is nothing."""
    log, rows = Log(Layout(1)), rows_txn(1, 100, size=10)
    for change in rows.changes:
        assert isinstance(change, RowChange)
        change.before = b"x" * 1_000
    log.publish(framer_of(SHARD, Layout(1), limits), rows)
    assembler = Assembler(log.beginning(), 40_000)
    for offset, value in enumerate(log.partitions[0]):
        assembler.feed(0, offset, value)
    assert assembler.held_bytes < 80_000
    [transaction] = transactions(assembler.take())
    assert {event[2:] for event in transaction.events} == {(VOID, b"", None)}
    assert assembler.held_bytes == 0 == assembler.held


def test_what_is_held_is_let_go_when_it_is_given_out() -> None:
    """The count of held bytes returns to zero, or readers would pause for ever."""
    log = Log(Layout(1))
    log.publish(framer_of(SHARD, Layout(1)), rows_txn(1, 30))
    assembler = Assembler(log.beginning())
    for offset, value in enumerate(log.partitions[0]):
        assembler.feed(0, offset, value)
    assert assembler.held_bytes > 3000
    assembler.take()
    assert assembler.held_bytes == 0 == assembler.held


def test_an_epoch_that_ended_in_the_middle_of_a_transaction_gives_out_no_part_of_it() -> None:
    """What was published of a transaction whose history was then replaced never happened as a whole."""
    layout = Layout(2)
    log, framer = Log(layout), framer_of(SHARD, layout, BatchLimits(rows_max=5, batch_bytes=1_000))
    log.publish(framer, rows_txn(1, 2))
    giant = rows_txn(2, 40)
    framer.add(giant, 0, framer.room(giant, 0))
    log.publish(framer)
    framer = framer_of(SHARD, layout)
    framer.start_epoch("MariaDB/0-1-1", 1_700_000_100, "history_lost", 2)
    log.publish(framer)
    log.publish(framer, rows_txn(3, 1))
    found = transactions(follow(log, log.beginning(), random.Random(1)))
    first, began, last = found
    assert (first.gtid, last.gtid) == ("MariaDB/0-1-1", "MariaDB/0-1-3")
    assert [event.name for event in began.events if isinstance(event, RecordEvent)] == ["EpochStart"]
    assert began.place.epoch == last.place.epoch == 2


def test_of_an_epoch_whose_end_is_lost_in_one_partition_nothing_behind_it_is_told() -> None:
    """Kafka lost the end of a partition, and a new epoch began: what others have from there on misses transactions."""
    layout = Layout(2)
    log, framer = Log(layout), framer_of(SHARD, layout)
    log.publish(framer, rows_txn(1, 4))
    kept = len(log.partitions[0])
    for number in range(2, 8):
        log.publish(framer, rows_txn(number, 1))
    del log.partitions[0][kept:]
    framer = framer_of(SHARD, layout)
    framer.start_epoch("MariaDB/0-1-7", 1_700_000_100, "tail_lost", 2)
    log.publish(framer)
    for seed in range(20):
        found = transactions(follow(log, log.beginning(), random.Random(seed)))
        assert [(each.gtid, each.place.epoch) for each in found] == [("MariaDB/0-1-1", 1), ("MariaDB/0-1-7", 2)]


def test_a_message_that_nobody_can_read_is_told_and_stops_nothing() -> None:
    """It may have changed anything, so a reader must hear of it; what follows comes as before."""
    log, framer = Log(Layout(1)), framer_of(SHARD, Layout(1), TINY)
    log.publish(framer, rows_txn(1, 1))
    log.partitions[0] += [b"\xc3\x01 nonsense", b""]
    log.publish(framer, rows_txn(2, 1))
    items = list(follow(log, log.beginning(), random.Random(3)))
    assert [each.code for each in items if isinstance(each, Unreadable)] == ["unknown_schema", "not_freshet"]
    assert [each.gtid for each in transactions(items)] == ["MariaDB/0-1-1", "MariaDB/0-1-2"]


def test_a_text_that_is_no_position_is_told_and_stops_nothing() -> None:
    """No token can be made of it, so giving it out would end each reader at the same event for ever."""
    log, framer = Log(Layout(1)), framer_of(SHARD, Layout(1), TINY)
    log.publish(framer, rows_txn(1, 1))
    name, frame = next(each for each in map(decode, log.partitions[0]) if each[0] == "RowFrame")
    log.partitions[0].append(encode(name, {**frame, "ordinal": 1, "gtids": ["nonsense"], "positions": []}))
    log.publish(framer_of(OTHER, Layout(1), TINY), rows_txn(2, 1))
    items = list(follow(log, log.beginning(), random.Random(3)))
    assert [each.code for each in items if isinstance(each, Unreadable)] == ["bad_field"]
    assert [each.gtid for each in transactions(items)] == ["MariaDB/0-1-1", "MariaDB/0-1-2"]
    name, told = next(each for each in map(decode, log.partitions[0]) if each[0] == "Marker")
    assert _marker(PartitionReader(), encode(name, told)) is not None
    assert _marker(PartitionReader(), encode(name, {**told, "position": "nonsense"})) is None


def test_a_log_that_was_lost_and_filled_again_ends_the_stream() -> None:
    """Its numbers may mean other events, which would be taken for those that were told already."""
    log, framer = Log(Layout(1)), framer_of(SHARD, Layout(1), TINY)
    log.publish(framer, rows_txn(1, 1))
    told_to = len(log.partitions[0])
    for number in (2, 3):
        log.publish(framer, rows_txn(number, 1))
    lost = next(at for at, value in enumerate(log.partitions[0]) if decode(value)[0] == "Marker" and at >= told_to)
    del log.partitions[0][told_to : lost + 1]
    with pytest.raises(LogReplaced) as refused:
        list(follow(log, log.beginning(), random.Random(3)))
    assert refused.value.code == "checkpoint_lost"


@pytest.mark.parametrize("lost", [True, False])
def test_a_marker_that_links_nothing_does_not_end_the_chain(*, lost: bool) -> None:
    """An older version may have published for a while: what comes next is compared with the last one that has links."""
    log, framer = Log(Layout(1)), framer_of(SHARD, Layout(1), TINY)
    for number in (1, 2, 3):
        log.publish(framer, rows_txn(number, 1))
    values = log.partitions[0]
    first, second, _ = (at for at, value in enumerate(values) if decode(value)[0] == "Marker")
    values.insert(first + 1, encode("Marker", decode(values[first])[1] | {"continuity": 0, "previous": 0}))
    if lost:
        del values[first + 2 : second + 2]
    told = follow(log, log.beginning(), random.Random(3))
    with pytest.raises(LogReplaced) if lost else nullcontext():
        assert len(transactions([*told])) == 3


def test_the_partitions_that_hold_back_are_known() -> None:
    """Only those that are ahead may pause, or nothing would go on."""
    layout = Layout(3)
    log = Log(layout)
    log.publish(framer_of(SHARD, layout), rows_txn(1, 20))
    assembler = Assembler(log.beginning())
    for partition in (0, 2):
        for offset, value in enumerate(log.partitions[partition]):
            assembler.feed(partition, offset, value)
    assert assembler.take()
    assert assembler.behind() == {1}
