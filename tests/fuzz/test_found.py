"""Bugs that fuzzing has found, each with a minimal input."""

from __future__ import annotations

import base64
import json
import resource
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from consumers.fold.entry import VALUE, VOID, decode_entry
from consumers.fold.state import read_head
from consumers.owner.connection import HELLO_TIMEOUT_S
from consumers.owner.evidence import tag_of
from consumers.owner.framing import HELLO_BYTES_MAX, FrameBuffer, decode_request
from consumers.owner.protocol import (
    OwnerError,
)
from consumers.owner.rows import judge_fill, view_row
from consumers.store.errors import StoreCorruptError
from consumers.store.manifest import MANIFEST_NAME, read_manifest
from freshet.local.process import free_ports
from freshet.settings import load_settings
from freshet.settings_errors import SettingsError
from serving.client import ServerError
from serving.client.answers import STATUS_OF_CODE
from serving.client.wire import read_row
from serving.errors import HINTS, ReadError
from serving.http.limits import HEAD_BYTES_MAX
from serving.http.query import RowBatchBody
from serving.http.route import body_of
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import LocationsReader
from stream.sources.hive.messages import MESSAGE_BYTES_MAX, HiveMessageError, decode_message, integer, parse_table
from stream.sources.mariadb.binlog.events import uncompress
from stream.sources.mariadb.binlog.statements import READ_CHARS_MAX, classify
from stream.sources.mariadb.binlog.table_map import BinlogFormatError, parse_table_map, table_name_of
from stream.wire.codec import CodecError, current_schema, decode, encode
from stream.wire.frames import write_long
from stream.wire.keys import Layout, LayoutError
from tests.consumers.histories import SHARD, Folded, frame, gtid, key, marker, start, value
from tests.fuzz.targets import TARGETS, http
from tests.fuzz.targets.wire import _Message
from tests.patience import PATIENCE_S
from tokens import Demand, Position, TokenError, Vector, decide
from tokens.errors import LINE_CHARS_MAX, FreshetError

DEEP = 100_000


@pytest.fixture
def a_gibibyte() -> Iterator[None]:
    """No more memory than that beyond what the process has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "\ud800", "\u2028", "x" * 10**6])
def test_the_message_of_an_error_is_one_line_that_everything_can_show(text: str) -> None:
    """What is quoted in a message may be anybody's text: no line breaks, no control characters, not a megabyte."""
    error = FreshetError(f"invalid value {text}", hint=text)
    for shown in (str(error), error.hint):
        assert shown.isprintable()
        assert len(shown.encode()) <= 10 * LINE_CHARS_MAX


def test_every_refusal_of_the_api_has_a_hint() -> None:
    """A reader is told what to do about each code, also where the place that raises it says nothing."""
    assert HINTS.keys() == STATUS_OF_CODE.keys()
    assert all(ReadError(code, "x").hint for code in STATUS_OF_CODE)


# -- tokens and keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["xxh3_64;partitions=" + "9" * 5_000, "xxh3_64;partitions=1;prefix=\ud800:1"])
def test_an_invalid_layout_is_refused_as_such(text: str) -> None:
    """Numbers longer than Python converts, and names without UTF-8, were bare errors."""
    with pytest.raises(LayoutError):
        Layout.parse(text)


def test_a_vector_names_no_shard_that_cannot_be_written() -> None:
    """Half a surrogate pair came back in the reason of an answer, which then could not be sent: an incident."""
    for name in (rb"\ud800", b"\xed\xa0\x80"):
        token = "v1." + base64.urlsafe_b64encode(b'[["%b",1,"HiveEvent/7"]]' % name).decode()
        with pytest.raises(TokenError, match="Unicode"):
            Vector.parse(token)


def test_every_key_has_a_partition() -> None:
    """A key of a hundred thousand brackets is hashed whole like any other that is no key."""
    assert Layout(4, {"t": 1}).partition_of(b"t\0" + b"[" * DEEP) in range(4)


