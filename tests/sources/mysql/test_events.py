"""MySQL's own binlog events and requests, by bytes that a server of version 9.7.4 sent."""

from __future__ import annotations

import contextlib
import struct
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysql.constants import FIELD_TYPE

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.catalog import Catalog
from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.binlog.mysql.dump import encoded_set
from stream.sources.mariadb.binlog.mysql.events import PARTIAL_UPDATE_ROWS, parse_gtid, payload_events
from stream.sources.mariadb.binlog.mysql.json_text import double_text, json_text
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.binlog.table_map import BinlogFormatError
from stream.sources.mariadb.cascades.foreign_keys import Cascades
from stream.sources.mariadb.charsets import Charsets
from stream.sources.mariadb.connection import SourceHistoryLost
from stream.sources.mariadb.gtid import GtidPosition, MysqlGtid, MysqlGtidSet
from stream.sources.mariadb.schema import TableFilter, missing_table
from stream.wire.events import SourceTransaction, VoidTable
from stream.wire.values import UndecodableValue
from tokens.errors import FreshetError

UUID_TEXT = "4d520a3c-e7ce-11f1-94cd-02fc00000001"
TAGGED = bytes.fromhex(
    "db35056b2a01000000550000004ac604000000027c000000029aa414789d03390322c5035102350304f1030000000204080610736f"
    "6d655f7461670891050a99050c7f6afe114100610610a5041283120b"
)
UNTAGGED = bytes.fromhex(
    "db35056b21010000004f0000006dc704000000004d520a3ce7ce11f194cd02fc000000019f0b00000000000002b2000000000000"
    "00b400000000000000f0591241006106fc000150620100"
)
PAYLOAD = bytes.fromhex(
    "db35056b2801000000b10000001ec8040000000201000301c50101900028b52ffd20c53d0400f2861823a029c301f03f12bdfdaa"
    "aa8abfb98f3d527b5ffd9081947aa33ecff63f416cf7de52a6ffff54108328eaaf77c24241616032134a9136f6bbac4e764805ab"
    "53dcb9ce2d8f616a4ef5703420c6cefd0abf9b1b2651920538f17d1d66867e766a4e151000a004c4551a646182027d60ac413002"
    "ac411b5806522b81ec5061c169d03406bc"
)


def test_gtids_of_a_server_are_read() -> None:
    """Both kinds of events give UUID, tag and number."""
    assert parse_gtid(TAGGED) == MysqlGtid(UUID_TEXT, "some_tag", 2)
    assert parse_gtid(UNTAGGED) == MysqlGtid(UUID_TEXT, "", 2975)
    assert (parse_gtid(TAGGED).bare, parse_gtid(UNTAGGED).bare) == (f"{UUID_TEXT}:some_tag:2", f"{UUID_TEXT}:2975")


def test_a_gtid_that_is_cut_off_stops_the_reading() -> None:
    """No prefix of what the GTID needs is taken for another GTID, and none is passed over."""
    for whole, needed in ((TAGGED, TAGGED.index(b"some_tag") + 8), (UNTAGGED, events.HEADER_SIZE + 25)):
        for size in range(events.HEADER_SIZE, needed):
            with pytest.raises(BinlogFormatError):
                parse_gtid(whole[:size])
        assert parse_gtid(whole[:needed]) == parse_gtid(whole)


@given(st.binary(max_size=120), st.sampled_from([33, 34, 42]))
def test_bytes_that_are_no_gtid_are_refused(body: bytes, kind: int) -> None:
    """Whatever the bytes are: a GTID with a number above 0, or an error of ours."""
    try:
        found = parse_gtid(b"\0\0\0\0" + bytes([kind]) + bytes(14) + body)
    except BinlogFormatError:
        return
    assert found.number > 0
    UUID(found.uuid)


def test_a_transaction_without_a_gtid_is_refused() -> None:
    """Its place in history can't be named."""
    with pytest.raises(BinlogFormatError, match="without a GTID"):
        parse_gtid(UNTAGGED[:4] + b"\x22" + UNTAGGED[5:])


