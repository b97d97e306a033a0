"""Batches of rows from a real MariaDB: few statements, and the same answers as single reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshet.local.mariadb import MariaDBAddress
from serving.errors import ReadError
from serving.reads.rowkey import parse_row_key
from serving.sources.mariadb import MariaDBRows
from serving.sources.source import RowTable, SchemaChanged, SourceKey, SourceRow
from stream.sources.mariadb import position
from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.mariadb.schema import TableFilter
from tests.serving.stack import eventually

Outcome = SourceRow | ReadError | SchemaChanged

ODD_TABLES = {
    "words": (
        "w VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY",
        ["abc", "Früh ", "x", "ß", "ae", ""],
        ["abc", "ABC", "abc ", "abc  ", "Abc", " abc", "fruh", "Früh ", "x", "X", "ss", "ß", "ä", "AE", "", " "],
    ),
    "quotes": (
        "w VARCHAR(20) CHARACTER SET utf8mb4 PRIMARY KEY",
        ["a%sb", "per%cent", "it''s", "back\\\\slash"],
        ["a%25sb", "per%25cent", "PER%25CENT", "it's", 'it"s', "back\\slash", "%25s", "日本", "abc%00", "'; --"],
    ),
    "latin": (
        "w VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_bin PRIMARY KEY",
        ["abc", "ABC", "ä", "e"],
        ["abc", "ABC", "Abc", "abc ", "ä", "Ä", "é", "日", "e", "E", "🙂", ""],
    ),
    "german": (
        "w VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_german2_ci PRIMARY KEY",
        ["Müller", "Goethe", "Strasse"],
        ["Mueller", "müller", "MÜLLER", "Göthe", "Goethe", "Straße", "STRASSE", "日", "x"],
    ),
    "exact": (
        "w VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin PRIMARY KEY",
        ["abc", "abc ", "ABC"],
        ["abc", "abc ", "abc  ", "ABC", "Abc", ""],
    ),
    "padded": (
        "w CHAR(6) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY",
        ["abc", "x"],
        ["abc", "abc ", "abc   ", "ABC", "x", "", "longer than the column"],
    ),
    "fixed": ("w BINARY(4) PRIMARY KEY", ["ab", "abcd"], ["ab", "ab%00%00", "abcd", "abcde", "", "ab%00"]),
    "bytes": ("w VARBINARY(8) PRIMARY KEY", ["ab", "ab "], ["ab", "ab ", "AB", "%00", "", "%FF"]),
    "prices": (
        "w DECIMAL(20,2) PRIMARY KEY",
        ["1.50", "0", "-3.10", "9007199254740993.00", "9007199254740992.00"],
        ["1.5", "1.50", "1.500", "+1.5", "1.504", "15e-1", "0", "-0", "-3.1", "9007199254740993", "1e40", "2"],
    ),
    "reals": ("w DOUBLE PRIMARY KEY", ["0.1", "1e100", "-0.0"], ["0.1", "0.10", "1e100", "0", "-0", "1e-1", "0.2"]),
    "floats": ("w FLOAT PRIMARY KEY", ["0.1", "2"], ["0.1", "0.10000000149011612", "2", "2.0", "3"]),
    "days": (
        "w DATE PRIMARY KEY",
        ["2024-02-29", "0000-00-00"],
        ["2024-02-29", "2024-2-29", "20240229", "2024-02-30", "0000-00-00", "soon", ""],
    ),
    "times": (
        "w DATETIME(3) PRIMARY KEY",
        ["2024-02-29 10:00:00.5"],
        ["2024-02-29 10:00:00.500", "2024-02-29 10:00:00.5", "2024-02-29T10:00:00.500", "2024-02-29", "x"],
    ),
    "kinds": (
        "w ENUM('small','BIG','') CHARACTER SET utf8mb4 PRIMARY KEY",
        ["small", "BIG"],
        ["small", "Small", "big", "BIG ", "1", "", "other"],
    ),
    "years": ("w YEAR PRIMARY KEY", ["1999", "2070"], ["1999", "99", "70", "2070", "0", "5"]),
    "flags": ("w BIT(9) PRIMARY KEY", ["5", "256"], ["5", "256", "0", "511", "99999999999999999999"]),
    "numbers": ("w TINYINT PRIMARY KEY", ["1", "-128"], ["1", "01", "+1", "-128", "128", "99999999999999999999"]),
    "uuids": (
        "w UUID PRIMARY KEY",
        ["123e4567-e89b-12d3-a456-426655440000"],
        [*(f"123{e}4567-e89b-12d3-a456-426655440000" for e in "eEf"), "123e4567e89b12d3a456426655440000", "x", ""],
    ),
    "addresses": (
        "w INET6 PRIMARY KEY",
        ["::1", "::ffff:1.2.3.4"],
        ["::1", "0::1", "::ffff:1.2.3.4", "1.2.3.4", "::2"],
    ),
}
"""Column, stored values as SQL texts, and path segments that readers may write for them, or for nothing."""

PAIRS = (
    "CREATE TABLE pairs (a INT, w VARCHAR(20) CHARACTER SET utf8mb4, `p%s` INT, PRIMARY KEY (a, w))",
    "CREATE TABLE int_pairs (a INT, w INT, PRIMARY KEY (a, w))",
    "INSERT INTO pairs SELECT seq, seq % 7, seq FROM seq_1_to_300",
    "INSERT INTO int_pairs SELECT a, w FROM pairs",
)


READER = "odd_keys_reader"
"""A user of the source alone, whose statements the server counts."""
ALL_COMMANDS = "SELECT_COMMANDS + UPDATE_COMMANDS + OTHER_COMMANDS"
BUSY = f"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = '{READER}' AND COMMAND <> 'Sleep'"


class Origin:
    """A database of odd tables and the source over it."""

    def __init__(self, mariadb: MariaDBAddress, database: str) -> None:
        self.mariadb, self.database = mariadb, database
        self.settings = ConnectionSettings(mariadb.host, mariadb.port, READER, "")

    def run(self, *statements: str) -> None:
        """Statements, each in a transaction of its own."""
        with self.mariadb.connect(database=self.database, autocommit=True) as session, session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def ask(self, work: Callable[[MariaDBRows], Any]) -> Any:
        """What ``work`` returns of a source that lives as long as it."""

        async def story() -> Any:
            rows = MariaDBRows(self.settings, "s/0", TableFilter((self.database,)))
            try:
                return await work(rows)
            finally:
                await rows.close()

        return asyncio.run(story())

    async def described(self, rows: MariaDBRows, table: str) -> RowTable:
        """The table's key."""
        found = await rows.describe(f"{self.database}.{table}")
        assert found is not None
        return found


