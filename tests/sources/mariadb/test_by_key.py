"""Rows that are read together by key are the same as rows that are read one by one."""

from __future__ import annotations

import pytest

from stream.sources.mariadb.by_key import SelectedRow
from stream.sources.mariadb.snapshot import SnapshotRead, SnapshotReader
from tests.sources.mariadb.conftest import Source

pytestmark = pytest.mark.integration

COLUMNS = {
    "tiny": ("TINYINT(1)", "-7"),
    "zero": ("INT(9) ZEROFILL", "42"),
    "big": ("BIGINT UNSIGNED", "18446744073709551615"),
    "bit1": ("BIT(1)", "b'1'"),
    "bit64": ("BIT(64)", "0xFEDCBA9876543210"),
    "yr": ("YEAR", "1999"),
    "amount": ("DECIMAL(65,30)", "-12345678901234567890.123456789012345678901234567890"),
    "zdec": ("DECIMAL(10,3) ZEROFILL", "1.5"),
    "f": ("FLOAT", "1.1"),
    "dbl": ("DOUBLE", "1e-320"),
    "d": ("DATE", "'2024-02-29'"),
    "dt": ("DATETIME(6)", "'2024-02-29 01:02:03.000400'"),
    "ts": ("TIMESTAMP(3) NULL", "'2024-02-29 01:02:03.004'"),
    "ti": ("TIME(2)", "'-838:59:58.99'"),
    "en": ("ENUM('ä','b') CHARACTER SET latin1", "'ä'"),
    "st": ("SET('x','y','z')", "'z,x'"),
    "js": ("JSON", '\'{"a": [1, "ü"]}\''),
    "uu": ("UUID", "'123e4567-e89b-12d3-a456-426614174000'"),
    "ip": ("INET6", "'::ffff:1.2.3.4'"),
    "bin": ("BINARY(6)", "0x610000"),
    "blb": ("MEDIUMBLOB", "0x00FF5C27"),
    "l1": ("CHAR(5) CHARACTER SET latin1", "'é '"),
    "u2": ("VARCHAR(9) CHARACTER SET ucs2", "'?é'"),
    "u8": ("TEXT CHARACTER SET utf8mb4", "'😀'"),
    "geo": ("POINT", "POINT(1, 2)"),
    "nul": ("VARCHAR(3)", "NULL"),
}


def test_a_row_reads_the_same_whether_it_is_asked_for_alone_or_with_others(source: Source) -> None:
    """Values of every type, and other spellings of keys, read the same together and alone."""
    values = {name: value for name, (_, value) in COLUMNS.items()}
    table = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    source.run(f"CREATE TABLE t (k VARCHAR(9) PRIMARY KEY, {table}) CHARACTER SET utf8mb4")
    for key in ("'Abc'", "'Def'", "'Ghi'"):
        source.run(f"INSERT INTO t (k, {', '.join(values)}) VALUES ({key}, {', '.join(values.values())})")
    reader = SnapshotReader(source.settings)
    name = f"{source.database}.t"
    keys = ["Abc", "abc", "ABC ", "def", "DEF", "Ghi", "nope"]
    together = reader.read({name: [[key] for key in keys]})[name]
    alone = [reader.read({name: [[key]]})[name] for key in keys]
    reader.close()
    assert isinstance(together, SnapshotRead)
    for key, row, single in zip(keys, together.rows, alone, strict=True):
        assert isinstance(single, SnapshotRead)
        assert single.rows == (row,), key
        assert isinstance(row, SelectedRow) == (key != "nope")
