"""The decoder handles any bytes, also those that no server sends."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.coalesce import TransactionRows
from stream.sources.mariadb.binlog.rows import TableDecoder
from stream.sources.mariadb.binlog.table_map import BinlogFormatError, MappedColumn, TableMap, parse_table_map
from stream.sources.mariadb.charsets import Charsets
from stream.sources.mariadb.schema import ColumnInfo, TableInfo
from stream.wire.values import UndecodableValue

CHARSETS = Charsets({45: "utf8mb4"}, {})
INFO = TableInfo(
    "d",
    "t",
    (
        ColumnInfo("id", "int", True),
        ColumnInfo("v", "text", False),
        ColumnInfo("n", "decimal", False),
        ColumnInfo("at", "datetime", False),
        ColumnInfo("s", "set", False),
    ),
    ("id",),
)
COLUMNS = [
    MappedColumn(3, 0, "id"),
    MappedColumn(15, 400, "v", collation=45),
    MappedColumn(246, 20 << 8 | 5, "n"),
    MappedColumn(18, 6, "at"),
    MappedColumn(248, 1, "s", collation=45, values=(b"a", b"b")),
]


def decoder() -> TableDecoder:
    """A decoder of the table above."""
    return TableDecoder(TableMap("d", "t", COLUMNS, (0,), has_names=True), INFO, CHARSETS)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_row_or_undecodable(data: bytes) -> None:
    """A damaged row raises only `UndecodableValue`, and no row extends beyond its event."""
    with contextlib.suppress(UndecodableValue):
        key, image, position = decoder().row(data, 0)
        assert key.startswith(b"d.t\0[")
        assert image.startswith(b"{")
        assert position <= len(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_table_map_or_a_format_error(data: bytes) -> None:
    """A damaged table map raises only `BinlogFormatError`."""
    with contextlib.suppress(BinlogFormatError):
        parse_table_map(data)


@given(st.binary(min_size=19, max_size=120))
def test_any_bytes_are_an_event_or_a_format_error(data: bytes) -> None:
    """Damaged GTID, query, XA and compressed events raise only `BinlogFormatError`."""
    for parse in (events.parse_gtid, events.parse_query, events.parse_xa_prepare, events.uncompress):
        with contextlib.suppress(BinlogFormatError):
            parse(data)


def test_a_compressed_event_that_is_longer_than_it_declares_is_refused() -> None:
    """The declared size bounds what is uncompressed."""
    import zlib

    with pytest.raises(BinlogFormatError, match="declared"):
        events.uncompress(b"\x81\x05" + zlib.compress(b"abc"))


def test_invalid_text_is_undecodable() -> None:
    """Invalid UTF-8 in a column is undecodable; it is not replaced by other characters."""
    data = b"\0" + (1).to_bytes(4, "little") + b"\x02\x00\xff\xfe" + b"\x80" + b"\0" * 30
    with pytest.raises(UndecodableValue):
        decoder().row(data, 0)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.none() | st.binary(min_size=1, max_size=30)), max_size=80),
    st.integers(1, 3000),
)
def test_spilling_never_changes_the_result(puts: list[tuple[int, bytes | None]], bound: int) -> None:
    """For any bound on memory the changes are the last ones of each key, in key order."""
    small, large = TransactionRows(bound), TransactionRows()
    expected: dict[bytes, bytes | None] = {}
    for number, image in puts:
        key = b"t%d\0[%d]" % (number % 2, number)
        expected[key] = image
        small.put(key, image)
        large.put(key, image)
    for voided in (frozenset[bytes](), frozenset({b"t1\0"})):
        left = [(key, image or b"") for key, image in sorted(expected.items()) if key[:3] not in voided]
        found = large.changes(voided)
        assert [(c.key, c.image) for c in found] == left  # type: ignore[union-attr]
    again = small.changes(frozenset({b"t1\0"}))
    assert list(again) == list(found)
    assert [again[index] for index in range(len(again))] == list(found)