# -- the wire ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("a_gibibyte")
@pytest.mark.parametrize("count", [2**62, -(2**62), 2**31, 2**63 - 1])
def test_a_count_that_lies_costs_no_memory(count: int) -> None:
    """An Avro array that announces 2^62 elements is cut off, not allocated."""
    place = write_long(len(SHARD)) + SHARD.encode() + write_long(1) + write_long(1)
    for lie in (write_long(count), write_long(1) + write_long(count)):
        with pytest.raises(CodecError):
            decode(current_schema("RowFrame").header + place + lie + b"abc")


def test_a_frame_of_a_shard_without_a_proper_name_is_poison() -> None:
    """A NUL in it would make entries that can't be read again, and each later event of the key poison too."""
    folded = Folded(start(), value(1, b"a", 2))
    for bad in ("", "a\0b"):
        folded.fold(frame([(key(1), VALUE, b"b", 3)], shard=bad))
    folded.fold(frame([(key(1), VALUE, b"b", 3)], epoch=0))
    assert folded.rejection_codes == ["bad_field"] * 3
    assert list(folded.state.head.lineages) == [SHARD]


def test_a_row_whose_position_is_no_position_is_unknown_until_a_fill_past_the_next_marker() -> None:
    """It was an error for every reader of the key, until its next event."""
    folded = Folded(start(), frame([(key(1), VALUE, b"{}", 2)], gtids=["1e9"]))
    demand = Demand(Vector({SHARD: (1, Position.parse(gtid(2)))}), given=True)
    view = view_row(folded.state.head, key(1), folded.entries[key(1)])
    assert decide(demand, tag_of(view))[0].value != "fresh"
    assert (view.kind, view.image) == (VOID, None)
    assert not judge_fill(folded.state.head, key(1), view, gtid(5)).accepted
    folded.fold(marker(2))
    view = view_row(folded.state.head, key(1), folded.entries[key(1)])
    assert judge_fill(folded.state.head, key(1), view, gtid(5)) == (True, "filled")


def test_a_low_water_that_is_no_position_is_poison() -> None:
    """It was stored, and then no fill could ever be judged."""
    folded = Folded(start(), marker(1, low_water="x"))
    assert folded.rejection_codes == ["bad_field"]
    assert folded.state.head.lineages[SHARD].low_water == gtid(0)


def test_a_name_with_a_nul_is_refused() -> None:
    """It ends the names in the store's keys: the head would be read back as another one."""
    place = {"shard": SHARD, "epoch": 1, "ordinal": 2, "gtid": gtid(2), "timestamp": 0, "position": gtid(2)}
    folded = Folded(start())
    folded.fold(encode("TableVoid", place | {"table": "a\0b", "reason": "DDL"}))
    assert folded.rejection_codes == ["bad_field"]


def test_a_poisoned_announcement_does_not_end_the_reading_of_locations() -> None:
    """Nesting deeper than the decoder goes killed the thread that follows freshet.locations."""
    reader = LocationsReader(KafkaCluster("127.0.0.1:1"))
    good = {"keyspace": "shop", "partition": 0, "address": "a:1", "instance": "i"}
    poison = _Message(b"shop/0", b'{"x":' + b"[" * DEEP, [])
    reader._learn([poison, _Message(b"shop/0", json.dumps(good).encode(), [])])
    assert reader.owner_of("shop", 0) is not None


# -- the store --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"Infinity", b'"7"', b"[" * DEEP, b"1.5", b"true", b"null"])
def test_a_head_of_other_types_is_damaged(text: bytes) -> None:
    """Only the number itself is an offset, and only these errors are raised."""
    with pytest.raises((ValueError, TypeError)):
        read_head([(b"\0offset", text)])
    with pytest.raises((ValueError, TypeError)):
        read_head([(b"\0lineage/shop/0", text)])


def test_an_entry_with_a_truncated_tag_is_refused() -> None:
    """A shorter position is another position."""
    entry = Folded(start(), frame([(key(1), 2, b"", 2)])).entries[key(1)]
    assert decode_entry(entry).position == gtid(2)
    with pytest.raises(ValueError, match="tag"):
        decode_entry(entry[:-1])