def test_a_compressed_transaction_has_its_events_in_order() -> None:
    """BEGIN, the table map, the rows and the end."""
    found = [event[4] for event in payload_events(PAYLOAD)]
    assert found == [events.QUERY, events.TABLE_MAP, events.WRITE_ROWS, events.XID]


def test_a_compressed_transaction_that_is_damaged_is_refused() -> None:
    """No prefix and no changed byte gives an error that is not ours, nor events without end."""
    for size in range(events.HEADER_SIZE, len(PAYLOAD) - 1):
        with pytest.raises(BinlogFormatError):
            list(payload_events(PAYLOAD[:size]))
    for at in range(events.HEADER_SIZE, len(PAYLOAD)):
        damaged = bytearray(PAYLOAD)
        damaged[at] ^= 0xFF
        with contextlib.suppress(FreshetError):
            assert len(list(payload_events(bytes(damaged)))) < 20


@given(st.binary(max_size=200))
def test_bytes_that_are_no_json_are_refused(data: bytes) -> None:
    """A value that can't be decoded is an error that voids its table, never another one."""
    with contextlib.suppress(UndecodableValue):
        json_text(data)


def test_a_json_value_that_names_itself_ends() -> None:
    """An array whose element is the array itself is refused and not followed for ever."""
    with pytest.raises(UndecodableValue, match="nested deeper"):
        json_text(bytes([2]) + struct.pack("<HHBH", 1, 7, 2, 0))


def test_sets_are_asked_for_in_the_form_that_old_servers_know() -> None:
    """Without tags the form is that of 5.6; with tags each entry has one, and the count says so."""
    plain = encoded_set(MysqlGtidSet.of(f"{UUID_TEXT}:1-5:8"))
    assert plain == struct.pack("<Q", 1) + UUID(UUID_TEXT).bytes + struct.pack("<QQQQQ", 2, 1, 6, 8, 9)
    tagged = encoded_set(MysqlGtidSet.of(f"{UUID_TEXT}:1-5:web:3"))
    one, two = UUID(UUID_TEXT).bytes + b"\0", UUID(UUID_TEXT).bytes + b"\x06web"
    assert tagged == struct.pack("<Q", 1 << 56 | 2 << 8 | 1) + one + struct.pack("<QQQ", 1, 1, 6) + two + struct.pack(
        "<QQQ", 1, 3, 4
    )
    assert encoded_set(MysqlGtidSet.of("")) == bytes(8)


def test_positions_of_two_kinds_cover_nothing_of_each_other() -> None:
    """A demand of the other kind of server is never met, but the one for nothing always is."""
    mysql, mariadb = GtidPosition.parse(f"MySQL56/{UUID_TEXT}:1-9"), GtidPosition.parse("MariaDB/0-1-9")
    for one, other in ((mysql, mariadb), (mariadb, mysql)):
        assert not one.covers(other)
        assert not one.reaches(other)
        assert not one.has_passed(other)
        assert one.covers(GtidPosition.parse(other.flavor))


@given(st.lists(st.tuples(st.sampled_from(["", "a"]), st.integers(1, 30)), max_size=40))
def test_a_set_grows_by_one_transaction_at_a_time(gtids: list[tuple[str, int]]) -> None:
    """What was added is covered, comes after nothing any more, and is the only difference to before."""
    position = GtidPosition.parse("MySQL56/")
    added: set[tuple[str, int]] = set()
    for tag, number in gtids:
        before = GtidPosition.parse(str(position))
        gtid = MysqlGtid(UUID_TEXT, tag, number)
        assert position.precedes(gtid) is ((tag, number) not in added)
        position.add(gtid)
        added.add((tag, number))
        new = not before.covers(position)
        assert position.transactions_since(before) == ({gtid.bare} if new else set())
        assert position.covers(before)


class Sent:
    """A dump that gives these events, and then none."""

    has_more = False

    def __init__(self, *sent: bytes) -> None:
        self._sent = [*sent]

    def read(self) -> bytes:
        """The next event."""
        if not self._sent:
            raise EOFError
        return self._sent.pop(0)

    def arrived(self) -> list[bytes]:
        """Nothing comes together with it."""
        return []

    def close(self) -> None:
        """Nothing is open."""


