"""What a source and its readers ask a PostgreSQL, and what they make of the answers. The server is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from lab.simulation.postgres import sessions
from lab.simulation.postgres.server import SimulatedPostgres
from lab.simulation.postgres.sessions import Driver, PostgresSession
from lab.simulation.postgres.tables import GOODS
from stream.sources.key_range import KeyRange
from stream.sources.mariadb.by_key import SelectedRow
from stream.sources.mariadb.connection import (
    ConnectionSettings,
    MariaDBError,
    MariaDBUnreachable,
    ServerSettingsError,
    SourceHistoryLost,
)
from stream.sources.mariadb.gtid import PostgresPlace
from stream.sources.mariadb.schema import ColumnInfo, TableFilter, TableInfo
from stream.sources.mariadb.snapshot import NoSuchTable, SnapshotRead
from stream.sources.postgres import connection, locks, schema, selecting, snapshot
from stream.sources.postgres import server as states
from stream.sources.postgres.chunks import PostgresChunkReader
from stream.sources.postgres.schema import PostgresSchema
from stream.sources.postgres.selected_rows import RowForm
from stream.sources.postgres.server import read_state
from stream.sources.postgres.snapshot import PostgresSnapshotReader
from stream.sources.postgres.source import _Watch
from stream.sources.postgres.tables import Found, _column, _table, differences, has_whole_rows, storage_of
from stream.sources.sessions import ANSWER_MARGIN_S
from stream.wire.values import UndecodableValue
from tests.patience import PATIENCE_S
from tests.sources.postgres.test_messages import schema_of
from tests.sources.postgres.test_simulated import simulated

SETTINGS = ConnectionSettings(product="PostgreSQL", read_timeout_s=7.0)
INFO = TableInfo("public", "t", (ColumnInfo("id", "int", True), ColumnInfo("day", "date", True)), ("id",))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> SimulatedPostgres:
    """A server with some rows, to which all sessions lead."""
    found = simulated()
    monkeypatch.setattr(connection, "_session_class", lambda: Driver(found))
    return found


@pytest.fixture
def reader(server: SimulatedPostgres) -> Iterator[PostgresSnapshotReader]:  # noqa: ARG001
    """Reads of it."""
    found = PostgresSnapshotReader(SETTINGS)
    yield found
    found.close()


def read_goods(reader: PostgresSnapshotReader) -> SnapshotRead[Any]:
    """A row that nobody changes."""
    found = reader.read({GOODS.name: [[0]]})[GOODS.name]
    assert isinstance(found, SnapshotRead), found
    return found


def test_a_session_waits_for_no_answer_for_ever(server: SimulatedPostgres) -> None:
    """The driver would, for a server that hangs: of each request, from the first one on."""
    made: Any = connection.connect(SETTINGS)
    assert made.patience_s == SETTINGS.read_timeout_s + ANSWER_MARGIN_S
    made.close()
    assert server.sessions == []


def test_a_session_for_a_few_questions_ends_with_them(server: SimulatedPostgres) -> None:
    """Also where the answer is an error: a source asks again and again, and a server has a hundred places."""
    with connection.session(SETTINGS):
        assert len(server.sessions) == 1
    with pytest.raises(MariaDBUnreachable), connection.session(SETTINGS):
        raise MariaDBUnreachable("it is a standby")
    assert server.sessions == []


def test_what_does_not_exist_is_not_a_user_who_may_not_come_in() -> None:
    """Who reads of it would look for a wrong password. A login's refusal has no SQLSTATE, and its words alone."""
    for error, code in (
        (psycopg.errors.UndefinedTable('relation "s.t" does not exist'), "postgres_error"),
        (psycopg.errors.InsufficientPrivilege("permission denied for table t"), connection.ACCESS_DENIED),
        (psycopg.OperationalError('role "u" does not exist'), connection.ACCESS_DENIED),
        (psycopg.OperationalError("connection refused"), "postgres_unreachable"),
    ):
        assert connection.translate(error, SETTINGS).code == code


def test_the_tenth_timeline_is_one(server: SimulatedPostgres) -> None:
    """A file of the log is named by it in hexadecimal digits: after the tenth promotion no source could begin."""
    server.timeline = 0x1A
    with connection.session(SETTINGS) as asked:
        assert read_state(asked).end.timeline == 0x1A


