"""A connector without transaction metadata: what changes is void, at positions that no change is told behind."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from stream.kafka.connection import client_settings
from stream.sources.debezium.connector import KafkaConnect
from stream.sources.debezium.errors import DebeziumError
from stream.sources.debezium.invalidating import InvalidatingReader
from stream.sources.debezium.messages import RowMessage, gtid_of
from stream.sources.debezium.offsets import ConnectorOffsets, offsets_of, position_of
from stream.sources.debezium.places import Places
from stream.sources.debezium.schema import DebeziumSchema, Settled
from stream.sources.debezium.transactions import Place
from stream.sources.mariadb.connection import ConnectionSettings, connect
from stream.sources.mariadb.gtid import GtidPosition, MysqlGtidSet
from stream.sources.mariadb.schema import ColumnInfo, TableFilter, TableInfo
from stream.wire.events import RowChange, VoidTable
from stream.wire.keys import row_key
from tests.patience import PATIENCE_S
from tests.servers.connect import ConnectServer
from tests.sources.debezium.conftest import Captured, RunningDebezium
from tests.sources.debezium.samples import typed
from tests.sources.mariadb.test_source import PARTITIONS, until
from tests.stream.committed import last_position, records, rows
from tokens import Position


@pytest.fixture
def endless(captured: Captured) -> Captured:
    """A connector of the tables ``t`` and ``u`` that does not tell where transactions end."""
    captured.source.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE u (id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (0, 'there before')",
        "INSERT INTO u VALUES (0)",
    )
    captured.create(provide__transaction__metadata="false", heartbeat__interval__ms="200")
    topics = {f"{captured.prefix}.{captured.source.database}.{name}" for name in "tu"}
    admin = AdminClient(client_settings(captured.kafka))
    until(lambda: topics <= admin.list_topics(timeout=PATIENCE_S).topics.keys(), "a topic of each table")
    return captured


def not_told(captured: Captured, keyspace: str) -> list[str]:
    """The changes since `Source.begin` that the topic's markers have passed, and that are not void at their place."""
    topic = records(captured.kafka, keyspace, PARTITIONS)
    told = [(key, Position.parse(gtid)) for _, key, image, gtid in rows(topic) if image == b""]
    told += [
        (each["table"].encode(), Position.parse(each["position"]))
        for part in topic.values()
        for name, each in part
        if name == "TableVoid"
    ]
    end = Position.parse(last_position(captured.kafka, keyspace))
    return [
        f"{each.gtid} {change.key!r}"
        for each in captured.source.transactions()
        for change in each.changes
        if isinstance(change, RowChange) and end.contains(Position.parse(each.position))
        if not any(
            name in (change.key, change.key.partition(b"\0")[0], b"*") and at.contains(Position.parse(each.position))
            for name, at in told
        )
    ]


def images(captured: Captured, keyspace: str) -> set[bytes]:
    """The images in the topic."""
    return {image for _, _, image, _ in rows(records(captured.kafka, keyspace, PARTITIONS))}


def is_past(captured: Captured, keyspace: str, position: str) -> bool:
    """Whether the topic's last marker is there, or further."""
    found = last_position(captured.kafka, keyspace)
    return bool(found) and Position.parse(found).contains(Position.parse(position))


def test_without_ends_of_transactions_rows_are_void(endless: Captured, keyspace_name: str) -> None:
    """Each kind of statement voids what it changes at its place or later, and the position goes on."""
    source, kafka = endless.source, endless.kafka

    def void_tables() -> list[str]:
        found = records(kafka, keyspace_name, PARTITIONS)
        return [each["table"] for part in found.values() for name, each in part if name == "TableVoid"]

    with capture_logs() as logs, RunningDebezium(endless, keyspace_name) as running:
        running.until_published(source.position())
        source.begin()
        source.run("BEGIN", "INSERT INTO t VALUES (1, 'a'), (2, 'b')", "UPDATE t SET id = 3 WHERE id = 2", "COMMIT")
        source.run("UPDATE t SET v = 'c' WHERE id = 0", "INSERT INTO t VALUES (4, 'd')", "DELETE FROM t WHERE id = 4")
        running.until_published(source.position())
        assert not not_told(endless, keyspace_name)
        assert not void_tables()
        assert {key for _, key, _, _ in rows(records(kafka, keyspace_name, PARTITIONS))} == {
            row_key(f"{source.database}.t", [number]) for number in range(5)
        }
        source.run("TRUNCATE TABLE u", "ALTER TABLE t ADD COLUMN w INT", "INSERT INTO t VALUES (5, 'e', 1)")
        running.until_published(source.position())
        assert {f"{source.database}.{name}" for name in "tu"} <= set(void_tables())
        assert running.source.status.as_of_ms
    assert "invalidation only" in [each["event"] for each in logs]
    assert not not_told(endless, keyspace_name)
    assert images(endless, keyspace_name) == {b""}


