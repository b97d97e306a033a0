"""What the reader makes of a log's events, given as bytes: no server is needed."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pytest

from stream.sources.mariadb import live_schema, source
from stream.sources.mariadb.binlog import events, last_read
from stream.sources.mariadb.binlog.catalog import HELD_CHARS_MAX, Xid, held_words, read_held
from stream.sources.mariadb.binlog.checksum import TransactionChecksum
from stream.sources.mariadb.binlog.last_read import check_same
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.connection import ConnectionSettings, SourceHistoryLost
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.schema import ColumnInfo, TableFilter, TableInfo
from stream.wire.events import DescribeTable, SourceTransaction, VoidTable

NOWHERE = ConnectionSettings(port=1)
NAMES = ("d.a", "d.b")
XID = (1, b"one", b"")


def event(kind: int, body: bytes = b"", server: int = 1) -> bytes:
    """An event as the server sends it, without a checksum."""
    size = events.HEADER_SIZE + len(body)
    return struct.pack("<IBIIIH", 1_700_000_000, kind, server, size, 0, 0) + body


def gtid(sequence: int, *, domain: int = 0, server: int = 1, flags: int = 0) -> bytes:
    return event(events.GTID, struct.pack("<QIB", sequence, domain, flags), server)


def query(sql: str) -> bytes:
    return event(events.QUERY, struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"d\0" + sql.encode())


def committed(sequence: int, *, domain: int = 0, server: int = 1) -> list[bytes]:
    """A transaction that changes nothing."""
    return [gtid(sequence, domain=domain, server=server), event(events.XID, bytes(8), server)]


def statement(sequence: int, sql: str) -> list[bytes]:
    """A statement that is a transaction by itself."""
    return [gtid(sequence, flags=events.STANDALONE), query(sql)]


def prepared(sequence: int, xid: Xid = XID, *rest: bytes) -> list[bytes]:
    form, gtrid, bqual = xid
    body = struct.pack("<BIII", 0, form, len(gtrid), len(bqual)) + gtrid + bqual
    return [gtid(sequence), *rest, event(events.XA_PREPARE, body)]


def xa_commit(sequence: int, xid: Xid = XID) -> list[bytes]:
    return statement(sequence, f"XA COMMIT X'{xid[1].hex()}',X'{xid[2].hex()}',{xid[0]}")


class Log:
    """A dump of these events, which ends with them."""

    def __init__(self, found: Sequence[bytes]) -> None:
        self._left = list(found)
        self.closed = False

    def read(self) -> bytes:
        if not self._left:
            raise EOFError
        return self._left.pop(0)

    def arrived(self) -> list[bytes]:
        return []

    def close(self) -> None:
        self.closed = True


class Tables(LiveSchema):
    """The schema of `NAMES`. ``invisible``: XA transactions that reads can't see yet."""

    def __init__(self) -> None:
        super().__init__(NOWHERE, TableFilter(("d",)))
        self.invisible: set[Xid] = set()
        columns = (ColumnInfo("id", "int", True),)
        self.live = {f"d.{name}": TableInfo("d", name, columns, ("id",)) for name in "ab"}
        self.catalog.resume(self.live, GtidPosition({}))
        self.catalog.settle(GtidPosition({}), frozenset)

    def is_visible(self, xid: Xid) -> bool:
        return xid not in self.invisible

    def settle(self, position: GtidPosition) -> dict[str, bool]:
        return self.catalog.settle(position, lambda: self.invisible)


def run(found: Sequence[bytes], schema: LiveSchema, start: str = "MariaDB/0-1-4") -> list[SourceTransaction]:
    """All transactions of a log, to its end."""
    log: Any = Log(found)
    out: list[SourceTransaction] = []
    with contextlib.suppress(EOFError):
        out.extend(filter(None, BinlogReader(log, schema, start).transactions()))
    return out


def voided(transaction: SourceTransaction) -> set[str]:
    return {change.table for change in transaction.changes if isinstance(change, VoidTable)}


def described(transaction: SourceTransaction) -> dict[str, bool]:
    """Table → whether it may be cached from here on."""
    return {change.table: change.cacheable for change in transaction.changes if isinstance(change, DescribeTable)}


@pytest.mark.parametrize("sequence", [4, 3, 1])
def test_a_sequence_that_is_not_above_the_last_ends_the_history(sequence: int) -> None:
    """The same number again too: a session that wrote it would be told that the cache has it already."""
    with pytest.raises(SourceHistoryLost, match="went back"):
        run(committed(sequence, server=2), Tables())


