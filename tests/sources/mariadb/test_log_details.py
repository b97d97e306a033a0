"""What single events of a log mean where a byte, a flag or their order decides. They are given as bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest
from pymysql.constants import FIELD_TYPE

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.catalog import Catalog
from stream.sources.mariadb.binlog.coalesce import TransactionRows
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.binlog.reading import table_maps
from stream.sources.mariadb.binlog.reading.foreign_keys import ForeignKeys
from stream.sources.mariadb.binlog.reading.logged_statements import LoggedStatements
from stream.sources.mariadb.binlog.reading.transaction import OpenTransaction
from stream.sources.mariadb.binlog.rows import TableDecoder
from stream.sources.mariadb.binlog.table_map import (
    SIMPLE_PRIMARY_KEY,
    TIMESTAMP2,
    MappedColumn,
    TableMap,
    parse_table_map,
)
from stream.sources.mariadb.binlog.unlogged import StatementTables
from stream.sources.mariadb.cascades.family import Family
from stream.sources.mariadb.cascades.foreign_keys import Cascades, ForeignKey, cascades_of
from stream.sources.mariadb.charsets import BINARY_COLLATION, Charsets
from stream.sources.mariadb.gtid import Gtid, GtidPosition
from stream.sources.mariadb.information_schema.tables import _table
from stream.sources.mariadb.schema import ColumnInfo, TableFilter, TableInfo, is_missing, missing_table
from stream.wire.events import (
    EVERY_TABLE,
    NO_ROW,
    VALUE,
    VOID,
    Change,
    KeylessRow,
    RowChange,
    SingleRows,
    SourceTransaction,
    VoidTable,
)
from stream.wire.keys import row_key
from stream.wire.values import binary_json
from tests.sources.mariadb.test_log_reading import Tables, committed, event, gtid, query, run, statement, voided
from tests.sources.mariadb.test_single_rows import (
    COLUMNS,
    MARIADB,
    MYSQL,
    NAMES,
    XID,
    Dialect,
    Log,
    Read,
    Schema,
    ordinary,
    row,
    table_map,
)

INSERTS, UPDATES, DELETES = MARIADB.kinds


def changed(name: str, kind: int, *found: bytes, flags: int = events.STATEMENT_END) -> list[bytes]:
    """Rows of a table, behind its map."""
    number = NAMES.index(name) + 1
    return [table_map(number, name), MARIADB.rows(number, kind, found, flags)]


def changes(*found: bytes, **options: Any) -> list[Change]:
    """What a transaction with these events says."""
    [said] = Read(MARIADB, [gtid(5), *found, XID], lambda: 0, **options).given
    return [*said.changes]


def with_schema(
    schema: Schema, dialect: Dialect, found: Sequence[bytes], family: Family | None = None
) -> list[SourceTransaction]:
    """All transactions of a log. ``family`` knows that row 1 of ``d.c`` is all there is of it."""
    log: Any = Log(found, lambda: 0)
    reader = BinlogReader(log, schema, dialect.start, family=family)
    if family is not None:
        family.children.begin("d.c")
        family.fill("d.c", [RowChange(row_key("d.c", [1]), VALUE, b'{"id":1,"v":"x"}')])
        family.children.complete("d.c")
    given: list[SourceTransaction] = []
    with suppress(EOFError):
        given.extend(filter(None, reader.transactions()))
    return given


# -- rows ------------------------------------------------------------------------------------------------------------


def test_a_row_that_takes_another_key_was_not_there_before() -> None:
    """Under its old key it is gone, with what it was; a stream that told it as an update would keep the old row."""
    found = changes(*changed("a", UPDATES, row(1, b"x"), row(2, b"y")), keeps_before=True)
    before = {each.key: each.before for each in found if isinstance(each, RowChange)}
    assert before == {row_key("d.a", [1]): b'{"id":1,"v":"x"}', row_key("d.a", [2]): NO_ROW}


def test_a_row_that_changes_twice_was_before_what_the_first_change_found() -> None:
    """What it was in between nobody has ever seen."""
    twice = changed("a", UPDATES, row(1, b"x"), row(1, b"y"), row(1, b"y"), row(1, b"z"))
    [found] = changes(*twice, keeps_before=True)
    assert isinstance(found, RowChange)
    assert (found.before, found.image) == (b'{"id":1,"v":"x"}', b'{"id":1,"v":"z"}')


def test_rows_without_a_key_are_not_told_where_everything_is_void() -> None:
    """The transaction may have changed them once more, in what could not be read."""
    unmapped = MARIADB.rows(99, INSERTS, [row(1, b"x")])
    whole = changed("keyless", INSERTS, row(1, b"x"))
    assert [type(each) for each in changes(*whole, keeps_keyless=True)] == [KeylessRow]
    assert [type(each) for each in changes(*whole, unmapped, keeps_keyless=True)] == [VoidTable]


def test_a_table_without_a_key_of_which_a_column_cannot_be_decoded_is_not_told() -> None:
    """Nor is it void with each transaction: it is read as any other that is not published."""
    columns = (COLUMNS[0], replace(COLUMNS[1], kind="opaque", problem="column v has type point"))
    info = _table("d", "keyless", "BASE TABLE", "InnoDB", columns, [])
    assert (info.problem, info.is_keyless) == ("column v has type point", False)
    assert _table("d", "keyless", "BASE TABLE", "InnoDB", COLUMNS, []).is_keyless
    schema = Schema()
    schema.live = {**schema.live, "d.keyless": info}
    schema.catalog.describe_as({})
    schema.catalog.resume(schema.live, GtidPosition({}))
    schema.catalog.settle(GtidPosition({}), frozenset)
    written = changed("keyless", INSERTS, row(1, b"x"))
    log: Any = Log([gtid(5), *written, XID, gtid(6), *written, XID], lambda: 0)
    given = BinlogReader(log, schema, MARIADB.start, keeps_keyless=True).transactions()
    assert [[*each.changes] for each in (next(given), next(given)) if each is not None] == [[], []]


def test_a_unique_key_that_the_server_takes_for_the_primary_one_keeps_no_row_back() -> None:
    """The log names the first one over NOT NULL columns where a table has none; nothing else tells of it."""
    mapped, written = changed("keyless", INSERTS, row(1, b"x"))
    mapped += bytes((SIMPLE_PRIMARY_KEY, 1, 0))
    assert [type(each) for each in changes(mapped, written, keeps_keyless=True)] == [KeylessRow]


def test_a_table_with_too_many_rows_without_a_key_voids_no_other_one() -> None:
    """What is held begins anew behind it: the next table's first row would be one too many, and so each one after."""
    transaction = OpenTransaction(Gtid(0, 1, 5, 0), 1_000)
    for _ in range(4):
        transaction.add_keyless(KeylessRow("d.large", "inserted", NO_ROW, b"{}"))
    rows = [KeylessRow("d.small", "inserted", NO_ROW, b'{"v":%d}' % number) for number in range(2)]
    for each in rows:
        transaction.add_keyless(each)
    assert [each for each in transaction.changes(Catalog()) if isinstance(each, KeylessRow)] == rows
    assert transaction.voids.keys() == {"d.large"}


