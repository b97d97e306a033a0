"""What is let go, kept, and asked again when a connection is replaced, or leads to another server. Without a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stream.sources.mariadb import live_schema, source, watch
from stream.sources.mariadb.backfill import chunks
from stream.sources.mariadb.backfill.chunks import ChunkReader
from stream.sources.mariadb.backfill.plan import After, Chunk
from stream.sources.mariadb.backfill.reading import ChunkReading, Wanted
from stream.sources.mariadb.binlog.catalog import Catalog, held_words
from stream.sources.mariadb.binlog.events import LogPlace
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBUnreachable, ServerSettingsError
from stream.sources.mariadb.gtid import Gtid, GtidPosition
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.schema import ColumnInfo, TableFilter, TableInfo
from stream.sources.mariadb.watch import STALL_MAX_S, DumpWatch
from stream.wire.events import BackfillTable, DescribeTable, ResumePoint, SourceTransaction
from stream.wire.keys import row_key
from tests.patience import PATIENCE_S
from tests.sources.mariadb.test_backfill_plan import DESCRIBED, TABLE, at, chunk, row
from tests.sources.mariadb.test_backfill_run import BEFORE, REACHED, Asking, Watched, hot

NOWHERE = ConnectionSettings(port=1)


# -- the server beside the log -----------------------------------------------------------------------------------------


def test_an_event_shows_that_the_connection_is_not_left_behind() -> None:
    """Another server at the address has more for a while: what arrives meanwhile comes from where it is written."""
    now = [100.0]
    made = DumpWatch(NOWHERE, 1, lambda: now[0])
    read, there = GtidPosition.parse(at(5)), GtidPosition.parse(at(6))
    made._check_other_server(read, there)
    made.event_received()
    now[0] += STALL_MAX_S + 1
    made._check_other_server(read, there)
    now[0] += STALL_MAX_S + 1
    with pytest.raises(MariaDBUnreachable, match="another server"):
        made._check_other_server(read, there)


def test_a_session_that_failed_is_replaced_at_the_next_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the dead one each later check would fail, and be passed over: a lost history would never be noticed."""
    opened: list[str] = []

    def connect(_: ConnectionSettings) -> Any:
        opened.append("opened")
        return SimpleNamespace(_force_close=lambda: opened.append("closed"))

    def check_server(_: Any) -> bool:
        raise MariaDBUnreachable("the session was ended")

    monkeypatch.setattr(watch, "connect", connect)
    monkeypatch.setattr(watch, "check_server", check_server)
    made = DumpWatch(NOWHERE, 1)
    for _ in range(2):
        made.check(at(5))
    assert opened == ["opened", "closed"] * 2