def test_a_watch_looks_again_after_its_session_was_lost(server: SimulatedPostgres) -> None:
    """Else the source would never notice again that the server was restored, nor say how late it is."""
    looked: list[str] = []
    watch = _Watch(SETTINGS, lambda: looked.append("connector"))
    with connection.session(SETTINGS) as asked:
        position = str(read_state(asked).end)
    seen = []
    for is_down in (False, True, False):
        server.down, watch.clock_seen = is_down, None
        watch.check(position)
        seen.append(watch.clock_seen is not None)
    assert seen == [True, False, True]
    assert len(looked) == 3
    watch.close()
    assert server.sessions == []


def test_a_schema_asks_in_a_new_session_once_its_own_was_lost(server: SimulatedPostgres) -> None:
    """Else the source would wait for a server that has long been back."""
    known = PostgresSchema(SETTINGS, TableFilter(("public",)), lambda _: True, "p", "slot", 0)
    end = str(known.end_of_log())
    server.down = True
    with pytest.raises(MariaDBUnreachable):
        known.end_of_log()
    server.down = False
    assert str(known.end_of_log()) == end
    known.close()
    assert server.sessions == []


@pytest.mark.parametrize("alters", [False, True])
def test_a_row_of_a_table_whose_type_is_being_altered_proves_no_more_than_the_others(
    reader: PostgresSnapshotReader, monkeypatch: pytest.MonkeyPatch, alters: bool
) -> None:
    """A value of an ENUM may get another name: all rows of it change, and none of them is marked."""

    def writers(_: PostgresSession, __: object) -> list[tuple[Any, ...]]:
        return [(GOODS.name, "7/7", alters)]

    monkeypatch.setitem(sessions._ASKED, locks.WRITERS, writers)
    assert read_goods(reader).untouched == (frozenset() if alters else {0})


