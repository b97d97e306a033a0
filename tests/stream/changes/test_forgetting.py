"""What a change stream lets go of: memory of what is never told, and rules that have done their work."""

from __future__ import annotations

from stream.changes.assembling import Assembler
from stream.changes.checkpoint import Place
from stream.changes.items import RowEvent, Watermark
from stream.changes.pieces import Piece, without_images
from stream.changes.start import AfterPosition, FromTime, Start
from stream.wire.events import ABSENT, VALUE, VOID, RowChange, SourceTransaction, Topology
from stream.wire.keys import Layout, row_key
from tests.stream.changes.test_assembling import OTHER, SHARD, rows_txn
from tests.stream.changes.topics import Log, framer_of, transactions
from tokens import Position


def fed(log: Log, assembler: Assembler) -> Assembler:
    """After all that the log has."""
    for partition, messages in enumerate(log.partitions):
        for offset in range(assembler.offsets[partition], len(messages)):
            assembler.feed(partition, offset, messages[offset])
    return assembler


def test_what_a_successor_publishes_anew_is_held_no_longer() -> None:
    """Half a transaction of a shard that is over: what counts as held is never let go of, and images with it."""
    layout = Layout(2)
    log, old, new = Log(layout), framer_of(SHARD, layout), framer_of(OTHER, layout)
    large = rows_txn(1, 200)
    old.add(large, 0, old.room(large, 0))
    log.publish(old)
    assembler = fed(log, Assembler(log.beginning()))
    assert assembler.held_bytes > 0
    new.announce(Topology((OTHER,), ((SHARD, 1),)))
    log.publish(new, rows_txn(2, 4))
    told = transactions(fed(log, assembler).take())
    assert ([each.shard for each in told], assembler.held_bytes) == ([OTHER], 0)


def test_a_shard_that_has_come_to_its_beginning_is_left_out_no_longer() -> None:
    """Also one of which nothing had been read: a reader that takes the rule along would wait for it for ever."""
    log = Log(Layout(1))
    framer = framer_of(SHARD, log.layout)
    skips = {SHARD: AfterPosition(1, Position.parse("MariaDB/0-1-1"))}
    assembler = Assembler(Start(log.beginning().checkpoint, skips))
    assert assembler.left_out == skips
    for number in (1, 2):
        log.publish(framer, rows_txn(number, 1))
    assert [each.gtid for each in transactions(fed(log, assembler).take())] == ["MariaDB/0-1-2"]
    assert assembler.left_out == {}


def test_a_quiet_shard_has_come_to_a_second_once_its_sources_clock_has() -> None:
    """It has no transaction of that second or later: without its mark no copy would ever know that it has all."""
    log, second = Log(Layout(1)), 1_700_000_100
    framer = framer_of(SHARD, log.layout)
    log.publish(framer, rows_txn(1, 1))
    assembler = Assembler(Start(log.beginning().checkpoint, {SHARD: FromTime(second)}))
    for now, is_reached in ((second - 1, False), (second, True)):
        framer.stamp(now * 1_000)
        log.publish(framer)
        [*_, last] = fed(log, assembler).take()
        assert isinstance(last, Watermark)
        assert (SHARD in last.marks, not assembler.left_out) == (is_reached, is_reached)


def test_markers_of_one_place_tell_the_time_while_nothing_changes() -> None:
    """A source that is idle says how late it is: a copy would else look as old as its last change."""
    log = Log(Layout(1))
    framer = framer_of(SHARD, log.layout)
    log.publish(framer, rows_txn(1, 1))
    assembler = fed(log, Assembler(log.beginning()))
    assembler.take()
    for second in (1_700_000_100, 1_700_000_200):
        framer.stamp(second * 1_000)
        log.publish(framer)
        [*_, last] = fed(log, assembler).take()
        assert isinstance(last, Watermark)
        assert last.marks[SHARD].as_of_ms == second * 1_000


def test_a_checkpoint_keeps_a_marker_that_the_other_partitions_have_not_reached() -> None:
    """Who goes on there is shown it again: if its source has died since, no other marker would ever follow."""
    layout = Layout(2)
    log, framer = Log(layout), framer_of(SHARD, layout)
    key = next(each for number in range(99) if layout.partition_of(each := row_key("shop.t", [number])) == 1)
    gtid = "MariaDB/0-1-1"
    log.publish(framer, SourceTransaction(gtid, gtid, 1_700_000_000, [RowChange(key, VALUE, b"{}")]))
    assembler = Assembler(log.beginning())
    for offset, message in enumerate(log.partitions[0]):
        assembler.feed(0, offset, message)
    [*_, last] = assembler.take()
    resumed = fed(log, Assembler(Start(last.checkpoint)))
    assert [each.gtid for each in transactions(resumed.take())] == [gtid]