def test_rows_behind_a_damaged_map_are_not_of_the_table_that_had_their_number() -> None:
    """Nobody knows whose they are."""
    damaged = event(events.TABLE_MAP, (1).to_bytes(6, "little") + b"\1\0\1\xff\0\1\xff\0")
    found = changes(table_map(1, "a"), damaged, MARIADB.rows(1, INSERTS, [row(1, b"x")]))
    assert {each.table for each in found if isinstance(each, VoidTable)} == {"*", "d.a"}
    assert not [each for each in found if isinstance(each, RowChange)]


def test_tables_that_come_and_go_beside_those_that_are_published_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """An application may make one for each of its runs: a source that is not restarted kept a word of each."""
    monkeypatch.setattr(table_maps, "MAPS_MAX", 3)
    schema = Schema()
    schema.include = TableFilter(("other",))
    maps = table_maps.TableMaps(schema, ForeignKeys(schema, None))
    for number in range(1, 11):
        maps.take(table_map(number, f"t{number}"))
        assert len(maps.by_body) <= 3
    assert len(maps.by_id) == 10, "the transaction may have rows of each"


def test_a_table_that_does_not_fit_its_map_is_read_again_whenever_tables_may_have_changed() -> None:
    """Once for each time: it may fit after the next change, and then nothing else asks for it."""
    asked: list[str] = []

    class Asked(Schema):
        def reread(self, database: str, table: str) -> None:
            asked.append(table)
            super().reread(database, table)

    odd = [table_map(1, "a", "w"), MARIADB.rows(1, INSERTS, [row(1, b"x")]), XID]
    with_schema(Asked(), MARIADB, [gtid(5), *odd, gtid(6), *odd])
    assert asked == ["a", "a"]