def test_the_session_that_tells_of_tables_is_replaced_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is lost with the same server. Kept, it would fail each attempt to go on."""
    told: list[str] = []
    catalog = SimpleNamespace(describe_as=lambda _: None)
    schema = SimpleNamespace(catalog=catalog, hold_again=lambda _: None, close=lambda: told.append("closed"))
    publisher: Any = SimpleNamespace(annotate=lambda _: None)
    mine = source.MariaDBSource(source.SourceOptions(NOWHERE, "s/0"), lambda: publisher)

    def read(*_: Any) -> None:
        told.append("read")
        if told.count("read") == 2:
            mine.stop()
            return
        raise MariaDBUnreachable("it restarts")

    monkeypatch.setattr(mine, "_new_schema", lambda: schema)
    monkeypatch.setattr(mine, "_read", read)
    monkeypatch.setattr(mine, "_wait", lambda *_: None)
    mine._follow(publisher, ResumePoint("s/0", 1, 9, at(5), 1, at(5)))
    assert told == ["read", "closed", "read", "closed"]


def test_what_a_table_waits_for_is_kept_with_the_transaction_that_has_it_wait() -> None:
    """A source that begins behind the transaction would else find it held by a state that does not say for what."""
    told: list[str] = []
    publisher: Any = SimpleNamespace(publish=lambda _: told.append("published"), annotate=lambda _: told.append("kept"))
    catalog = Catalog()
    catalog.resume({"s.t": TableInfo("s", "t", (ColumnInfo("id", "int", True),), ("id",))}, GtidPosition({}))
    catalog.settle(GtidPosition({}), frozenset)
    catalog.hold(["s.t"], (1, b"xa", b""))
    mine = source.MariaDBSource(source.SourceOptions(NOWHERE, "s/0"), lambda: publisher)
    for number in (6, 7):
        mine._give(publisher, catalog, SourceTransaction(at(number), at(number), 1, []))
    assert told == ["kept", "published", "published"]


def test_a_source_that_has_fewer_tables_than_the_one_before_it_holds_none_of_the_others() -> None:
    """They would be described, and so be published, though nobody has chosen them."""
    xid = (1, b"xa", b"")
    schema = LiveSchema(NOWHERE, TableFilter(("s",), exclude=("s.b",)))
    schema._hold_again(cast("Any", None), held_words({name: frozenset({xid}) for name in ("s.a", "s.b", "other.t")}))
    assert (schema.catalog.held, set(schema.catalog.names)) == ({"s.a": frozenset({xid})}, {"s.a"})


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_replica_that_has_another_writers_end_has_passed_what_was_written_before_it(before: int, after: int) -> None:
    """Two servers of one domain, after a failover: each one's last transaction is passed, whatever their numbers."""
    there = GtidPosition.parse(f"MariaDB/0-{before}-7")
    there.add(Gtid(0, after, 9, 0))
    here = GtidPosition.parse(f"MariaDB/0-{before}-5")
    here.advance(there)
    assert str(here) == f"MariaDB/0-{after}-9"
    assert here.has_passed(GtidPosition.parse(f"MariaDB/0-{before}-7"))


def test_a_table_that_is_read_again_keeps_what_chooses_its_rows_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the settings, as at the start. Else its rows would go elsewhere after DDL, and readers find the old ones."""
    prefixes = (("d.t", 1),)

    def read_table(_: Any, __: Any, database: str, table: str, given: Any = (), **_wait: Any) -> TableInfo:
        columns = (ColumnInfo("id", "int", True), ColumnInfo("n", "int", True))
        return TableInfo(database, table, columns, ("id", "n"), prefix=dict(given).get(f"{database}.{table}", 0))

    monkeypatch.setattr(live_schema, "read_table", read_table)
    monkeypatch.setattr(live_schema, "end_of_log", lambda _: GtidPosition({}))
    schema = LiveSchema(NOWHERE, TableFilter(("d",), prefixes=prefixes))
    monkeypatch.setattr(schema, "_retried", lambda ask: ask(None))
    schema.reread("d", "t")
    schema.catalog.settle(GtidPosition({}), frozenset)
    assert schema.catalog.description("d.t").prefix == 1


# -- chunks ------------------------------------------------------------------------------------------------------------


class Chunks:
    """Gives a chunk that ends its table. ``meanwhile`` is done while a table is read."""

    behind_s = 0.0

    def __init__(self) -> None:
        self.told: list[str] = []
        self.meanwhile: dict[str, Any] = {}

    def read(self, described: DescribeTable, _: After | None, __: Sequence[bytes] = ()) -> Chunk:
        """All of it."""
        self.told.append(f"read {described.table}")
        self.meanwhile.get(described.table, lambda: None)()
        return Chunk(described, (), GtidPosition.parse(at(9)), GtidPosition.parse(at(9)), None)

    def estimated_rows(self, _: str) -> int:
        """Unknown."""
        return 0

    def close(self) -> None:
        """Ends the session."""
        self.told.append("closed")

    def stop(self) -> None:
        """Nothing runs."""


def wanted(table: str) -> Wanted:
    """All of a table."""
    return Wanted(replace(DESCRIBED, table=table), None, GtidPosition.parse(at(5)))


def test_each_table_is_read_with_a_session_that_is_opened_for_it() -> None:
    """What is wanted after a new connection to the log must not come from the server of the old one."""
    made = Chunks()
    reading = ChunkReading(made)
    for table in ("s.a", "s.b"):
        reading.want(wanted(table))
        assert reading.wait(PATIENCE_S)
    reading.close()
    assert made.told[:4] == ["closed", "read s.a", "closed", "read s.b"]


def test_what_is_not_wanted_any_more_once_it_is_read_is_not_given() -> None:
    """It would be published as rows of the table that is wanted by then, and perhaps as the last ones of it."""
    made = Chunks()
    reading = ChunkReading(made)
    made.meanwhile["s.a"] = lambda: reading.want(wanted("s.b"))
    reading.want(wanted("s.a"))
    assert reading.wait(PATIENCE_S)
    assert reading.first is not None
    assert reading.first.described.table == "s.b"
    reading.close()


def test_tables_of_one_name_and_definition_in_two_databases_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of a definition does not name the database, and tenants have the same tables."""

    def read_table(_: Any, __: Any, database: str, table: str) -> TableInfo:
        return TableInfo(database, table, (ColumnInfo("id", "int", True),), ("id",))

    monkeypatch.setattr(chunks, "fetch_all", lambda *_: [])
    monkeypatch.setattr(chunks, "timed", lambda *_: "")
    monkeypatch.setattr(chunks, "definition_of", lambda *_: "CREATE TABLE `t` (...)")
    monkeypatch.setattr(chunks, "read_charsets", lambda _: None)
    monkeypatch.setattr(chunks, "read_table", read_table)
    reader, session = ChunkReader(NOWHERE), cast("Any", None)
    for name in ("one.t", "two.t", "one.t"):
        described = read_table(None, None, *name.split(".")).describe()
        assert reader._locked(session, described).name == name


