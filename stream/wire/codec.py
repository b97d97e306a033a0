"""Records on the wire: Avro single-object encoding, one schema for each record (``schemas/*.avsc``).

A message is ``C3 01``, the CRC-64-AVRO fingerprint of the writer's schema (8 bytes, little-endian), and the Avro body.
Any Avro reader that has the schema can decode it without a registry. A replaced schema stays in ``schemas/`` as
``Name.v1.avsc``: messages of every version stay readable, and are read as the current version
(docs/internals/wire.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.read import SchemaResolutionError
from fastavro.schema import to_parsing_canonical_form

from stream.wire.announced import Announced, announced_schema, announcement_problem, fingerprint_of
from stream.wire.frames import read, unpack, write
from tokens.errors import FreshetError

Record = dict[str, Any]

MAGIC: Final = b"\xc3\x01"
HEADER_SIZE: Final = 10
VERSIONS: Final[dict[str, int]] = {
    "AbortTxn": 1,
    "AllocWriteId": 1,
    "BeforeImages": 1,
    "CatalogObject": 1,
    "CatalogSet": 1,
    "CommitTxn": 1,
    "EpochStart": 1,
    "KeylessRow": 1,
    "Marker": 2,
    "NameBinding": 1,
    "RowFrame": 2,
    "SchemaText": 1,
    "Scope": 1,
    "SourceState": 3,
    "TableBackfill": 1,
    "TableImage": 2,
    "TableSchema": 3,
    "TableVoid": 1,
    "Topology": 2,
    "WriteIdsReset": 1,
}
"""All records, sorted, with their current versions. Earlier versions can be read too."""
RECORDS: Final = tuple(VERSIONS)
"""Names of all records, sorted."""
SKIPPED: Final = ""
"""The name that `decode` gives to a record that it passes over."""
READER_VERSION: Final = 2
"""The newest `Marker.reader_version` that this program understands, and the one that it writes."""
_PACKED: Final = "lengths"
"""A field that only packed row frames have: of all versions but the first."""
_SCHEMAS: Final = Path(__file__).resolve().parents[2] / "schemas"  # a folder without code is not an importable package


BAD_FIELD: Final = "bad_field"
"""Code for fields that Avro accepts but that are invalid, found by `stream.wire.checks.check` or by the fold."""


class CodecError(FreshetError, ValueError):
    """A message that is not a Freshet record, or an invalid record.

    Codes: ``not_freshet`` (foreign magic, or empty), ``unknown_schema`` (the fingerprint of an unknown schema),
    ``truncated``, ``trailing_bytes``, ``bad_field``.
    """

    code = BAD_FIELD


class NewerWireError(FreshetError):
    """A record that this version cannot read and must not pass over: it has to be updated. Code ``newer_wire``."""

    code = "newer_wire"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="a newer Freshet writes here: update this process, then it goes on by itself")


@dataclass(frozen=True, slots=True)
class WireSchema:
    """One version of a record's schema. ``header``: magic and fingerprint, the first ten bytes of each message."""

    name: str
    header: bytes
    text: str
    """In parsing canonical form; its fingerprint is in the header."""
    skippable: bool
    """Whether a reader that does not have the record may pass it over."""
    writer: Any
    reader: Any
    """The current version's schema; None if this is the current version."""


def header_of(schema: Any) -> bytes:
    """The ten bytes that a message written with this Avro schema (as parsed JSON) starts with."""
    return MAGIC + fingerprint_of(to_parsing_canonical_form(schema))


def schema_files(name: str) -> list[str]:
    """The files of a record's versions, the current one first."""
    return [f"{name}.avsc", *(f"{name}.v{version}.avsc" for version in range(1, VERSIONS[name]))]


def _schema(file: str) -> Any:
    return json.loads((_SCHEMAS / file).read_text(encoding="utf-8"))


