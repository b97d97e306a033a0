"""Records that are newer than this program: read through the schema that the topic announces, or not passed over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from fastavro.schema import to_parsing_canonical_form
from hypothesis import given
from hypothesis import strategies as st

from stream.wire import codec
from stream.wire.announced import Announced, announcement_problem, fingerprint_of
from stream.wire.checks import check
from stream.wire.codec import CodecError, NewerWireError, PartitionReader, current_schema, decode, encode
from tests.stream.test_codec import SAMPLES
from tests.upgrades.next_version import as_written


def _written(schema: Any, record: dict[str, Any]) -> bytes:
    out = BytesIO()
    out.write(codec.header_of(schema))
    schemaless_writer(out, parse_schema(schema), record)
    return out.getvalue()


def _texts(schema: Any, *, skippable: bool = False) -> dict[bytes, Announced]:
    text = to_parsing_canonical_form(schema)
    return {fingerprint_of(text): Announced(schema["name"].rpartition(".")[2], text, skippable)}


def _newer(name: str, *fields: Any, without: str = "") -> Any:
    schema = json.loads(current_schema(name).text)
    schema["fields"] = [each for each in schema["fields"] if each["name"] != without] + list(fields)
    schema["name"] = name
    schema["namespace"] = "freshet"
    return schema


FIELD = {"name": "colour", "type": {"type": "map", "values": "string"}, "default": {}}
LATER = {"type": "record", "name": "Later", "namespace": "freshet", "fields": [{"name": "shard", "type": "string"}]}


@pytest.mark.parametrize("name", codec.RECORDS)
def test_a_record_with_a_new_field_is_read_as_this_versions(name: str) -> None:
    """A newer version of a known record is decoded with the announced text, and what is new is left out."""
    newer, fields = _newer(name, FIELD), SAMPLES[name][1]
    message = _written(newer, as_written(name, SAMPLES[name][1]) | {"colour": {"a": "b"}})
    with pytest.raises(CodecError, match="unknown schema"):
        decode(message)
    assert decode(message, _texts(newer)) == (name, fields)


@pytest.mark.parametrize("skippable", [True, False])
def test_an_unknown_record_is_passed_over_only_if_its_writer_says_so(*, skippable: bool) -> None:
    """A critical record that this version does not have asks for an update; another one changes nothing."""
    message = _written(LATER, {"shard": "shop/0"})
    if skippable:
        assert decode(message, _texts(LATER, skippable=True)) == (codec.SKIPPED, {})
        return
    with pytest.raises(NewerWireError) as refused:
        decode(message, _texts(LATER))
    assert refused.value.code == "newer_wire"


def test_a_newer_version_that_does_not_resolve_is_not_taken_for_poison() -> None:
    """A newer record without a field that this version needs asks for an update, because its writer is right."""
    newer = _newer("TableVoid", without="table")
    fields = {name: value for name, value in SAMPLES["TableVoid"][1].items() if name != "table"}
    with pytest.raises(NewerWireError):
        decode(_written(newer, fields), _texts(newer))


def test_a_marker_for_later_readers_is_refused_as_newer() -> None:
    """A marker names the least reader version; an older reader must not go on."""
    fields = SAMPLES["Marker"][1] | {"reader_version": codec.READER_VERSION + 1}
    with pytest.raises(NewerWireError):
        check(*decode(encode("Marker", fields)))


def _code(message: bytes, schema: Any) -> str:
    try:
        decode(message, _texts(schema))
    except CodecError as refused:
        return refused.code
    return ""


@given(st.data())
def test_a_damaged_message_of_an_announced_schema_is_refused_with_a_code(data: st.DataObject) -> None:
    """Bytes that do not fit the announced schema are poison, as for any other record."""
    name = data.draw(st.sampled_from(codec.RECORDS))
    newer = _newer(name, FIELD)
    message = bytearray(_written(newer, as_written(name, SAMPLES[name][1]) | {"colour": {"a": "b"}}))
    message[data.draw(st.integers(10, len(message) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(message[: data.draw(st.integers(10, len(message)))])
    assert _code(damaged, newer) in ("", "truncated", "trailing_bytes", "bad_field")


def test_every_schema_of_this_version_may_be_announced() -> None:
    """What the codec writes can be announced, so that an older reader can decode it."""
    for name in codec.RECORDS:
        schema = current_schema(name)
        assert announcement_problem(schema.text, schema.header[2:]) == ""
    assert [name for name in codec.RECORDS if current_schema(name).skippable] == [
        *("BeforeImages", "CatalogObject", "CatalogSet", "KeylessRow", "SourceState", "TableBackfill"),
    ]


def _field(kind: Any) -> Any:
    return {"name": "freshet.X", "type": "record", "fields": [{"name": "n", "type": kind}]}


def _doubling(levels: int) -> Any:
    kind: Any = "null"
    for level in range(levels):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"freshet.R{level - 1}" if level else "null"}]
        kind = {"name": f"freshet.R{level}", "type": "record", "fields": fields}
    return _field(kind)


@pytest.mark.parametrize(
    "schema",
    [
        "int",
        [],
        {"type": "array", "items": "int"},
        _field(["null", "freshet.X"]),
        _field({"type": "array", "items": "null"}),
        _field({"type": "array", "items": {"name": "freshet.Y", "type": "record", "fields": []}}),
        _field({"type": "array", "items": {"name": "freshet.Y", "type": "fixed", "size": 0}}),
        _field({"name": "freshet.Y", "type": "fixed", "size": -1}),
        _field("freshet.Unknown"),
        _doubling(20),
    ],
    ids=str,
)
def test_a_schema_that_could_be_abused_is_refused(schema: Any) -> None:
    """A schema whose messages could recurse, or claim items without bytes, is refused before it is used."""
    text = json.dumps(schema, separators=(",", ":"))
    assert announcement_problem(text, fingerprint_of(text))
    fields = SAMPLES["SchemaText"][1] | {"text": text, "fingerprint": fingerprint_of(text)}
    with pytest.raises(CodecError):
        check("SchemaText", fields)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"type":"record"}', " " * 300_000])
def test_a_text_that_is_no_schema_is_refused(text: str) -> None:
    """No text makes the check itself fail."""
    assert announcement_problem(text, b"\0" * 8)


def test_what_was_announced_earlier_is_asked_for_when_it_is_missing() -> None:
    """From the latest on, and no further than needed; a reader of another partition then has it, too."""
    asked: list[str] = []

    def earlier() -> Iterator[dict[bytes, Announced]]:
        for name in ("Marker", "TableVoid", "RowFrame"):
            asked.append(name)
            yield _texts(_newer(name, FIELD))

    texts: dict[bytes, Announced] = {}
    reader = PartitionReader(texts, earlier())
    assert reader.decode(encode("Marker", SAMPLES["Marker"][1]))[0] == "Marker"
    assert not asked
    newer = _newer("TableVoid", FIELD)
    message = _written(newer, as_written("TableVoid", SAMPLES["TableVoid"][1]) | {"colour": {}})
    assert reader.decode(message) == ("TableVoid", SAMPLES["TableVoid"][1])
    assert asked == ["Marker", "TableVoid"]
    assert PartitionReader(texts).name_of(message) == "TableVoid"
    nobodys = _written(LATER, {"shard": "shop/0"})
    assert reader.name_of(nobodys) == ""
    with pytest.raises(CodecError, match="unknown schema"):
        reader.decode(nobodys)
    assert asked == ["Marker", "TableVoid", "RowFrame"]


@pytest.mark.parametrize("is_right", [True, False])
def test_a_reader_keeps_no_text_that_must_not_be_decoded_with(is_right: bool) -> None:
    """Any message may call itself an announcement: a text that recurses, or of another fingerprint, is passed over."""
    text = json.dumps(_field(["null", "freshet.X"]), separators=(",", ":"))
    good = to_parsing_canonical_form(_newer("TableVoid", FIELD))
    reader = PartitionReader()
    for told, fingerprint in (
        (text, fingerprint_of(text)),
        (good, b"\1" * 8 if not is_right else fingerprint_of(good)),
    ):
        fields = SAMPLES["SchemaText"][1] | {"name": "TableVoid", "text": told, "fingerprint": fingerprint}
        assert reader.decode(encode("SchemaText", fields)) == ("SchemaText", fields)
    assert list(reader.texts) == ([fingerprint_of(good)] if is_right else [])
