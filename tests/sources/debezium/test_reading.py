"""What a reader of a connector's topics keeps from one transaction to the next, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pymysql
import pytest
from confluent_kafka import IsolationLevel, KafkaError
from confluent_kafka.admin import OffsetSpec

from stream.kafka.connection import KafkaCluster, KafkaRequestError, KafkaUnreachable
from stream.kafka.reader import TopicReadError
from stream.sources.debezium import offsets
from stream.sources.debezium import schema as asking
from stream.sources.debezium import topics as topics_module
from stream.sources.debezium.connector import KafkaConnect
from stream.sources.debezium.errors import DebeziumError
from stream.sources.debezium.messages import End, RowMessage, Statement, gtid_of
from stream.sources.debezium.places import Places
from stream.sources.debezium.reader import DebeziumReader
from stream.sources.debezium.schema import DebeziumSchema, Sample
from stream.sources.debezium.topics import ConnectorTopics
from stream.sources.debezium.transactions import ROUNDS_MAX, Place, Transaction
from stream.sources.mariadb.binlog.reading.logged_statements import LoggedStatements
from stream.sources.mariadb.binlog.reading.transaction import OpenTransaction
from stream.sources.mariadb.connection import (
    ConnectionSettings,
    MariaDBUnreachable,
    ServerSettingsError,
    SourceHistoryLost,
)
from stream.sources.mariadb.gtid import MysqlGtidSet
from stream.sources.mariadb.schema import TableFilter
from stream.wire.events import NO_ROW, RowChange
from tests.sources.debezium.test_invalidating import Rows
from tests.sources.debezium.test_messages import UUID, reader_of


@pytest.mark.parametrize(("operation", "before"), [("c", NO_ROW), ("u", None)])
def test_a_row_of_before_that_is_not_told_is_not_taken_for_none(operation: str, before: bytes | None) -> None:
    """A follower of changes would hear of an insertion, and count a row twice."""
    rows = Rows()
    transaction = OpenTransaction(gtid_of("0-1-2"), 1 << 20, keeps_before=True)
    row = RowMessage(rows.name, gtid_of("0-1-2"), 0, operation, rows.envelope, b"", rows.image(1), 1)
    rows.reader._put(row, transaction)
    [change] = [each for each in transaction.rows.changes(frozenset()) if isinstance(each, RowChange)]
    assert (change.before, bool(change.image)) == (before, True)


def test_what_a_server_had_executed_is_passed_once_and_asked_for_again() -> None:
    """The next gap in its GTIDs is found by another look, and none by an old one."""
    reader = reader_of()
    executed = MysqlGtidSet.of(f"{UUID}:1-6")
    reader._sample = Sample(executed, executed)
    found = reader._transaction(Transaction(gtid_of(f"{UUID}:8"), 7, [], {}))
    assert found.position == f"MySQL56/{UUID}:1-6:8"
    assert reader._sample is None


def test_what_is_executed_is_asked_for_before_what_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is logged in between would else be passed, though a message of it may still come."""
    asked: list[str] = []

    def gtids(name: str) -> MysqlGtidSet:
        asked.append(name)
        return MysqlGtidSet.of(f"{UUID}:1-6")

    monkeypatch.setattr(asking, "is_mysql", lambda _: True)
    for name in ("executed", "logged"):
        monkeypatch.setattr(asking, name, lambda _, name=name: gtids(name))
    schema = DebeziumSchema(ConnectionSettings(), TableFilter(("s",)), lambda _: True)
    vars(schema)["_retried"] = lambda ask: ask(None)
    assert schema.sample() is not None
    assert asked == ["executed", "logged"]


def test_what_sessions_own_is_asked_for_before_where_the_log_ends() -> None:
    """Who is done in between has logged more: what is prepared by it would pass for decided at the end of before."""
    asked: list[str] = []
    schema = DebeziumSchema(ConnectionSettings(), TableFilter(("s",)), lambda _: True)
    for name in ("owned", "check_prepared", "end_of_log"):
        vars(schema)[name] = lambda name=name: asked.append(name)
    schema.settled()
    assert asked == ["owned", "check_prepared", "end_of_log"]


