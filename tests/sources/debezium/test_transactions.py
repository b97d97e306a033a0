"""Transactions put together from topics that are read side by side."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from stream.sources.debezium.messages import (
    End,
    RowMessage,
    Snapshot,
    Statement,
    gtid_of,
    read_end,
    read_row,
    read_statement,
)
from stream.sources.debezium.topics import ConnectorTopics
from stream.sources.debezium.transactions import ROUNDS_MAX, Assembler, Place, Transaction
from tests.sources.debezium.samples import SERVERS, Sample, story


def take(assembler: Assembler, sample: Sample, server: str) -> None:
    """Gives a message to the assembler, as the reader does."""
    place = Place(sample.topic, 0, sample.offset)
    if sample.topic == ".transaction":
        end = read_end(sample.value)
        if end is not None:
            assembler.end(end, place)
        return
    found = (read_row if sample.topic else read_statement)(sample.value, server)
    if isinstance(found, RowMessage):
        assembler.row(found, place)
    elif isinstance(found, Statement):
        assembler.statement(found, place)
    else:
        assert found is None or isinstance(found, Snapshot)


TAGGED = b"02fc00000001:94"
"""The GTID under which MySQL's connector told a second transaction: one with a tag, so such servers are refused."""


def captured(kind: str) -> list[Sample]:
    """A real session without what a source refuses: MySQL's connector tells XA transactions' rows without any."""
    return [each for each in story(kind) if not _is_xa(each) and TAGGED not in each.value]


def _is_xa(sample: Sample) -> bool:
    is_row = sample.topic not in ("", ".transaction")
    operations = [b'"op": "%b"' % op for op in (b"c", b"u", b"d")]
    return is_row and b'"transaction": null' in sample.value and any(each in sample.value for each in operations)


def shown(transactions: list[Transaction]) -> list[tuple[object, ...]]:
    """What of transactions may not depend on the order in which topics are read."""
    return [
        (each.gtid, [(row.table, row.order, row.operation) for row in each.rows], each.voids) for each in transactions
    ]


def rounds(kind: str, seed: int) -> tuple[list[Transaction], list[str], Assembler]:
    """Reads the topics in a random order and in rounds of random size. What is before an end is visible with it."""
    r = random.Random(seed)
    published: set[object] = set()
    assembler = Assembler(lambda gtid: gtid in published, lambda _: True, 1 << 30)
    topics: dict[str, list[Sample]] = defaultdict(list)
    for sample in captured(kind):
        topics[sample.topic].append(sample)
    found: list[Transaction] = []
    done: list[str] = []
    while any(topics.values()) or assembler.has_news:
        for topic in r.sample(sorted(topics), r.randint(0, len(topics))):
            for _ in range(min(len(topics[topic]), r.randint(0, 3))):
                take(assembler, topics[topic].pop(0), SERVERS[kind])
        assembler.begin_round()
        for topic, left in topics.items():  # up to the end, or further than that: here all
            if topic != ".transaction":
                for sample in left:
                    take(assembler, sample, SERVERS[kind])
                left.clear()
        for each in assembler.transactions():
            found.append(each)
            published.add(each.gtid)
            assembler.drop(each.gtid)
        for statement in assembler.end_round():
            done.append(statement.sql)
            assembler.forget(statement)
    return found, done, assembler


@pytest.mark.parametrize("kind", SERVERS)
def test_any_order_of_topics_gives_the_same_transactions(kind: str) -> None:
    """Kafka promises an order within a partition only."""
    expected, statements, _ = rounds(kind, 0)
    assert len(expected) > 30
    assert len(statements) > 20
    for seed in range(1, 25):
        found, done, _ = rounds(kind, seed)
        assert shown(found) == shown(expected)
        assert sorted(done) == sorted(statements)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_real_session_is_counted_as_the_connector_counts_it(kind: str) -> None:
    """A key that changes is two events, a transaction of no captured table is none."""
    found, _, _ = rounds(kind, 3)
    assert {table for each in found for table in each.voids} <= {"shop.inno"}  # of the tagged or large ones
    orders = [[row.order for row in each.rows] for each in found]
    assert all(order == sorted(order) for order in orders)


def _assembler(bytes_max: int = 1 << 20) -> Assembler:
    return Assembler(lambda _: False, lambda table: table != "shop.unread", bytes_max)


