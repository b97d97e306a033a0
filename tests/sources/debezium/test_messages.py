"""What single messages say, and what is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stream.sources.debezium.errors import DebeziumError
from stream.sources.debezium.invalidating import InvalidatingReader
from stream.sources.debezium.messages import (
    Malformed,
    RowMessage,
    Snapshot,
    Statement,
    gtid_of,
    read_end,
    read_row,
    read_statement,
)
from stream.sources.debezium.places import Places
from stream.sources.debezium.reader import DebeziumReader
from stream.sources.debezium.schema import DebeziumSchema
from stream.sources.debezium.transactions import Place
from stream.sources.mariadb.binlog.reading.logged_statements import LoggedStatements
from stream.sources.mariadb.binlog.reading.transaction import OpenTransaction
from stream.sources.mariadb.connection import ConnectionSettings, SourceHistoryLost
from stream.sources.mariadb.gtid import Gtid, MysqlGtid
from stream.sources.mariadb.schema import TableFilter
from tests.sources.debezium.samples import SERVERS, story, wrapped

UUID = "d0bb26eb-ea1a-11f1-8ee7-02fc00000001"


def test_gtids_of_both_servers_are_read() -> None:
    """A connector writes them as its server does."""
    assert gtid_of("0-1-5") == Gtid(0, 1, 5, 0)
    assert gtid_of(f"{UUID.upper()}:7") == MysqlGtid(UUID, "", 7)
    assert gtid_of(f"{UUID}:tag:7") == MysqlGtid(UUID, "tag", 7)
    for wrong in ("", "0-1", f"{UUID}:1-2", f"{UUID}:1:3", "x:1", f"{UUID}:1,{UUID}:2"):
        with pytest.raises(Malformed):
            gtid_of(wrong)


@pytest.mark.parametrize("kind", SERVERS)
def test_truncate_and_ddl_are_statements_with_their_own_gtid(kind: str) -> None:
    """TRUNCATE is told in the table's topic, all other DDL in one topic, also once for each table that it names."""
    rows = [read_row(each.value, SERVERS[kind]) for each in story(kind) if each.topic == ".shop.doomed"]
    [truncate] = [each for each in rows if isinstance(each, Statement)]
    assert (truncate.sql, truncate.database) == ("TRUNCATE TABLE `shop`.`doomed`", "shop")
    ddl = [read_statement(each.value, SERVERS[kind]) for each in story(kind) if each.topic == ""]
    renames = [each for each in ddl if isinstance(each, Statement) and "swapx" in each.sql]
    assert len(renames) == 2
    assert {each.tables for each in renames} == {("swap1", "swap2", "swapx")}
    assert len({each.gtid for each in renames}) == 1


@pytest.mark.parametrize("kind", SERVERS)
def test_a_snapshot_is_a_sign_and_brings_no_rows(kind: str) -> None:
    """Where a connector begins anew, it may have passed over changes; its rows are read from the server instead."""
    reads = [each for each in story(kind) if each.topic == ".shop.before_two" and b'"op": "r"' in each.value]
    ddl = [each for each in story(kind) if each.topic == "" and b'"snapshot": "true"' in each.value]
    assert reads
    assert ddl
    signs = {read_row(each.value, SERVERS[kind]) for each in reads}
    signs |= {read_statement(each.value, SERVERS[kind]) for each in ddl}
    [sign] = signs
    assert isinstance(sign, Snapshot)
    assert sign.place.startswith("binlog.")


def row(**more: Any) -> dict[str, Any]:
    """A row event of MySQL's connector."""
    source = {"connector": "mysql", "ts_ms": 7_000, "snapshot": "false", "db": "s", "table": "t", "gtid": f"{UUID}:5"}
    source |= more.pop("source", {})
    payload = {"op": "c", "before": None, "after": {"id": 1}, "source": source}
    return payload | {"transaction": {"id": f"{UUID}:5", "total_order": 1, "data_collection_order": 1}} | more


