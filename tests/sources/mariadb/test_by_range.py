"""Rows of a table in the order of any column, page by page, as a front reads them past the cache."""

from __future__ import annotations

import msgspec
import pytest

from stream.sources.key_range import KeyRange
from stream.sources.mariadb import by_range
from stream.sources.mariadb.by_range import SelectedRange, SortTooLarge
from stream.sources.mariadb.snapshot import SnapshotRead, SnapshotReader
from tests.sources.mariadb.conftest import Source

pytestmark = pytest.mark.integration

COLUMNS = {
    "n": ("BIGINT UNSIGNED", "18446744073709551000 + seq MOD 7"),
    "b": ("BIT(64)", "seq MOD 5"),
    "y": ("YEAR", "1999 + seq MOD 5"),
    "amount": ("DECIMAL(30,20)", "(seq MOD 7 - 3) / 7"),
    "f": ("FLOAT", "(seq MOD 7 - 3) / 7"),
    "dbl": ("DOUBLE", "(seq MOD 7 - 3) / 7e300"),
    "d": ("DATE", "'2024-02-28' + INTERVAL seq MOD 4 DAY"),
    "dt": ("DATETIME(6)", "'2024-02-28' + INTERVAL seq MOD 5 MICROSECOND"),
    "ts": ("TIMESTAMP(3) NULL", "'2024-02-28' + INTERVAL (seq MOD 5) * 1000 MICROSECOND"),
    "ti": ("TIME(2)", "SEC_TO_TIME((seq MOD 9 - 4) * 100000.5)"),
    "uu": ("UUID", "INSERT('123e4567-e89b-12d3-a456-426614174000', 1 + seq MOD 8, 1, '9')"),
    "ip": ("INET6", "CONCAT('2001:db8::', HEX(seq MOD 20))"),
    "bin": ("VARBINARY(6)", "UNHEX(SUBSTRING(SHA1(seq MOD 9), 1, 2 + 2 * (seq MOD 3)))"),
    "u8": (
        "CHAR(3) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "ELT(1 + seq MOD 5, 'a', 'Ä', 'b', 'A ', 'ß')",
    ),
    "txt": ("TEXT CHARACTER SET ascii", "CONCAT(REPEAT('x', 3000), seq * 7 MOD 11)"),
    "accents": (
        "VARCHAR(900) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci",
        "CONCAT(REPEAT('ß', 800), ELT(1 + seq MOD 5, 'a', 'Ä', 'b', 'A ', 'ß'))",
    ),
    "bytes": ("BLOB", "CONCAT(REPEAT('x', 3000), seq * 7 MOD 11)"),
    "js": ("JSON", "CONCAT('{\"a\":', seq MOD 5, '}')"),
}


def rows_of(read: object) -> SelectedRange:
    """The rows of a read that has succeeded."""
    assert isinstance(read, SnapshotRead), read
    found: SelectedRange = read.rows
    return found


def test_pages_in_the_order_of_a_column_are_all_rows_in_that_order(source: Source) -> None:
    """For each kind of column, with NULLs and equal values, upwards and downwards."""
    table = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    source.run(f"CREATE TABLE t (id INT PRIMARY KEY, {table})")
    values = ", ".join(f"IF(seq MOD 6, {value}, NULL)" for _, value in COLUMNS.values())
    source.run(
        f"INSERT INTO t SELECT seq, {values} FROM (SELECT CAST(seq AS SIGNED) AS seq FROM seq_1_to_40) AS numbers"
    )
    reader, name = SnapshotReader(source.settings), f"{source.database}.t"
    for column in COLUMNS:
        for descending in (False, True):
            ordered = rows_of(reader.read_range(name, KeyRange((), None, descending, 99, order=(column,)))).rows
            images = [msgspec.json.decode(row.image) for row in ordered]
            first = -1 if descending else 0
            assert (len(images), images[first][column]) == (40, None)
            pages: list[int] = []
            wanted = KeyRange((), None, descending, 7, order=(column,))
            while True:
                found = [msgspec.json.decode(row.image) for row in rows_of(reader.read_range(name, wanted)).rows]
                pages += [image["id"] for image in found]
                if len(found) < 7:
                    break
                last = found[-1]
                wanted = KeyRange((), [last["id"]], descending, 7, order=(column,), after_values=(last[column],))
            assert pages == [image["id"] for image in images], (column, descending)
    reader.close()


