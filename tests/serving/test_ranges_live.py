"""Rows by leading columns of the key, from a committed transaction to a proven answer, over real servers."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from freshet.local.mariadb import MariaDBAddress
from serving.client import AmbiguousRow, BadRequest, Page, Session
from serving.client.cache import DictStore, Invalidator, ObjectCache
from stream.kafka.connection import KafkaCluster
from tests.servers.databases import own_database
from tests.serving.stack import ServingStack, eventually, is_complete, settled

KEYS = {
    "orders": "customer INT, id INT",
    "amounts": "amount DECIMAL(20,3)",
    "ratios": "ratio DOUBLE",
    "moments": "at DATETIME(3), n INT",
    "spans": "span TIME(1)",
    "codes": "code VARBINARY(20)",
    "addresses": "address INET6",
    "years": "y YEAR, big BIGINT UNSIGNED",
    "words": "word VARCHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    "pool": "place INT, id INT",
    "labels": "id INT",
    "ordered": "a INT, b INT",
    "ordered_text": "a INT, b VARCHAR(9)",
}
"""Table → the columns of its key. Each has a column ``v`` besides, another one in each row."""
VALUES = {
    "orders": "seq DIV 20, seq * 37 MOD 1000",
    "amounts": "(seq * 7919 MOD 2003 - 900) / 8",
    "ratios": "(seq * 7919 MOD 2003 - 900) / 7 * POW(10, seq MOD 40 - 20)",
    "moments": "'2024-02-28' + INTERVAL seq * 977 * 61000 MICROSECOND, seq MOD 3",
    "spans": "SEC_TO_TIME((seq * 7919 MOD 2003 - 1000) * 1234.5)",
    "codes": "UNHEX(SUBSTRING(SHA1(seq), 1, 8 + 2 * (seq MOD 6)))",
    "addresses": "CONCAT('2001:db8::', HEX(seq * 7919 MOD 65000))",
    "years": "1990 + seq MOD 9, CAST(seq AS UNSIGNED) * 73786976294838206",
    "words": "CONCAT(CHAR(97 + seq MOD 26 USING utf8mb4), seq)",
    "pool": "seq MOD 5, seq",
    "labels": "seq",
    "ordered": "seq MOD 7, seq",
    "ordered_text": "seq MOD 7, LPAD(seq, 4, '0')",
}
POOL = 100
INDEXES = ("orders(v)", "words(v)", "orders(gone)", "ordered(n)", "ordered_text(n)")
"""Those that the settings name; the source has others, which are learnt."""


LABELS = (
    ", label VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin UNIQUE, day DATE, n BIGINT UNSIGNED"
    ", loose VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, KEY (day, n), KEY (loose)"
)
LABELED = (
    ", CONCAT('Ж\"é ', seq), '2024-01-01' + INTERVAL seq MOD 3 DAY, CAST(18446744073709551000 + seq MOD 2 AS UNSIGNED)"
    ", IF(seq MOD 2, 'Abc', 'abd')"
)
"""Columns of one table that have indexes, and their values."""
MORE = (
    ", n INT, amount DECIMAL(9,2), moment DATETIME(3), raw VARBINARY(9), loose VARCHAR(9)"
    ", KEY (n, amount), KEY (loose)",
    ", seq MOD 9, IF(seq MOD 4, (seq MOD 11 - 5) / 4, NULL)"
    ", IF(seq MOD 5, '2024-01-01' + INTERVAL seq MOD 6 SECOND, NULL)"
    ", UNHEX(SUBSTRING(SHA1(seq MOD 30), 1, 4 + 2 * (seq MOD 2))), CONCAT('x', seq MOD 12)",
)
"""Columns by which rows are ordered, and their values."""
ADDED = {"labels": (LABELS, LABELED), "ordered": MORE, "ordered_text": MORE}


@pytest.fixture(scope="module")
def whole(
    kafka: KafkaCluster, mariadb: MariaDBAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServingStack]:
    """A running stack whose tables are complete in the cache."""
    keyspace, directory = f"ks{uuid.uuid4().hex[:10]}", tmp_path_factory.mktemp("ranges")
    statements = []
    for table, columns in KEYS.items():
        more, values = ADDED.get(table, ("", ""))
        statements.append(f"CREATE TABLE {table} ({columns}, v INT{more}, PRIMARY KEY ({', '.join(key_of(table))}))")
        rows = POOL if table == "pool" else 240
        signed = f"(SELECT CAST(seq AS SIGNED) AS seq FROM seq_1_to_{rows}) AS numbers"
        statements.append(f"INSERT INTO {table} SELECT {VALUES[table]}, seq{values} FROM {signed}")
    with own_database(mariadb, *statements) as database:
        options: dict[str, Any] = {
            "partitions": 3,
            "backfill": ["*"],
            "indexes": ["schema", *(f"{database}.{index}" for index in INDEXES)],
        }
        with ServingStack(directory, kafka, mariadb, keyspace, database, **options) as running:
            eventually(lambda: all(is_complete(running, table) for table in KEYS), what="complete tables")
            yield running


@pytest.fixture
def session(whole: ServingStack) -> Iterator[Session]:
    """A session that has seen nothing."""
    with whole.client() as client:
        yield client.session()


def key_of(table: str) -> list[str]:
    """The names of the key's columns."""
    return [column.split()[0] for column in KEYS[table].split(", ")]