def test_what_a_statement_voids_is_said_until_all_before_it_is_published() -> None:
    """Then no longer: else its tables would be void with each transaction, and never be cached again."""
    reader = reader_of()

    def apply(_: object, seen: OpenTransaction) -> None:
        seen.voids["s.t"] = "TRUNCATE"

    reader._statements = cast("LoggedStatements", SimpleNamespace(apply=apply))
    reader._see(Statement(gtid_of(f"{UUID}:5"), "TRUNCATE TABLE t", "s", ("t",), 7), Place("p", 0, 7))
    told = [each for _ in range(ROUNDS_MAX + 1) for each in reader._round()]
    assert [each.position for each in told] == [f"MySQL56/{UUID}:1-5"]
    assert not reader._pending
    assert not reader._assembler.has_news


@pytest.fixture
def topics() -> ConnectorTopics:
    """Of a connector, without Kafka."""
    found = ConnectorTopics.__new__(ConnectorTopics)
    found.prefix, found.statements, found.transactions = "p", "p", "p.transaction"
    found.reached, found.read, found._found_with = {}, {"p"}, {}
    return found


def test_an_epoch_begins_behind_ends_that_are_committed(
    topics: ConnectorTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that Kafka has not committed may be followed by its rows: they would belong to no transaction."""
    levels: dict[tuple[str, int], IsolationLevel] = {}

    def offsets(_: object, places: Any, level: Any = IsolationLevel.READ_UNCOMMITTED) -> dict[tuple[str, int], int]:
        levels.update(dict.fromkeys(places, level))
        return dict.fromkeys(places, 3)

    monkeypatch.setattr(topics, "_offsets", offsets)
    begins = topics.beginning({"p": 1, "p.transaction": 1, "p.s.t": 2})
    assert begins == {("p", 0): 3, ("p.transaction", 0): 3, ("p.s.t", 0): 3, ("p.s.t", 1): 3}
    committed = [place for place, level in levels.items() if level is IsolationLevel.READ_COMMITTED]
    assert committed == [("p.transaction", 0)]


@pytest.mark.parametrize(("reached", "is_at"), [(7, 7), (2, 3)])
def test_an_end_that_was_passed_since_takes_nobody_back(topics: ConnectorTopics, reached: int, is_at: int) -> None:
    """A notice of a partition's end may come late: what was read behind it is not waited for once more.

    Else it leads behind the marks of Kafka's transactions, which are no messages: they would be waited for for ever.
    """
    notice = SimpleNamespace(
        topic=lambda: "p.s.t",
        partition=lambda: 0,
        offset=lambda: 3,
        error=lambda: KafkaError(KafkaError._PARTITION_EOF),
    )
    consumer: Any = SimpleNamespace(consume=lambda *_: [notice])
    topics._consumer, topics.reached = consumer, {("p.s.t", 0): reached}
    assert list(topics.poll(0.0)) == []
    assert topics.has_reached({("p.s.t", 0): is_at})
    assert not topics.has_reached({("p.s.t", 0): is_at + 1})


@pytest.mark.parametrize("has_statements", [True, False])
def test_a_snapshot_is_of_before_where_its_topic_was_found_with_it(
    topics: ConnectorTopics, monkeypatch: pytest.MonkeyPatch, has_statements: bool
) -> None:
    """If the connector began anew since, the topic of statements says so, from where it is read; else nothing might."""
    ends = {OffsetSpec.earliest(): 2, OffsetSpec.latest(): 9}
    monkeypatch.setattr(topics, "existing", lambda: {"p": 1, "p.s.t": 1, "p.s.u": 1})
    monkeypatch.setattr(topics, "_offsets", lambda spec, places: dict.fromkeys(places, ends[spec]))
    monkeypatch.setattr(topics, "add", topics.reached.update)
    topics.reached, topics.read = {("p", 0): 3, ("p.s.t", 0): 3}, {"p"} if has_statements else set()
    assert topics.look_for(["s.t", "s.u"]) == ["s.u"]
    places = [Place(name, 0, offset) for name, offset in (("p.s.u", 8), ("p.s.u", 9), ("p.s.t", 8), ("p", 8))]
    assert [topics.is_told_elsewhere(place) for place in places] == [has_statements, False, False, False]


@pytest.mark.parametrize(
    ("found", "refusal"), [({"p": 1}, SourceHistoryLost), ({"p": 1, "p.s.t": 1}, KafkaRequestError)]
)
def test_a_topic_that_is_deleted_begins_an_epoch_where_its_end_is_asked_for(
    topics: ConnectorTopics, monkeypatch: pytest.MonkeyPatch, found: dict[str, int], refusal: type[Exception]
) -> None:
    """The source would end, and again after each start, of a topic that nobody will make again."""

    def refuse(*_: object, **__: object) -> Any:
        raise KafkaRequestError("unknown topic")

    monkeypatch.setattr("stream.sources.debezium.topics.call_kafka", refuse)
    monkeypatch.setattr(topics, "existing", lambda: found)
    topics._kafka, topics.reached = KafkaCluster("nowhere:1"), {("p", 0): 3, ("p.s.t", 0): 3}
    with pytest.raises(refusal):
        topics.ends()


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, SourceHistoryLost),
        (KafkaError._AUTO_OFFSET_RESET, SourceHistoryLost),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, TopicReadError),
    ],
)
def test_a_topic_that_is_deleted_begins_an_epoch_where_it_is_read(
    topics: ConnectorTopics, monkeypatch: pytest.MonkeyPatch, code: int, refusal: type[Exception]
) -> None:
    """As where its messages are deleted. A right that lacks ends the source."""
    monkeypatch.setattr(topics, "existing", lambda: {"p": 1})
    topics._consumer = noticing(code)
    with pytest.raises(refusal):
        list(topics.poll(0.0))


@pytest.mark.parametrize("code", topics_module._UNKNOWN)
@pytest.mark.parametrize(
    ("partition", "count", "refusal"),
    [(0, 1, KafkaUnreachable), (-1, 1, KafkaUnreachable), (1, 0, KafkaUnreachable), (1, 1, SourceHistoryLost)],
)
def test_a_broker_that_does_not_know_a_topic_that_is_there_is_an_outage(
    topics: ConnectorTopics,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    partition: int,
    count: int,
    refusal: type[Exception],
) -> None:
    """One that has just started says so: all that was cached would be void after each restart of a broker."""
    monkeypatch.setattr(topics, "existing", lambda: {"p": 1, "p.s.t": count})
    topics._consumer = noticing(code, partition)
    with pytest.raises(refusal):
        list(topics.poll(0.0))


def noticing(code: int, partition: int = 0) -> Any:
    """A consumer that is told of an error of one partition."""
    notice = SimpleNamespace(
        topic=lambda: "p.s.t", partition=lambda: partition, offset=lambda: 3, error=lambda: KafkaError(code)
    )
    return SimpleNamespace(consume=lambda *_: [notice])


@pytest.mark.parametrize(("partitions", "is_in_order"), [((1, 1), True), ((2, 1), False), ((1, 2), False)])
def test_statements_and_ends_have_an_order(
    topics: ConnectorTopics, partitions: tuple[int, int], is_in_order: bool
) -> None:
    """In two partitions nobody can tell what comes first. Those of tables may have as many as they like."""
    counts = dict(zip(("p", "p.transaction"), partitions, strict=True)) | {"p.s.t": 3, "other": 2}
    found = {name: SimpleNamespace(partitions=range(count)) for name, count in counts.items()}
    admin: Any = SimpleNamespace(list_topics=lambda timeout: timeout and SimpleNamespace(topics=found))
    topics._admin, topics._kafka = admin, KafkaCluster("nowhere:1")
    if is_in_order:
        assert topics.existing() == {"p": 1, "p.transaction": 1, "p.s.t": 3}
        return
    with pytest.raises(DebeziumError) as refused:
        topics.existing()
    assert refused.value.code == "debezium_bad_connector"


def test_topics_that_are_closed_leave_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source begins again after each outage: its machine would be full of clients."""
    closed: list[str] = []
    module = "stream.sources.debezium.topics"

    @contextmanager
    def admin(_: object) -> Iterator[None]:
        yield
        closed.append("admin")

    consumer = SimpleNamespace(close=lambda: closed.append("consumer"))
    monkeypatch.setattr(f"{module}.AdminClient", admin)
    monkeypatch.setattr(f"{module}.open_consumer", lambda *_, **__: consumer)
    ConnectorTopics(KafkaCluster("nowhere:1"), "p").close()
    assert closed == ["consumer", "admin"]


@pytest.mark.parametrize(
    ("answer", "refusal"),
    [
        ([], None),
        ([("1", "1", "0", "x")], MariaDBUnreachable),
        (pymysql.err.OperationalError(1401, "XAER_RMERR"), ServerSettingsError),
        (pymysql.err.OperationalError(2013, "Lost connection"), pymysql.err.OperationalError),
    ],
)
def test_who_may_not_see_what_is_prepared_is_told_from_a_lost_session(
    monkeypatch: pytest.MonkeyPatch, answer: Any, refusal: type[Exception] | None
) -> None:
    """An outage is waited out; a right that lacks ends the source, and says which it is."""

    def fetch(*_: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(asking, "fetch_all", fetch)
    with nullcontext() if refusal is None else pytest.raises(refusal):
        asking.check_nothing_is_prepared(cast("Any", None))


def test_a_connector_that_has_moved_on_has_told_what_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it names first may be of before it began. Later it counts also amid a transaction, which may be long."""
    said = [("0-1-5", {"event": 1}), ("0-1-6", {"event": 1}), ("0-1-5", {})]
    answers = [{"offsets": [{"partition": {"server": "p"}, "offset": {"gtids": at} | within}]} for at, within in said]
    monkeypatch.setattr(offsets, "asked", lambda *_: answers.pop(0))
    asked = offsets.ConnectorOffsets(KafkaConnect("http://nowhere"), "c", "p", "MariaDB")
    assert [str(each) for each in (asked.told(), asked.told(), asked.told())] == [
        "None",
        "MariaDB/0-1-6",
        "MariaDB/0-1-5",
    ]


def test_a_position_passes_no_row_whose_transaction_has_not_ended() -> None:
    """It is of XA: nobody tells whether it is committed, and its row would be cached as it was."""
    schema = DebeziumSchema(ConnectionSettings(), TableFilter(("s",)), lambda _: True)
    topics: Any = SimpleNamespace(read=set(), topic_of=str)
    reader = DebeziumReader(topics, schema, "MariaDB/0-1-4", Places(1), "MariaDB", 1 << 20)
    row = RowMessage("s.t", gtid_of("0-1-5"), 0, "u", b"{}", b"", b"{}", 1)
    reader._assembler.row(row, Place("p.s.t", 0, 1))
    reader._assembler.end(End(gtid_of("0-1-6"), (), 7), Place("p.transaction", 0, 1))
    reader._assembler.begin_round()
    with pytest.raises(DebeziumError) as refused:
        list(reader._round())
    assert refused.value.code == "debezium_xa_transaction"


def test_no_round_is_over_before_the_topic_of_ends_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement would be published before the rows that it is behind, which would then pass for those of XA."""
    reader, rounds = reader_of(), list[bool]()
    read: set[str] = set()
    topics: Any = reader._topics
    topics.read, topics.poll, topics.close = read, lambda _: (), lambda: None
    topics.ends, topics.has_reached = dict, lambda _: True
    reader._assembler.statement(Statement(gtid_of(f"{UUID}:5"), "x", "s", (), 7), Place("p", 0, 7))
    reader._look_at = inf
    monkeypatch.setattr(reader, "_look", lambda: read.add(topics.transactions))
    monkeypatch.setattr(reader._assembler, "begin_round", lambda: rounds.append(topics.transactions in read))
    told = list[str]()
    for found in reader.transactions():
        if found is None:
            reader.stop()
        else:
            told.append(found.position)
    assert told == [f"MySQL56/{UUID}:1-5"]
    assert rounds == [True] * (ROUNDS_MAX + 1)


def test_a_table_that_is_not_as_its_messages_have_it_is_void() -> None:
    """Rows that came meanwhile were cut by other columns."""
    reader, read = reader_of(), list[tuple[str, ...]]()
    vars(reader._schema)["reread"] = lambda *name: read.append(name)
    reader._reread_changed("s.t")
    assert read == [("s", "t")]
    assert list(reader._maps.announced) == ["s.t"]
