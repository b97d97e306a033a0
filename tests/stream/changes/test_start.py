"""What is told of a shard from the position on that a change stream begins after."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from stream.changes.assembling import Assembler
from stream.changes.checkpoint import Place
from stream.changes.items import Event, Item, RecordEvent, RowEvent
from stream.changes.start import AfterPosition, Start
from stream.wire.events import VALUE, Change, KeylessRow, RowChange, SourceTransaction, VoidTable
from stream.wire.keys import Layout, row_key
from tests.stream.changes.test_assembling import SHARD, rows_txn
from tests.stream.changes.topics import Log, framer_of, transactions
from tokens import Position

VOID = VoidTable("shop.t", "its schema is known now")
OWN: tuple[tuple[str, str], ...] = (
    ("MariaDB/0-1-5", "MariaDB/0-1-5"),
    ("MySQL56/00000000-0000-0000-0000-000000000001:5", "MySQL56/00000000-0000-0000-0000-000000000001:1-5"),
)
"""GTID and position of the last transaction: a void that is published later has the position for both."""


def names(events: Iterable[Event]) -> list[str]:
    """Of records, and of rows "row"."""
    return [event.name if isinstance(event, RecordEvent) else "row" for event in events]


def told(log: Log, position: str, *, is_one_batch: bool) -> list[list[str]]:
    """What a stream after ``position`` tells: from one batch of Kafka's messages, or from one of each message."""
    skips = {SHARD: AfterPosition(1, Position.parse(position))}
    assembler, items = Assembler(Start(log.beginning().checkpoint, skips)), list[Item]()
    for partition, messages in enumerate(log.partitions):
        for offset, message in enumerate(messages):
            assembler.feed(partition, offset, message)
            if not is_one_batch:
                items += assembler.take()
    items += assembler.take()
    assert not assembler.left_out
    return [names(each.events) for each in transactions(items)]


@pytest.mark.parametrize("is_one_batch", [True, False])
@pytest.mark.parametrize(("gtid", "position"), OWN)
def test_a_void_that_is_published_later_at_the_very_position_is_told(
    gtid: str, position: str, is_one_batch: bool
) -> None:
    """A copy would hold what is void for good. What else the position has was told: rows without a key come once."""
    log = Log(Layout(1))
    framer = framer_of(SHARD, log.layout)
    own: list[Change] = [RowChange(row_key("shop.t", [1]), VALUE, b"{}"), KeylessRow("shop.k", "inserted", b"", b"{}")]
    log.publish(framer, SourceTransaction(gtid, position, 1_700_000_005, own))
    framer.stamp(1_700_000_006_000)
    log.publish(framer)
    log.publish(framer, SourceTransaction(position, position, 1_700_000_005, [VOID]))
    assert told(log, position, is_one_batch=is_one_batch) == [["TableVoid"]]


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_only_a_void_of_the_position_is_told_again(is_one_batch: bool) -> None:
    """Voids of before it are left out, and rows of the position itself."""
    log = Log(Layout(2))
    framer = framer_of(SHARD, log.layout)
    before = SourceTransaction("MariaDB/0-1-1", "MariaDB/0-1-1", 1_700_000_001, [VOID])
    for txn in (before, rows_txn(2, 4), rows_txn(3, 2)):
        log.publish(framer, txn)
    assert told(log, "MariaDB/0-1-2", is_one_batch=is_one_batch) == [["row", "row"]]


def test_what_begins_with_the_void_is_told_without_rows_that_have_no_key() -> None:
    """Rows that are read at the position again belong to the void; of rows without a key each is told once."""
    row, void = RowEvent(2, b"k", VALUE, b"{}"), RecordEvent(3, "TableVoid", {})
    keyless, described = RecordEvent(4, "KeylessRow", {}), RecordEvent(5, "TableSchema", {})
    again = row._replace(ordinal=6)
    skip = AfterPosition(2, Position.parse("MariaDB/0-1-9"))
    events: list[Event] = [row, void, keyless, described, again]
    assert skip.told(Place(2, 6), "MariaDB/0-1-9", 0, events) == [void, described, again]
    assert skip.told(Place(2, 6), "MariaDB/0-1-9", 0, [row, keyless]) is None
    assert skip.told(Place(1, 6), "MariaDB/0-1-9", 0, events) is None
    assert skip.told(Place(3, 6), "MariaDB/0-1-9", 0, events) is events