def event(kind: int, body: bytes = b"", flags: int = 0) -> bytes:
    """An event with a header."""
    return struct.pack("<IBIIIH", 7, kind, 1, 19 + len(body), 0, flags) + body


NO_CASCADES = Cascades({}, {})


def read(*sent: bytes, cascades: Cascades = NO_CASCADES) -> list[SourceTransaction]:
    """The transactions in these events, from the beginning. Raises what the reader raises, but the end.

    Of the tables it is known that there is a ``d.c``, and no more.
    """
    catalog = Catalog()
    catalog.describe_as({"d.c": missing_table("d.c")})
    schema: Any = SimpleNamespace(
        catalog=catalog,
        include=TableFilter(("d",)),
        cascades=cascades,
        unread=frozenset(),
        charsets=Charsets({}, {}),
        get=catalog.get,
        reread=lambda database, table: catalog.doubt(f"{database}.{table}", None, GtidPosition.parse("MySQL56/")),
        settle=lambda position: catalog.settle(position, frozenset),
    )
    reader = BinlogReader(cast("BinlogDump", Sent(*sent)), schema, "MySQL56/")
    found: list[SourceTransaction] = []
    with contextlib.suppress(EOFError):
        found.extend(filter(None, reader.transactions()))
    return found


XID, UNKNOWN, BEGIN = events.XID, 99, event(events.QUERY, struct.pack("<IIBHH", 0, 0, 1, 0, 0) + b"d\0BEGIN")


def test_an_unknown_event_voids_everything_but_where_it_may_be_passed_over() -> None:
    """A later version's events may have changed rows, unless their flag says that they may be ignored."""
    [known] = read(UNTAGGED, BEGIN, event(UNKNOWN, flags=events.IGNORABLE_EVENT), event(XID))
    [unknown] = read(UNTAGGED, BEGIN, event(UNKNOWN), event(XID))
    assert (list(known.changes), [change.table for change in unknown.changes]) == ([], ["*"])  # type: ignore[union-attr]
    assert known.position == f"MySQL56/{UUID_TEXT}:2975"


def test_a_damaged_compressed_transaction_voids_everything_and_moves_the_position() -> None:
    """Its rows are unknown, but its place in history is not."""
    damaged = PAYLOAD[:60] + bytes([PAYLOAD[60] ^ 0xFF]) + PAYLOAD[61:]
    [found] = read(UNTAGGED, damaged)
    assert [change.table for change in found.changes] == ["*"]  # type: ignore[union-attr]
    assert found.position == f"MySQL56/{UUID_TEXT}:2975"


def test_tables_below_one_that_cannot_be_decoded_are_void() -> None:
    """Where InnoDB does cascades, the log names no child: what kind of change it was tells enough."""
    table_map = event(events.TABLE_MAP, bytes.fromhex("070000000000 0100 016400 017000 01 03 00 00"))
    rows = bytes.fromhex("070000000000 0100 0200 01 ff 00 01000000")
    cascades = Cascades({"d.p": frozenset({"d.c"})}, {})
    for kind, below in ((events.DELETE_ROWS, {"d.c"}), (events.WRITE_ROWS, set())):
        [found] = read(UNTAGGED, BEGIN, table_map, event(kind, rows), event(XID), cascades=cascades)
        assert {each.table for each in found.changes if isinstance(each, VoidTable)} == {"d.p", *below}


def test_tables_below_one_whose_json_is_logged_in_parts_are_void() -> None:
    """It is an update like any other to InnoDB's foreign keys."""
    table_map = event(events.TABLE_MAP, bytes.fromhex("070000000000 0100 016400 017000 01 03 00 00"))
    partly = event(PARTIAL_UPDATE_ROWS, bytes.fromhex("070000000000 0100 0200 01 ff ff 00 01000000"))
    for cascades, below in ((Cascades({}, {"d.p": frozenset({"d.c"})}), {"d.c"}), (NO_CASCADES, set())):
        [found] = read(UNTAGGED, BEGIN, table_map, partly, event(XID), cascades=cascades)
        assert {each.table for each in found.changes if isinstance(each, VoidTable)} == {"d.p", *below}