# -- whole transactions ----------------------------------------------------------------------------------------------


def test_lost_events_are_a_transaction_by_themselves() -> None:
    """Nothing else ends it. Without an end of its own what it voids would be forgotten with the next one's begin."""
    found = run([gtid(5), event(events.INCIDENT, b"\1\0\0"), *committed(6)], Tables())
    assert [(each.gtid, voided(each)) for each in found] == [("MariaDB/0-1-5", {"*"}), ("MariaDB/0-1-6", set())]


def test_events_that_mariadb_lost_are_void_where_the_log_stands() -> None:
    """It says so behind a transaction's end, without a GTID; whoever begins to read there is told first."""
    lost = event(events.INCIDENT, b"\1\0\0")
    found = run([*committed(5), lost, *committed(6)], Tables())
    assert [(each.gtid, each.position, voided(each)) for each in found] == [
        ("MariaDB/0-1-5", "MariaDB/0-1-5", set()),
        ("MariaDB/0-1-5", "MariaDB/0-1-5", {"*"}),
        ("MariaDB/0-1-6", "MariaDB/0-1-6", set()),
    ]
    again = run([lost, *committed(5)], Tables())
    assert [(each.gtid, voided(each)) for each in again] == [("MariaDB/0-1-4", {"*"}), ("MariaDB/0-1-5", set())]


@pytest.mark.parametrize(("first", "is_known"), [(0, True), (events.NO_FOREIGN_KEYS, False)])
def test_a_statement_that_switches_foreign_keys_off_for_a_part_voids_the_table_below(
    first: int, is_known: bool
) -> None:
    """What they did for the rest of it depends on the server. Else the one row below is void."""
    schema = Schema()
    schema._cascades_at = GtidPosition({})
    deleted = [
        table_map(NAMES.index("p") + 1, "p"),
        table_map(NAMES.index("c") + 1, "c"),
        MARIADB.rows(NAMES.index("p") + 1, DELETES, [row(7, b"x")], first),
        MARIADB.rows(NAMES.index("p") + 1, DELETES, [row(1, b"x")]),
    ]
    [found] = with_schema(schema, MARIADB, [gtid(5), *deleted, XID], Family())
    below = [each for each in found.changes if not isinstance(each, RowChange) or each.key.startswith(b"d.c\0")]
    if is_known:
        assert below == [RowChange(row_key("d.c", [1]), VOID)]
    else:
        assert [type(each) for each in below] == [VoidTable]


@pytest.mark.parametrize(("dialect", "is_read"), [(MARIADB, False), (MYSQL, True)], ids=["MariaDB", "MySQL"])
def test_ddl_of_a_table_that_is_not_published_may_be_a_new_way_to_one_that_is(dialect: Dialect, is_read: bool) -> None:
    """MySQL's log never names what is below it, so the foreign keys are read again."""
    asked: list[Any] = []

    class Asked(Schema):
        def reread_cascades(self, names: Any = None) -> None:
            asked.append(names)

    ddl = query("CREATE TABLE x.t (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES d.a (id))")
    begin = dialect.begin(5, flags=events.STANDALONE)[0]
    assert len(with_schema(Asked(), dialect, [begin, ddl])) == 1
    assert asked == ([{"x.t"}] if is_read else [])


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("RENAME TABLE q TO p", {"d.q", "d.p"}),
        ("ALTER TABLE x.M DROP FOREIGN KEY k", set()),
        ("DROP DATABASE X", set()),
        ("DROP DATABASE y", set()),
    ],
)
@pytest.mark.parametrize(("dialect", "is_known"), [(MYSQL, False), (MYSQL, True), (MARIADB, False)])
def test_ddl_of_a_backlog_voids_what_foreign_keys_of_before_it_may_have_changed(
    dialect: Dialect, is_known: bool, sql: str, named: set[str]
) -> None:
    """The server tells those of now, and MySQL's log not what others changed: rows that are gone would stay."""
    schema = Schema()
    schema.lower_case_names = True
    schema._cascades_at = GtidPosition.parse(dialect.start) if is_known else None
    keys = [ForeignKey(parent, "d.c", ("id",), ("id",), "CASCADE", "RESTRICT") for parent in ("d.p", "x.m", "xy.m")]
    schema.cascades = cascades_of([*keys, replace(keys[0], child="x.m")])
    [found] = with_schema(schema, dialect, [dialect.begin(5, flags=events.STANDALONE)[0], query(sql)])
    is_below = dialect is MYSQL and not is_known and sql != "DROP DATABASE y"
    assert voided(found) == (named | {"d.c"} if is_below else named)