def test_rows_of_an_incremental_snapshot_change_nothing() -> None:
    """They are what is in the table already."""
    assert read_row(wrapped(row(op="r", source={"snapshot": "incremental"})), "MySQL") is None
    assert read_row(wrapped(row(op="m")), "MySQL") is None


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"\0\0\0\0\7avro", "debezium_unsupported"),
        (b'{"op":"c","source":{"connector":"mysql"}}', "debezium_unsupported"),
        (wrapped(row()).replace(b'{"type": "struct"}', b"null"), "debezium_unsupported"),
        (wrapped(row(source={"connector": "postgresql"})), "debezium_unsupported"),
        (wrapped(row(source={"connector": "mariadb"})), "debezium_unsupported"),
        (wrapped(row(source={"version": "10.0", "gtid": None})), "debezium_unsupported"),
        (wrapped(row(transaction=None)), "debezium_xa_transaction"),
        (wrapped(row(transaction={"id": "file=binlog.000003,pos=4", "total_order": 1})), "debezium_bad_connector"),
        (wrapped(row(op="t", source={"gtid": None})), "debezium_bad_connector"),
    ],
)
def test_what_cannot_be_a_source_is_refused_with_a_code(value: bytes, code: str) -> None:
    """A source that went on would publish a history with holes."""
    with pytest.raises(DebeziumError) as refused:
        read_row(value, "MySQL")
    assert refused.value.code == code
    assert refused.value.hint


def reader_of(**options: Any) -> DebeziumReader:
    """A reader that has published four transactions."""
    schema = DebeziumSchema(ConnectionSettings(), TableFilter(("s",)), lambda _: True)
    topics: Any = SimpleNamespace(
        statements="p",
        transactions="p.transaction",
        is_told_elsewhere=options.get("is_told_elsewhere", lambda _: False),
    )
    arguments = topics, schema, f"MySQL56/{UUID}:1-4", Places(1), "MySQL", 1 << 20
    return InvalidatingReader(lambda: None, *arguments) if options.get("voids") else DebeziumReader(*arguments)


def take(reader: DebeziumReader, value: bytes) -> None:
    """The reader takes a message of a table's topic."""
    message: Any = SimpleNamespace(
        topic=lambda: "p.s.t", partition=lambda: 0, offset=lambda: 7, error=lambda: None, value=lambda: value
    )
    reader._take(message)


def is_taken(reader: DebeziumReader, number: int, version: str, **more: Any) -> bool:
    """Whether a message of the transaction with this number waits to be published."""
    take(reader, wrapped(row(source={"gtid": f"{UUID}:{number}", "version": version}, **more)))
    return bool(reader._assembler.starts({}))


def test_a_connector_that_began_anew_begins_one_epoch() -> None:
    """Its snapshot is told in the topics of all tables, and each message of it would begin one more."""
    reader = reader_of()
    values = [wrapped(row(op="r", source={"snapshot": "true", "file": "binlog.7", "pos": pos})) for pos in (4, 9)]
    for value in values:
        with pytest.raises(SourceHistoryLost):
            take(reader, value)
        take(reader, value)


def test_an_old_snapshot_in_a_topic_that_is_read_from_its_beginning_begins_no_epoch() -> None:
    """A table that is added to those that are published would void all the others."""
    asked: list[Place] = []

    def is_told_elsewhere(place: Place) -> bool:
        asked.append(place)
        return True

    sign = row(op="r", source={"snapshot": "true", "file": "binlog.7", "pos": 4})
    take(reader_of(is_told_elsewhere=is_told_elsewhere), wrapped(sign))
    assert asked == [("p.s.t", 0, 7)]