@pytest.fixture(scope="module")
def origin(mariadb: MariaDBAddress) -> Iterator[Origin]:
    """All odd tables, filled."""
    name = "odd_keys"
    with mariadb.connect(autocommit=True) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE OR REPLACE DATABASE {name}")
        cursor.execute(f"CREATE OR REPLACE USER {READER}")
        cursor.execute(f"GRANT ALL ON *.* TO {READER}")
        cursor.execute("SET GLOBAL userstat = ON")
    made = Origin(mariadb, name)
    for table, (column, stored, _) in ODD_TABLES.items():
        made.run(f"CREATE TABLE {table} ({column}, `n%` INT)")
        made.run("SET sql_mode=''", *(f"INSERT INTO {table} VALUES ('{value}', 1)" for value in stored))
    made.run(*PAIRS)
    yield made
    with mariadb.connect(autocommit=True) as session, session.cursor() as cursor:
        cursor.execute("SET GLOBAL userstat = OFF")
        cursor.execute(f"DROP USER {READER}")
        cursor.execute(f"DROP DATABASE {name}")


def said(outcomes: Sequence[Outcome]) -> list[tuple[object, ...]]:
    """What outcomes say, without the snapshot that they were read in."""
    return [
        (each.image, each.key) if isinstance(each, SourceRow) else (type(each), getattr(each, "code", ""), str(each))
        for each in outcomes
    ]