def test_what_a_deleted_row_was_is_let_go_of_with_the_images() -> None:
    """A transaction that deletes a large table takes no more memory than one that writes it."""
    events = [
        RowEvent(1, b"t\0[1]", ABSENT, b"", b"x" * 1_000),
        RowEvent(2, b"t\0[2]", VALUE, b"y" * 500, b"x" * 500),
        RowEvent(3, b"t\0[3]", ABSENT, b"", b""),
    ]
    piece = Piece(Place(1, 1), Place(1, 3), 0, "g", "p", 0, "", [*events], 3_000)
    without_images(piece)
    assert piece.size == 1_000
    kept = [(each.operation, each.before) for each in piece.events if isinstance(each, RowEvent)]
    assert kept == [(ABSENT, None), (VOID, None), (ABSENT, b"")], "a row that is deleted has no image to lose"


def test_what_follows_a_large_transaction_has_its_images_again() -> None:
    """Also while something else is held: a shard that is amid a transaction of its own may stay there for long."""
    log = Log(Layout(1))
    waiting, framer = framer_of(OTHER, log.layout), framer_of(SHARD, log.layout)
    half = rows_txn(1, 200)
    waiting.add(half, 0, waiting.room(half, 0))
    log.publish(waiting)
    assembler = fed(log, Assembler(log.beginning(), 50_000))
    held = assembler.held_bytes
    operations = []
    for number, rows in ((2, 200), (3, 2)):
        log.publish(framer, rows_txn(number, rows))
        [told] = transactions(fed(log, assembler).take())
        operations.append({event.operation for event in told.events if isinstance(event, RowEvent)})
    assert operations == [{VOID}, {VALUE}]
    assert 0 < assembler.held_bytes < held


def test_a_shard_that_is_over_is_known_as_long_as_a_checkpoint_leads_back_to_it() -> None:
    """Another one is amid a transaction of before: who goes on there would take what is told already for new."""
    layout = Layout(2)
    log, waiting = Log(layout), framer_of("shop/2", layout)
    old, new = framer_of(SHARD, layout), framer_of(OTHER, layout)
    keys = [each for number in range(99) if layout.partition_of(each := row_key("shop.t", [number])) == 0]
    rows = [RowChange(each, VALUE, b"x" * 99) for each in keys]
    half = SourceTransaction("MariaDB/0-2-1", "MariaDB/0-2-1", 1_700_000_000, rows)
    end = waiting.room(half, 0)
    waiting.add(half, 0, end)
    log.publish(waiting)
    log.publish(old, rows_txn(1, 4))
    new.announce(Topology((OTHER,), ((SHARD, 1),)))
    log.publish(new, rows_txn(2, 4))
    assembler = fed(log, Assembler(log.beginning()))
    told = assembler.take()
    assert [each.shard for each in transactions(told)] == [SHARD, OTHER]
    checkpoint = told[-1].checkpoint
    assert (checkpoint.offsets[0], SHARD in checkpoint.places) == (0, True)
    assert not transactions(fed(log, Assembler(Start(checkpoint))).take())
    while end < len(rows):
        start, end = end, waiting.room(half, end)
        waiting.add(half, start, end)
        log.publish(waiting)
    told = fed(log, assembler).take()
    assert [each.shard for each in transactions(told)] == ["shop/2"]
    assert set(told[-1].checkpoint.places) == {OTHER, "shop/2"}


def test_what_one_partition_has_lost_of_a_shard_that_is_over_is_awaited_no_more() -> None:
    """Its last markers in the others would hold each checkpoint back for good, and all that follows be read again."""
    layout = Layout(2)
    log, old, new = Log(layout), framer_of(SHARD, layout), framer_of(OTHER, layout)
    log.publish(old, rows_txn(1, 4))
    kept = len(log.partitions[1])
    key = next(each for number in range(99) if layout.partition_of(each := row_key("shop.t", [number])) == 1)
    log.publish(old, SourceTransaction("MariaDB/0-1-2", "MariaDB/0-1-2", 1, [RowChange(key, VALUE, b"{}")]))
    del log.partitions[1][kept:]
    new.announce(Topology((OTHER,), ((SHARD, 1),)))
    log.publish(new, rows_txn(3, 4))
    last = fed(log, Assembler(log.beginning())).take()[-1]
    assert set(last.checkpoint.places) == {OTHER}