def at_source(stack: ServingStack, sql: str) -> list[int]:
    """One column of what the server answers."""
    with stack.connect() as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return [row[0] for row in cursor.fetchall()]


def numbers(*pages: Page) -> list[Any]:
    """The ``v`` of each row."""
    return [row["v"] for page in pages for row in page.rows]


@pytest.mark.parametrize("table", [table for table in KEYS if table not in ("words", "ordered_text")])
@pytest.mark.parametrize("sign", ["", "-"], ids=["ascending", "descending"])
def test_the_cache_has_the_order_of_the_server(whole: ServingStack, session: Session, table: str, sign: str) -> None:
    """All rows in pages of one position, for each kind of key; nothing is asked of the source."""
    session.adopt(settled(whole))
    key = key_of(table)
    pages = list(session.scan(whole.keyspace, table, order_by=",".join(sign + name for name in key), limit=70))
    how = {(page.served_from, page.freshness, page.moved) for page in pages}
    assert how == {("cache", "fresh", False)}, pages[0].why
    order = ", ".join(name + (" DESC" if sign else "") for name in key)
    assert numbers(*pages) == at_source(whole, f"SELECT v FROM {table} ORDER BY {order}")
    assert all(page.page for page in pages[:-1])


def test_an_object_of_two_tables_is_kept_until_a_part_of_it_changes(whole: ServingStack, session: Session) -> None:
    """In the application's own cache, over real servers: a hit asks nobody, and has what its session has written."""
    objects = {"customer": {f"{whole.database}.orders": ["customer"], f"{whole.database}.ordered": ["a"]}}
    store = DictStore()
    ends = threading.Event()
    with whole.client() as client:
        invalidator = Invalidator(store, whole.keyspace, objects=objects)

        def follow() -> None:
            for _ in invalidator.follow(client):
                if ends.is_set():
                    return

        following = threading.Thread(target=follow, daemon=True)
        following.start()
        cache = ObjectCache(client, store, whole.keyspace, objects)

        def hit() -> dict[str, list[int]] | None:
            found = cache.get(session, "customer", 500)
            assert found.rows.keys() == objects["customer"].keys()
            values = {table: [row["v"] for row in rows] for table, rows in found.rows.items()}
            return values if found.from_store else None

        try:
            expected: dict[str, list[int]] = {table: [] for table in objects["customer"]}
            assert eventually(hit, what="an object without rows") == expected
            for table, column in ((each, columns[0]) for each, columns in objects["customer"].items()):
                second = "id" if column == "customer" else "b"
                for sql in (
                    f"INSERT INTO {table} ({column}, {second}, v) VALUES (500, 7, 1)",
                    f"DELETE FROM {table} WHERE {column} = 500",
                ):
                    whole.run(sql)
                    expected[table] = [1] if sql.startswith("INSERT") else []
                    session.adopt(settled(whole))
                    found = cache.get(session, "customer", 500)
                    assert [row["v"] for row in found.rows[table]] == expected[table]
                    assert eventually(hit, what="the object again") == expected
        finally:
            ends.set()
            following.join()