@pytest.mark.parametrize(
    ("collation", "sql", "effect", "names"),
    [
        (1, b"ALTER TABLE t COMMENT '\xe9'", "none", (("d", "t"),)),
        (1, b"DROP TABLE `\xe9`", "tables", (("d", "\xe9"),)),
        (1, "CREATE OR REPLACE TABLE `\xe9` (\n  `id` int(1) NOT NULL\n)".encode(), "all", ()),
        (2, "DROP TABLE `\xe9`".encode(), "tables", (("d", "\xe9"),)),
        (2, b"DROP TABLE `\xe9`", "all", ()),
        (3, b"DROP TABLE t /* \x81\x40 */", "all", ()),
        (3, b"DROP TABLE t", "tables", (("d", "t"),)),
        (9, b"DROP TABLE t /* \xe9 */", "all", ()),
        (9, b"DROP TABLE t", "tables", (("d", "t"),)),
    ],
)
def test_a_statement_is_read_in_its_clients_character_set(
    collation: int, sql: bytes, effect: str, names: tuple[tuple[str, str], ...]
) -> None:
    """A comment with an accent, of a client that does not speak UTF-8, voided every table of the server.

    Which table is meant is not known if the text may be one that the server itself wrote for CREATE TABLE … SELECT.
    """
    schema = Tables()
    latin = "".join(map(chr, range(256)))
    schema.charsets = Charsets({1: "latin1", 2: "utf8mb4", 3: "gbk"}, {"latin1": latin})
    unused: Any = None
    found = LoggedStatements(schema, unused, unused).classified(events.Query("d", sql, collation))
    assert (found.effect, found.tables) == (effect, names)


@pytest.mark.parametrize(
    ("dialect", "sql", "void"),
    [
        (MYSQL, "CREATE TABLE IF NOT EXISTS d.a (id INT PRIMARY KEY)", set()),
        (MYSQL, "CREATE TABLE IF NOT EXISTS d.gone (id INT PRIMARY KEY)", {"d.gone"}),
        (MYSQL, "CREATE TABLE d.a (id INT PRIMARY KEY)", {"d.a"}),
        (MARIADB, "CREATE TABLE IF NOT EXISTS d.a (id INT PRIMARY KEY)", {"d.a"}),
        (MARIADB, "CREATE OR REPLACE TABLE d.a (id INT PRIMARY KEY)", {"d.a"}),
    ],
)
def test_a_table_that_is_there_is_not_made_again(dialect: Dialect, sql: str, void: set[str]) -> None:
    """MySQL logs a CREATE that does nothing, as programs have it at each start: all rows were read again for it."""
    schema = Schema()
    schema.catalog.describe_as(
        {**{name: schema.catalog.description(name) for name in schema.catalog.names}, "d.gone": missing_table("d.gone")}
    )
    schema.catalog.resume(schema.live, GtidPosition({}))
    [found] = with_schema(schema, dialect, [dialect.begin(5, flags=events.STANDALONE)[0], query(sql)])
    assert void <= voided(found) <= {*void, "d.gone"}


def test_a_table_that_an_unknown_statement_may_have_dropped_may_be_made_again() -> None:
    """It would stay described as it was: rows of a table made anew are then taken for those of other columns."""
    made = "CREATE TABLE IF NOT EXISTS d.a (id INT PRIMARY KEY)"
    sqls = enumerate(("UNKNOWN", made, made), start=5)
    log = [each for at, sql in sqls for each in (MYSQL.begin(at, flags=events.STANDALONE)[0], query(sql))]
    found = with_schema(Schema(), MYSQL, log)
    assert [voided(each) for each in found][:2] == [{EVERY_TABLE}, {"d.a"}]


@pytest.mark.parametrize(
    ("typed", "is_lowered", "is_void"), [("D", True, True), ("D", False, False), ("e", True, False)]
)
def test_a_database_is_dropped_in_whatever_case_it_is_typed(typed: str, is_lowered: bool, is_void: bool) -> None:
    """As the log has it. Where a server lowers names its tables are gone, and would be answered as fresh."""
    schema = Tables()
    schema.lower_case_names = is_lowered
    schema.reread_cascades = lambda *_: None  # type: ignore[method-assign]
    schema.reread = lambda database, table: schema.catalog.doubt(f"{database}.{table}", None, GtidPosition({}))  # type: ignore[method-assign]
    [found, *_] = run([*statement(5, f"DROP DATABASE {typed}"), *committed(6)], schema)
    assert voided(found) == ({"d.a", "d.b"} if is_void else set())
    gone = {name for name in ("d.a", "d.b") if is_missing(schema.catalog.description(name))}
    assert gone == voided(found), "the same as after a DROP TABLE of each"


