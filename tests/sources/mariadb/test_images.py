"""Binlog and SELECT give the same bytes for every column type."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from stream.sources.mariadb.backfill.chunks import ChunkReader
from stream.sources.mariadb.backfill.plan import After
from stream.wire.events import VALUE, RowImages
from tests.sources.mariadb.conftest import Source, voids

Value = Callable[[random.Random], str]


def integers(low: int, high: int) -> Value:
    """SQL integers between two bounds; the bounds themselves are likely."""
    return lambda r: str(r.choice([low, high, 0, r.randint(low, high)]))


def decimals(digits: int, scale: int) -> Value:
    """SQL decimals of any size that fits, both signs."""

    def value(r: random.Random) -> str:
        if r.random() < 0.2:
            text = "9" * (digits - scale) + ("." + "9" * scale if scale else "")
        else:
            whole = str(r.randint(0, 10 ** r.randint(0, digits - scale) - 1)) if digits > scale else "0"
            text = whole + ("." + "".join(r.choices(string.digits, k=scale)) if scale else "")
        return r.choice(["", "-"]) + text

    return value


def floats(exponent: int) -> Value:
    """SQL floating point numbers over a range of decimal exponents."""
    return lambda r: r.choice(
        ["0", "-0e0", "1.1", "16777217", f"{r.uniform(-1, 1):.17g}e{r.randint(-exponent, exponent)}"]
    )


def texts(alphabet: str, size: int) -> Value:
    """SQL strings over an alphabet; quotes, escapes, controls and blanks at the end included."""

    def value(r: random.Random) -> str:
        text = "".join(r.choices(alphabet, k=r.randint(0, size)))
        return "'" + text.replace("\\", "\\\\").replace("'", "''").replace("\0", "\\0") + "'"

    return value


def bits(count: int) -> Value:
    """SQL bit strings."""
    return lambda r: f"b'{r.getrandbits(count):b}'"


def binaries(size: int) -> Value:
    """SQL binary strings; zero bytes at the end are likely."""
    return lambda r: (
        f"x'{(r.randbytes(r.randint(0, size)).rstrip(b'7')[:size]).hex()}'" if r.random() < 0.7 else "x'0100'"
    )


def moments(fsp: int, low: datetime, high: datetime) -> Value:
    """SQL datetimes with a fraction."""

    def value(r: random.Random) -> str:
        moment = low + timedelta(seconds=r.randint(0, int((high - low).total_seconds())))
        fraction = "".join(r.choices(string.digits, k=fsp))
        return f"'{moment:%Y-%m-%d %H:%M:%S}{'.' + fraction if fsp else ''}'".replace("'1000", "'1000")

    return value


def times(fsp: int) -> Value:
    """SQL times of both signs, far beyond a day."""

    def value(r: random.Random) -> str:
        fraction = "." + "".join(r.choices(string.digits, k=fsp)) if fsp else ""
        some = f"{r.choice(['', '-'])}{r.randint(0, 837):02d}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d}{fraction}"
        return f"'{r.choice(['-838:59:59', '838:59:59', '00:00:00', '-00:00:01' + fraction, some])}'"

    return value


LATIN = string.ascii_letters + "äöüßÄéÿ€ž'\"\\%\n\t "
WIDE = LATIN + "ăș中文字日本語русский𐍈😀\u200d\x7f\x01\x1f/<>"
OLD, NEW = datetime(1000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
EPOCH, END = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(2038, 1, 19, 3, 14, 7, tzinfo=UTC)

COLUMNS: dict[str, tuple[str, Value]] = {
    "tiny": ("TINYINT", integers(-128, 127)),
    "tiny_u": ("TINYINT UNSIGNED", integers(0, 255)),
    "bool": ("BOOLEAN", integers(0, 1)),
    "small": ("SMALLINT", integers(-32768, 32767)),
    "small_u": ("SMALLINT UNSIGNED", integers(0, 65535)),
    "medium": ("MEDIUMINT", integers(-(2**23), 2**23 - 1)),
    "medium_u": ("MEDIUMINT UNSIGNED", integers(0, 2**24 - 1)),
    "int": ("INT", integers(-(2**31), 2**31 - 1)),
    "int_u": ("INT UNSIGNED", integers(0, 2**32 - 1)),
    "int_zero": ("INT(9) ZEROFILL", integers(0, 2**32 - 1)),
    "big": ("BIGINT", integers(-(2**63), 2**63 - 1)),
    "big_u": ("BIGINT UNSIGNED", integers(0, 2**64 - 1)),
    "dec_whole": ("DECIMAL(10,0)", decimals(10, 0)),
    "dec_money": ("DECIMAL(12,2)", decimals(12, 2)),
    "dec_fraction": ("DECIMAL(5,5)", decimals(5, 5)),
    "dec_wide": ("DECIMAL(65,30)", decimals(65, 30)),
    "dec_zero": ("DECIMAL(9,3) ZEROFILL", lambda r: decimals(9, 3)(r).removeprefix("-")),
    "float_any": ("FLOAT", floats(37)),
    "float_fixed": ("FLOAT(9,3)", lambda r: f"{r.uniform(-99999, 99999):.6f}"),
    "float_u": ("FLOAT UNSIGNED", lambda r: f"{r.uniform(0, 9e9):.9g}"),
    "double_any": ("DOUBLE", floats(300)),
    "double_fixed": ("DOUBLE(20,4)", lambda r: f"{r.uniform(-1e14, 1e14):.6f}"),
    "day": (
        "DATE",
        lambda r: r.choice(["'0000-00-00'", "'2024-00-00'", "'9999-12-31'", "'2024-02-29'", "'0001-01-01'"]),
    ),
    **{f"datetime_{n}": (f"DATETIME({n})", moments(n, OLD, NEW)) for n in range(7)},
    "datetime_zero": ("DATETIME(3)", lambda _: "'0000-00-00 00:00:00'"),
    **{f"stamp_{n}": (f"TIMESTAMP({n}) NULL", moments(n, EPOCH, END)) for n in range(7)},
    "stamp_zero": ("TIMESTAMP(2) NULL", lambda _: "'0000-00-00 00:00:00'"),
    **{f"time_{n}": (f"TIME({n})", times(n)) for n in range(7)},
    "year_any": ("YEAR", lambda r: str(r.choice([0, 1901, 2155, r.randint(1901, 2155)]))),
    "char_utf8": ("CHAR(40) CHARACTER SET utf8mb4", texts(WIDE, 40)),
    "char_latin1": ("CHAR(40) CHARACTER SET latin1", texts(LATIN, 40)),
    "char_long": ("CHAR(255) CHARACTER SET utf8mb4", texts(WIDE, 255)),
    "varchar_utf8": ("VARCHAR(60) CHARACTER SET utf8mb4 COLLATE utf8mb4_uca1400_ai_ci", texts(WIDE, 60)),
    "varchar_long": ("VARCHAR(400) CHARACTER SET utf8mb3", texts(LATIN + "中文", 400)),
    "varchar_cp1251": ("VARCHAR(60) CHARACTER SET cp1251", texts("абвгдЖЩ abc№", 60)),
    "varchar_ucs2": ("VARCHAR(60) CHARACTER SET ucs2", texts(LATIN + "中文", 60)),
    "varchar_utf16": ("VARCHAR(60) CHARACTER SET utf16", texts(WIDE, 60)),
    "varchar_utf16le": ("VARCHAR(60) CHARACTER SET utf16le", texts(WIDE, 60)),
    "varchar_utf32": ("VARCHAR(60) CHARACTER SET utf32", texts(WIDE, 60)),
    "varchar_ascii": ("VARCHAR(60) CHARACTER SET ascii", texts(string.printable, 60)),
    "tinytext_any": ("TINYTEXT CHARACTER SET utf8mb4", texts(WIDE, 60)),
    "text_any": ("TEXT CHARACTER SET utf8mb4", texts(WIDE, 3000)),
    "mediumtext_any": ("MEDIUMTEXT CHARACTER SET latin1", texts(LATIN, 70_000)),
    "longtext_any": ("LONGTEXT CHARACTER SET utf8mb4", texts(WIDE, 500)),
    "binary_any": ("BINARY(16)", binaries(16)),
    "varbinary_any": ("VARBINARY(300)", binaries(300)),
    "tinyblob_any": ("TINYBLOB", binaries(200)),
    "blob_any": ("BLOB", binaries(1000)),
    "mediumblob_any": ("MEDIUMBLOB", binaries(1000)),
    "longblob_any": ("LONGBLOB", binaries(1000)),
    **{f"bit_{n}": (f"BIT({n})", bits(n)) for n in (1, 7, 8, 11, 63, 64)},
    "enum_any": (
        "ENUM('a','ü','x,y','') CHARACTER SET utf8mb4",
        lambda r: r.choice(["'a'", "'ü'", "'x,y'", "''", "'nonsense'", "2"]),
    ),
    "enum_once": (
        "ENUM('a','ü','x,y') CHARACTER SET utf8mb4",
        lambda r: r.choice(["'a'", "'ü'", "'x,y'", "'nonsense'", "2"]),
    ),
    "enum_latin1": ("ENUM('ä','€') CHARACTER SET latin1", lambda r: r.choice(["'ä'", "'€'"])),
    "enum_many": (
        "ENUM(" + ",".join(f"'v{n}'" for n in range(300)) + ")",
        lambda r: f"'v{r.choice([0, 254, 255, 256, 299])}'",
    ),
    "set_any": ("SET('a','ö','c') CHARACTER SET utf8mb4", lambda r: r.choice(["''", "'a'", "'c,a'", "'a,ö,c'"])),
    "set_many": (
        "SET(" + ",".join(f"'v{n}'" for n in range(64)) + ")",
        lambda r: "'" + ",".join({f"v{r.choice([0, 1, 31, 32, 63])}" for _ in range(3)}) + "'",
    ),
    "json_any": ("JSON", lambda r: r.choice(["'{}'", '\'{"a": [1, 2.50, "ü"]}\'', "'null'", "' [ ]  '"])),
    "uuid_any": ("UUID", lambda r: f"'{r.choice([some_uuid(r), '00000000-0000-0000-0000-000000000000'])}'"),
    "inet4_any": ("INET4", lambda r: f"'{'.'.join(str(r.randint(0, 255)) for _ in range(4))}'"),
    "inet6_any": (
        "INET6",
        lambda r: r.choice(["'::'", "'::1'", "'::ffff:1.2.3.4'", "'2001:db8::8:800:200c:417a'", "'fe80::1:0:0:1'"]),
    ),
    "generated_virtual": ("INT AS (COALESCE(tiny, 0) + 1) VIRTUAL", lambda _: "DEFAULT"),
    "generated_stored": ("INT AS (COALESCE(tiny, 0) + 2) STORED", lambda _: "DEFAULT"),
    "hidden": ("INT INVISIBLE", integers(-5, 5)),
    "sp ace `quoted` ü": ("INT", integers(-5, 5)),
}


def some_uuid(r: random.Random) -> str:
    """Any 16 bytes, or a proper UUID of version 1 to 8."""
    digits = list(r.randbytes(16).hex())
    if r.random() < 0.8:
        digits[12], digits[16] = r.choice("12345678"), r.choice("89ab")
    text = "".join(digits)
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def name_sql(name: str) -> str:
    """A quoted column name."""
    return "`" + name.replace("`", "``") + "`"


def in_chunks(source: Source, table: str) -> dict[bytes, bytes]:
    """Key → image of every row of a table, as a backfill reads them."""
    reader, described = ChunkReader(source.settings), source.table(table).describe()
    found: dict[bytes, bytes] = {}
    after: After | None = None
    while True:
        chunk = reader.read(described, after)
        assert isinstance(chunk.rows, RowImages)
        found |= zip(chunk.rows.keys, chunk.rows.images, strict=True)
        if chunk.last is None:
            reader.close()
            return found
        after = chunk.last


@pytest.mark.parametrize("chunk", range(0, len(COLUMNS), 12))
def test_the_binlog_gives_the_same_image_as_a_select_for_random_values(source: Source, chunk: int) -> None:
    """Rows of random values, extremes and NULLs have the same image from the binlog, from SELECT and in a chunk."""
    r = random.Random(chunk)
    names = list(COLUMNS)[chunk : chunk + 12]
    if chunk and any(name.startswith("generated") for name in names):
        names = ["tiny", *names]
    columns = ", ".join(f"{name_sql(name)} {COLUMNS[name][0]}" for name in names)
    source.run(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
    source.begin()

    def assignments() -> str:
        return ", ".join(f"{name_sql(n)} = {COLUMNS[n][1](r) if r.random() < 0.9 else 'DEFAULT'}" for n in names)

    for number in range(60):
        source.run(f"INSERT IGNORE INTO t SET id = {number}, {assignments()}")
    for number in range(0, 60, 3):
        source.run(f"UPDATE IGNORE t SET {assignments()} WHERE id = {number}")
    found = source.folded(source.transactions())
    expected = source.selected("t")
    assert {change.operation for change in found.values()} == {VALUE}
    assert {key: change.image for key, change in found.items()} == expected
    assert len(expected) == 60
    assert in_chunks(source, "t") == expected


KEYS = ["tiny", "big_u", "dec_money", "day", "datetime_6", "stamp_3", "time_2", "char_latin1", "varchar_utf8"]
KEYS += [
    "binary_any",
    "varbinary_any",
    "bit_11",
    "enum_once",
    "set_any",
    "uuid_any",
    "inet4_any",
    "inet6_any",
    "year_any",
]


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
    assert in_chunks(source, "t") == source.selected("t")


def test_every_byte_of_a_single_byte_character_set_reads_the_same_both_ways(source: Source) -> None:
    """Every byte of a single-byte character set is decoded as the server does, undefined ones too."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, a CHAR(1) CHARACTER SET latin1, b CHAR(1) CHARACTER SET cp850)")
    source.begin()
    for byte in range(256):
        source.run(f"INSERT IGNORE INTO t VALUES ({byte}, _latin1 x'{byte:02X}', _cp850 x'{byte:02X}')")
    found = source.folded(source.transactions())
    assert {key: row.image for key, row in found.items()} == source.selected("t")


