"""Messages of every version can be decoded, and anything else is refused with a code."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from fastavro.schema import fingerprint
from hypothesis import given
from hypothesis import strategies as st

from stream.wire import codec
from stream.wire.checks import check, check_folded, check_frame
from stream.wire.codec import CodecError, decode, encode
from stream.wire.frames import LONG_MAX

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("records.*.json"))


def _rebuilt(value: Any) -> Any:
    """JSON fixture value → field value; bytes are written ``{"hex": …}``."""
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"]) if value.keys() == {"hex"} else {k: _rebuilt(v) for k, v in value.items()}
    return [_rebuilt(each) for each in value] if isinstance(value, list) else value


KEPT = [
    pytest.param(name, bytes.fromhex(kept["message"]), _rebuilt(kept["fields"]), id=f"{file.stem}-{name}")
    for file in FIXTURES
    for name, kept in json.loads(file.read_text(encoding="utf-8")).items()
]
_KEPT_VALUES: list[Any] = [param.values for param in KEPT]
SAMPLES: dict[str, tuple[bytes, dict[str, Any]]] = {name: (kept, fields) for name, kept, fields, *_ in _KEPT_VALUES}
FRAME: dict[str, Any] = next(fields for name, _, fields, *_ in _KEPT_VALUES if name == "RowFrame")
"""The first one kept."""


def _frame(**changes: Any) -> dict[str, Any]:
    return {**FRAME, **changes}


def _kept_of(got: Any, kept: Any) -> Any:
    """What is in ``kept`` out of ``got``, which may have more fields: later versions add them, in inner records too."""
    if isinstance(kept, dict):
        return {name: _kept_of(got[name], value) for name, value in kept.items()}
    if isinstance(kept, list) and len(got) == len(kept):
        return [_kept_of(*each) for each in zip(got, kept, strict=True)]
    return got


@pytest.mark.parametrize(("name", "message", "fields"), KEPT)
def test_messages_of_every_version_can_be_decoded(name: str, message: bytes, fields: dict[str, Any]) -> None:
    """The kept messages of every version decode to the same fields, because topics outlive programs."""
    got_name, got = decode(message)
    assert got_name == name
    assert _kept_of(got, fields) == fields
    check(got_name, got)


def test_every_record_has_a_kept_message() -> None:
    """Every kind of record has a kept message, so that a new one needs a fixture before its first use."""
    assert set(SAMPLES) == set(codec.RECORDS)


def test_the_list_of_records_and_the_folder_of_schemas_agree() -> None:
    """Each schema file is listed in the code, and each listed file exists."""
    listed = {file for name in codec.RECORDS for file in codec.schema_files(name)}
    assert listed == {file.name for file in codec._SCHEMAS.iterdir() if file.suffix == ".avsc"}
    assert list(codec.RECORDS) == sorted(codec.RECORDS)


@pytest.mark.parametrize("name", codec.RECORDS)
def test_what_is_encoded_decodes_to_the_same(name: str) -> None:
    """Encoding and decoding are inverse for every record."""
    fields = SAMPLES[name][1]
    assert decode(encode(name, fields)) == (name, fields)


def _schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((codec._SCHEMAS / f"{name}.avsc").read_text())
    return found


def test_the_fingerprint_is_the_one_of_the_avro_specification() -> None:
    """Headers have the standard fingerprint, so that any Avro reader can decode messages without a registry."""
    assert fingerprint('"int"', "CRC-64-AVRO") == 0x7275D51A3F395C8F.to_bytes(8, "little").hex()
    schema = _schema("Marker")
    assert (
        encode("Marker", SAMPLES["Marker"][1])[:10] == codec.header_of(schema) == codec.current_schema("Marker").header
    )


def _older(name: str, *missing: str) -> dict[str, Any]:
    schema = _schema(name)
    schema["fields"] = [field for field in schema["fields"] if field["name"] not in missing]
    return schema


@pytest.mark.parametrize(
    ("name", "field", "default"),
    [("TableSchema", "prefix", 0), ("Marker", "whole", True)],
    ids=["TableSchema", "Marker"],
)
def test_a_message_of_an_older_schema_reads_with_the_new_fields_default(
    monkeypatch: pytest.MonkeyPatch, name: str, field: str, default: Any
) -> None:
    """Messages written before a field was added stay readable and get the field's default."""
    older = _older(name, field)
    known = dict(codec._KNOWN)
    codec._register(known, codec._CURRENT[name], older)
    monkeypatch.setattr(codec, "_KNOWN", known)
    record = {key: value for key, value in SAMPLES[name][1].items() if key != field}
    out = BytesIO()
    out.write(codec.header_of(older))
    schemaless_writer(out, parse_schema(older), record)
    assert decode(out.getvalue()) == (name, {**record, field: default})
    assert {codec.current_schema(name).header, codec.header_of(older)} <= codec.headers(name)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"", "not_freshet"),
        (b"hello world, I am JSON", "not_freshet"),
        (b"\x00\x00\x00\x00\x07registry", "not_freshet"),
        (b"\xc3", "truncated"),
        (b"\xc3\x01\x01\x02", "truncated"),
        (b"\xc3\x01" + b"\x07" * 30, "unknown_schema"),
        (encode("RowFrame", FRAME)[:-1], "truncated"),
        (encode("RowFrame", FRAME)[:40], "truncated"),
        (encode("RowFrame", FRAME)[:10], "truncated"),
        (encode("RowFrame", FRAME) + b"\0", "trailing_bytes"),
        (encode("Marker", SAMPLES["Marker"][1])[:10] + b"\x04\xff\xff" + b"\0" * 20, "bad_field"),
    ],
)
def test_an_invalid_message_is_refused_with_its_code(message: bytes, code: str) -> None:
    """Each kind of invalid message has a stable error code."""
    with pytest.raises(CodecError) as refused:
        decode(message)
    assert refused.value.code == code
    assert "\n" not in str(refused.value)