def test_sequences_of_other_domains_and_gaps_are_in_order() -> None:
    """Each domain counts by itself, and may leave numbers out."""
    found = run([*committed(9), *committed(1, domain=7), *committed(10), *committed(2, domain=7)], Tables())
    assert [each.gtid for each in found] == ["MariaDB/0-1-9", "MariaDB/7-1-1", "MariaDB/0-1-10", "MariaDB/7-1-2"]


def test_the_cursor_is_the_position_before_the_transaction() -> None:
    """From there it can be read again and compared; from its own position it would never come."""
    found = run([*committed(5), *committed(6)], Tables())
    assert [(each.cursor, each.position) for each in found] == [
        ("MariaDB/0-1-4", "MariaDB/0-1-5"),
        ("MariaDB/0-1-5", "MariaDB/0-1-6"),
    ]
    assert found[0].checksum != found[1].checksum


@pytest.mark.parametrize(
    ("named", "reached"),
    [
        ("0-1-4", True),
        ("0-2-6", True),
        ("0-1-7,7-1-1", True),
        ("", True),
        ("0-1-8", False),
        ("0-2-7", False),
        ("0-3-5", False),
        ("0-1-7,7-1-2", False),
        ("8-1-1", False),
    ],
)
def test_what_another_server_numbered_alike_is_not_reached(named: str, reached: bool) -> None:
    """After a failover that lost something, the new server's end may have a lower number than what was read."""
    log: Any = Log([*committed(5), *committed(6, server=2), *committed(7), *committed(1, domain=7)])
    reader = BinlogReader(log, Tables(), "MariaDB/0-1-4")
    with contextlib.suppress(EOFError):
        list(reader.transactions())
    assert reader.has_reached(GtidPosition.parse(named)) is reached


def test_what_is_known_before_the_first_transaction_has_the_time_of_the_resume_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is published at that position. Of 1970, it would be so in change logs, metrics, and the next resume point."""
    tables = Tables()
    tables.catalog.doubt("d.a", tables.live["d.a"], GtidPosition({}))
    log = Log([event(events.HEARTBEAT, b"bin.000001")])
    log.server = "any"  # type: ignore[attr-defined]
    monkeypatch.setattr(source, "BinlogDump", lambda *_: log)
    monkeypatch.setattr(source, "DumpWatch", lambda *_: None)
    mine = source.MariaDBSource(source.SourceOptions(NOWHERE, "d/0"), lambda: None)  # type: ignore[arg-type,return-value]
    mine.status.timestamp = 1_600_000_000
    found = next(mine._open_log(tables, "MariaDB/0-1-4")[0].transactions())
    assert found is not None
    assert (found.position, found.timestamp, described(found)) == ("MariaDB/0-1-4", 1_600_000_000, {"d.a": True})


def test_nothing_is_said_in_the_middle_of_a_transaction() -> None:
    """A heartbeat may come there. What is known by then is said with the transaction, at its position."""
    tables = Tables()
    tables.catalog.doubt("d.a", tables.live["d.a"], GtidPosition({}))
    (found,) = run([gtid(5), event(events.HEARTBEAT, b"bin.000001"), event(events.XID, bytes(8))], tables)
    assert (found.gtid, described(found)) == ("MariaDB/0-1-5", {"d.a": True})


def test_an_xa_commit_of_which_nothing_is_known_holds_every_table() -> None:
    """It was prepared before the source started: any row may still be as it was before the commit."""
    tables = Tables()
    tables.invisible = {XID}
    (found,) = run(xa_commit(5), tables)
    assert voided(found) == {"*"}
    assert described(found) == dict.fromkeys(NAMES, False)
    tables.invisible = set()
    (after,) = run([*committed(6)], tables, "MariaDB/0-1-5")
    assert voided(after) >= set(NAMES)
    assert described(after) == dict.fromkeys(NAMES, True)


def test_an_xa_commit_of_which_nothing_is_known_also_holds_a_table_that_is_gone() -> None:
    """It has no schema to wait for, and must not end the source. Once made anew it waits for reads too."""
    tables = Tables()
    tables.catalog.doubt("d.b", None, GtidPosition({}))
    run(committed(5), tables)
    tables.invisible = {XID}
    (found,) = run(xa_commit(6), tables, "MariaDB/0-1-5")
    assert described(found) == dict.fromkeys(NAMES, False)
    tables.catalog.doubt("d.b", tables.live["d.b"], GtidPosition({}))
    assert [described(each) for each in run(committed(7), tables, "MariaDB/0-1-6")] == [{}]
    tables.invisible = set()
    assert [described(each) for each in run(committed(8), tables, "MariaDB/0-1-7")] == [dict.fromkeys(NAMES, True)]


HELD: dict[str, frozenset[Xid]] = {"d.a": frozenset({XID, (7, b"\xff", b"two")}), "d.é": frozenset({XID})}


def test_words_of_held_tables_are_read_as_they_were_written() -> None:
    """These words are in topics. An empty text is what is kept if nothing is held."""
    words = '{"version": 1, "xids": [[1, "6f6e65", ""], [7, "ff", "74776f"]], "tables": {"d.a": [0, 1], "d.é": [0]}}'
    assert (held_words(HELD), read_held(words)) == (words, HELD)
    assert (held_words({}), read_held("")) == ("", {})


@pytest.mark.parametrize(
    "words", ['{"version": 2}', '{"version": 1}', "[]", "{", '{"version": 1, "xids": [], "tables": {"d.a": [0]}}', "1"]
)
def test_words_that_cannot_be_read_say_nothing(words: str) -> None:
    """They may be a newer version's. The tables are held by what the topic says of them."""
    assert read_held(words) == {}