def test_tables_of_other_databases_stay_when_one_is_dropped_again() -> None:
    """Tests of others make and drop databases all day: all tables of the server were read from the beginning then."""
    schema = Tables()
    schema.include = TableFilter()
    asked: list[str] = []
    schema.reread_cascades = lambda *_: None  # type: ignore[method-assign]
    schema.reread = lambda database, table: asked.append(f"{database}.{table}")  # type: ignore[method-assign]
    schema.catalog.describe_as({"d.a": schema.catalog.description("d.a"), "e.a": missing_table("e.a")})
    [found] = run(statement(5, "DROP DATABASE e"), schema)
    assert (voided(found), asked) == (set(), [])


def test_a_statement_that_deletes_and_updates_parents_may_change_what_is_below_by_either() -> None:
    """As ``REPLACE`` does."""
    statement, voids = StatementTables(), dict[str, str]()
    for kind in (events.DELETE_ROWS, events.UPDATE_ROWS):
        statement.logged("d.p", kind)
    cascades = Cascades({"d.p": frozenset({"d.deleted"})}, {"d.p": frozenset({"d.updated"})})
    statement.end_unnamed(cascades, {"d.deleted", "d.updated"}, voids)
    assert voids.keys() == {"d.deleted", "d.updated"}


@pytest.mark.parametrize(
    ("unread", "kind", "void"),
    [
        ({"d.new"}, events.DELETE_ROWS, {"d.new", "d.below"}),
        ({EVERY_TABLE}, events.UPDATE_ROWS, {"d.p", "d.new", "d.below"}),
        ({"d.x"}, events.DELETE_ROWS, set()),
        ({EVERY_TABLE}, events.WRITE_ROWS, set()),
    ],
)
def test_tables_whose_foreign_keys_could_not_be_read_are_void_by_what_may_change_them(
    unread: set[str], kind: int, void: set[str]
) -> None:
    """Rows of them are logged too: nothing else says that others were changed."""
    statement, voids = StatementTables(), dict[str, str]()
    for name, logged in (("d.p", kind), ("d.new", events.WRITE_ROWS), ("d.below", events.WRITE_ROWS)):
        statement.named(name)
        statement.logged(name, logged)
    statement.end_unread(unread, Cascades({"d.new": frozenset({"d.below"})}, {}), voids)
    assert voids.keys() == void


def test_a_table_that_was_not_published_for_a_statement_is_void_by_the_next_one() -> None:
    """Its schema is known by then, and a foreign key changes it as any other: its old rows would stay in caches."""
    statement, cascades = StatementTables(), Cascades({"d.p": frozenset({"d.c"})}, {})
    found = []
    for name in (statement.named_unpublished, statement.named):
        voids = dict[str, str]()
        name("d.c")
        statement.logged("d.p", events.DELETE_ROWS)
        found.append(set(statement.names))
        statement.end(cascades, voids)
        statement.clear()
        found.append(set(voids))
    assert found == [{"d.p"}, set(), {"d.p", "d.c"}, {"d.c"}]


# -- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "more"), [(2, b""), (4, (5).to_bytes(8, "little")), (8, (5).to_bytes(8, "little"))])
def test_the_collation_of_a_statement_stands_behind_the_phase_of_an_alter(flags: int, more: bytes) -> None:
    """The second phase names its first one, in eight bytes. Without the collation DDL beyond ASCII voids everything."""
    status = bytes((130, flags)) + more + b"\4" + struct.pack("<HHH", 33, 33, 33)
    found = event(events.QUERY, struct.pack("<IIBHH", 1, 0, 1, 0, len(status)) + status + b"d\0ALTER TABLE t FORCE")
    assert events.parse_query(found) == events.Query("d", b"ALTER TABLE t FORCE", 33)


def decoder(*columns: MappedColumn, kinds: Sequence[str]) -> TableDecoder:
    """Of a table with a number as its key, and these columns; the server tells of so many as there are ``kinds``."""
    infos = (ColumnInfo("id", "int", True), *(ColumnInfo(f"c{at}", kind, True) for at, kind in enumerate(kinds)))
    mapped = TableMap("d", "t", [MappedColumn(FIELD_TYPE.LONG, 0, "id"), *columns], (0,), has_names=True)
    return TableDecoder(mapped, TableInfo("d", "t", infos, ("id",)), Charsets({}, {}))