def test_the_order_of_a_text_is_the_sources(whole: ServingStack, session: Session) -> None:
    """A collation orders it, and finds other spellings. The rows are counted by the cache."""
    session.adopt(settled(whole))
    pages = list(session.scan(whole.keyspace, "words", limit=90))
    assert {(page.served_from, page.freshness) for page in pages} == {("source", "fresh")}
    assert "only the source knows the order of word" in pages[0].why
    assert numbers(*pages) == at_source(whole, "SELECT v FROM words ORDER BY word")
    [word] = numbers(session.find(whole.keyspace, "words", {"word": "B1 "}))
    assert word == 1
    assert session.count(whole.keyspace, "words") == 240


@pytest.mark.parametrize(
    ("columns", "order_by", "where", "order"),
    [
        ({}, "amount", "TRUE", "amount, a, b"),
        ({}, "-amount", "TRUE", "amount DESC, a DESC, b DESC"),
        ({}, "moment,amount", "TRUE", "moment, amount, a, b"),
        ({}, "-b", "TRUE", "b DESC, a DESC"),
        ({}, "raw", "TRUE", "raw, a, b"),
        ({"a": 3}, "-moment", "a = 3", "moment DESC, b DESC"),
        ({"n": 2}, "amount", "n = 2", "amount, a, b"),
        ({"n": 2}, "-n,-moment", "n = 2", "moment DESC, a DESC, b DESC"),
    ],
)
@pytest.mark.parametrize("cached", [True, False], ids=["cache", "source"])
def test_rows_come_in_the_order_of_other_columns(
    whole: ServingStack, session: Session, cached: bool, columns: dict[str, Any], order_by: str, where: str, order: str
) -> None:
    """In pages of one position, with NULLs and equal values among them; the same from the cache and from the source."""
    table = "ordered" if cached else "ordered_text"
    session.adopt(settled(whole))
    pages = list(session.scan(whole.keyspace, table, columns, order_by=order_by, limit=7))
    how = {(page.served_from, page.freshness, page.moved) for page in pages}
    assert how == {("cache" if cached else "source", "fresh", False)}, pages[0].why
    assert numbers(*pages) == at_source(whole, f"SELECT v FROM {table} WHERE {where} ORDER BY {order}")
    assert session.count(whole.keyspace, table, columns, limit=None) == len(numbers(*pages))


def test_a_session_finds_its_own_writes(whole: ServingStack, session: Session) -> None:
    """Inserted, moved to another key, and deleted: each find after a commit has it, from the cache or the source."""
    keyspace = whole.keyspace
    with session.wrap(whole.connect(), shard=whole.shard) as connection, connection.cursor() as cursor:
        for number in range(10):
            cursor.execute("INSERT INTO orders VALUES (%s, 1, %s), (%s, 2, 0)", (900 + number, number, 900 + number))
            found = session.find(keyspace, "orders", {"customer": 900 + number})
            assert (numbers(found), found.freshness) == ([number, 0], "fresh")
            cursor.execute("UPDATE orders SET customer = 800 WHERE customer = %s AND id = 1", (900 + number,))
            assert numbers(session.find(keyspace, "orders", {"customer": 900 + number})) == [0]
            assert numbers(session.find(keyspace, "orders", {"customer": 800}, order_by="id")) == [number]
            assert session.count(keyspace, "orders", {"customer": 800}) == 1
            cursor.execute("DELETE FROM orders WHERE customer = 800")
            assert not session.exists(keyspace, "orders", {"customer": 800})
            assert session.exists(keyspace, "orders", {"customer": 900 + number})


def test_each_answer_is_one_position_while_rows_move_between_partitions(whole: ServingStack, session: Session) -> None:
    """Each transaction moves some rows to other keys. A scan has every row once, whichever partitions they are in."""
    stop = threading.Event()
    moved = 0

    def move() -> None:
        nonlocal moved
        with whole.connect(autocommit=False) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("UPDATE pool SET place = (place + 1) MOD 5 WHERE id MOD 10 = %s", (moved % 10,))
                connection.commit()
                moved += 1
                stop.wait(0.02)

    writer = threading.Thread(target=move)
    writer.start()
    try:
        served: list[str] = []
        while served.count("cache") < 10 or moved < 10:
            assert len(served) < 3_000, served
            found = session.find(whole.keyspace, "pool", limit=POOL + 10, max_wait_ms=10_000)
            assert sorted(numbers(found)) == list(range(1, POOL + 1)), found.why
            assert session.count(whole.keyspace, "pool", max_wait_ms=10_000) == POOL
            served.append(found.served_from)
    finally:
        stop.set()
        writer.join()