def test_too_many_held_tables_have_no_words() -> None:
    """A state must fit into a message. The topic still says that they are held."""
    many = {f"d.{number}": frozenset({XID}) for number in range(1_000)}
    assert len(held_words(dict(list(many.items())[:200]))) < HELD_CHARS_MAX
    assert held_words(many) == ""


def test_an_xa_transaction_that_voided_everything_holds_every_table() -> None:
    """Rows without a table map are of any table, so all wait until reads see the commit."""
    tables = Tables()
    tables.invisible = {XID}
    lost = event(events.WRITE_ROWS_V1, struct.pack("<IHH", 9, 0, 0) + b"\x01\x01")
    _, found = run([*prepared(5, XID, lost), *xa_commit(6)], tables)
    assert voided(found) == {"*"}
    assert described(found) == dict.fromkeys(NAMES, False)


def test_an_xa_commit_that_reads_see_holds_nothing() -> None:
    """The void at its position is enough."""
    (found,) = run(xa_commit(5), Tables())
    assert (voided(found), described(found)) == ({"*"}, {})


def checksum(*parts: tuple[bytes, int, bytes] | str, head: bytes = b"") -> int:
    """Of a transaction with these rows (table, kind, data) and statements."""
    found = TransactionChecksum()
    found.begin(head or gtid(5))
    for part in parts:
        if isinstance(part, str):
            found.statement(events.Query("d", part.encode(), 0))
        else:
            found.rows(*part, 0)
    return found.value


def test_whatever_makes_another_transaction_makes_another_checksum() -> None:
    """Sequence, domain, server, table, the kind of change, the rows, statements, and their order."""
    rows = (b"d.a", events.WRITE_ROWS_V1, b"12")
    found = [
        checksum(rows),
        checksum(rows, head=gtid(6)),
        checksum(rows, head=gtid(5, domain=1)),
        checksum(rows, head=gtid(5, server=2)),
        checksum((b"d.b", events.WRITE_ROWS_V1, b"12")),
        checksum((b"d.a", events.DELETE_ROWS_V1, b"12")),
        checksum((b"d.a", events.UPDATE_ROWS_V1, b"12")),
        checksum((b"d.a", events.WRITE_ROWS_V1, b"13")),
        checksum(rows, "x"),
        checksum("x", rows),
        checksum(rows, "x", rows),
        checksum(),
    ]
    assert len(set(found)) == len(found)
    assert all(found)


def test_a_drop_has_the_checksum_of_its_server_at_a_replica_too() -> None:
    """A replica says IF EXISTS by itself, and leaves a comment out. What other tables are dropped matters."""
    end = "/* generated by server */"
    for kind in ("TABLE", "TEMPORARY TABLE", "SEQUENCE"):
        found = checksum(f"DROP {kind} `a`,`b` {end}")
        assert checksum(f"DROP {kind} IF EXISTS `a`,`b` {end}") == found
        assert checksum(f"DROP {kind} /* it is old */ `a`,`b` {end}") == found
        assert checksum(f"DROP {kind} `a` {end}") != found
    assert checksum("DROP VIEW a") != checksum("DROP VIEW IF EXISTS a")


