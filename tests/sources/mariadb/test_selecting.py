"""What a read of rows makes of the server's answers: rows, keys that fail, and the end of a page. Without a server."""

from __future__ import annotations

import io
import struct
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import pymysql
import pytest
from pymysql.constants import ER

from stream.sources.key_range import KeyRange
from stream.sources.learnt_indexes import SourceIndex
from stream.sources.mariadb import by_range, snapshot
from stream.sources.mariadb.backfill.packets import RowPackets
from stream.sources.mariadb.by_key import rows_by_key
from stream.sources.mariadb.by_range import ORDERED_MAX, SortTooLarge, rows_in_range
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError
from stream.sources.mariadb.information_schema.tables import _indexes
from stream.sources.mariadb.schema import ColumnInfo, TableInfo
from stream.sources.mariadb.selected_rows import canonical_key, canonical_row, canonical_rows
from stream.sources.mariadb.snapshot import NoSuchTable, SnapshotRead, SnapshotReader

NOWHERE = ConnectionSettings(port=1)
INFO = TableInfo("d", "t", (ColumnInfo("id", "int", True), ColumnInfo("v", "text", False)), ("id",))


class Session:
    """A session of MariaDB that answers with rows, or always with an error."""

    def __init__(self, rows: Sequence[Sequence[bytes | None]] = (), error: Exception | None = None) -> None:
        self.asked: list[str] = []
        self._rows, self._error = [*rows], error

    def get_server_info(self) -> str:
        """As at login."""
        return "11.4.5-MariaDB"

    def query(self, sql: str) -> None:
        """Noted."""
        self.asked.append(sql)

    def cursor(self, _: object = None) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, sql: str, _: object = None) -> None:
        """Noted."""
        self.asked.append(sql)
        if self._error is not None:
            raise self._error

    def fetchone(self) -> Sequence[bytes | None] | None:
        """The next row."""
        return self._rows.pop(0) if self._rows else None


def test_a_statement_for_many_keys_that_takes_too_long_is_not_followed_by_one_for_each() -> None:
    """The time is over for all of them: a hundred statements more would each wait for the same lock."""
    session: Any = Session(error=pymysql.err.OperationalError(1969, "Query execution was interrupted"))
    with pytest.raises(pymysql.err.OperationalError):
        rows_by_key(session, NOWHERE, INFO, [[1], [2], [3]], time.monotonic() + 1)
    assert len(session.asked) == 1


def test_a_page_has_one_row_however_large_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without a row has no key that the next one begins behind."""
    monkeypatch.setattr(by_range, "BYTES_MAX", 10)
    monkeypatch.setattr(by_range, "SSCursor", lambda session: session)
    session: Any = Session([(b"%d" % number, b"long" * 10) for number in (1, 2)])
    found = rows_in_range(session, INFO, KeyRange(limit=5), time.monotonic() + 1)
    assert ([row.key for row in found.rows], found.more) == ([b"d.t\0[1]"], True)


@pytest.mark.parametrize(("count_max", "selected", "number"), [(0, 4, 3), (2, 2, 2), (9, 4, 3)])
def test_rows_that_may_not_be_there_are_not_counted(
    monkeypatch: pytest.MonkeyPatch, count_max: int, selected: int, number: int
) -> None:
    """Each key is looked at, and one that may not be there is told in place of a number; nor are too many looked at."""
    monkeypatch.setattr(by_range, "SSCursor", lambda session: session)
    monkeypatch.setattr(by_range, "COUNTED_MAX", 3)

    def count(*ids: int) -> by_range.SelectedRange:
        session: Any = Session([(b"%d" % each,) for each in ids[:selected]])
        wanted = KeyRange(count_max=count_max, owns=lambda key: key != b"d.t\0[7]")
        found = rows_in_range(session, INFO, wanted, time.monotonic() + 1)
        assert session.asked[-1].endswith(f"SELECT `id` FROM `d`.`t` FORCE INDEX (PRIMARY) LIMIT {selected}")
        return found

    assert count(1, 2, 3) == by_range.SelectedRange(number=number)
    assert [row.key for row in count(1, 7, 3).rows] == [b"d.t\0[7]"]
    with pytest.raises(MariaDBError, match="more than 3") if selected > 3 else nullcontext():
        count(1, 2, 3, 4)


def test_the_limit_of_what_reads_a_tables_columns_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it failed: what the session is asked next has a limit of its own."""

    def no_charsets(_: object) -> None:
        raise MariaDBError("denied")

    monkeypatch.setattr(snapshot, "read_charsets", no_charsets)
    session: Any = Session()
    with pytest.raises(MariaDBError):
        SnapshotReader(NOWHERE)._table(session, "d.t", time.monotonic() + 1)
    assert session.asked[-1] == "SET max_statement_time=0"
    assert len(session.asked) == 2


