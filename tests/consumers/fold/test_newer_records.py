"""Records of a newer Freshet: decoded by the schema that the topic announces, passed over, or a full stop."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from fastavro.schema import to_parsing_canonical_form

from stream.wire.announced import fingerprint_of
from stream.wire.codec import READER_VERSION, NewerWireError, current_schema, encode
from tests.consumers.histories import SHARD, Folded, gtid, key, marker, start, value

NOTE = {"type": "record", "name": "freshet.Note", "fields": [{"name": "text", "type": "string"}]}


def _announced(schema: dict[str, Any], *, skippable: bool) -> bytes:
    text = to_parsing_canonical_form(schema)
    record = {"shard": SHARD, "epoch": 1, "ordinal": 1, "name": schema["name"].rpartition(".")[2], "text": text}
    return encode("SchemaText", record | {"fingerprint": fingerprint_of(text), "skippable": skippable})


def _written(schema: dict[str, Any], record: dict[str, Any]) -> bytes:
    out = BytesIO(b"\xc3\x01" + fingerprint_of(to_parsing_canonical_form(schema)))
    out.seek(10)
    schemaless_writer(out, parse_schema(schema), record)
    return out.getvalue()


def _marker_of_tomorrow() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(current_schema("Marker").text)
    schema["fields"].append({"name": "mood", "type": "string"})
    return schema


def test_an_announced_newer_version_is_read_as_ours() -> None:
    """A field that this version does not know is passed over; the watermark moves."""
    schema = _marker_of_tomorrow()
    fields = {"shard": SHARD, "epoch": 1, "ordinal": 2, "position": gtid(2), "timestamp": 1, "low_water": gtid(0)}
    fields |= {"layout": "xxh3_64;partitions=1", "whole": True, "continuity": 3, "previous": 0, "mood": "good"}
    fields |= {"reader_version": READER_VERSION, "as_of_ms": 0}
    folded = Folded(start(), value(1, b"a", 2), _announced(schema, skippable=False), _written(schema, fields))
    assert folded.rejection_codes == []
    assert folded.state.head.lineages[SHARD].watermark == gtid(2)


def test_a_record_that_may_be_passed_over_changes_nothing() -> None:
    """The source says so when it announces the record."""
    folded = Folded(start(), value(1, b"a", 2), _announced(NOTE, skippable=True))
    before = dict(folded.entries)
    folded.fold(_written(NOTE, {"text": "hello"}))
    assert (folded.rejection_codes, folded.entries, folded.state.head.voids) == ([], before, {})


@pytest.mark.parametrize(
    "critical",
    [_written(NOTE, {"text": "hello"}), marker(3, reader_version=READER_VERSION + 1)],
    ids=["record", "mark"],
)
def test_what_must_not_be_passed_over_stops_the_fold(critical: bytes) -> None:
    """Nothing of it and nothing after it is folded until this Freshet is updated."""
    folded = Folded(start(), value(1, b"a", 2), _announced(NOTE, skippable=False))
    offset = folded.state.head.offset
    with pytest.raises(NewerWireError):
        folded.fold(critical)
    assert (folded.state.head.offset, folded.rejection_codes) == (offset, [])


def test_a_record_that_nobody_announced_is_a_dead_letter() -> None:
    """It may have changed anything."""
    folded = Folded(start(), value(1, b"a", 2), _written(NOTE, {"text": "hello"}))
    assert folded.rejection_codes == ["unknown_schema"]
    assert folded.state.head.voids
    assert key(1) in folded.entries