def wanted_of(table: RowTable, segments: Sequence[str]) -> list[SourceKey]:
    """The requests that these path segments make, without those that are refused before the source is asked."""
    found = []
    for segment in segments:
        try:
            found.append(SourceKey(table, parse_row_key(table, segment.encode()).values))
        except ReadError:
            continue
    return found


@pytest.mark.parametrize("name", ODD_TABLES)
def test_odd_keys_find_together_what_they_find_alone(origin: Origin, name: str) -> None:
    """A batch of keys in unusual spellings gives the answers of single reads, from one snapshot."""

    async def compare(rows: MariaDBRows) -> None:
        wanted = wanted_of(await origin.described(rows, name), ODD_TABLES[name][2])
        assert len(wanted) > 1
        together = await rows.read(wanted)
        alone = [(await rows.read([each]))[0] for each in wanted]
        assert said(together) == said(alone)
        assert any(isinstance(each, SourceRow) and each.image is not None for each in together)
        assert len({each.position for each in together if isinstance(each, SourceRow)}) == 1

    origin.ask(compare)


SPELLINGS = st.text("aAäÄeE sSß%\\'\"日\0_", max_size=4)


@given(segments=st.lists(SPELLINGS, min_size=2, max_size=40), stored=st.sets(SPELLINGS, max_size=8))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_unicode_nopad_ci", "latin1_german2_ci"])
def test_any_texts_find_together_what_they_find_alone(
    origin: Origin, collation: str, segments: list[str], stored: set[str]
) -> None:
    """A batch of generated texts gives the answers of single reads in several collations."""
    origin.run(
        f"CREATE OR REPLACE TABLE any_text (w VARCHAR(20) CHARACTER SET {collation.partition('_')[0]}"
        f" COLLATE {collation} PRIMARY KEY)"
    )
    with origin.mariadb.connect(database=origin.database, autocommit=True, charset="utf8mb4") as session:
        session.cursor().executemany("INSERT IGNORE INTO any_text VALUES (%s)", [(text,) for text in stored])

    async def compare(rows: MariaDBRows) -> None:
        table = await origin.described(rows, "any_text")
        wanted = [SourceKey(table, (segment,)) for segment in segments]
        assert said(await rows.read(wanted)) == said([(await rows.read([each]))[0] for each in wanted])

    origin.ask(compare)