def _row(order: int, table: str = "shop.a", gtid: str = "0-1-5") -> RowMessage:
    return RowMessage(table, gtid_of(gtid), order, "c", b"{}", b"", b'{"id":1}', 7)


def test_a_missing_event_voids_its_table_and_no_other() -> None:
    """Whatever was lost, or came twice, may have changed any row of the table."""
    assembler = _assembler()
    for order, table in ((2, "shop.b"), (1, "shop.a"), (3, "shop.more")):
        assembler.row(_row(order, table), Place(table, 0, order))
    assembler.end(End(gtid_of("0-1-5"), (("shop.a", 2), ("shop.b", 1), ("shop.unread", 9)), 5), Place("t", 0, 0))
    assembler.begin_round()
    [found] = assembler.transactions()
    assert found.voids.keys() == {"shop.a", "shop.more"}
    assert found.timestamp == 7
    assert [row.table for row in found.rows] == ["shop.a", "shop.b", "shop.more"]


def test_a_transaction_that_is_too_large_is_void_and_takes_no_memory() -> None:
    """A transaction of the source may be larger than memory."""
    assembler = _assembler(bytes_max=5_000)
    for order in range(100):
        assembler.row(_row(order), Place("a", 0, order))
    assembler.end(End(gtid_of("0-1-5"), (("shop.a", 100),), 5), Place("t", 0, 0))
    assembler.begin_round()
    [found] = assembler.transactions()
    assert found.rows == []
    assert found.voids.keys() == {"shop.a"}


def test_what_is_not_published_is_read_again() -> None:
    """A source that begins again must find the first event of each transaction that it has not published."""
    assembler = _assembler()
    assembler.row(_row(1), Place("a", 0, 17))
    assembler.row(_row(2), Place("a", 0, 19))
    assembler.end(End(gtid_of("0-1-5"), (("shop.a", 2),), 5), Place("t", 0, 4))
    assembler.statement(Statement(gtid_of("0-1-6"), "DROP TABLE x", "shop", (), 5), Place("ddl", 0, 2))
    reached = {("a", 0): 20, ("t", 0): 5, ("ddl", 0): 9, ("b", 0): 3}
    assert assembler.starts(reached) == {("a", 0): 17, ("t", 0): 4, ("ddl", 0): 2, ("b", 0): 3}
    assembler.begin_round()
    assert len(assembler.transactions()) == 1
    assembler.drop(gtid_of("0-1-5"))
    assert assembler.starts(reached) == {("a", 0): 20, ("t", 0): 5, ("ddl", 0): 2, ("b", 0): 3}


def test_of_several_messages_of_a_topic_that_wait_the_first_is_read_again() -> None:
    """What is open in a table's topic, and what has ended and is not published yet."""
    assembler = _assembler()
    for number, (gtid, places) in enumerate([("0-1-5", (17, 20)), ("0-1-6", (18, 19))]):
        for order, place in enumerate(places):
            assembler.row(_row(order, gtid=gtid), Place("a", 0, place))
        assembler.end(End(gtid_of(gtid), (("shop.a", 2),), 5), Place("t", 0, 4 + number))
    reached = {("a", 0): 21, ("t", 0): 6}
    assert assembler.starts(reached) == {("a", 0): 17, ("t", 0): 4}
    assembler.begin_round()
    assembler.drop(gtid_of("0-1-5"))
    assert assembler.starts(reached) == {("a", 0): 18, ("t", 0): 5}


def test_a_statement_waits_until_all_that_comes_before_it_is_published() -> None:
    """On MariaDB a position that has the statement has all of its domain that is before it."""
    assembler = _assembler()
    assembler.statement(Statement(gtid_of("0-1-6"), "DROP TABLE x", "shop", (), 5), Place("ddl", 0, 2))
    for _ in range(ROUNDS_MAX):
        assembler.begin_round()
        assert assembler.end_round() == []
    [statement] = assembler.end_round()
    assert assembler.starts({}) == {("ddl", 0): 2}  # until it is out
    assembler.forget(statement)
    assert not assembler.has_news