@pytest.mark.parametrize(
    "text",
    [
        b'{"checksum":"x","format_version":1e999}',
        b'{"checksum":"x","format_version":1,"keyspace":"\\ud800"}',
        b'{"checksum":"x","format_version":1,"keyspace":' + b"[" * 990 + b"]" * 990 + b"}",
    ],
)
def test_a_manifest_that_cannot_be_checked_is_damaged(tmp_path: Path, text: bytes) -> None:
    """Infinity, half a surrogate pair and deep nesting passed the reading, and broke the checksum."""
    (tmp_path / MANIFEST_NAME).write_bytes(text)
    with pytest.raises(StoreCorruptError):
        read_manifest(tmp_path)


# -- sources ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("a_gibibyte")
def test_a_compressed_event_cannot_promise_nothing_and_hold_a_gigabyte() -> None:
    """A declared size of 0 meant "without a bound" to zlib."""
    bomb = zeros(1_024, zlib.MAX_WBITS)
    for head in (b"\x81\x00", b"\x84\x00\x00\x00\x05", b"\x84\xff\xff\xff\xff"):
        with pytest.raises(BinlogFormatError):
            uncompress(head + bomb)


@pytest.mark.usefixtures("a_gibibyte")
def test_a_zip_bomb_in_a_metastore_message_is_refused() -> None:
    """Its first bytes are unpacked, up to the bound, and no more."""
    text = base64.b64encode(zeros((MESSAGE_BYTES_MAX >> 20) + 64, zlib.MAX_WBITS + 16)).decode()
    assert len(text) < 1 << 20
    with pytest.raises(HiveMessageError, match="larger than"):
        decode_message(text)


