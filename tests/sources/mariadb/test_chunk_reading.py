"""When chunks of a table are read, again, or not any more, and what a session is left with. Without a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from stream.sources.key_range import KeyIndex
from stream.sources.mariadb.backfill import chunks
from stream.sources.mariadb.backfill.chunks import ChunkReader, TableBusy, TableDiffers
from stream.sources.mariadb.backfill.plan import After, Chunk
from stream.sources.mariadb.backfill.reading import ChunkReading
from stream.sources.mariadb.by_key import SelectedRow
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError, MariaDBUnreachable
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.schema import ColumnInfo, TableInfo
from stream.wire.events import ABSENT, VALUE, DescribeTable, RowChange
from stream.wire.keys import row_key
from tests.patience import PATIENCE_S
from tests.sources.mariadb.test_backfill_plan import DESCRIBED, at
from tests.sources.mariadb.test_reconnecting import Chunks, wanted

NOWHERE = ConnectionSettings(port=1)
INFO = TableInfo("d", "t", (ColumnInfo("id", "int", True),), ("id",))


class Behind(Chunks):
    """Its first chunk does not have yet what the source has read of the log. Notes from where on it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.after: list[After | None] = []

    def read(self, described: DescribeTable, after: After | None, keys: Sequence[bytes] = ()) -> Chunk:
        """One that follows only when it is asked again."""
        self.after.append(after)
        found = super().read(described, after, keys)
        if len(self.after) > 1:
            return found
        return replace(found, lo=GtidPosition.parse(at(4)), last=After([7]))


def test_a_chunk_that_is_behind_the_source_is_read_again_from_the_same_row() -> None:
    """Its rows are not given: going on behind them would leave them out of a table that is called complete."""
    made = Behind()
    reading = ChunkReading(made)
    reading.want(wanted("s.a"))
    assert reading.wait(PATIENCE_S)
    reading.close()
    assert made.after == [None, None]


def test_a_table_that_is_read_to_its_end_is_not_begun_again() -> None:
    """Its first rows would be offered behind its last ones."""
    reading = ChunkReading(Chunks())
    reading.want(wanted("s.a"))
    assert reading.wait(PATIENCE_S)
    assert not reading._may_read()
    reading.close()


def test_an_error_of_one_table_is_not_told_of_the_next() -> None:
    """Whether that is wanted meanwhile or afterwards: it would be put off for nothing."""
    made = Chunks()
    reading = ChunkReading(made)

    def fail() -> None:
        raise MariaDBError("denied")

    def wants_another() -> None:
        reading.want(wanted("s.c"))
        fail()

    made.meanwhile.update({"s.a": fail, "s.b": wants_another})
    told = []
    for table in ("s.a", "s.b"):
        reading.want(wanted(table))
        assert reading.wait(PATIENCE_S)
        told.append((str(reading.failed), reading.first and reading.first.described.table))
    assert told == [("denied", None), ("None", "s.c")]
    reading.close()


# -- sessions ----------------------------------------------------------------------------------------------------------


class Session:
    """Notes that it is ended."""

    ended = False

    def _force_close(self) -> None:
        self.ended = True