def test_a_session_in_another_time_zone_and_mode_writes_the_same_image(source: Source) -> None:
    """Images are in UTC, whatever the time zone of the writer's session is."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, s TIMESTAMP(3) NULL, d DATETIME(3))")
    source.begin()
    source.run(
        "SET time_zone = '+05:30'", "INSERT INTO t VALUES (1, '2024-03-01 00:00:00.125', '2024-03-01 00:00:00.125')"
    )
    source.run("SET time_zone = '+00:00'")
    (found,) = source.folded(source.transactions()).values()
    assert found.image == b'{"id":1,"s":"2024-02-29 18:30:00.125","d":"2024-03-01 00:00:00.125"}'
    assert source.selected("t") == {found.key: found.image}


def test_a_hash_that_only_the_log_names_is_passed_over(source: Source) -> None:
    """MariaDB has a hidden column for each unique key over a text. It is behind all others, also behind new ones."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, doc TEXT, x INT, UNIQUE KEY u (doc))")
    source.begin()
    for ddl in ("DROP KEY u", "ADD UNIQUE KEY v (doc, x)", "ADD UNIQUE KEY w (doc)", "ADD COLUMN (y INT, UNIQUE (y))"):
        source.run(
            "INSERT INTO t (id, doc) VALUES (1, 'a'), (2, NULL), (3, 'c')",
            "UPDATE t SET x = id",
            "UPDATE t SET doc = 'd' WHERE id = 1",
            "DELETE FROM t WHERE id = 3",
        )
        found = source.transactions()
        rows = {key: row.image for key, row in source.folded(found).items() if row.operation == VALUE}
        assert rows == source.selected("t")
        assert not any(map(voids, found))
        source.run("DELETE FROM t", f"ALTER TABLE t {ddl}")
        source.begin()