def test_values_that_are_too_long_to_be_sorted_are_no_order(source: Source) -> None:
    """The server compares only how such values begin when it sorts, and all of them for the next page."""
    source.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT CHARACTER SET ascii)",
        "INSERT INTO t SELECT seq, IF(seq > 3, REPEAT('x', 70000 - seq), seq) FROM seq_1_to_9",
    )
    reader, name = SnapshotReader(source.settings), f"{source.database}.t"
    assert len(rows_of(reader.read_range(name, KeyRange(limit=2, order=("v",)))).rows) == 2
    found = reader.read_range(name, KeyRange(limit=5, order=("v",)))
    assert isinstance(found, SortTooLarge)
    assert "column v that are too long" in str(found)
    reader.close()


def test_pages_of_a_key_that_sorts_by_number_have_all_rows(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sorts ENUM and SET by a member's number and compares them as text: a page would leave rows out."""
    source.run(
        "CREATE TABLE t (id INT, e ENUM('b', 'a', 'B') COLLATE utf8mb4_bin, s SET('z', 'y', 'x')"
        ", PRIMARY KEY (e, s, id))",
        "INSERT INTO t SELECT seq, 1 + seq MOD 3, seq MOD 8 FROM seq_1_to_40",
    )
    reader, name = SnapshotReader(source.settings), f"{source.database}.t"
    for descending in (False, True):
        wanted, pages = KeyRange((), None, descending, 7), list[int]()
        while True:
            found = [msgspec.json.decode(row.image) for row in rows_of(reader.read_range(name, wanted)).rows]
            pages += [image["id"] for image in found]
            if len(found) < 7:
                break
            wanted = KeyRange((), [found[-1][each] for each in ("e", "s", "id")], descending, 7)
        assert sorted(pages) == list(range(1, 41))
    monkeypatch.setattr(by_range, "SORTED_MAX", 10)
    assert isinstance(reader.read_range(name, wanted), SortTooLarge)
    assert rows_of(reader.read_range(name, KeyRange(("a",), None, False, 0))).number == 14
    reader.close()


@pytest.mark.parametrize(
    ("wanted", "is_sorted"),
    [
        (KeyRange(limit=3, order=("n",)), False),
        (KeyRange(limit=3, order=("x",)), True),
        (KeyRange(limit=3, order=("text",)), True),
        (KeyRange(limit=3, order=("x",), where=(("n", 1),)), False),
        (KeyRange(limit=3, order=("n", "a")), False),
        (KeyRange(limit=3, order=("n", "b")), True),
        (KeyRange((1,), limit=3, order=("y",)), False),
        (KeyRange(limit=3, order=("y",)), True),
        (KeyRange((1, 1), limit=3, order=("x",)), False),
        (KeyRange(order=("x",)), False),
    ],
)
def test_what_no_index_has_in_order_is_sorted_up_to_a_bound(
    source: Source, monkeypatch: pytest.MonkeyPatch, wanted: KeyRange, is_sorted: bool
) -> None:
    """Of more rows each page would cost the server a look at all of them."""
    source.run(
        "CREATE TABLE t (a INT, b INT, n INT, x INT, y INT, text VARCHAR(30), PRIMARY KEY (a, b)"
        ", KEY (n), KEY nx (n, x), KEY (a, y), KEY (text(5)))"
    )
    source.run("INSERT INTO t SELECT seq MOD 2, seq, seq MOD 3, seq, seq, seq FROM seq_1_to_40")
    monkeypatch.setattr(by_range, "SORTED_MAX", 10)
    reader, name = SnapshotReader(source.settings), f"{source.database}.t"
    found = reader.read_range(name, wanted)
    if is_sorted:
        assert isinstance(found, SortTooLarge)
        assert "more than 10 such rows" in str(found)
        monkeypatch.setattr(by_range, "SORTED_MAX", 40)
        assert rows_of(reader.read_range(name, wanted)).more
    else:
        rows_of(found)
    reader.close()
