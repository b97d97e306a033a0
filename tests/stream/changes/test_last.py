"""The last change of each table, found from the end of a partition."""

from __future__ import annotations

import random

import pytest

from stream.changes.items import RowEvent
from stream.changes.last import LastChange, last_changes, last_in, latest
from stream.kafka.connection import KafkaCluster
from stream.wire.codec import READER_VERSION, PartitionReader
from stream.wire.events import ABSENT, VALUE, RowChange, SourceTransaction, VoidTable
from stream.wire.keys import Layout, row_key
from tests.consumers.histories import encode_version_1, marker
from tests.stream.changes.topics import Log, follow, framer_of, transactions

TABLES = ("shop.a", "shop.b", "shop.c")


def log_of(choose: random.Random, transactions: int) -> tuple[Log, dict[str, int]]:
    """A partition with rows of several tables in a transaction, and voids; table → its last transaction."""
    log, last = Log(Layout(1)), dict[str, int]()
    framer = framer_of("shop/0", log.layout)
    for number in range(1, transactions + 1):
        tables = [table for table in TABLES[:2] if choose.random() < 0.5]
        rows = [
            RowChange(row_key(each, [choose.randrange(9)]), *choose.choice([(VALUE, b"{}"), (ABSENT, b"")]))
            for each in tables
        ]
        void = [VoidTable(choose.choice([*TABLES, "*"]), "DDL")] if choose.random() < 0.05 else []
        gtid = f"MariaDB/0-1-{number}"
        log.publish(framer, SourceTransaction(gtid, gtid, 1_700_000_000 + number, [*rows, *void]))
        changed = {each.table for each in void} | set(tables)
        last |= dict.fromkeys(TABLES if "*" in changed else changed, number)
    return log, last


@pytest.mark.parametrize("seed", range(8))
def test_the_last_change_of_each_table_is_found(seed: int) -> None:
    """Whatever the windows cut, and no further back than is needed; a table without a change has none."""
    log, last = log_of(random.Random(seed), 900)
    read_to: list[int] = []

    def read(partition: int, start: int, end: int) -> list[tuple[int, bytes]]:
        read_to.append(start)
        return log.read(partition, start, end)

    end = log.ends[0]
    found = last_in(read, 0, 0, end, frozenset(TABLES), PartitionReader())
    assert {table: each.timestamp - 1_700_000_000 for table, each in found.items()} == last
    for table, each in found.items():
        place = 0, each.offset, each.epoch, each.ordinal
        assert each == LastChange(table, each.kind, "shop/0", f"MariaDB/0-1-{last[table]}", each.timestamp, *place)
    read_to.clear()
    last_in(read, 0, 0, end, frozenset(TABLES[:2]), PartitionReader())
    assert min(read_to) > 0, "both change all the time"


def test_of_one_second_the_later_change_counts() -> None:
    """A DDL voids all partitions; the row that is written in the same second is in one of them."""
    log = Log(Layout(4))
    framer, second = framer_of("shop/0", log.layout), 1_700_000_000
    rows = [RowChange(row_key("shop.a", [each]), VALUE, b"{}") for each in range(9)]
    changes: list[RowChange | VoidTable] = [VoidTable("shop.a", "DDL"), *rows]
    for number, change in enumerate(changes, 1):
        log.publish(framer, SourceTransaction(f"MariaDB/0-1-{number}", f"MariaDB/0-1-{number}", second, [change]))

    parts = [last_in(log.read, each, 0, log.ends[each], frozenset(TABLES), PartitionReader()) for each in range(4)]
    for order in (parts, parts[::-1]):
        assert [(each.kind, each.gtid) for each in latest(order).values()] == [("row", "MariaDB/0-1-10")]


def test_of_one_second_the_change_of_a_later_epoch_counts() -> None:
    """Its ordinals begin anew: a source that was set up again is not behind what it told before."""
    of_before = LastChange("shop.a", "row", "shop/0", "MariaDB/0-1-9", 1_700_000_000, 0, 70, 1, 500)
    of_now = of_before._replace(gtid="MariaDB/0-1-10", partition=1, offset=3, epoch=2, ordinal=4)
    for order in (of_before, of_now), (of_now, of_before):
        assert latest({"shop.a": each} for each in order) == {"shop.a": of_now}