def _verdict(message: bytes) -> str:
    try:
        check(*decode(message))
    except CodecError as error:
        return error.code
    return ""


@given(st.sampled_from(codec.RECORDS), st.data())
def test_damaged_messages_never_raise_anything_else(name: str, data: st.DataObject) -> None:
    """Damaged messages raise `CodecError` only, so that no bytes in a topic can stop a reader."""
    message = bytearray(SAMPLES[name][0])
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    del message[data.draw(st.integers(0, len(message))) :]
    codes = {"", "not_freshet", "truncated", "unknown_schema", "bad_field", "trailing_bytes"}
    assert _verdict(bytes(message)) in codes


@pytest.mark.parametrize(
    "frame",
    [
        _frame(keys=[]),
        _frame(keys=FRAME["keys"][:2]),
        _frame(images=FRAME["images"][:2]),
        _frame(operations=b"\1\2"),
        _frame(operations=b"\1\2\4"),
        _frame(operations=b"\0\2\3"),
        _frame(ordinals=[0, 1, 2]),
        _frame(ordinals=[1, 3, 2]),
        _frame(ordinals=[1, 1, 2]),
        _frame(ordinals=[1, 2, 2]),
        _frame(ordinals=[1, 2, 2**40]),
        _frame(ordinal=-1),
        _frame(ordinal=2**63 - 2),
        _frame(transactions=[3]),
        _frame(transactions=[1, 1]),
        _frame(transactions=[4, -1]),
        _frame(transactions=[3, 0]),
        _frame(gtids=["MariaDB/0-1-5"]),
        _frame(timestamps=[1]),
        _frame(positions=["MariaDB/0-1-5"]),
        _frame(origins=["", "", ""]),
        _frame(keys=[b"shop.orders[7]", *FRAME["keys"][1:]]),
        _frame(keys=[b"\0[7]", *FRAME["keys"][1:]]),
        _frame(keys=[b"\x01t\0[7]", *FRAME["keys"][1:]]),
        _frame(images=[b"", b"", b""]),
        _frame(images=[b"{}", b"{}", b""]),
        _frame(epoch=0),
        _frame(shard=""),
    ],
)
def test_invalid_frames_are_refused(frame: dict[str, Any]) -> None:
    """A frame with inconsistent columns or invalid values is refused with ``bad_field``."""
    with pytest.raises(CodecError) as refused:
        check("RowFrame", frame)
    assert refused.value.code == "bad_field"


@pytest.mark.parametrize(
    "changes",
    [
        {"transactions": [4, -1]},
        {"transactions": [-1, 4]},
        {"transactions": [3, 1]},
        {"ordinal": 0, "ordinals": [1, 0, 2]},
        {"ordinal": 0, "ordinals": [1, 2, 0]},
        {"ordinal": 5, "ordinals": [1, -5, 2]},
    ],
)
def test_a_frame_of_which_no_row_can_be_placed_is_refused_as_a_whole(changes: dict[str, Any]) -> None:
    """One negative count or one ordinal below 1 makes the places of all rows unknown."""
    with pytest.raises(CodecError) as refused:
        check_frame(_frame(**changes))
    assert refused.value.code == "bad_field"