@pytest.mark.nightly
def test_what_changed_while_the_source_or_the_connector_was_away_is_void(
    endless: Captured, keyspace_name: str, connect: ConnectServer
) -> None:
    """Both begin again amid changes, in the same epoch."""
    source = endless.source
    with RunningDebezium(endless, keyspace_name) as running:
        source.run("INSERT INTO t VALUES (1, 'first')")
        running.until_published(source.position())
        epoch = running.source.status.epoch
    source.begin()
    for n in range(3):
        source.run(f"INSERT INTO t VALUES ({10 + n}, 'away')")
        with RunningDebezium(endless, keyspace_name) as running:
            source.run("BEGIN", *(f"REPLACE INTO t VALUES ({each}, 'x{n}')" for each in range(100, 150)), "COMMIT")
            connect.restart_task(endless.prefix)
            source.run(f"DELETE FROM t WHERE id = {10 + n}")
            running.until_published(source.position())
            assert running.source.status.epoch == epoch
    assert not not_told(endless, keyspace_name)


def test_nothing_is_published_while_an_xa_transaction_is_prepared(endless: Captured, keyspace_name: str) -> None:
    """Its rows are told when it is prepared; they are void behind its commit, which no message tells."""
    source = endless.source
    key = row_key(f"{source.database}.t", [7])
    with RunningDebezium(endless, keyspace_name) as running:
        running.until_published(source.position())
        source.begin()
        before = last_position(endless.kafka, keyspace_name)
        source.run("XA START 'x'", "INSERT INTO t VALUES (7, 'prepared')", "XA END 'x'", "XA PREPARE 'x'")
        other = connect(source.settings)
        other.query(f"INSERT INTO {source.database}.u VALUES (8)")  # with which MariaDB's connector passes the others
        other.close()
        until(lambda: bool(running.source.status.outage), "the source waits")
        assert last_position(endless.kafka, keyspace_name) == before
        source.run("XA COMMIT 'x'")
        committed = source.position()
        source.run("INSERT INTO u VALUES (9)")
        until(lambda: is_past(endless, keyspace_name, source.position()), "what is behind the commit")
    at = [
        Position.parse(gtid)
        for _, found, _, gtid in rows(records(endless.kafka, keyspace_name, PARTITIONS))
        if found == key
    ]
    assert any(each.contains(Position.parse(committed)) for each in at)


@pytest.mark.nightly
def test_another_mode_of_the_connector_begins_an_epoch(endless: Captured, keyspace_name: str) -> None:
    """What was void is published from then on; and the other way round, where rows look as those of XA."""
    source = endless.source
    with RunningDebezium(endless, keyspace_name) as running:
        running.until_published(source.position())
        epoch = running.source.status.epoch
        endless.create(heartbeat__interval__ms="200")
        until(lambda: running.source.status.epoch > epoch, "a new epoch")

        def carries() -> bool:
            source.run("REPLACE INTO t VALUES (1, 'told')")
            return any(images(endless, keyspace_name))

        until(carries, "an image")
        epoch = running.source.status.epoch
        endless.create(provide__transaction__metadata="false", heartbeat__interval__ms="200")

        def begins_anew() -> bool:
            source.run("REPLACE INTO t VALUES (1, 'not told')")
            assert not running.future.done(), running.future.exception()
            return running.source.status.epoch > epoch

        until(begins_anew, "another epoch")
        source.begin()
        source.run("REPLACE INTO t VALUES (1, 'void')")
        running.until_published(source.position())
    assert not not_told(endless, keyspace_name)