def zeros(mebibytes: int, wbits: int) -> bytes:
    """So many compressed zeros, without the end and the checksum: after a full flush each MiB is the same bytes."""
    packer = zlib.compressobj(9, wbits=wbits)
    first, again = (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + again * (mebibytes - 1)


@pytest.mark.parametrize("text", ["--5", "9" * 5_000, "٣" * 30, "1" * 20])
def test_an_integer_of_a_message_is_one_or_an_error_of_ours(text: str) -> None:
    """Texts that `int` chokes on, or that no metastore writes."""
    with pytest.raises(HiveMessageError):
        integer({"txnid": text}, "txnid")


@pytest.mark.parametrize(
    "change",
    [
        {"25": {"tf": 1}},
        {"25": {"i64": 2**70}},
        {"1": {"str": "\ud800"}},
        {"7": {"lst": ["str", 1, "x"]}},
        {"1": {"str": [1]}},
    ],
)
def test_a_table_that_no_metastore_has_is_refused(change: dict[str, object]) -> None:
    """Ids that are no 64-bit integers, names without UTF-8, a storage descriptor that is a list."""
    struct = {"1": {"str": "t"}, "2": {"str": "d"}, "25": {"i64": 7}} | change
    with pytest.raises(HiveMessageError):
        parse_table({"t": json.dumps(struct)}, "t")


@pytest.mark.parametrize("sql", ["XA COMMIT X'7',X'L'", "SET STATEMENT a=1 FOR " * 2_000, "ALTER TABLE `a"])
def test_a_statement_that_cannot_be_understood_voids_everything(sql: str) -> None:
    """Odd hexadecimal digits and nested SET STATEMENT were bare errors; an open quote hides what follows it."""
    assert classify(sql, "d").effect == "all"


@pytest.mark.parametrize("piece", ["\\'", "'", "''", '\\"', "`", "/*", "\\"])
def test_quotes_that_are_never_closed_take_no_time(piece: str) -> None:
    """Each one was looked for to the end: a megabyte of them took hours."""
    started = time.process_time()
    classify("ALTER TABLE a COMMENT '" + piece * (READ_CHARS_MAX // len(piece) - 40), "d")
    assert time.process_time() - started < 5


@pytest.mark.usefixtures("a_gibibyte")
def test_a_statement_of_a_hundred_megabytes_is_not_taken_apart() -> None:
    """A token for each of its words would be gigabytes."""
    assert classify("INSERT INTO a VALUES " + "(1)," * 25_000_000, "d").effect == "all"
    assert classify("BEGIN" + " " * READ_CHARS_MAX, "d").effect == "begin"


def test_a_table_map_with_a_name_that_is_no_text_is_a_format_error() -> None:
    """A bare UnicodeDecodeError ended the source."""
    body = b"\0\0" + b"\1\xff\0" + b"\1t\0" + b"\0\0"
    for parse in (table_name_of, parse_table_map):
        with pytest.raises(BinlogFormatError):
            parse(body)


# -- settings ---------------------------------------------------------------------------------------------------------


def test_settings_that_are_nested_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the file and in a variable: one line, not a traceback of a thousand."""
    file = tmp_path / "freshet.toml"
    file.write_text("a = " + "[" * 3_000)
    with pytest.raises(SettingsError):
        load_settings(file)
    file.write_text("")
    monkeypatch.setenv("FRESHET_SERVE__LOCATIONS", "[" * DEEP)
    with pytest.raises(SettingsError, match="too deep"):
        load_settings(file)


# -- the read API and the owner protocol ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b'{"keys":[{"table":"\xff"}]}', b'{"keys":' + b"[" * DEEP, b'{"keys":[]}', b'"\xed\xa0\x80"']
)
def test_a_body_that_is_no_utf8_is_the_readers_error(body: bytes) -> None:
    """It was an unexpected error, with an incident."""
    with pytest.raises(ReadError) as found:
        body_of(RowBatchBody, body)
    assert found.value.code == "bad_body"


@pytest.mark.parametrize("row", [b"7", b"[1]", b'"\xff"', b"[" * DEEP])
def test_a_foreign_answer_is_a_server_error(row: bytes) -> None:
    """Whatever answers at the URL: a client raises its own error."""
    body = b'{"served_from":"cache","freshness":"fresh","why":"x","token":"","found":true,"row":%b}' % row
    with pytest.raises(ServerError):
        read_row(200, body)


def test_a_request_that_is_no_utf8_is_refused_as_a_request() -> None:
    """A bare UnicodeDecodeError ended the connection."""
    with pytest.raises(msgspec.DecodeError):
        decode_request(b"\x93\xa6status\x07\xa1\xff")


def test_who_has_not_said_hello_may_not_send_much() -> None:
    """64 MiB a connection, for anybody who can connect, were too many."""
    with pytest.raises(OwnerError, match="announced"):
        FrameBuffer(HELLO_BYTES_MAX).feed((HELLO_BYTES_MAX + 1).to_bytes(4, "big"))
    assert HELLO_TIMEOUT_S <= 60


@pytest.fixture(scope="module")
def front() -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A front as a process: its port and itself."""
    [port] = free_ports(1)
    process = http.start_front(port)
    yield port, process
    process.terminate()
    process.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("begin", "chunk"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: ", b"a" * 65_536),
        (b"GET /", b"a" * 65_536),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"A: b\r\n" * 10_000),
        (b"POST /v1/tables:batch HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n" * 10_000),
    ],
    ids=["header", "url", "headers", "trailers"],
)
def test_a_head_that_does_not_end_is_refused(
    begin: bytes, chunk: bytes, front: tuple[int, subprocess.Popen[bytes]]
) -> None:
    """uvicorn kept all of it: a gigabyte of one header was a gigabyte of memory."""
    port, process = front
    before = _resident(process)
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        sock.sendall(begin)
        with pytest.raises(OSError):  # noqa: PT011 - reset, or a broken pipe
            sock.sendall(chunk * 400)
    assert _resident(process) - before < 16 * HEAD_BYTES_MAX + (8 << 20)
    http.good(("127.0.0.1", port))


def _resident(process: subprocess.Popen[bytes]) -> int:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def test_the_fuzzers_own_command_lists_its_targets() -> None:
    """`python -m tests.fuzz --list` is where to look for a name."""
    listed = subprocess.check_output([sys.executable, "-m", "tests.fuzz", "--list"], text=True, cwd=ROOT)
    assert len(listed.splitlines()) == len(TARGETS)


ROOT = Path(__file__).parents[2]