def test_pages_say_when_they_are_no_more_of_one_position(whole: ServingStack, session: Session) -> None:
    """A change elsewhere moves nothing; one in the range does, and the page is answered all the same."""
    session.adopt(settled(whole))
    keyspace = whole.keyspace
    first = session.find(keyspace, "orders", {"customer": 5}, limit=8)
    whole.run("INSERT INTO orders VALUES (777, 1, 1)")
    session.adopt(settled(whole))
    second = session.find(keyspace, "orders", {"customer": 5}, limit=8, page=first.page)
    assert not second.moved
    whole.run("DELETE FROM orders WHERE customer = 5 ORDER BY id LIMIT 1")
    session.adopt(settled(whole))
    third = session.find(keyspace, "orders", {"customer": 5}, limit=8, page=second.page)
    assert (third.moved, third.page) == (True, "")
    assert numbers(first, second, third) == [*numbers(first), *numbers(second), *numbers(third)]
    assert len(numbers(first, second, third)) == 20
    whole.run("DELETE FROM orders WHERE customer = 777")


def test_what_has_no_index_is_refused_with_those_there_are(whole: ServingStack, session: Session) -> None:
    """A column that is no leading one, an order that nobody has, a page of something else."""
    find = session.find
    for columns, order_by in (
        ({"id": 1}, ""),
        ({"total": 1}, ""),
    ):
        with pytest.raises(BadRequest, match=r"PRIMARY \(customer, id\)") as refused:
            find(whole.keyspace, "orders", columns, order_by=order_by)
        assert refused.value.code == "no_index"
    for order_by, why in (("customer,-id", "one direction"), ("total", "there is none")):
        with pytest.raises(BadRequest, match=why) as refused:
            find(whole.keyspace, "orders", order_by=order_by)
        assert refused.value.code == "no_index"
    page = find(whole.keyspace, "orders", limit=1).page
    by_value = find(whole.keyspace, "orders", order_by="v", limit=1).page
    for columns, text in (({"customer": 1}, page), ({}, page[:-3]), ({}, "x"), ({}, by_value)):
        with pytest.raises(BadRequest) as bad:
            find(whole.keyspace, "orders", columns, page=text)
        assert bad.value.code == "bad_page"
    with pytest.raises(BadRequest) as value:
        find(whole.keyspace, "orders", {"customer": "x"})
    assert value.value.code == "bad_key"
    assert whole.get(f"/v1/rows/{whole.keyspace}/orders", limit="1001").json()["code"] == "bad_parameter"


def test_a_table_that_is_not_complete_is_read_from_the_source(stack: ServingStack) -> None:
    """In the same order and pages, proved in the same way; the reason says what is missing."""
    with stack.client() as client:
        session = client.session(settled(stack))
        with session.wrap(stack.connect(), shard=stack.shard) as connection, connection.cursor() as cursor:
            cursor.execute("REPLACE INTO `lines` VALUES (7, 'b', '1'), (7, 'a', '2'), (70, 'c', '3'), (7, 'c', '4')")
        pages = list(session.scan(stack.keyspace, "lines", {"a": 7}, order_by="-b", limit=2))
        assert [row["note"] for page in pages for row in page.rows] == ["4", "1", "2"]
        assert {(page.served_from, page.freshness) for page in pages} == {("source", "fresh")}
        assert "not known to be complete" in pages[0].why
        assert session.count(stack.keyspace, "many") == 1000
        assert session.count(stack.keyspace, "many", limit=10) == 10
        assert not session.exists(stack.keyspace, "lines", {"a": 8})