def test_a_transaction_without_rows_does_not_lose_the_rows_of_its_frame() -> None:
    """What concerns single rows is left to the fold, which uses the others."""
    check_frame(_frame(transactions=[3, 0]))
    check_frame(_frame(ordinal=0, ordinals=[1, 3, 2]))


@pytest.mark.parametrize("field", ["name", "previous_name"])
def test_a_name_with_a_nul_is_refused(field: str) -> None:
    """A NUL would end the name early in the store's keys, also in the name that is given up."""
    with pytest.raises(CodecError, match="NUL"):
        check("NameBinding", {**SAMPLES["NameBinding"][1], field: "db.t\0x"})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Marker", {"ordinal": -1}),
        ("Marker", {"layout": ""}),
        ("Marker", {"continuity": -1}),
        ("Marker", {"previous": -1}),
        ("Marker", {"reader_version": 0}),
        ("Marker", {"as_of_ms": -1}),
        ("TableSchema", {"prefix": -1}),
        ("TableSchema", {"prefix": 99}),
        ("Scope", {"ordinal": 0}),
        ("Scope", {"tables": ["shop.a\0b"]}),
        ("Topology", {"shards": ["shop/0", ""]}),
        ("Topology", {"shards": ["a"], "ranges": [{"shard": "a", "range": "-80"}]}),
        ("Topology", {"shards": ["a"], "ranges": [{"shard": "a", "range": "all"}]}),
        ("Topology", {"shards": ["b"], "ranges": [{"shard": "a", "range": "-"}]}),
        ("Topology", {"ancestors": [{"shard": "old/0", "epoch": 0}]}),
        ("Topology", {"ancestors": [{"shard": "old/0", "epoch": 1}, {"shard": "old/0", "epoch": 2}]}),
        ("SchemaText", {"name": ""}),
        ("SchemaText", {"text": ""}),
        ("TableVoid", {"table": ""}),
        ("TableVoid", {"epoch": 0}),
        ("TableImage", {"change": "eaten"}),
        ("TableImage", {"kind": "view"}),
        ("TableImage", {"table_id": 0}),
        ("CommitTxn", {"write_ids": [{"table_id": 1, "write_id": 0}]}),
        ("AbortTxn", {"txn": 0}),
        ("AllocWriteId", {"write_id": -3}),
        ("NameBinding", {"name": ""}),
        ("SourceState", {"sequence": 0}),
        ("SourceState", {"declared_at": -2}),
        ("SourceState", {"continuity": -1}),
        ("SourceState", {"partial_gtid": ""}),
    ],
)
def test_records_with_a_field_out_of_range_are_refused(name: str, changes: dict[str, Any]) -> None:
    """Values that Avro accepts but that are out of range are refused before they are folded."""
    with pytest.raises(CodecError):
        check(name, {**SAMPLES[name][1], **changes})


@pytest.mark.parametrize("record", [{}, {**FRAME, "ordinal": "one"}, {**FRAME, "ordinal": 2**80}, {**FRAME, "keys": 1}])
def test_records_that_do_not_fit_their_schema_are_not_written(record: dict[str, Any]) -> None:
    """A record that does not match its schema is an error at the writer, not a poison message for readers."""
    with pytest.raises(CodecError):
        encode("RowFrame", record)


@pytest.mark.parametrize("ordinals", [[1, 10], [10, 1]])
def test_no_row_of_a_frame_has_an_ordinal_that_nothing_can_hold(ordinals: list[int]) -> None:
    """Wherever it stands: who reads a topic beside the fold takes rows one by one, also of a frame in no order."""
    fields = SAMPLES["RowFrame"][1] | {
        "ordinals": ordinals,
        "keys": [b"shop.t\0[1]", b"shop.t\0[2]"],
        "images": [b"{}", b"{}"],
        "operations": b"\x01\x01",
        "transactions": [2],
        "gtids": ["MariaDB/0-1-5"],
        "positions": [],
        "timestamps": [9],
        "origins": [],
    }
    check_folded("RowFrame", fields | {"ordinal": LONG_MAX - 10})
    with pytest.raises(CodecError, match="out of range"):
        check_folded("RowFrame", fields | {"ordinal": LONG_MAX - 9})