def test_each_transaction_of_a_frame_has_its_own_place() -> None:
    """Several share a message: by the place of the first one another partition's change would seem the later one."""
    log = Log(Layout(1))
    framer = framer_of("shop/0", log.layout)
    for number, table in enumerate(TABLES[:2], 1):
        gtid = f"MariaDB/0-1-{number}"
        row = SourceTransaction(gtid, gtid, 1_700_000_000, [RowChange(row_key(table, [1]), VALUE, b"{}")])
        framer.add(row, 0, framer.room(row, 0))
    log.publish(framer)
    told = transactions(follow(log, log.beginning(), random.Random(1)))
    found = last_in(log.read, 0, 0, log.ends[0], frozenset(TABLES), PartitionReader())
    assert len({each.offset for each in found.values()}) == 1
    assert [(each.epoch, each.ordinal) for each in found.values()] == [each.place for each in told]


def test_what_is_behind_the_end_or_before_the_low_offset_does_not_count() -> None:
    """The owner has folded up to the end, and the looking back is bounded."""
    log, _ = log_of(random.Random(1), 200)

    low, end = 300, 500
    found = last_in(log.read, 0, low, end, frozenset(TABLES), PartitionReader())
    assert {"shop.a", "shop.b"} <= found.keys()
    assert all(low <= each.offset < end for each in found.values())
    assert not last_in(log.read, 0, end, end, frozenset(TABLES), PartitionReader())
    assert not last_in(log.read, 0, low, end, frozenset(), PartitionReader())


@pytest.mark.parametrize("damage", [{"gtids": []}, {"ordinals": []}, {"transactions": [2, -1]}, {"transactions": []}])
def test_a_frame_that_the_fold_rejects_is_no_change(damage: dict[str, object]) -> None:
    """Its columns do not fit together: it is a dead letter, and what was changed before is found all the same."""
    log, last = log_of(random.Random(2), 20)
    fields = {
        "shard": "shop/0",
        "epoch": 1,
        "ordinal": 90,
        "keys": [row_key("shop.a", [1])],
        "images": [b"{}"],
        "operations": bytes([VALUE]),
        "ordinals": [1],
        "transactions": [1],
        "gtids": ["MariaDB/0-1-99"],
        "positions": [],
        "timestamps": [1_700_000_099],
        "origins": [],
    }
    log.partitions[0].append(encode_version_1("RowFrame", fields | damage))

    found = last_in(log.read, 0, 0, log.ends[0], frozenset(TABLES), PartitionReader())
    assert {table: each.timestamp - 1_700_000_000 for table, each in found.items()} == last


@pytest.mark.parametrize("seed", range(3))
def test_a_last_change_is_at_its_place_in_the_shard(seed: int) -> None:
    """By it the later one of a second is found among several partitions; of a transaction's rows the first one's."""
    log, _ = log_of(random.Random(seed), 60)
    wanted: dict[str, tuple[int, int]] = {}
    for each in transactions(follow(log, log.beginning(), random.Random(seed))):
        first = each.events[0].ordinal
        for event in each.events:
            if isinstance(event, RowEvent):
                wanted[event.key.partition(b"\0")[0].decode()] = each.place.epoch, first
            else:
                table = event.fields["table"]
                wanted |= dict.fromkeys(TABLES if table == "*" else [table], (each.place.epoch, event.ordinal))

    found = last_in(log.read, 0, 0, log.ends[0], frozenset(TABLES), PartitionReader())
    assert {table: (each.epoch, each.ordinal) for table, each in found.items()} == wanted


def test_how_far_back_a_topic_is_looked_through_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that never changes would else have all of it read, each time that somebody asks."""
    read: list[tuple[int, int]] = []

    def read_range(_: object, __: str, ___: int, start: int, end: int) -> list[object]:
        read.append((start, end))
        return []

    monkeypatch.setattr("stream.changes.last.start_offsets", lambda *_: {0: 0, 1: 990})
    monkeypatch.setattr("stream.changes.last.announced_before", lambda *_: iter(()))
    monkeypatch.setattr("stream.changes.last.read_range", read_range)
    kafka = KafkaCluster("127.0.0.1:1")
    assert last_changes(kafka, "t", {0: 1_000, 1: 1_000}, TABLES, looked_max=100) == {}
    assert read == [(900, 1_000), (990, 1_000)]


def test_what_only_a_newer_version_understands_is_no_change() -> None:
    """An owner has not folded it either, and says so; what it has folded is told of all the same."""
    log, last = log_of(random.Random(2), 20)
    log.partitions[0].append(marker(90, reader_version=READER_VERSION + 1))
    found = last_in(log.read, 0, 0, log.ends[0], frozenset(TABLES), PartitionReader())
    assert {table: each.timestamp - 1_700_000_000 for table, each in found.items()} == last