def _load() -> tuple[dict[str, WireSchema], dict[bytes, WireSchema]]:
    """The current schemas by record name, and the schemas of all versions by header."""
    current: dict[str, WireSchema] = {}
    known: dict[bytes, WireSchema] = {}
    for name in RECORDS:
        now, *earlier = map(_schema, schema_files(name))
        current[name] = _wire_schema(name, now, None)
        for schema in (now, *earlier):
            _register(known, current[name], schema)
    return current, known


def _wire_schema(name: str, schema: Any, reader: Any) -> WireSchema:
    text = to_parsing_canonical_form(schema)
    return WireSchema(name, header_of(schema), text, schema.get("skippable", False), parse_schema(schema), reader)


def _register(known: dict[bytes, WireSchema], current: WireSchema, schema: Any) -> None:
    header = header_of(schema)
    known[header] = (
        current if header == current.header else _wire_schema(current.name, schema, _reader(current, schema))
    )


def _reader(current: WireSchema, schema: Any) -> Any:
    """The schema that messages of an earlier version are read as. Frames before `_PACKED` are a frame as they are."""
    is_unpacked = current.name == "RowFrame" and _PACKED not in {field["name"] for field in schema["fields"]}
    return None if is_unpacked else current.writer


_CURRENT, _KNOWN = _load()
ROW_FRAME_HEADER: Final = _CURRENT["RowFrame"].header
"""The first ten bytes of a row frame of the current version. Readers use it to skip row frames quickly."""


def schema_texts() -> list[Record]:
    """For each record that `encode` writes, the fields of a `SchemaText` that say what it is."""
    return [dict(each) for each in _texts()]


@cache
def _texts() -> tuple[Record, ...]:
    found = []
    for name in RECORDS:
        schema = _schema(f"{name}.avsc")
        found.append(
            {
                "name": name,
                "fingerprint": header_of(schema)[len(MAGIC) :],
                "text": to_parsing_canonical_form(schema),
                "skippable": bool(schema.get("skippable", False)),
            }
        )
    return tuple(found)


def current_schema(name: str) -> WireSchema:
    """The schema with which `encode` writes ``name``."""
    return _CURRENT[name]


def headers(name: str) -> frozenset[bytes]:
    """The first ten bytes of all versions of ``name`` that can be read."""
    return frozenset(known.header for known in _KNOWN.values() if known.name == name)


def is_of_unknown_schema(value: bytes) -> bool:
    """Whether ``value`` is a record by its first two bytes, of a schema that this version does not have."""
    return value[:2] == MAGIC and len(value) >= HEADER_SIZE and value[:HEADER_SIZE] not in _KNOWN


def encode(name: str, record: Record) -> bytes:
    """Encode ``record`` (fields as in ``schemas/<name>.avsc``) as one message.

    Raises `CodecError` ``bad_field`` if a field is missing or has the wrong type, `KeyError` for an unknown name.
    """
    schema = current_schema(name)
    out = BytesIO()
    out.write(schema.header)
    try:
        if name == "RowFrame":
            return schema.header + write(record)
        schemaless_writer(out, schema.writer, record)
    except Exception as error:
        raise CodecError(f"{name} cannot be encoded: {error}", code=BAD_FIELD) from error
    return out.getvalue()


_NO_TEXTS: Final[dict[bytes, Announced]] = {}


def decode(value: bytes, texts: Mapping[bytes, Announced] = _NO_TEXTS) -> tuple[str, Record]:
    """The name and fields of one message of any known version, as the current version has them.

    ``texts``: fingerprint → what a `SchemaText` in the same partition says. With it a newer version of a known record
    is read as the current one. A record that is unknown and may be passed over has the name `SKIPPED` and no fields.
    The fields have the right types, but their values may be invalid: see `stream.wire.checks.check`. Raises
    `CodecError`, `NewerWireError`.
    """
    schema = _KNOWN.get(value[:HEADER_SIZE])
    if schema is _CURRENT["RowFrame"]:
        with suppress(ValueError, IndexError):  # what is no frame of ours, Avro reads, or says why not
            return schema.name, read(value, HEADER_SIZE)
    if schema is not None:
        return schema.name, _read(schema.name, value, schema.writer, schema.reader)
    told = texts.get(value[2:HEADER_SIZE]) if value[:2] == MAGIC else None
    if told is None:
        raise _header_error(value)
    return _decode_announced(told, value)


