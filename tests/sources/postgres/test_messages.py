"""What a connector's messages say of PostgreSQL's transactions, and how positions follow them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster
from stream.sources.debezium.connector import Connector, checked
from stream.sources.debezium.errors import DebeziumError
from stream.sources.debezium.messages import End, Malformed, RowMessage, Snapshot, read_end, read_row
from stream.sources.debezium.places import Places, read_places
from stream.sources.debezium.reader import DebeziumReader
from stream.sources.debezium.transactions import Place
from stream.sources.mariadb.connection import ConnectionSettings, SourceHistoryLost
from stream.sources.mariadb.gtid import GtidPosition, PostgresCommit, PostgresPlace
from stream.sources.mariadb.schema import ColumnInfo, TableFilter, TableInfo
from stream.sources.postgres.reader import InvalidatingPostgresReader, PostgresReader
from stream.sources.postgres.schema import PostgresSchema
from stream.sources.postgres.tables import storage_of
from stream.wire.events import VoidTable
from tests.servers.connect import postgres_config

SOURCE = {"connector": "postgresql", "ts_ms": 7_000, "db": "d", "schema": "public", "table": "t", "lsn": 90}


def message(payload: dict[str, Any]) -> bytes:
    """A message with some schema."""
    return json.dumps({"schema": {"type": "struct"}, "payload": payload}).encode()


def row(sequence: str | None, **more: Any) -> bytes:
    """A message of a row."""
    payload = {"op": "c", "source": SOURCE | {"sequence": sequence}, "before": None, "after": {"id": 1}}
    return message(payload | {"transaction": {"id": "760:90", "total_order": 2}} | more)


def test_a_row_tells_the_commit_before_its_own() -> None:
    """By that a source that reads again passes over what is published, whose end it does not read again."""
    found = read_row(row('["50","90"]'), "PostgreSQL")
    assert isinstance(found, RowMessage)
    assert (found.table, found.order, found.operation) == ("public.t", 2, "c")
    assert found.transaction == PostgresCommit(760, 0)
    assert isinstance(found.transaction, PostgresCommit)
    assert found.transaction.lsn == 51
    first = read_row(row('[null,"90"]'), "PostgreSQL")
    assert isinstance(first, RowMessage)
    assert isinstance(first.transaction, PostgresCommit)
    assert first.transaction.lsn == 2**64 - 1


def test_truncate_is_a_row_of_its_transaction_and_a_snapshot_is_at_its_place() -> None:
    """TRUNCATE is counted at the transaction's end as a row is."""
    found = read_row(row('["50","90"]', op="t", after=None), "PostgreSQL")
    assert isinstance(found, RowMessage)
    assert (found.operation, found.after) == ("t", b"")
    read = message({"op": "r", "source": SOURCE | {"snapshot": "first"}, "after": {"id": 1}})
    assert read_row(read, "PostgreSQL") == Snapshot("90")


def test_an_end_is_where_the_commit_ends() -> None:
    """Its place is the position that the transaction leads to."""
    end = {"status": "END", "id": "760:120", "ts_ms": 7_000}
    found = read_end(
        message(end | {"data_collections": [{"data_collection": "public.t", "event_count": 3}]}), "PostgreSQL"
    )
    assert found is not None
    assert isinstance(found.gtid, PostgresCommit)
    assert (found.gtid.xid, found.gtid.lsn, found.counts) == (760, 120, (("public.t", 3),))
    for text in ("760", "a:1", "1:0/1"):
        with pytest.raises(Malformed):
            read_end(message(end | {"id": text}), "PostgreSQL")


@pytest.mark.parametrize("sequence", [None, "x", "[1]", '["a","90"]'])
def test_a_row_without_the_commit_before_it_is_refused(sequence: str | None) -> None:
    """It may be one that is published."""
    with pytest.raises(Malformed):
        read_row(row(sequence), "PostgreSQL")


def test_a_position_follows_commits_on_its_timeline() -> None:
    """Another timeline has other transactions at the same places."""
    position = GtidPosition.parse("Postgres/2:0/10")
    assert isinstance(position, PostgresPlace)
    commit = PostgresCommit(5, 0x20)
    assert position.precedes(commit)
    position.add(commit)
    assert not position.precedes(commit)
    assert (str(position), position.text_of(commit)) == ("Postgres/2:0/20", "Postgres/2:0/20")
    assert position.covers(GtidPosition.parse("Postgres/2:0/20"))
    assert not position.covers(GtidPosition.parse("Postgres/2:0/21"))
    assert not position.covers(GtidPosition.parse("Postgres/1:0/5"))
    assert not position.covers(GtidPosition.parse("MariaDB/0-1-5"))


