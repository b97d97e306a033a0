"""Binlog and SELECT give the same bytes for every column type of MySQL."""

from __future__ import annotations

import json
import random
import struct

import pytest

from stream.sources.mariadb.binlog.mysql.json_text import double_text
from stream.wire.events import VALUE
from tests.sources.mariadb.conftest import Source
from tests.sources.mariadb.test_images import COLUMNS as MARIADB_COLUMNS
from tests.sources.mariadb.test_images import KEYS as MARIADB_KEYS
from tests.sources.mariadb.test_images import WIDE, Value, name_sql, texts


def json_leaf(r: random.Random) -> str:
    """An SQL expression for a JSON value without parts, of any type that JSON has in MySQL."""
    number = struct.unpack("<d", r.randbytes(8))[0]
    return r.choice(
        [
            "CAST('null' AS JSON)",
            "CAST('true' AS JSON)",
            f"CAST('{r.choice([0, -1, 32767, -32769, 65536, 2**31, 2**63, -(2**63), 2**64 - 1])}' AS JSON)",
            f"CAST({r.randint(-(10**17), 10**17)}.{r.randint(0, 10**9)} AS DECIMAL(40, 10))",
            f"CAST({number if number - number == 0 else 1.5!r} AS DOUBLE)",
            f"CAST({r.choice([0.0, 1e0, 1e15, 1e16, 1e-5, 1.5e-14, 123456789.125, r.random()])!r} + 0e0 AS DOUBLE)",
            "CAST('2024-02-29 12:34:56.789' AS DATETIME(3))",
            "CAST('0000-00-00' AS DATE)",
            "CAST('1999-12-31' AS DATE)",
            f"CAST('{r.choice(['-', ''])}{r.randint(0, 838)}:59:01.5' AS TIME(2))",
            f"CAST(x'{r.randbytes(r.choice([0, 1, 57, 58, 114, 115])).hex()}' AS BINARY)",
            "b'1011'",
            texts(WIDE, 20)(r),
            texts(WIDE, 300)(r),
        ]
    )


def json_value(r: random.Random, depth: int = 0) -> str:
    """An SQL expression for a JSON value, with objects and arrays within each other."""
    if depth > 3 or r.random() < 0.4:
        return json_leaf(r)
    parts = [json_value(r, depth + 1) for _ in range(r.randint(0, 4))]
    if r.random() < 0.5:
        return f"JSON_ARRAY({', '.join(parts)})"
    return f"JSON_OBJECT({', '.join(f'{texts(WIDE, 9)(r)}, {part}' for part in parts)})"


COLUMNS: dict[str, tuple[str, Value]] = {
    **{name: found for name, found in MARIADB_COLUMNS.items() if not name.startswith(("uuid", "inet", "json"))},
    "varchar_utf8": ("VARCHAR(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci", texts(WIDE, 60)),
    "varchar_exact": ("VARCHAR(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin", texts(WIDE, 60)),
    "char_0900": ("CHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_as_cs", texts(WIDE, 40)),
    "varchar_koi8r": ("VARCHAR(60) CHARACTER SET koi8r", texts("абвгдЖЩ abc", 60)),
    "json_any": ("JSON", lambda r: f"JSON_EXTRACT(JSON_ARRAY({json_value(r)}), '$[0]')"),
    "json_text": ("JSON", lambda r: f"'{json.dumps([r.random() * 10 ** r.randint(-30, 30), r.getrandbits(70)])}'"),
    "json_large": ("JSON", lambda r: f"JSON_ARRAY(REPEAT('x', {r.choice([10, 70_000])}), 1, 2147483648, -1, TRUE)"),
    "generated_json": ("VARCHAR(9) AS (JSON_UNQUOTE(JSON_EXTRACT(json_fixed, '$.a'))) STORED", lambda _: "DEFAULT"),
    "json_fixed": ("JSON", lambda r: f"""'{{"a": "{r.choice("xyz")}", "b": [1.0, 2.50, 1e3]}}'"""),
}
SIZE = 14