def test_rows_that_are_asked_for_are_asked_for_again_by_the_next_connection() -> None:
    """What the one before has read of them says nothing of the server that is read now."""
    watched = Watched(TABLE)
    watched.run._requests = Asking(hot("[2]"))
    watched.run.step(at(9), 1, BEFORE)
    asked = [watched.again.keys]
    watched.run.reconnect()
    asked.append(watched.again.keys)
    watched.run.step(at(9), 1, BEFORE)
    asked.append(watched.again.keys)
    assert asked == [(row_key(TABLE, [2]),), (), (row_key(TABLE, [2]),)]


def test_a_new_epoch_begins_a_backfill_that_had_nothing_left_to_do() -> None:
    """All is void there. Nothing else would wake it but the next DDL."""
    watched = Watched(TABLE)
    watched.first = chunk(row(1), last=None)
    for _ in range(2):
        watched.run.step(at(9), 1, REACHED)
    assert watched.run._is_idle
    watched.said.clear()
    watched.run.begin_epoch(ResumePoint("s", 2, 1, at(9), 1, at(9)))
    watched.run.step(at(9), 1, BEFORE)
    assert [[*each.changes] for each in watched.said] == [[BackfillTable(TABLE, complete=False)]]


def test_a_setting_that_is_broken_is_told_by_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no outage: what is logged from here on proves nothing."""

    def check_server(_: Any) -> bool:
        raise ServerSettingsError("gtid_strict_mode is OFF")

    monkeypatch.setattr(watch, "connect", lambda _: SimpleNamespace(_force_close=lambda: None))
    monkeypatch.setattr(watch, "check_server", check_server)
    with pytest.raises(ServerSettingsError):
        DumpWatch(NOWHERE, 1).check(at(5))


def test_a_log_that_is_larger_than_a_heartbeat_can_say_is_not_waited_for() -> None:
    """Its low bits alone are known: they may stand at any distance from the end."""
    now = [100.0]
    made = DumpWatch(NOWHERE, 1, lambda: now[0])
    end = LogPlace(1, 1, (1 << 32) + 500)
    for _ in range(2):
        made._check_progress(LogPlace(1, 1, 400), end)
        now[0] += STALL_MAX_S + 1