def test_nothing_is_booked_under_the_gtid_before() -> None:
    """A GTID event that can't be parsed ends the reading, and rows without one are an error."""
    whole = (UNTAGGED, BEGIN, event(XID))
    for lost in (TAGGED[:40], UNTAGGED[:30]):
        with pytest.raises(BinlogFormatError):
            read(*whole, lost, BEGIN, event(XID))
    with pytest.raises(BinlogFormatError, match="outside of a GTID group"):
        read(*whole, BEGIN, event(XID))
    with pytest.raises(SourceHistoryLost, match="went back"):
        read(*whole, *whole)
    assert [each.gtid for each in read(*whole, TAGGED, BEGIN, event(XID))] == [
        f"MySQL56/{UUID_TEXT}:2975",
        f"MySQL56/{UUID_TEXT}:some_tag:2",
    ]


@pytest.mark.parametrize(
    ("kind", "value", "text"), [(7, -5, "-5"), (8, 4_000_000_000, "4000000000"), (5, -5, "-5"), (6, 65_000, "65000")]
)
def test_small_numbers_of_a_large_array_stand_in_its_entries(kind: int, value: int, text: str) -> None:
    """Those of four bytes, too, with a sign and without; taken for a place they would lead anywhere."""
    entry = bytes((kind,)) + (value & 0xFFFFFFFF).to_bytes(4, "little")
    assert json_text(b"\3" + struct.pack("<II", 1, 13) + entry) == f"[{text}]"


@pytest.mark.parametrize(
    ("number", "text"),
    [(1e-15, "0.000000000000001"), (1e-16, "1e-16"), (1e14, "100000000000000.0"), (1e15, "1e15")],
)
def test_a_double_of_many_zeros_has_an_exponent_from_where_the_server_writes_one(number: float, text: str) -> None:
    """Images from the log and from SELECT are the same, or a cache would tell two values of one row."""
    assert double_text(number) == text


def opaque(kind: int, data: bytes) -> bytes:
    """A JSON document that is a value of another type."""
    return bytes((15, kind, len(data))) + data


def moment(days: int, clock: int, micros: int = 0, *, is_negative: bool = False) -> bytes:
    """A date and time as the server packs them."""
    packed = ((days << 17 | clock) << 24) + micros
    return (-packed if is_negative else packed).to_bytes(8, "little", signed=True)


LONGEST, DAY = 838 << 12 | 59 << 6 | 59, (2024 * 13 + 12) << 5 | 31


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (FIELD_TYPE.TIME, moment(0, LONGEST), '"838:59:59.000000"'),
        (FIELD_TYPE.TIME, moment(0, LONGEST, 1, is_negative=True), '"-838:59:59.000001"'),
        (FIELD_TYPE.TIME, moment(0, 1 << 12 | 2 << 6 | 3, 500_000, is_negative=True), '"-01:02:03.500000"'),
        (FIELD_TYPE.DATE, moment(DAY, 0), '"2024-12-31"'),
        (FIELD_TYPE.DATETIME, moment(DAY, 23 << 12 | 59 << 6 | 58, 7), '"2024-12-31 23:59:58.000007"'),
        (FIELD_TYPE.TIMESTAMP, moment(DAY, 0), '"2024-12-31 00:00:00.000000"'),
        (FIELD_TYPE.NEWDECIMAL, bytes((4, 2)) + bytes((0x80 | 12, 34)), "12.34"),
        (FIELD_TYPE.NEWDECIMAL, bytes((4, 2)) + bytes((0x7F ^ 12, 0xFF ^ 34)), "-12.34"),
        (FIELD_TYPE.BLOB, b"\0\xff", '"base64:type252:AP8="'),
    ],
)
def test_values_of_types_that_json_lacks_are_told_as_the_server_tells_them(kind: int, data: bytes, text: str) -> None:
    """Whole, whatever their size and sign: a time may have more hours than a day, and is read as such by SELECT."""
    assert json_text(opaque(kind, data)) == text