def test_a_row_that_nobody_has_touched_is_proved_up_to_the_end_of_the_read() -> None:
    """What a cache may keep of it goes as far as what cannot be lost of that end, not of the position before it."""
    read = SnapshotRead((None, None), "p", "h", 1, INFO, kept="k", untouched=frozenset({1}), end="e", end_kept="ek")
    assert (read.proof_of(0), read.proof_of(1)) == (("p", "k", False), ("e", "ek", True))


@pytest.mark.parametrize("odd", [b"-.5", b".5", b"007.50", b"-007.50", b"1.50", b"-1"])
def test_decimals_are_the_same_read_together_and_alone(odd: bytes) -> None:
    """Whatever a server leaves out or adds in front of the point, and wherever it stands among others."""
    info = TableInfo("d", "t", (ColumnInfo("n", "decimal", False),), ("n",))
    for values in ([odd], [b"1.0", odd], [odd, b"2.0"]):
        alone = [(canonical_key(info, [value]), canonical_row(info, [value])) for value in values]
        assert [*zip(*canonical_rows(info, [values]), strict=True)] == alone


def test_an_index_that_lacks_how_a_value_goes_on_lacks_it_whatever_column_comes_last() -> None:
    """The rows of such an index are in no order that a page could go on in."""
    parts = [("i", "a", 10, "BTREE", "A"), ("i", "b", None, "BTREE", "A"), ("j", "b", None, "BTREE", "A")]
    assert [(index.name, bool(index.problem)) for index in _indexes(parts)] == [("i", True), ("j", False)]


def test_a_row_whose_first_value_has_the_longest_kind_of_length_is_no_end() -> None:
    """Both begin with the same byte. Taken for the end it would leave the rest of the table out."""

    def packet(body: bytes) -> bytes:
        return struct.pack("<I", len(body))[:3] + b"\0" + body

    sent = packet(b"\xfe" + (5).to_bytes(8, "little") + b"hello") + packet(b"\1x") + packet(b"\xfe\0\0\2\0")
    result = SimpleNamespace(field_count=1, unbuffered_active=True, connection=None)
    session: Any = SimpleNamespace(query=lambda *_, **__: None, _result=result, _rfile=io.BytesIO(sent))
    assert RowPackets(session, "SELECT v FROM t").read() == [[b"hello", b"x"]]


def test_a_value_that_is_too_long_to_order_by_is_seen_behind_a_full_page_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that begin as it does may stand before it, on this page."""
    monkeypatch.setattr(by_range, "BYTES_MAX", 10)
    monkeypatch.setattr(by_range, "SSCursor", lambda session: session)
    info = replace(INFO, indexes=(SourceIndex("i", ("v",)),))
    for last, is_refused in ((b"x", False), (b"x" * (ORDERED_MAX + 1), True)):
        session: Any = Session([(b"1", b"long" * 10), (b"2", b"x"), (b"3", b"x"), (b"4", last)])
        with pytest.raises(SortTooLarge) if is_refused else nullcontext():
            rows_in_range(session, info, KeyRange(limit=9, order=("v",)), time.monotonic() + 1)


def test_a_connection_that_is_lost_is_no_error_of_one_table() -> None:
    """The read is done once more with another session, and this one is not kept."""
    reader, failed = SnapshotReader(NOWHERE), dict[str, MariaDBError]()
    with pytest.raises(pymysql.err.OperationalError), reader._failures(failed, "d.t"):
        raise pymysql.err.OperationalError(2013, "Lost connection")
    with reader._failures(failed, "d.t"):
        raise pymysql.err.OperationalError(1969, "Query execution was interrupted")
    assert failed.keys() == {"d.t"}


def test_a_table_that_is_gone_is_looked_at_anew() -> None:
    """One of its name may be made at once, with other columns."""
    reader, failed = SnapshotReader(NOWHERE), dict[str, MariaDBError]()
    reader._tables["d.t"] = snapshot._CachedTable(time.monotonic(), INFO, "CREATE TABLE t (...)")
    with reader._failures(failed, "d.t"):
        raise pymysql.err.ProgrammingError(ER.NO_SUCH_TABLE, "no such table")
    assert isinstance(failed["d.t"], NoSuchTable)
    assert "d.t" not in reader._tables