@pytest.mark.nightly
def test_more_keys_than_may_be_held_void_their_table(
    endless: Captured, keyspace_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing goes to disk, which may be full: the source would end, and again after each start."""

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    source = endless.source
    with RunningDebezium(endless, keyspace_name, spill_bytes=3_000) as running:
        running.until_published(source.position())
        source.begin()
        source.run("BEGIN", *(f"INSERT INTO t VALUES ({each}, 'x')" for each in range(100, 140)), "COMMIT")
        running.until_published(source.position())
    assert not not_told(endless, keyspace_name)


class Rows:
    """A reader that holds 2,000 bytes of keys, and takes changes of a table with the columns ``id`` and ``i``."""

    name = "shop.typed"

    def __init__(self) -> None:
        text, rows = typed("mariadb")
        envelope, self._row = json.loads(text), json.loads(rows[2])
        fields = envelope["fields"][0]["fields"]
        envelope["fields"][0]["fields"] = [field for field in fields if field["field"] in ("id", "i")]
        self.envelope = json.dumps(envelope).encode()
        schema = DebeziumSchema(ConnectionSettings(), TableFilter(("shop",)), lambda _: True)
        info = TableInfo("shop", "typed", (ColumnInfo("id", "int", True), ColumnInfo("i", "int", True)), ("id",))
        schema.catalog.describe_as({info.name: info.describe()})
        schema.catalog.resume({info.name: info}, GtidPosition({}))
        topics: Any = SimpleNamespace()
        self.reader = InvalidatingReader(lambda: None, topics, schema, "MariaDB/0-1-1", Places(1), "MariaDB", 2_000)

    def change(self, number: int, before: int | None = None) -> None:
        """The row of a number changes. ``before``: it had another number."""
        old, new = map(self.image, (number if before is None else before, number))
        self.reader._add(RowMessage(self.name, gtid_of("0-1-2"), 0, "u", self.envelope, old, new, 1), Place("t", 0, 9))

    def image(self, number: int) -> bytes:
        """A row as a message has it."""
        return json.dumps({"id": number, "i": self._row["i"]}).encode()


def test_keys_are_held_once_up_to_a_bound() -> None:
    """A row that changes often takes no more room, and what is void by then is not forgotten."""
    rows = Rows()
    reader = rows.reader
    for _ in range(50):
        rows.change(1)
    rows.change(2)
    ended = reader._ended(reader._now)
    assert ended.keys == [row_key(rows.name, [number]) for number in (1, 2)]
    assert not ended.voids
    reader._now = reader._new_read()
    for number in range(50):
        rows.change(number)
    ended = reader._ended(reader._now)
    assert list(ended.voids) == [rows.name]
    assert not ended.keys


def test_what_is_held_leaves_less_room_to_what_is_read_next() -> None:
    """Else as much again is held of each position, for as long as a transaction is not decided."""
    rows = Rows()
    reader = rows.reader
    voids: list[list[str]] = []
    for first in (0, 100, 200):
        for number in range(first, first + 8):
            rows.change(number)
        reader._held.append(reader._ended(reader._now))
        reader._now = reader._new_read()
        voids.append(list(reader._held[-1].voids))
    assert voids == [[], [], [rows.name]]
    assert [len(each.keys) for each in reader._held][:2] == [8, 8]
    assert len(reader._held[2].keys) < 8


def test_a_row_that_gets_another_key_leaves_its_old_one() -> None:
    """A connector whose messages have keys of their own tells that in one message, not as a deletion and a new row."""
    rows = Rows()
    rows.change(2, before=1)
    ended = rows.reader._ended(rows.reader._now)
    assert ended.keys == [row_key(rows.name, [number]) for number in (1, 2)]


@pytest.mark.parametrize("changed", [False, True])
def test_a_row_of_a_table_whose_columns_are_not_known_voids_all_of_it(changed: bool) -> None:
    """Once they are known: nobody can tell which row it was. Also where others had been read of it before a DDL."""
    rows = Rows()
    reader, catalog = rows.reader, rows.reader._schema.catalog
    if changed:
        rows.change(1)
    catalog.doubt(rows.name, reader._schema.get(rows.name), GtidPosition({}))
    rows.change(2)
    catalog.settle(GtidPosition({}), frozenset)
    reader._held.append(reader._ended(reader._now))
    changes = reader._invalidation().changes
    assert [each.table for each in changes if isinstance(each, VoidTable)] == [rows.name]
    assert reader._held[0].keys == [row_key(rows.name, [1])] * changed

    """An XA transaction is in the log before anybody names it: meanwhile its session owns the GTID."""
    uuid = "00000000-0000-0000-0000-000000000001"
    schema = DebeziumSchema(ConnectionSettings(), TableFilter(("shop",)), lambda _: True)
    topics: Any = SimpleNamespace()
    reader = InvalidatingReader(lambda: None, topics, schema, f"MySQL56/{uuid}:1-5", Places(1), "MySQL", 2_000)
    read, end = reader._now, MysqlGtidSet.of(f"{uuid}:1-7")
    read.last.add(gtid_of(f"{uuid}:6"))
    reader._held.append(read)
    for owned in (f"{uuid}:6-7", f"{uuid}:6"):
        reader._settle_held(Settled(end, MysqlGtidSet.of(owned)))
        assert reader._held_on(read)
        assert read.settled_at is None
    reader._settle_held(Settled(end, MysqlGtidSet.of(f"{uuid}:7")))
    assert str(read.settled_at) == f"MySQL56/{uuid}:1-7"


def test_what_is_told_behind_the_end_of_the_log_is_held_until_the_position_has_it() -> None:
    """A server that was asked may lag behind the one that the connector reads."""
    rows = Rows()
    rows.change(1)
    held = rows.reader._ended(rows.reader._now)
    rows.reader._held.append(held)
    rows.reader._settle_held(Settled(GtidPosition.parse("MariaDB/0-1-1"), None))
    assert str(held.settled_at) == "MariaDB/0-1-2"
    assert rows.reader._held_on(held)
    rows.reader._position.add(gtid_of("0-1-2"))
    assert not rows.reader._held_on(held)


def test_who_does_not_say_how_far_is_told_is_named_once() -> None:
    """Else a source of a Kafka Connect that is too old would say nothing, and publish nothing."""
    offsets = ConnectorOffsets(KafkaConnect("http://127.0.0.1:1"), "name", "p", "MariaDB")
    with capture_logs() as logs:
        assert offsets.told() is None
        assert offsets.told() is None
    [said] = logs
    assert said["code"] == "connect_unreachable"
    assert "3.6" in said["hint"]


def test_a_connector_without_heartbeats_is_refused(endless: Captured, keyspace_name: str) -> None:
    """On an idle server nobody would know that its last transaction is told."""
    endless.create(provide__transaction__metadata="false")
    with pytest.raises(DebeziumError, match=r"heartbeat\.interval\.ms"), RunningDebezium(endless, keyspace_name):
        pass


def test_offsets_count_when_they_are_of_this_connector_and_streaming() -> None:
    """Those of a snapshot name what its messages do not tell; another prefix is what the connector once had."""

    def answer(prefix: str = "p", **offset: object) -> dict[str, Any]:
        return {"offsets": [{"partition": {"server": prefix}, "offset": offset}]}

    assert offsets_of(answer(gtids="0-1-5"), "p") == ("0-1-5", True)
    assert offsets_of(answer(gtids="0-1-5", event=2, row=1), "p") == ("0-1-5", False)
    for nothing in (
        answer(file="x"),
        answer(gtids="0-1-5", snapshot=True),
        answer("q", gtids="0-1-5"),
        dict[str, Any](offsets=[]),
    ):
        assert offsets_of(nothing, "p") is None


def test_the_last_of_a_domain_counts_whoever_wrote_it() -> None:
    """A connector names the last GTID of each server in the order in which it met them."""
    assert str(position_of("0-1-9,0-2-7,1-3-4", "MariaDB")) == "MariaDB/0-1-9,1-3-4"
    with pytest.raises(DebeziumError):
        position_of("0-1-9", "MySQL")
    with pytest.raises(DebeziumError):
        position_of("nonsense", "MariaDB")


@pytest.mark.parametrize("within", [{"event": 2}, {"row": 1}, {"event": 2, "row": 1}])
def test_offsets_within_a_transaction_are_between_no_two(within: dict[str, int]) -> None:
    """Of one event with many rows, as of an event behind others: what it names last is not told to its end."""
    answer = {"offsets": [{"partition": {"server": "p"}, "offset": {"gtids": "0-1-5", **within}}]}
    assert offsets_of(answer, "p") == ("0-1-5", False)


def test_what_is_read_and_not_void_yet_is_read_again_after_a_restart() -> None:
    """It is void with the next position: a source that is killed before that must find it."""
    rows = Rows()
    rows.reader._topics.reached = {("t", 0): 20, ("u", 0): 3}
    assert rows.reader._starts() == {("t", 0): 20, ("u", 0): 3}
    rows.change(1)
    assert rows.reader._starts() == {("t", 0): 9, ("u", 0): 3}