def test_a_drop_that_an_earlier_release_published_is_the_same() -> None:
    """It took the text as it was logged: here, or at a replica. Of other statements nothing has changed."""

    def published(text: str) -> int:
        head = gtid(5)
        found = crc32(head[5:9] + head[19:31])
        return crc32(text.encode(), crc32(b"d", found)) | 1 << 32

    plain, of_replica = (f"DROP TABLE {words}`a` /* generated by server */" for words in ("", "IF EXISTS "))
    for here in (plain, of_replica, "DROP TABLE /* it is old */ `a` /* generated by server */"):
        found = TransactionChecksum()
        found.begin(gtid(5))
        found.statement(events.Query("d", here.encode(), 0))
        assert all(found.is_same(each) for each in (published(here), published(plain), published(of_replica)))
        assert not found.is_same(published("DROP TABLE `b` /* generated by server */"))
        found.begin(gtid(5))
        found.statement(events.Query("d", b"x", 0))
        assert found.is_same(published("x"))
        assert not found.is_same(published(plain))


def test_how_a_server_cuts_and_packs_rows_changes_no_checksum() -> None:
    """A replica may log the same rows in more events, or compressed."""
    whole = checksum((b"d.a", events.WRITE_ROWS_V1, b"1234"))
    cut = checksum((b"d.a", events.WRITE_ROWS_V1, b"12"), (b"d.a", events.WRITE_ROWS_COMPRESSED_V1, b"34"))
    assert whole == cut


def test_the_last_transaction_is_found_behind_others_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failover the log may have others first; of two servers in one domain the later sequence is meant."""
    log = [*committed(3, domain=1, server=9), *committed(5, server=2), *committed(6, server=2)]
    monkeypatch.setattr(last_read, "BinlogDump", lambda *_: Log(log))
    (wanted,) = [each.checksum for each in run(log, Tables()) if each.gtid == "MariaDB/0-2-5"]
    check_same(NOWHERE, 1, "MariaDB/0-1-4", "MariaDB/0-2-5", wanted)
    with pytest.raises(SourceHistoryLost, match="0-2-5 is another transaction"):
        check_same(NOWHERE, 1, "MariaDB/0-1-4", "MariaDB/0-2-5", wanted + 1)


def heartbeat(offset: int) -> bytes:
    """A heartbeat from a place in the log."""
    found = bytearray(event(events.HEARTBEAT, b"binlog.000001"))
    found[13:17] = offset.to_bytes(4, "little")
    return bytes(found)


def test_a_server_that_passes_over_a_long_log_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heartbeats move on meanwhile. One that waits at a place has no such transaction: that ends the comparison."""
    log = committed(5)
    (wanted,) = [each.checksum for each in run(log, Tables())]
    others = [each for number in range(1, 21) for each in committed(number, domain=1)]
    logs = [[*(heartbeat(1000 + n) for n in range(100)), *others, *log], [heartbeat(1000)] * 100 + log]
    monkeypatch.setattr(last_read, "BinlogDump", lambda *_: Log(logs.pop(0)))
    with pytest.raises(SourceHistoryLost, match="0-1-5 is another transaction"):
        check_same(NOWHERE, 1, "MariaDB/0-1-4", "MariaDB/0-1-5", wanted + 1)
    check_same(NOWHERE, 1, "MariaDB/0-1-4", "MariaDB/0-1-5", wanted + 1)


def test_a_table_that_the_words_leave_out_is_held_for_whatever_is_not_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic says that it is held, and not for what: an older source said so, or there was no room."""
    other: Xid = (7, b"other", b"")
    tables = Tables()
    tables.catalog.hold(NAMES, XID)
    monkeypatch.setattr(live_schema, "_prepared", lambda _: frozenset({XID, other}))
    again = Tables()
    again.catalog.describe_as({name: tables.catalog.description(name) for name in NAMES})
    again.catalog.resume(again.live, GtidPosition({}))
    again._hold_again(Any, held_words({"d.a": frozenset({XID})}))
    assert again.catalog.held == {"d.a": frozenset({XID}), "d.b": frozenset({XID, other})}


@pytest.mark.parametrize("is_same", [True, False])
def test_a_comparison_ends_its_connection(monkeypatch: pytest.MonkeyPatch, *, is_same: bool) -> None:
    """The source's own would meet it as a rival for its server_id."""
    (wanted,) = [each.checksum for each in run(committed(5), Tables())]
    log = Log(committed(5))
    monkeypatch.setattr(last_read, "BinlogDump", lambda *_: log)
    with contextlib.nullcontext() if is_same else pytest.raises(SourceHistoryLost):
        check_same(NOWHERE, 1, "MariaDB/0-1-4", "MariaDB/0-1-5", wanted + (not is_same))
    assert log.closed