@pytest.mark.parametrize("version", ["1.9.7.Final", "4.0.0.Final"])
def test_what_a_version_that_is_not_known_wrote_is_passed_over_once_it_is_published(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is read from its beginning has messages of before the connector was upgraded."""
    for more in ({}, {"transaction": None}, {"op": "t", "after": None}):
        with pytest.raises(DebeziumError, match=version):
            is_taken(reader_of(), 5, version, **more)
    assert not is_taken(reader_of(), 4, version)
    assert not is_taken(reader_of(), 4, version, transaction=None)
    seen: list[Any] = []
    monkeypatch.setattr(DebeziumReader, "_see", lambda *words: seen.append(words[1].sql))
    is_taken(reader_of(), 4, version, op="t", after=None)
    assert seen == ["TRUNCATE TABLE `s`.`t`"]
    with pytest.raises(DebeziumError, match=version):
        is_taken(reader_of(voids=True), 4, version)
    assert is_taken(reader_of(), 5, "3.5.0.Final")


def test_rows_behind_a_statement_are_decoded_by_the_table_as_it_is_then() -> None:
    """Messages of before and after it may have one schema: Debezium does not tell all that a DDL changes."""
    reader, nothing = reader_of(), SimpleNamespace(apply=lambda *_: None)
    reader._statements = cast("LoggedStatements", nothing)
    reader._decoders[b"{}", "s.t"] = "its columns are others"
    reader._reread.add((b"{}", "s.t"))
    reader._see(Statement(gtid_of(f"{UUID}:5"), "ALTER TABLE t MODIFY a INT", "s", ("t",), 7), Place("p", 0, 7))
    assert not reader._decoders
    assert not reader._reread, "one that does not fit is read again"


def test_rows_of_a_connector_that_tells_no_ends_need_no_transaction() -> None:
    """All of them are like rows of XA; their GTID is that of the source."""
    found = read_row(wrapped(row(transaction=None, source={"version": "3.5.0.Final"})), "MySQL", tells_ends=False)
    assert isinstance(found, RowMessage)
    assert (found.table, found.transaction) == ("s.t", MysqlGtid(UUID, "", 5))
    with pytest.raises(DebeziumError):
        read_row(wrapped(row(transaction=None, source={"gtid": None})), "MySQL", tells_ends=False)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[1",
        b"\xff",
        wrapped([1]),
        wrapped({"op": 1}),
        wrapped("text"),
        wrapped({"op": "~", "status": "~", "ddl": "~"}).replace(b"~", b"\xff"),
        b'{"later":' + b"[" * 100_000,
    ],
)
def test_what_nobody_can_read_is_malformed(value: bytes) -> None:
    """It may have been anything, so everything before it is void."""
    for read in (lambda: read_row(value, "MySQL"), lambda: read_statement(value, "MySQL"), lambda: read_end(value)):
        with pytest.raises(Malformed):
            read()


def test_ends_say_how_many_events_of_each_table_there_are() -> None:
    """A beginning says nothing that an end does not."""
    counts = [{"data_collection": "s.t", "event_count": 3}, {"data_collection": "s.ü.x", "event_count": 1}]
    payload = {"status": "END", "id": "0-1-5", "event_count": 4, "data_collections": counts, "ts_ms": 9_999}
    found = read_end(wrapped(payload))
    assert found is not None
    assert (found.gtid, found.counts, found.timestamp) == (Gtid(0, 1, 5, 0), (("s.t", 3), ("s.ü.x", 1)), 9)
    assert read_end(wrapped({**payload, "status": "BEGIN", "data_collections": None})) is None


def test_rows_are_decoded_by_a_schema_that_is_known_since() -> None:
    """Messages of before and after it may have one schema."""
    reader = reader_of()
    reader._decoders[b"{}", "s.t"] = "its columns are others"
    reader._schema.settle = lambda _: {}  # type: ignore[assignment, method-assign]
    reader._settle(OpenTransaction.of_nobody(1))
    assert reader._decoders
    reader._schema.settle = lambda _: {"s.t": True}  # type: ignore[assignment, method-assign]
    reader._settle(OpenTransaction.of_nobody(1))
    assert not reader._decoders


def test_a_new_topic_is_not_read_while_a_transaction_is_prepared() -> None:
    """It may have told its rows in there, before anybody read it, and its end is never told."""
    asked: list[str] = []
    topics: Any = SimpleNamespace(look_for=lambda _: ["s.t"], reached={})
    schema: Any = SimpleNamespace(
        catalog=SimpleNamespace(names={"s.t"}),
        check_prepared=lambda: asked.append("prepared"),
        reread=lambda *name: asked.append(".".join(name)),
        sample=lambda: None,
    )
    DebeziumReader(topics, schema, f"MySQL56/{UUID}:1-4", Places(1), "MySQL", 1 << 20)._look()
    assert asked == ["prepared", "s.t"]
