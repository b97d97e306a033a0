"""Keys whose index has rows in another order than their values: all rows are read, with few looks at each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import pytest

from stream.sources.key_range import KeyRange
from stream.sources.mariadb.backfill import chunks
from stream.sources.mariadb.backfill.chunks import ChunkReader
from stream.sources.mariadb.backfill.plan import After, Cursor
from stream.sources.mariadb.connection import fetch_all
from stream.sources.mariadb.snapshot import SnapshotRead, SnapshotReader
from tests.servers.databases import own_database
from tests.sources.mariadb.conftest import Source, settings_of

pytestmark = pytest.mark.integration

ROWS = 900
CHUNK = 20
LOOKED_AT = 8
"""Times that the server may look at a row. In the order of another index it would be half of the number of chunks."""
NUMBERS = f"WITH RECURSIVE n AS (SELECT 1 AS seq UNION ALL SELECT seq + 1 FROM n WHERE seq < {ROWS})"
TEXT = "VARCHAR(60) COLLATE utf8mb4_general_ci"
TABLES = {
    "descending": ("a INT, b INT, PRIMARY KEY (a, b DESC)", "seq DIV 400, seq"),
    "descending text": (f"a {TEXT}, b INT, PRIMARY KEY (a DESC, b)", "CONCAT('a', seq DIV 400), seq"),
    "all descending": ("a INT, b INT, PRIMARY KEY (a DESC, b DESC)", "seq DIV 400, seq"),
    "partial": (f"a {TEXT}, PRIMARY KEY (a(9))", "CONCAT('A', 10000000 + seq * 7919 MOD 1009, REPEAT('é', 40))"),
    "partial blob": (
        "a BLOB, PRIMARY KEY (a(3))",
        "CONCAT(CHAR(seq DIV 250), CHAR(seq MOD 250), 'x', CHAR(seq MOD 7))",
    ),
    "partial behind": (
        "a INT, b TEXT CHARACTER SET latin1, c INT, PRIMARY KEY (a DESC, b(4), c)",
        "seq DIV 300, CONCAT(1000 + seq DIV 10, 'tail', seq MOD 3), seq",
    ),
}


@pytest.fixture(params=["mariadb", "mysql"])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    """A source over an empty database of either server."""
    address: Any = request.getfixturevalue(request.param)
    product: Literal["MariaDB", "MySQL"] = "MySQL" if request.param == "mysql" else "MariaDB"
    with own_database(address) as database:
        made = Source(settings_of(address, product), database)
        yield made
        made.close()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small table has many."""
    monkeypatch.setattr(chunks, "ROWS_MAX", CHUNK)


def made(source: Source, columns: str, values: str) -> None:
    """A table ``t`` of `ROWS` rows."""
    source.run(f"CREATE TABLE t ({columns})", f"INSERT INTO t {NUMBERS} SELECT {values} FROM n")


def read(
    source: Source, reader: ChunkReader, after: After | None = None, most: int = 1_000
) -> tuple[Any, After | None]:
    """The keys of up to ``most`` chunks, and where the next one begins. Cursors go the way of the source's state."""
    keys: list[bytes] = []
    for _ in range(most):
        chunk = reader.read(source.table("t").describe(), after)
        keys += [row.key for row in chunk.rows]
        if chunk.last is None:
            return keys, None
        after = Cursor.told(json.loads(json.dumps(Cursor(chunk.last).words))).after
    return keys, after


def looked_at(reader: ChunkReader) -> int:
    """Rows that the server has read for the reader, in tables and in what it has made of them."""
    assert reader._session is not None
    return sum(int(number) for _, number in fetch_all(reader._session, "SHOW SESSION STATUS LIKE 'Handler_read%'"))


@pytest.mark.parametrize("table", TABLES)
def test_chunks_are_all_rows_once_and_each_is_looked_at_a_few_times(source: Source, table: str) -> None:
    """The index leads to the rows of a chunk, whichever order it has them in; others are not sorted again each time."""
    made(source, *TABLES[table])
    reader = ChunkReader(source.settings)
    reader.estimated_rows(f"{source.database}.t")
    before = looked_at(reader)
    keys, _ = read(source, reader)
    count = looked_at(reader) - before
    reader.close()
    assert len(keys) == ROWS
    assert set(keys) == source.selected("t").keys()
    assert count < LOOKED_AT * ROWS


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("descending", [False, True])
def test_pages_are_all_rows_in_the_order_of_their_values(source: Source, table: str, descending: bool) -> None:
    """A reader past the cache is told rows in the key's order, not in the index's, however small its pages are."""
    made(source, *TABLES[table])
    info, reader = source.table("t"), SnapshotReader(source.settings)
    whole = reader.read_range(info.name, KeyRange((), None, descending, 2 * ROWS))
    assert isinstance(whole, SnapshotRead)
    found: list[bytes] = []
    wanted = KeyRange((), None, descending, 90)
    while True:
        page = reader.read_range(info.name, wanted)
        assert isinstance(page, SnapshotRead)
        found += [row.key for row in page.rows.rows]
        if not page.rows.more:
            break
        wanted = KeyRange((), msgspec.json.decode(found[-1].partition(b"\0")[2]), descending, 90)
    reader.close()
    assert found == [row.key for row in whole.rows.rows]
    assert set(found) == source.selected("t").keys()


@pytest.mark.parametrize("order", ["b", "b DESC"])
def test_a_table_that_gets_another_index_is_read_to_its_end_in_the_order_in_which_it_began(
    source: Source, order: str
) -> None:
    """Its description is the same, so its backfill goes on: behind a cursor of the other order rows would be left out.

    A cursor of a version that knew ascending order only is such a cursor, too.
    """
    other = {"b": "b DESC", "b DESC": "b"}[order]
    made(source, f"a INT, b INT, PRIMARY KEY (a, {order})", "seq DIV 400, seq")
    reader = ChunkReader(source.settings)
    keys, after = read(source, reader, most=5)
    source.run(f"ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a, {other})")
    rest, _ = read(source, reader, after)
    reader.close()
    assert len(keys + rest) == ROWS
    assert {*keys, *rest} == source.selected("t").keys()


def test_texts_in_another_order_than_their_first_characters_are_all_read(source: Source) -> None:
    """`ß` is compared as `ss`: before `sz`, and behind `s`. By an index of first characters no `sz` is behind it."""
    source.run(
        "CREATE TABLE t (a VARCHAR(9) COLLATE utf8mb4_unicode_ci, PRIMARY KEY (a(1)))",
        "INSERT INTO t VALUES ('sz'), ('ß'), ('a'), ('z')",
    )
    chunk_reader, reader = ChunkReader(source.settings), SnapshotReader(source.settings)
    described, rows, after = source.table("t").describe(), list[bytes](), None
    while True:
        chunk_reader._limit = 1
        chunk = chunk_reader.read(described, after)
        rows += [row.key for row in chunk.rows]
        if (after := chunk.last) is None:
            break
    chunk_reader.close()
    assert set(rows) == source.selected("t").keys()
    page = reader.read_range(described.table, KeyRange((), ["ß"], limit=9))
    reader.close()
    assert isinstance(page, SnapshotRead)
    assert [msgspec.json.decode(row.image)["a"] for row in page.rows.rows] == ["sz", "z"]