@pytest.mark.parametrize(
    ("kind", "meta", "size", "length_bytes"),
    [
        (FIELD_TYPE.STRING, 0xFEFF, 255, 1),
        (FIELD_TYPE.STRING, 0xEE00, 256, 2),
        (FIELD_TYPE.VARCHAR, 255, 0, 1),
        (FIELD_TYPE.VARCHAR, 256, 0, 2),
    ],
)
def test_a_column_of_more_than_255_bytes_has_two_for_the_length(
    kind: int, meta: int, size: int, length_bytes: int
) -> None:
    """And none of as many: what follows would begin at a wrong place. A fixed one is filled up to its size."""
    made = decoder(MappedColumn(kind, meta, "c0", collation=BINARY_COLLATION), kinds=["binary"])
    data = b"\0" + struct.pack("<i", 1) + (2).to_bytes(length_bytes, "little") + b"ab"
    _, image, end = made.row(data + b"\1more", 0)
    assert (image, end) == (b'{"id":1,"c0":%b}' % binary_json(b"ab".ljust(size, b"\0")), len(data))


def test_the_first_moments_of_1970_are_no_zero_date() -> None:
    """Zero is all of it: seconds and fraction."""
    made = decoder(MappedColumn(TIMESTAMP2, 3, "c0"), kinds=["timestamp"])
    for fraction, text in ((5_000, b"1970-01-01 00:00:00.500"), (0, b"0000-00-00 00:00:00.000")):
        _, image, _ = made.row(b"\0" + struct.pack("<i", 1) + bytes(4) + fraction.to_bytes(2, "big"), 0)
        assert image == b'{"id":1,"c0":"%s"}' % text


@pytest.mark.parametrize(("nulls", "size"), [(0, 8), (2, 0)])
def test_the_hidden_hash_of_a_long_unique_value_takes_room_only_if_there_is_one(nulls: int, size: int) -> None:
    """Else each row behind one with NULL in it would begin at a wrong place."""
    made = decoder(MappedColumn(FIELD_TYPE.LONGLONG, 0, "DB_ROW_HASH_1"), kinds=[])
    one, two = (bytes((nulls,)) + struct.pack("<i", number) + bytes(size) for number in (1, 2))
    _, image, end = made.row(one + two, 0)
    assert (image, made.row(one + two, end)[1]) == (b'{"id":1}', b'{"id":2}')


def test_a_year_counts_among_the_numbers_that_have_a_sign() -> None:
    """Each has a bit in the order of columns: without one for the year, those behind it had their neighbour's sign."""
    types = bytes((FIELD_TYPE.YEAR, FIELD_TYPE.TINY, FIELD_TYPE.TINY))
    body = b"\1\0\1d\0\1t\0\3" + types + b"\0\0" + bytes((1, 1, 0b1100_0000))
    assert [column.unsigned for column in parse_table_map(body).columns] == [True, True, False]


def test_a_transaction_whose_rows_are_lost_voids_what_it_changed() -> None:
    """Its file may fail when it is read again, too: the source goes on, and says no row of it."""

    class Lost(TransactionRows):
        def changes(self, *_: Any) -> list[Change]:
            raise OSError("no space left")

    transaction = OpenTransaction(Gtid(0, 1, 5, 0), 1_000)
    transaction.rows = Lost()
    transaction.touched.add("d.a")
    assert [(type(each), each.table) for each in transaction.changes(Catalog()) if isinstance(each, VoidTable)] == [
        (VoidTable, "d.a")
    ]


def test_what_is_known_behind_a_run_of_transactions_has_the_time_of_its_last_one() -> None:
    """It is published at that position, and record times follow it."""
    found = [*ordinary(MARIADB, 3), event(events.HEARTBEAT, b"bin.000001")]
    found[-2] = struct.pack("<I", 1_700_000_060) + XID[4:]
    schema, log = Schema(), cast("Any", Log(found, lambda: 1_000))
    given = BinlogReader(log, schema, MARIADB.start, in_runs=True).transactions()
    _, together = next(given), next(given)
    assert isinstance(together, SingleRows)
    schema.catalog.doubt("d.a", schema.live["d.a"], GtidPosition({}))
    known = next(given)
    assert known is not None
    assert (known.position, known.timestamp) == (together.position, 1_700_000_060)