def test_a_chunk_that_fails_ends_its_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has locked the table: DDL would wait for it for as long as nothing else is read."""
    reader, session = ChunkReader(NOWHERE), Session()
    monkeypatch.setattr(reader, "_session", session)

    def differs(*_: Any) -> None:
        raise TableDiffers("it has other columns")

    monkeypatch.setattr(reader, "_read", differs)
    with pytest.raises(TableDiffers):
        reader.read(DESCRIBED, None)
    assert session.ended


@pytest.mark.parametrize(
    ("code", "error"), [(1030, TableBusy), (1038, TableBusy), (1205, TableBusy), (2013, MariaDBUnreachable)]
)
def test_a_table_that_the_server_cannot_read_leaves_its_turn_to_the_next(
    monkeypatch: pytest.MonkeyPatch, code: int, error: type[MariaDBError]
) -> None:
    """A damaged one, or one whose rows are too large to be sorted, would hold up all others for good."""
    reader = ChunkReader(NOWHERE)

    def fails(*_: Any) -> None:
        raise pymysql.err.OperationalError(code, "it fails")

    monkeypatch.setattr(reader, "_read", fails)
    with pytest.raises(error) as raised:
        reader.read(DESCRIBED, None)
    assert type(raised.value) is error


def test_a_session_that_is_lost_while_rows_are_estimated_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No chunk is read before that: with the dead one no table would ever be read again."""
    opened: list[Session] = []

    def connect(_: ConnectionSettings) -> Any:
        opened.append(Session())
        return opened[-1]

    def fetch_all(session: Session, sql: str, *_: Any) -> list[list[str]]:
        if "TABLE_ROWS" in sql and session is opened[0]:
            raise pymysql.err.OperationalError(2013, "Lost connection")
        return [["7"]]

    monkeypatch.setattr(chunks, "connect", connect)
    monkeypatch.setattr(chunks, "fetch_all", fetch_all)
    reader = ChunkReader(NOWHERE)
    with pytest.raises(MariaDBUnreachable):
        reader.estimated_rows("s.t")
    assert reader.estimated_rows("s.t") == 7
    assert [each.ended for each in opened] == [True, False]


def test_a_reader_that_was_stopped_opens_no_session_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stops it waits for its thread, and may come between two of its statements."""
    monkeypatch.setattr(chunks, "connect", lambda _: Session())
    monkeypatch.setattr(chunks, "fetch_all", lambda *_: [["1"]])
    reader = ChunkReader(NOWHERE)
    reader.stop()
    with pytest.raises(MariaDBUnreachable, match="ended"):
        reader.estimated_rows("s.t")


class Rows:
    """A statement that has more rows than are taken."""

    is_over = False
    given_up = False

    def read(self) -> list[list[bytes | None]]:
        """The next one."""
        return [[b"7"]]

    def give_up(self) -> None:
        """No more."""
        self.given_up = True


def selected(monkeypatch: pytest.MonkeyPatch, info: TableInfo) -> tuple[Rows, Session, After | None]:
    """A chunk of a table that has more bytes than one has room for."""
    rows, session = Rows(), Session()
    for name, value in (("bounded", lambda _, __, wanted, *___: wanted), ("timed", lambda *_: "")):
        monkeypatch.setattr(chunks, name, value)
    monkeypatch.setattr(chunks, "select_range", lambda *_: "")
    monkeypatch.setattr(chunks, "RowPackets", lambda *_: rows)
    monkeypatch.setattr(chunks, "BYTES_MAX", 1)
    reader = ChunkReader(NOWHERE)
    monkeypatch.setattr(reader, "_session", session)
    none: Any = None
    _, last = reader._rows(none, info, None)
    return rows, session, last


def test_a_statement_that_is_broken_off_ends_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server goes on to send would be taken for the answer to the next one."""
    rows, session, last = selected(monkeypatch, INFO)
    assert (rows.given_up, session.ended, last) == (True, True, After([7]))


def test_a_cursor_says_in_which_direction_its_table_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the other one the rows that are left would be those that are published."""
    _, _, last = selected(monkeypatch, replace(INFO, key_index=KeyIndex(descending=("id",))))
    assert last == After([7], ("id",))


def test_a_key_that_finds_a_row_of_another_spelling_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that row's key under which the row is known; of the other one nothing is."""
    keys = [row_key("d.t", [number]) for number in (1, 2, 3)]
    found = [SelectedRow(keys[0], b"{}"), SelectedRow(row_key("d.t", ["2"]), b"{}"), None]
    monkeypatch.setattr(chunks, "rows_by_key", lambda *_: found)
    none: Any = None
    rows = ChunkReader(NOWHERE)._rows_of(none, INFO, keys)
    assert rows == [RowChange(keys[0], VALUE, b"{}"), RowChange(keys[2], ABSENT)]