def test_rows_that_never_end_are_noticed_once_something_later_is_published() -> None:
    """MariaDB's connector tells the rows of XA PREPARE, and nothing of what becomes of them."""
    published: set[object] = set()
    assembler = Assembler(lambda gtid: gtid in published, lambda _: True, 1 << 20)
    assembler.row(_row(1), Place("a", 0, 1))
    assert assembler.unended_beside(gtid_of("0-1-6")) == []
    published.add(gtid_of("0-1-5"))
    assert assembler.unended_beside(gtid_of("0-1-6")) == ["shop.a"]
    assert assembler.unended_beside(gtid_of("0-1-5")) == []
    assembler.row(_row(2), Place("a", 0, 2))  # one that is read again
    assert assembler.starts({}) == {("a", 0): 1}
    assert Assembler(lambda _: True, lambda _: True, 1).unended_beside(gtid_of("0-1-6")) == []


def test_rows_of_what_is_published_are_no_open_transaction() -> None:
    """A topic that is read from its beginning, or again, has rows whose end was taken long ago."""
    assembler = Assembler(lambda _: True, lambda _: True, 1 << 20)
    assembler.row(_row(1), Place("a", 0, 1))
    assert assembler.unended_beside(gtid_of("0-1-6")) == []


def test_a_statement_with_rows_is_published_by_its_end() -> None:
    """CREATE TABLE … SELECT is told as DDL and as rows, under one GTID."""
    assembler = _assembler()
    statement = Statement(gtid_of("0-1-5"), "CREATE TABLE a SELECT 1", "shop", (), 5)
    assembler.statement(statement, Place("ddl", 0, 2))
    assembler.row(_row(1), Place("a", 0, 1))
    for _ in range(ROUNDS_MAX + 3):
        assembler.begin_round()
        assert assembler.end_round() == []
    assembler.end(End(gtid_of("0-1-5"), (("shop.a", 1),), 5), Place("t", 0, 0))
    assembler.begin_round()
    assert len(assembler.transactions()) == 1
    assembler.drop(gtid_of("0-1-5"))
    assert assembler.end_round() == [statement]
    assert assembler.has_news
    assembler.forget(statement)
    assert not assembler.has_news


def test_a_backlog_takes_no_more_memory_than_it_may() -> None:
    """All topics are read up to their ends before anything of them is published."""
    assembler = _assembler(bytes_max=5_000)
    for number in range(100):
        row = _row(1)
        row.transaction = gtid_of(f"0-1-{number + 1}")
        assembler.row(row, Place("a", 0, number))
        assembler.end(End(row.transaction, (("shop.a", 1),), 5), Place("t", 0, number))
    assembler.begin_round()
    found = assembler.transactions()
    assert sum(len(each.rows) for each in found) < 10
    assert all(each.voids.keys() == {"shop.a"} for each in found if not each.rows)
    for each in found:
        assembler.drop(each.gtid)
    assembler.row(_row(1), Place("a", 0, 200))
    assembler.end(End(gtid_of("0-1-5"), (("shop.a", 1),), 5), Place("t", 0, 200))
    assembler.begin_round()
    assert [len(each.rows) for each in assembler.transactions()] == [1]


def test_a_transaction_that_was_too_large_leaves_all_room_to_the_next() -> None:
    """Else each one takes some of it for good, until every transaction is void."""
    assembler = _assembler(bytes_max=5_000)
    for number in range(5, 8):
        rows = 100 if number < 7 else 5
        for order in range(rows):
            assembler.row(_row(order, gtid=f"0-1-{number}"), Place("a", 0, order))
        assembler.end(End(gtid_of(f"0-1-{number}"), (("shop.a", rows),), 5), Place("t", 0, number))
        assembler.begin_round()
        [found] = assembler.transactions()
        assert len(found.rows) == (0 if number < 7 else 5)
        assembler.drop(gtid_of(f"0-1-{number}"))


def test_topics_that_are_made_later_are_read_from_their_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of tables, and that with the ends of transactions: without it none would ever be published."""
    topics = ConnectorTopics.__new__(ConnectorTopics)
    topics.prefix, topics.transactions, topics.reached = "p", "p.transaction", {("p", 0): 7}
    topics._found_with = {}
    existing = {"p": 1, "p.transaction": 1, "p.s.t": 2, "p.s.other": 1}
    monkeypatch.setattr(topics, "existing", lambda: existing)
    monkeypatch.setattr(topics, "_offsets", lambda _, places: dict.fromkeys(places, 3))
    monkeypatch.setattr(topics, "add", topics.reached.update)
    assert topics.look_for(["s.t", "s.gone"]) == ["s.t"]
    assert topics.reached == {("p", 0): 7, ("p.transaction", 0): 3, ("p.s.t", 0): 3, ("p.s.t", 1): 3}
    assert topics.look_for(["s.t"]) == []