def test_complete_tables_are_found_without_a_source(whole: ServingStack) -> None:
    """The server of the source of truth may be away: what the cache proves needs no read of it."""
    with whole.client() as client:
        session = client.session(settled(whole))
        before = whole.get("/metrics").text
        found = session.find(whole.keyspace, "orders", {"customer": 3}, limit=100)
        assert (found.served_from, len(found.rows)) == ("cache", 20)
        assert session.count(whole.keyspace, "years") == 240
        reads = "freshet_serve_source_reads_total"
        after = whole.get("/metrics").text
    assert [line for line in before.splitlines() if reads in line] == [
        line for line in after.splitlines() if reads in line
    ]


def test_rows_by_an_indexed_column_are_those_of_the_server(whole: ServingStack, session: Session) -> None:
    """A unique text, two columns, a number; in the order of the key, in pages, counted: all from the cache."""
    session.adopt(settled(whole))
    keyspace = whole.keyspace
    row = session.get_by(keyspace, "labels", {"label": 'Ж"é 17'})
    assert row is not None
    assert (row["id"], row["v"]) == (17, 17)
    assert session.get_by(keyspace, "labels", {"label": 'ж"É 17'}) is None
    assert session.get_by(keyspace, "words", {"v": 30}) is not None
    both = {"n": 18446744073709551001, "day": "2024-01-02"}
    pages = list(session.scan(keyspace, "labels", both, order_by="-id", limit=15))
    assert {(page.served_from, page.freshness, page.moved) for page in pages} == {("cache", "fresh", False)}, pages
    wanted = "FROM labels WHERE day = '2024-01-02' AND n = 18446744073709551001"
    assert numbers(*pages) == at_source(whole, f"SELECT v {wanted} ORDER BY id DESC")
    assert [session.count(keyspace, "labels", both)] == at_source(whole, f"SELECT COUNT(*) {wanted}")
    with pytest.raises(AmbiguousRow):
        session.get_by(keyspace, "labels", both)


def test_a_session_finds_its_own_changes_of_an_indexed_column(whole: ServingStack, session: Session) -> None:
    """A row that gets a value, and one that loses it, on whichever partition; NULL is no value."""
    keyspace = whole.keyspace
    served = []
    with session.wrap(whole.connect(), shard=whole.shard) as connection, connection.cursor() as cursor:
        for number in range(1, 21):
            cursor.execute("UPDATE labels SET label = NULL WHERE id = %s", (number,))
            cursor.execute("UPDATE labels SET label = %s WHERE id = %s", (f"moving {number % 2}", number))
            found = session.find(keyspace, "labels", {"label": f"moving {number % 2}"}, max_wait_ms=10_000)
            assert [row["id"] for row in found.rows] == [number], found.why
            cursor.execute("UPDATE labels SET label = NULL WHERE id = %s", (number,))
            assert session.get_by(keyspace, "labels", {"label": f"moving {number % 2}"}) is None
            served.append(found.served_from)
    assert served.count("cache") > 10, served


def test_an_index_that_proves_nothing_is_read_from_the_source(whole: ServingStack, session: Session) -> None:
    """A collation compares the column; a column that isn't there, or has no index, is refused with those there are.

    One that the source gets later is found, too: the front learns it when it is asked for.
    """
    session.adopt(settled(whole))
    found = session.find(whole.keyspace, "labels", {"loose": "ABC "}, limit=1000)
    assert (found.served_from, len(found.rows)) == ("source", 120)
    assert "another spelling" in found.why
    with pytest.raises(BadRequest) as refused:
        session.find(whole.keyspace, "labels", {"day": "2024-01-02"})
    assert refused.value.code == "no_index"
    assert all(index in str(refused.value) for index in ("(label)", "(day, n)", "(loose)"))
    whole.run("CREATE INDEX later ON labels (n)")
    later = session.find(whole.keyspace, "labels", {"n": 18446744073709551001}, limit=1000)
    assert (later.served_from, len(later.rows)) == ("source", 120)
    assert "is not kept" in later.why
    with pytest.raises(BadRequest, match="no column gone"):
        session.find(whole.keyspace, "orders", {"gone": 1})
    page = session.find(whole.keyspace, "labels", {"day": "2024-01-02", "n": 18446744073709551001}, limit=1).page
    with pytest.raises(BadRequest) as bad:
        session.find(whole.keyspace, "labels", {"day": "2024-01-03", "n": 18446744073709551001}, limit=1, page=page)
    assert bad.value.code == "bad_page"