@pytest.fixture
def unscanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session finds that the binlog takes long to read: it would ask for the position with one SELECT more."""
    monkeypatch.setattr(position, "SLOW_S", inf)


@contextmanager
def counted(origin: Origin, what: str = "SELECT_COMMANDS") -> Iterator[list[int]]:
    """The server's count for the source's own user: what is in the list afterwards is by how much it rose."""
    rose: list[int] = []
    with origin.mariadb.connect(autocommit=True) as session, session.cursor() as cursor:

        def fetched(asked: str) -> int:
            cursor.execute(asked)
            return int(cursor.fetchone()[0])

        def now() -> int:
            eventually(lambda: fetched(BUSY) == 0)  # a command is counted after its answer was sent
            return fetched(f"SELECT {what} FROM information_schema.USER_STATISTICS WHERE USER = '{READER}'")

        before = now()
        yield rose
        rose.append(now() - before)


@pytest.mark.usefixtures("unscanned")
def test_a_hundred_misses_of_a_table_are_one_query_in_one_snapshot(origin: Origin) -> None:
    """A hundred misses, some absent and some twice, take one SELECT besides the one for the positions.

    If an absent key may be another spelling of a row that was found, one more SELECT decides all such keys.
    """

    async def read(rows: MariaDBRows) -> None:
        for name, word, queries in (("pairs", str, 2), ("int_pairs", int, 1)):
            table = await origin.described(rows, name)
            wanted = [SourceKey(table, (n, word(n % 7 + n % 2))) for n in range(1, 91)]
            wanted += wanted[:10]
            await rows.read(wanted)  # the table's columns are known from here on
            with counted(origin, ALL_COMMANDS) as commands, counted(origin) as selects:
                found = await rows.read(wanted)
            assert (name, selects) == (name, [1 + queries])
            assert commands[0] <= 40  # one a key would be above 100
            assert [isinstance(each, SourceRow) and each.image is not None for each in found] == [
                index % 2 == 1 for index in range(100)
            ]
            assert said(found) == said([(await rows.read([each]))[0] for each in wanted])

    origin.ask(read)


@pytest.mark.usefixtures("unscanned")
def test_several_tables_share_the_snapshot_and_large_batches_are_cut(origin: Origin) -> None:
    """A batch over two tables locks and reads both in one snapshot, with one query per hundred keys of a table."""
    origin.run("CREATE OR REPLACE TABLE one (id INT PRIMARY KEY, v INT)", "INSERT INTO one VALUES (1, 0)")
    origin.run("CREATE OR REPLACE TABLE two (id INT PRIMARY KEY, v INT)", "INSERT INTO two VALUES (1, 0)")
    stop = threading.Event()

    def write() -> None:
        with origin.mariadb.connect(database=origin.database) as session, session.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("UPDATE one SET v = v + 1")
                cursor.execute("UPDATE two SET v = v + 1")
                session.commit()

    async def read(rows: MariaDBRows) -> None:
        one, two = await origin.described(rows, "one"), await origin.described(rows, "two")
        wanted = [SourceKey(one, (1,))]
        wanted += [SourceKey(two, (n,)) for n in range(1, 251)]
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(20):
                found = await rows.read(wanted)
                first, second = found[0], found[1]
                assert isinstance(first, SourceRow)
                assert isinstance(second, SourceRow)
                assert first.image == second.image
                assert len({each.position for each in found if isinstance(each, SourceRow)}) == 1
        finally:
            stop.set()
            writer.join()
        with counted(origin) as selects:
            await rows.read(wanted)
        lock, bounds = 1, 1
        assert selects == [lock + 1 + 3 + bounds]

    origin.ask(read)


def test_an_error_of_a_key_or_a_table_affects_only_its_own_elements(origin: Origin) -> None:
    """An invalid value, a dropped or altered table, and a foreign table fail only their own elements."""
    origin.run(
        "CREATE OR REPLACE TABLE gone (id INT PRIMARY KEY)",
        "CREATE OR REPLACE TABLE moved (a INT PRIMARY KEY, b INT)",
        "CREATE OR REPLACE TABLE keyless (a INT)",
    )

    stored, absent = (f"123{digit}4567-e89b-12d3-a456-426655440000" for digit in "ef")

    async def read(rows: MariaDBRows) -> None:
        tables = [await origin.described(rows, name) for name in ("uuids", "gone", "moved", "keyless", "pairs")]
        uuids, gone, moved, keyless, pairs = tables
        origin.run("DROP TABLE gone", "ALTER TABLE moved DROP PRIMARY KEY, ADD PRIMARY KEY (b)")
        wanted = [SourceKey(uuids, (key,)) for key in (stored, 5, absent, stored.upper())]
        wanted += [SourceKey(gone, (1,)), SourceKey(moved, (1,)), SourceKey(keyless, (1,)), SourceKey(pairs, (2, "2"))]
        wanted.append(SourceKey(RowTable("mysql.user", uuids.key, True), (1,)))
        found = await rows.read(wanted)
        images = [each.image if isinstance(each, SourceRow) else getattr(each, "code", "") for each in found[:4]]
        image = f'{{"w":"{stored}","n%":1}}'.encode()
        assert images == [image, "source_failed", None, image]
        assert [type(each) for each in found[4:7]] == [SchemaChanged] * 3
        assert isinstance(found[7], SourceRow)
        assert found[7].image == b'{"a":2,"w":"2","p%s":2}'
        assert getattr(found[8], "code", None) == "unknown_table"

    origin.ask(read)