def test_what_is_not_flushed_is_no_proof_for_a_cache(
    server: SimulatedPostgres, reader: PostgresSnapshotReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the server logs something else at its place."""
    end = server.end

    def state(_: PostgresSession, __: object) -> list[tuple[Any, ...]]:
        return [(1_000, end, f"{1:08X}{0:016X}", end - 3)]

    monkeypatch.setitem(sessions._ASKED, states._PRIMARY, state)
    found = read_goods(reader)
    assert (found.position, found.end) == (str(PostgresPlace(1, end)),) * 2
    assert (found.kept, found.end_kept) == (str(PostgresPlace(1, end - 3)),) * 2


def test_a_wait_ends_once_those_have_left_who_kept_a_read_from_proving_more(
    reader: PostgresSnapshotReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its front would else read again at once, and be told no more than before. Others are not waited for."""
    writers, holders = [(GOODS.name, "7/7", False)], [("7/7",), ("8/8",)]
    monkeypatch.setitem(sessions._ASKED, locks.WRITERS, lambda *_: writers)
    monkeypatch.setitem(sessions._ASKED, snapshot._HOLDERS, lambda *_: holders)
    end = read_goods(reader).end
    assert not reader.wait_for_position(end, 0.01)
    assert not reader.wait_for_position(end, 0.01, [GOODS.name])
    assert reader.wait_for_position(end, PATIENCE_S, ["shop.parts"]), "nobody keeps it who writes into another table"
    holders.remove(("7/7",))
    assert reader.wait_for_position(end, PATIENCE_S)


def test_where_the_log_ends_is_asked_after_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed in between is in them: a place before it would void them as of a position that lacks it."""
    asked: list[str] = []

    def tables(*_: object) -> Found:
        asked.append("tables")
        return Found({}, frozenset())

    def state(_: object) -> Any:
        asked.append("end")
        return states.ServerState(0, PostgresPlace(1, 16), 16)

    monkeypatch.setattr(schema, "read_tables", tables)
    monkeypatch.setattr(schema, "read_state", state)
    nobody: Any = None
    PostgresSchema(SETTINGS, TableFilter(("s",)), lambda _: True, "p", "slot", 0)._read(nobody)
    assert asked == ["tables", "end"]


def test_what_tables_are_stored_in_is_known_again_once_one_was_rewritten() -> None:
    """A source that begins again would find all of them rewritten, and void them once more."""
    known, said = schema_of()
    known.load()
    before = known.storage
    said[0] = {"s.t": TableInfo("s", "t", (ColumnInfo("id", "int", True),), ("id",), engine="d heap 2")}
    known.changed(PostgresPlace(1, 16))
    assert known.storage not in (0, before)


def test_a_table_that_cannot_be_read_leaves_the_others_to_be_read(reader: PostgresSnapshotReader) -> None:
    """Its error ends what follows in the transaction, until that is taken back."""
    statements: list[str] = []
    session: Any = SimpleNamespace(execute=statements.append, broken=False)
    failed: dict[str, MariaDBError] = {}
    with reader._failures(session, failed, "s.gone"):
        raise psycopg.errors.UndefinedTable("it is gone")
    with reader._failures(session, failed, "s.t"):
        pass
    assert statements == ["SAVEPOINT one", "ROLLBACK TO SAVEPOINT one", "SAVEPOINT one"]
    assert {name: type(error) for name, error in failed.items()} == {"s.gone": NoSuchTable}


@pytest.mark.parametrize("day", [b"0044-03-15 BC", b"infinity", b"12024-01-01"])
def test_a_date_that_has_no_canonical_form_is_not_cut_to_one(day: bytes) -> None:
    """Its row would be answered with another date."""
    with pytest.raises(UndecodableValue):
        RowForm(INFO).image([b"1", day])
    assert RowForm(INFO).image([b"1", b"2024-01-01"]) == b'{"id":1,"day":"2024-01-01"}'


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("double", b"NaN"),
        ("double", b"-Infinity"),
        ("float", b"NaN"),
        ("decimal", b"NaN"),
        ("decimal", b"Infinity"),
        ("datetime", b"infinity"),
        ("timestamp", b"0044-03-15 00:00:00+00 BC"),
        ("text", b"\xff"),
    ],
)
def test_a_value_that_has_no_canonical_form_is_not_taken_for_null(kind: str, value: bytes) -> None:
    """Its row would be cached with NULL, and differ from what the connector tells of it."""
    form = RowForm(TableInfo("public", "t", (ColumnInfo("id", "int", True), ColumnInfo("a", kind, False)), ("id",)))
    with pytest.raises(UndecodableValue):
        form.image([b"1", value])
    assert form.key([b"1", value]) == b"public.t\0[1]"
    assert form.image([b"1", None]) == b'{"id":1,"a":null}'


def test_a_page_holds_its_first_row_however_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty page that says that there is more would be asked for without end."""
    monkeypatch.setattr(selecting, "BYTES_MAX", 10)
    monkeypatch.setattr(selecting, "raw_rows", lambda *_: [[b"%d" % number, b"2024-01-01"] for number in range(3)])
    nobody: Any = None
    found = selecting.rows_in_range(nobody, INFO, KeyRange(limit=5))
    assert [row.key for row in found.rows] == [b"public.t\0[0]"]
    assert found.more


def test_a_row_that_is_found_under_another_key_is_not_published_as_the_one_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A collation may find ``A`` by ``a``: the row's own key is published when its turn comes."""
    chunks = PostgresChunkReader(SETTINGS)
    place, keys = "Postgres/1:0/10", [b"public.t\0[1]", b"public.t\0[2]"]
    rows = tuple(SelectedRow(b"public.t\0[2]", b'{"id":2}') for _ in keys)
    monkeypatch.setattr(chunks._reader, "held", lambda *_: "")
    monkeypatch.setattr(chunks._reader, "read", lambda *_: {INFO.name: SnapshotRead(rows, place, place, 1, INFO)})
    found = chunks.read(INFO.describe(), None, keys)
    assert [(row.key, row.image) for row in found.rows] == [(b"public.t\0[2]", b'{"id":2}')]


def test_a_table_that_left_its_publication_and_came_back_is_another_one() -> None:
    """No connector tells what was changed in between. All else of it is as it was before."""
    first, again = (
        {INFO.name: _table("public", "t", INFO.columns, ["r", "p", False, "d", "heap 1 {1,2}", ["id"], published])}
        for published in ("16384 739 16390/740", "16384 739 16391/742")
    )
    assert differences(first, again) == {INFO.name}
    assert storage_of(first) != storage_of(again)
    assert differences(first, first) == set()


@pytest.mark.parametrize(("kind", "has_children"), [("r", False), ("p", False), ("r", True)])
def test_rows_of_a_table_that_are_others_have_no_key_in_it(kind: str, has_children: bool) -> None:
    """They would be cached by the name of a table in which nobody tells who writes them."""
    found = _table("s", "t", INFO.columns, [kind, "p", has_children, "d", "heap 1", ["id"], "16384 739"])
    assert found.primary_key == (("id",) if (kind, has_children) == ("r", False) else ())


@pytest.mark.parametrize(
    ("typed", "is_deterministic", "labels", "exact"),
    [
        ("text", True, [], True),
        ("varchar", True, [], True),
        ("text", False, [], False),
        ("varchar", False, [], False),
        ("bpchar", True, [], False),
        ("numeric", True, [], False),
        ("int8", True, [], True),
        ("mood", True, ["sad", "happy"], False),
    ],
)
def test_a_text_is_one_key_only_where_its_collation_knows_no_other_spelling(
    typed: str, is_deterministic: bool, labels: list[str], exact: bool
) -> None:
    """One that ignores case finds ``A`` by ``a``: that there is no ``a`` would be cached, and wrong."""
    assert _column(["a", typed, typed, "", is_deterministic, labels]).exact is exact


@pytest.mark.parametrize(
    ("rows", "is_reserved"),
    [
        ([(16, "reserved", True)], True),
        ([(16, "extended", True)], True),
        ([(16, "unreserved", True)], False),
        ([(16, "lost", True)], None),
        ([(None, "reserved", True)], None),
        ([], None),
    ],
)
def test_a_slot_that_keeps_no_log_any_more_is_a_lost_history(
    monkeypatch: pytest.MonkeyPatch, rows: list[tuple[Any, ...]], is_reserved: bool | None
) -> None:
    """One that is gone, lost, or was never read. One that takes more room than it was given still keeps all."""
    monkeypatch.setattr(states, "fetch_all", lambda *_: rows)
    nobody: Any = None
    if is_reserved is None:
        with pytest.raises(SourceHistoryLost):
            states.slot_of(nobody, "slot")
    else:
        assert states.slot_of(nobody, "slot") == states.Slot(16, is_read=True, is_reserved=is_reserved)


@pytest.mark.parametrize(
    ("version", "level", "encoding", "refused"),
    [
        ("150000", "logical", "UTF8", ""),
        ("170002", "logical", "UTF8", ""),
        ("140011", "logical", "UTF8", "PostgreSQL 15 or later is needed, and the server is PostgreSQL 14"),
        ("90624", "logical", "UTF8", "PostgreSQL 9$"),
        ("170002", "replica", "UTF8", "wal_level"),
        ("170002", "logical", "SQL_ASCII", "encoding"),
    ],
)
def test_a_server_must_be_new_enough_log_rows_and_have_its_texts_in_utf8(
    monkeypatch: pytest.MonkeyPatch, version: str, level: str, encoding: str, refused: str
) -> None:
    """An old one's catalog fails with words that lead nowhere, and other texts have no canonical form."""
    said = {"server_version_num": version, "wal_level": level, "server_encoding": encoding}
    monkeypatch.setattr(states, "fetch_all", lambda _, sql: [[said[sql.split("'")[1]]]])
    nobody: Any = None
    with pytest.raises(ServerSettingsError, match=refused) if refused else nullcontext():
        states.check_settings(nobody)


def test_a_key_may_be_in_the_file_of_its_certificate() -> None:
    """As with the other servers. Without an authority nothing is encrypted, and nothing is shown."""
    secured = ConnectionSettings(product="PostgreSQL", ssl_ca="ca.pem", ssl_cert="client.pem")
    found = connection._arguments(secured)
    assert [found[name] for name in ("sslmode", "sslrootcert", "sslcert", "sslkey")] == [
        "verify-full",
        "ca.pem",
        "client.pem",
        "client.pem",
    ]
    assert connection._arguments(replace(secured, ssl_key="key.pem"))["sslkey"] == "key.pem"
    assert connection._arguments(replace(secured, ssl_verify_host=False))["sslmode"] == "verify-ca"
    assert not [name for name in connection._arguments(SETTINGS) if name.startswith("ssl")]


def test_a_table_whose_definition_is_another_one_is_read_again(
    reader: PostgresSnapshotReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows would be cut by the columns of before an ALTER TABLE. One that is gone is not remembered."""
    definitions, reads = ["a", "a", "b", "", "b"], list[str]()

    def read(*_: object) -> TableInfo:
        reads.append("read")
        return INFO

    monkeypatch.setattr(snapshot, "definition_of", lambda *_: definitions.pop(0))
    monkeypatch.setattr(snapshot, "read_table", read)
    for count in (1, 1, 2):
        assert reader.table(INFO.name) is INFO
        assert len(reads) == count
    with pytest.raises(NoSuchTable):
        reader.table(INFO.name)
    assert reader.table(INFO.name) is INFO
    assert len(reads) == 3


@pytest.mark.parametrize(("identity", "is_whole"), [("d", False), ("f", True)])
def test_a_row_of_before_is_whole_only_where_its_table_says_so(identity: str, is_whole: bool) -> None:
    """By default the log has its key alone: all else would be published as having been NULL."""
    assert (
        has_whole_rows(_table("s", "t", INFO.columns, ["r", "p", False, identity, "heap 1", ["id"], "16384 739"]))
        is is_whole
    )