def _decode_announced(told: Announced, value: bytes) -> tuple[str, Record]:
    ours = _CURRENT.get(told.name)
    try:
        if ours is not None:
            return told.name, _read(told.name, value, announced_schema(told.text), ours.writer)
    except SchemaResolutionError as error:
        if not told.skippable:
            raise NewerWireError(f"a newer {told.name} cannot be read as this version's: {error}") from error
    if not told.skippable:
        raise NewerWireError(f"{told.name} is a record that this version does not have")
    return SKIPPED, {}


class PartitionReader:
    """Decodes a partition's messages, in their order, as the fold does: for those who keep no state of it.

    ``texts``: fingerprint → what is announced of schemas that this version lacks; it is kept up to date. Partitions may
    share it: a text is the right one wherever it was found. ``earlier``: what is announced before the first message,
    from there back. It is asked for what is missing only.
    """

    def __init__(
        self, texts: dict[bytes, Announced] | None = None, earlier: Iterable[Mapping[bytes, Announced]] = ()
    ) -> None:
        self.texts = {} if texts is None else texts
        self._earlier = iter(earlier)

    def name_of(self, value: bytes) -> str:
        """The name of the record that a message is; "" if nothing says it. Raises what ``earlier`` does."""
        known = _KNOWN.get(value[:HEADER_SIZE])
        if known is not None:
            return known.name
        told = self._told(value) if is_of_unknown_schema(value) else None
        return told.name if told is not None else ""

    def decode(self, value: bytes) -> tuple[str, Record]:
        """As `decode`. Raises what ``earlier`` does, too."""
        if is_of_unknown_schema(value):
            self._told(value)
        name, record = decode(value, self.texts)
        if name == "SchemaText" and is_of_unknown_schema(MAGIC + record["fingerprint"]):
            fingerprint, text = record["fingerprint"], record["text"]
            if not announcement_problem(text, fingerprint):
                self.texts[fingerprint] = Announced(record["name"], text, record["skippable"])
        return name, record

    def _told(self, value: bytes) -> Announced | None:
        fingerprint = value[len(MAGIC) : HEADER_SIZE]
        while fingerprint not in self.texts and (found := next(self._earlier, None)) is not None:
            self.texts.update({**found, **self.texts})
        return self.texts.get(fingerprint)


def _read(name: str, value: bytes, writer: Any, reader: Any) -> Record:
    body = BytesIO(value)
    body.seek(HEADER_SIZE)
    try:
        record: Record = schemaless_reader(body, writer, reader)
        if _PACKED in record:
            record = unpack(record)
    except SchemaResolutionError:
        raise
    except Exception as error:
        raise _body_error(name, value, error) from error
    if body.tell() != len(value):
        raise CodecError(
            f"{name} ends at byte {body.tell()} of {len(value)}: unexpected bytes follow",
            code="trailing_bytes",
        )
    return record


def _header_error(value: bytes) -> CodecError:
    if MAGIC.startswith(value[:2]) and value and len(value) < HEADER_SIZE:
        return CodecError(f"message ends inside its header ({len(value)} bytes)", code="truncated")
    if value[:2] != MAGIC:
        return CodecError(
            f"message of {len(value)} bytes starts with {value[:4].hex() or 'nothing'}, not with c301",
            hint="another program writes into this topic",
            code="not_freshet",
        )
    return CodecError(
        f"unknown schema with fingerprint {value[2:HEADER_SIZE].hex()}",
        hint="a newer Freshet may have written it: update, then run `freshet dlq retry`",
        code="unknown_schema",
    )


def _body_error(name: str, value: bytes, error: Exception) -> CodecError:
    if isinstance(error, (EOFError, StopIteration)) or "Expected" in str(error):
        return CodecError(f"{name} of {len(value)} bytes is cut off", code="truncated")
    return CodecError(f"{name} of {len(value)} bytes: {type(error).__name__}: {error}", code=BAD_FIELD)