def test_the_last_commit_is_kept_with_the_places() -> None:
    """Places of before, and of other servers, have none."""
    places = Places(7, {("p.public.t", 0): 3}, "90", told=120, storage=5)
    assert read_places(places.words("p"), "p") == places
    places.told = 0
    assert read_places(places.words("p"), "p") == places, "an epoch in which nothing was committed yet"
    places.storage = 0
    assert "told" not in places.words("p")
    assert read_places(places.words("p"), "p") == places


@pytest.mark.parametrize("kind", [PostgresReader, InvalidatingPostgresReader])
def test_the_slot_is_asked_once_a_look(kind: type[PostgresReader], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ends what it confirms is what the position moves to; else what an idle shard may say."""
    asked: list[str] = []

    def confirmed() -> PostgresPlace:
        asked.append("slot")
        return PostgresPlace(1, 16)

    schema: Any = SimpleNamespace(confirmed=confirmed, end_of_log=lambda: PostgresPlace(1, 16))
    monkeypatch.setattr(DebeziumReader, "_look", lambda _: asked.append("topics"))
    monkeypatch.setattr(PostgresReader, "_note_changes", lambda _: None)
    arguments: list[Any] = [SimpleNamespace(), schema, "Postgres/1:0/10", Places(1), "PostgreSQL", 1 << 20]
    reader = kind(*([confirmed] if kind is InvalidatingPostgresReader else []), *arguments)
    if isinstance(reader, InvalidatingPostgresReader):
        reader._asked_position()
    reader._look()
    assert asked == ["slot", "topics"]


CONFIG = postgres_config(KafkaCluster("127.0.0.1:1"), MariaDBAddress("127.0.0.1", 1, "u", ""), "d", "p")


def test_a_connector_names_its_slot_and_publication() -> None:
    """They are asked for at the server, and another slot is another history."""
    found = checked("c", CONFIG, "PostgreSQL")
    assert (found.publication, found.slot) == ("p", "p")
    assert found.fingerprint != checked("c", CONFIG | {"slot.name": "q"}, "PostgreSQL").fingerprint
    assert Connector("c", ("", "")).fingerprint == Connector("c", ("", ""), publication="", slot="").fingerprint


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("plugin.name", "decoderbufs"),
        ("lsn.flush.mode", "connector_and_driver"),
        ("lsn.flush.mode", "manual"),
        ("flush.lsn.source", "false"),
        ("offset.mismatch.strategy", "trust_slot"),
        ("offset.mismatch.strategy", "trust_greater_lsn"),
        ("heartbeat.interval.ms", "0"),
        ("heartbeat.action.query", " "),
        ("unavailable.value.placeholder", "x"),
        ("schema.include.list", "public"),
        ("slot.drop.on.stop", "true"),
        ("connector.class", "io.debezium.connector.mysql.MySqlConnector"),
    ],
)
def test_a_connector_that_hides_changes_is_refused(setting: str, value: str) -> None:
    """Nothing that it does then can be seen in its messages."""
    with pytest.raises(DebeziumError):
        checked("c", CONFIG | {setting: value}, "PostgreSQL")


def test_the_mode_of_a_connector_that_has_run_is_not_changed_by_itself() -> None:
    """Debezium refuses to start it again for good where its tables were idle: the hint is to read the page first."""
    with pytest.raises(DebeziumError) as refused:
        checked("c", CONFIG | {"lsn.flush.mode": "connector_and_driver"}, "PostgreSQL")
    assert "as docs/operating/postgres.md says" in refused.value.hint


def test_a_connector_may_validate_its_offset() -> None:
    """It refuses a slot that was made anew then, as by default."""
    checked("c", CONFIG | {"offset.mismatch.strategy": "trust_offset"}, "PostgreSQL")


@pytest.mark.parametrize(("announced", "unsaid", "noted"), [({}, False, 5), ({"s.t": "why"}, False, 0), ({}, True, 0)])
def test_what_rows_are_stored_in_is_noted_once_what_was_rewritten_is_void(
    announced: dict[str, str], unsaid: bool, noted: int
) -> None:
    """A source that is killed before that finds by it what somebody has rewritten. A look, which tells nobody, notes
    nothing of it: else who is killed soon after would void every table.
    """
    schema: Any = SimpleNamespace(storage=5, has_unsaid=unsaid)
    places, topics = Places(1), SimpleNamespace(reached={})
    reader = PostgresReader(topics, schema, "Postgres/1:0/10", places, "PostgreSQL", 1 << 20)
    reader._maps.announced.update(announced)
    reader.note_places()
    assert (places.storage, reader.would_void) == (0, noted > 0)
    reader.note_storage()
    assert places.storage == noted


def schema_of(*, locked: frozenset[str] = frozenset()) -> tuple[PostgresSchema, list[Any]]:
    """A schema of one table, which has been described, and what the server says of its tables, its place and locks."""
    info = TableInfo("s", "t", (ColumnInfo("id", "int", True),), ("id",), engine="d heap 1")
    said: list[Any] = [{info.name: info}, PostgresPlace(1, 16), locked]
    schema = PostgresSchema(ConnectionSettings(), TableFilter(("s",)), lambda _: True, "p", "slot", storage_of(said[0]))
    vars(schema)["_asked"] = lambda _: tuple(said)
    schema.catalog.describe_as({info.name: info.describe()})
    return schema, said


def test_what_was_rewritten_while_a_source_was_away_is_void_once() -> None:
    """Said again and again, the table would never be cached, and what it is stored in never be noted."""
    schema, _ = schema_of()
    schema.storage = 0
    schema.load()
    assert schema.has_unsaid
    assert schema.changed(PostgresPlace(1, 16)).keys() == {"s.t"}
    assert not schema.has_unsaid
    assert schema.changed(PostgresPlace(1, 16)) == {}


def test_a_type_that_changed_within_its_kind_while_a_source_was_away_voids_its_table() -> None:
    """A ``timestamp(3)`` has other values than a ``timestamp(6)``, and a renamed value of an ENUM is another one."""
    schema, said = schema_of()
    for sql_type, is_void in (("", False), ("bigint", True)):
        column = ColumnInfo("id", "int", True, sql_type=sql_type)
        said[0] = {"s.t": TableInfo("s", "t", (column,), ("id",), engine="d heap 1")}
        schema.load()
        assert schema.has_unsaid is is_void


def test_a_table_that_a_session_has_locked_is_void_before_it_is_altered() -> None:
    """The position passes the commit of an ALTER TABLE that the catalog does not show yet."""
    schema, said = schema_of()
    schema.load()
    assert schema.changed(PostgresPlace(1, 16)) == {}
    said[2] = frozenset({"s.t", "s.other"})
    assert schema.changed(PostgresPlace(1, 16)).keys() == {"s.t"}


@pytest.mark.parametrize("timeline", [1, 3])
def test_a_catalog_of_another_timeline_is_another_history(timeline: int) -> None:
    """A server that was promoted, or restored, has other commits at the same places."""
    schema, said = schema_of()
    schema.load()
    said[1] = PostgresPlace(timeline, 16)
    with pytest.raises(SourceHistoryLost):
        schema.changed(PostgresPlace(2, 16))


def test_an_idle_shard_does_not_move_past_what_was_altered() -> None:
    """The log tells no ALTER TABLE, and nothing else may be committed for long."""
    schema, _ = schema_of()
    schema.load()
    schema.changed = lambda _: {"s.t": "its schema changed"}  # type: ignore[assignment, method-assign]
    topics = SimpleNamespace(ends=dict, has_reached=lambda _: True)
    reader = PostgresReader(topics, schema, "Postgres/1:0/10", Places(1), "PostgreSQL", 1 << 20)
    reader._confirmed = PostgresPlace(1, 32)
    [found] = reader._idle()
    assert found is not None
    assert found.position == "Postgres/1:0/20"
    assert [each.table for each in found.changes if isinstance(each, VoidTable)] == ["s.t"]


def test_an_idle_shard_does_not_move_past_what_it_reads_meanwhile() -> None:
    """The connector has confirmed it, so it is in the topics: it would pass for published."""
    schema, _ = schema_of()
    schema.load()
    reached = iter([False, True])
    topics = SimpleNamespace(ends=dict, has_reached=lambda _: next(reached))
    reader = PostgresReader(topics, schema, "Postgres/1:0/10", Places(1), "PostgreSQL", 1 << 20)
    reader._confirmed, commit = PostgresPlace(1, 32), PostgresCommit(760, 24)

    def feed() -> int:
        reader._assembler.end(End(commit, (), 7), Place("p.transaction", 0, 3))
        return 1

    reader._feed = feed  # type: ignore[method-assign]
    assert list(reader._idle()) == []
    assert not reader._is_published(commit)