@pytest.mark.parametrize("chunk", range(0, len(COLUMNS), SIZE))
def test_the_binlog_gives_the_same_image_as_a_select_for_random_values(source: Source, chunk: int) -> None:
    """Rows of random values, extremes and NULLs have the same image from the binlog and from SELECT."""
    r = random.Random(chunk)
    names = list(COLUMNS)[chunk : chunk + SIZE]
    if any(name in ("generated_virtual", "generated_stored") for name in names) and "tiny" not in names:
        names = ["tiny", *names]
    columns = ", ".join(f"{name_sql(name)} {COLUMNS[name][0]}" for name in names)
    source.run(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
    source.begin()
    assert source.table("t").problem == ""

    def assignments() -> str:
        return ", ".join(f"{name_sql(n)} = {COLUMNS[n][1](r) if r.random() < 0.9 else 'DEFAULT'}" for n in names)

    for number in range(30):
        source.run(f"INSERT IGNORE INTO t SET id = {number}, {assignments()}")
    for number in range(0, 30, 3):
        source.run(f"UPDATE IGNORE t SET {assignments()} WHERE id = {number}")
    found = source.folded(source.transactions())
    expected = source.selected("t")
    assert {change.operation for change in found.values()} == {VALUE}
    assert {key: change.image for key, change in found.items()} == expected
    assert len(expected) == 30


KEYS = [name for name in (*MARIADB_KEYS, "varchar_exact") if name in COLUMNS]


@pytest.mark.parametrize("name", KEYS)
def test_the_binlog_gives_the_same_key_as_a_select(source: Source, name: str) -> None:
    """Keys of every type are equal for inserts, updates and deletes, also if key order differs from column order."""
    r = random.Random(name)
    kind, value = COLUMNS[name]
    source.run(f"CREATE TABLE t (b INT, k {kind.replace(' NULL', '')} NOT NULL, v INT, PRIMARY KEY (k, b))")
    source.begin()
    for number in range(20):
        source.run(f"INSERT IGNORE INTO t VALUES ({number}, {value(r)}, 0)")
    source.run("UPDATE t SET v = b", "DELETE FROM t WHERE b % 3 = 0")
    found = source.folded(source.transactions())
    assert {key: row.image for key, row in found.items() if row.operation == VALUE} == source.selected("t")
    assert len(found) == 20


def test_every_byte_of_a_single_byte_character_set_reads_the_same_both_ways(source: Source) -> None:
    """Every byte of a single-byte character set is decoded as the server does, undefined ones too."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, a CHAR(1) CHARACTER SET latin1, b CHAR(1) CHARACTER SET cp850)")
    source.begin()
    for byte in range(256):
        source.run(f"INSERT IGNORE INTO t VALUES ({byte}, _latin1 x'{byte:02X}', _cp850 x'{byte:02X}')")
    found = source.folded(source.transactions())
    assert {key: row.image for key, row in found.items()} == source.selected("t")


def test_doubles_are_written_as_the_server_writes_them(source: Source) -> None:
    """Doubles of every size have the text in JSON that the server gives them."""
    r = random.Random(7)
    numbers = [r.choice([1, -1]) * r.random() * 10.0 ** r.randint(-40, 40) for _ in range(300)]
    numbers += [float(f"{r.randint(1, 999)}e{exponent}") for exponent in range(-320, 308, 7)]
    numbers += [10.0**exponent for exponent in range(-20, 22)] + [5e-324, 1.7976931348623157e308, -0.0, 0.1 + 0.2]
    numbers += [struct.unpack("<d", r.randbytes(8))[0] for _ in range(300)]
    numbers = [number for number in numbers if number - number == 0]
    with source.session.cursor() as cursor:
        array = ", ".join(f"{number!r}" if "e" in repr(number) else f"{number!r}e0" for number in numbers)
        cursor.execute(f"SELECT CAST(JSON_ARRAY({array}) AS CHAR)")
        [[text]] = cursor.fetchall()
    assert text.decode()[1:-1].split(", ") == [double_text(number) for number in numbers]


def test_collations_that_ignore_something_are_not_exact(source: Source) -> None:
    """Only the binary collation without padding, and no other one, makes a text a key by its spelling."""
    source.run(
        "CREATE TABLE t (a VARCHAR(9) COLLATE utf8mb4_0900_bin, b VARCHAR(9) COLLATE utf8mb4_bin,"
        " c VARCHAR(9) COLLATE utf8mb4_0900_ai_ci, d VARCHAR(9) COLLATE utf8mb4_0900_as_cs, PRIMARY KEY (a))"
    )
    assert [column.exact for column in source.table("t").columns] == [True, False, False, False]


@pytest.mark.parametrize("column", ["p POINT", "g GEOMETRY", "v VECTOR(3)", "s VARCHAR(9) CHARACTER SET sjis"])
def test_a_table_with_a_type_that_is_not_exact_is_read_through(source: Source, column: str) -> None:
    """Spatial types, vectors and character sets that differ from Python's keep a table out of the cache."""
    source.run(f"CREATE TABLE t (id INT PRIMARY KEY, {column})")
    assert source.table("t").problem.startswith(f"column {column[0]} has ")


def test_a_key_that_shows_two_values_as_one_text_is_read_through(source: Source) -> None:
    """As MariaDB's; a member that looks like two in its quotes is one."""
    source.run(
        "SET sql_mode = ''",
        "CREATE TABLE t (k ENUM('a', '') PRIMARY KEY)",
        "CREATE TABLE u (k SET('a', 'a') PRIMARY KEY)",
    )
    source.run(r"CREATE TABLE v (k ENUM('a', 'b'',''b', '\\\'', '\n', 'n') PRIMARY KEY)")
    assert source.table("t").problem == "column k of its key shows two values as ''"
    assert source.table("u").problem == "column k of its key shows two values as 'a'"
    assert source.table("v").problem == ""


def test_hidden_columns_of_indexes_and_invisible_keys_do_not_disturb(source: Source) -> None:
    """Functional and multi-valued indexes, invisible columns and generated primary keys are decoded."""
    source.run(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT INVISIBLE, j JSON, INDEX f ((a + 1)),"
        " INDEX m ((CAST(j->'$.tags' AS UNSIGNED ARRAY))), v INT AS (a * 2) VIRTUAL, INDEX i (v))",
        "SET sql_generate_invisible_primary_key = ON",
        "CREATE TABLE g (a INT)",
    )
    source.begin()
    source.run(
        "INSERT INTO t (id, a, b, j) VALUES (1, 2, 3, '{\"tags\": [1, 2]}')",
        "UPDATE t SET a = 7, j = JSON_SET(j, '$.x', 1)",
        "INSERT INTO g VALUES (5), (6)",
    )
    found = {key: row.image for key, row in source.folded(source.transactions()).items()}
    assert found == source.selected("t") | source.selected("g")
    assert len(found) == 3
