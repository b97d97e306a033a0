"""Records on the wire: Avro single-object encoding, one schema for each record (``schemas/*.avsc``).

A message is ``C3 01``, the CRC-64-AVRO fingerprint of the writer's schema (8 bytes, little-endian), and the Avro body.
Any Avro reader that has the schema can decode it without a registry. A replaced schema stays in ``schemas/`` as
``Name.v1.avsc``: messages of every version stay readable, and are read as the current version
(docs/internals/wire.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from operator import ge
from pathlib import Path
from typing import Any, Final

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import fingerprint as _fingerprint
from fastavro.schema import to_parsing_canonical_form

from stream.wire.events import VALUE
from stream.wire.keys import is_row_key
from tokens.errors import FreshetError

Record = dict[str, Any]

MAGIC: Final = b"\xc3\x01"
HEADER_SIZE: Final = 10
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
VERSIONS: Final[dict[str, int]] = {
    "AbortTxn": 1,
    "AllocWriteId": 1,
    "CommitTxn": 1,
    "EpochStart": 1,
    "Marker": 2,
    "NameBinding": 1,
    "RowFrame": 1,
    "SchemaText": 1,
    "Scope": 1,
    "SourceState": 3,
    "TableImage": 1,
    "TableSchema": 2,
    "TableVoid": 1,
    "Topology": 1,
    "WriteIdsReset": 1,
}
"""All records, sorted, with their current versions. Earlier versions can be read too."""
RECORDS: Final = tuple(VERSIONS)
"""Names of all records, sorted."""
READER_VERSION: Final = 2
"""The newest `Marker.reader_version` that this program understands, and the one that it writes."""
_WITHOUT_NUMBER: Final = frozenset({"Marker", "SourceState", "SchemaText", "Topology"})
"""Records that repeat the last ordinal assigned instead of having one of their own."""
_SCHEMAS: Final = Path(__file__).resolve().parents[2] / "schemas"  # a folder without code is not an importable package
_OPERATIONS: Final = b"\x01\x02\x03"


BAD_FIELD: Final = "bad_field"
"""Code for fields that Avro accepts but that are invalid, found by `check` or by the fold."""


class CodecError(FreshetError, ValueError):
    """A message that is not a Freshet record, or an invalid record.

    Codes: ``not_freshet`` (foreign magic, or empty), ``unknown_schema`` (the fingerprint of an unknown schema),
    ``truncated``, ``trailing_bytes``, ``bad_field``.
    """

    code = BAD_FIELD


@dataclass(frozen=True, slots=True)
class WireSchema:
    """One version of a record's schema. ``header``: magic and fingerprint, the first ten bytes of each message."""

    name: str
    header: bytes
    writer: Any
    reader: Any
    """The current version's schema; None if this is the current version."""


def header_of(schema: Any) -> bytes:
    """The ten bytes that a message written with this Avro schema (as parsed JSON) starts with."""
    return MAGIC + bytes.fromhex(_fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


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
        current[name] = WireSchema(name, header_of(now), parse_schema(now), None)
        for schema in (now, *earlier):
            _register(known, current[name], schema)
    return current, known


def _register(known: dict[bytes, WireSchema], current: WireSchema, schema: Any) -> None:
    header = header_of(schema)
    if header == current.header:
        known[header] = current
    else:
        known[header] = WireSchema(current.name, header, parse_schema(schema), current.writer)


_CURRENT, _KNOWN = _load()
ROW_FRAME_HEADER: Final = _CURRENT["RowFrame"].header
"""The first ten bytes of a row frame of the current version. Readers use it to skip row frames quickly."""


def header(name: str) -> bytes:
    """The first ten bytes of each message that `encode` writes for ``name``."""
    return _CURRENT[name].header


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
    schema = _CURRENT[name]
    out = BytesIO()
    out.write(schema.header)
    try:
        schemaless_writer(out, schema.writer, record)
    except Exception as error:
        raise CodecError(f"{name} cannot be encoded: {error}", code=BAD_FIELD) from error
    return out.getvalue()


def decode(value: bytes) -> tuple[str, Record]:
    """The name and fields of one message of any known version. Raises `CodecError`.

    The fields have the right types, but their values may be invalid: see `check`.
    """
    schema = _KNOWN.get(value[:HEADER_SIZE])
    if schema is None:
        raise _header_error(value)
    body = BytesIO(value)
    body.seek(HEADER_SIZE)
    try:
        record: Record = schemaless_reader(body, schema.writer, schema.reader)
    except Exception as error:
        raise _body_error(schema.name, value, error) from error
    if body.tell() != len(value):
        raise CodecError(
            f"{schema.name} ends at byte {body.tell()} of {len(value)}: unexpected bytes follow",
            code="trailing_bytes",
        )
    return schema.name, record


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


def _bad_field(name: str, what: str) -> CodecError:
    return CodecError(f"{name}: {what}", code=BAD_FIELD)


def check_frame(frame: Record) -> None:
    """Refuse a decoded `RowFrame` of which no row can be used. Raises `CodecError` ``bad_field``.

    That is: its columns differ in length, or its shard, epoch or ordinals are invalid. Single invalid rows are left to
    the fold, which uses the other rows; `check` refuses the frame for them too.
    """
    rows, transactions = len(frame["keys"]), frame["transactions"]
    count = len(transactions)
    if not rows == len(frame["images"]) == len(frame["operations"]) == len(frame["ordinals"]) or not rows:
        raise _bad_field("RowFrame", f"row columns differ in length ({rows} keys)")
    if not count == len(frame["gtids"]) == len(frame["timestamps"]):
        raise _bad_field("RowFrame", f"transaction columns differ in length ({count} transactions)")
    positions, origins = frame["positions"], frame["origins"]
    if (positions and len(positions) != count) or (origins and len(origins) != count):
        raise _bad_field("RowFrame", "positions or origins must be empty or one for each transaction")
    if sum(transactions) != rows or min(transactions) < 0:
        raise _bad_field("RowFrame", f"transactions hold {sum(transactions)} of {rows} rows")
    if frame["ordinal"] + min(frame["ordinals"]) < 1:
        raise _bad_field("RowFrame", "an ordinal is below 1")
    if not _is_lineage(frame["shard"], frame["epoch"]):
        raise _bad_lineage("RowFrame", frame)


def _is_lineage(shard: str, epoch: int) -> bool:
    return epoch > 0 and _is_shard(shard)


def _is_shard(name: str) -> bool:
    return bool(name) and "\0" not in name


def _bad_lineage(name: str, record: Record) -> CodecError:
    return _bad_field(name, f"invalid shard {record['shard']!r} or epoch {record['epoch']}")


def _check_rows(frame: Record) -> None:
    """Refuse a frame with a row that the fold would refuse. Raises `CodecError`."""
    keys, images, operations = frame["keys"], frame["images"], frame["operations"]
    if min(frame["transactions"]) < 1:
        raise _bad_field("RowFrame", "a transaction has no rows")
    if operations.translate(None, _OPERATIONS):
        raise _bad_field("RowFrame", "an operation is not 1, 2 or 3")
    _check_ordinals(frame)
    for key in keys:
        if not is_row_key(key):
            raise _bad_field("RowFrame", f"{key[:40]!r} is not a row key")
    if any((operation == VALUE) != bool(image) for operation, image in zip(operations, images, strict=True)):
        raise _bad_field("RowFrame", "a value has no image, or another operation has one")


def _check_ordinals(frame: Record) -> None:
    ordinals, base = frame["ordinals"], frame["ordinal"]
    if ordinals[0] < 1 or any(map(ge, ordinals, islice(ordinals, 1, None))):
        raise _bad_field("RowFrame", "ordinals do not increase")
    if base < 0 or ordinals[-1] > INT_MAX or base + ordinals[-1] > LONG_MAX:
        raise _bad_field("RowFrame", f"ordinal {base} + {ordinals[-1]} is out of range")


def check(name: str, record: Record) -> None:
    """Refuse an invalid decoded record. Raises `CodecError` ``bad_field``."""
    if name == "RowFrame":
        check_frame(record)
        _check_rows(record)
        return
    if not _is_lineage(record["shard"], record["epoch"]):
        raise _bad_lineage(name, record)
    if any("\0" in record.get(field, "") for field in ("table", "name", "previous_name")):
        raise _bad_field(name, "a name contains a NUL, which ends names in the store's keys")
    if record["ordinal"] < (0 if name in _WITHOUT_NUMBER else 1):
        raise _bad_field(name, f"ordinal {record['ordinal']} is out of range")
    rule = _RULES.get(name)
    problem = rule(record) if rule else ""
    if problem:
        raise _bad_field(name, problem)


def _check_ids(*names: str) -> Callable[[Record], str]:
    def rule(record: Record) -> str:
        return next((f"{name} {record[name]} is out of range" for name in names if record[name] < 1), "")

    return rule


def _check_image(record: Record) -> str:
    if record["table_id"] < 1 or record["txn"] < 0 or record["write_id"] < 0:
        return f"table {record['table_id']}, transaction {record['txn']}, write id {record['write_id']} out of range"
    if record["kind"] not in ("transactional", "external"):
        return f"invalid kind {record['kind']!r}"
    if record["change"] not in ("created", "written", "image", "dropped"):
        return f"invalid change {record['change']!r}"
    return "" if record["name"] else "name is empty"


def _check_txn_end(record: Record) -> str:
    if record["txn"] < 1:
        return f"transaction {record['txn']} is out of range"
    bad = [pair for pair in record["write_ids"] if pair["table_id"] < 1 or pair["write_id"] < 1]
    return f"write id {bad[0]} is out of range" if bad else ""


def _check_state(record: Record) -> str:
    if record["sequence"] < 1 or not 0 <= record["partial_events"] <= INT_MAX:
        return f"sequence {record['sequence']}, partial events {record['partial_events']} out of range"
    if record["continuity"] < 0 or record["declared_at"] < -1:
        return f"continuity {record['continuity']}, declared at {record['declared_at']} out of range"
    if record["partial_events"] and not record["partial_gtid"]:
        return "partial events without a partial transaction"
    return ""


def _check_marker(record: Record) -> str:
    if not record["position"] or not record["layout"]:
        return "position or layout is empty"
    numbers = {field: record[field] for field in ("continuity", "previous", "as_of_ms")}
    below = [field for field, number in numbers.items() if number < 0]
    if below or record["reader_version"] < 1:
        return f"{', '.join(below) or 'reader_version'} is out of range"
    return ""


def _check_table_schema(record: Record) -> str:
    if not record["table"]:
        return "table is empty"
    columns = len(record["primary_key"])
    return "" if 0 <= record["prefix"] <= columns else f"prefix {record['prefix']} of {columns} key columns"


def _check_topology(record: Record) -> str:
    if not all(map(_is_shard, record["shards"])):
        return "a shard has no valid name"
    ancestors = record["ancestors"]
    bad = [each for each in ancestors if not _is_lineage(each["shard"], each["epoch"])]
    if bad:
        return f"invalid ancestor {bad[0]['shard']!r}, epoch {bad[0]['epoch']}"
    return "" if len({each["shard"] for each in ancestors}) == len(ancestors) else "an ancestor is named twice"


def _check_schema_text(record: Record) -> str:
    return "" if record["name"] and record["text"] else "name or text is empty"


_RULES: Final[dict[str, Callable[[Record], str]]] = {
    "AllocWriteId": _check_ids("table_id", "txn", "write_id"),
    "TableImage": _check_image,
    "CommitTxn": _check_txn_end,
    "AbortTxn": _check_txn_end,
    "WriteIdsReset": _check_ids("table_id"),
    "NameBinding": lambda record: (
        "" if record["name"] and record["table_id"] >= 0 else "name is empty or table id negative"
    ),
    "TableVoid": lambda record: "" if record["table"] else "table is empty",
    "TableSchema": _check_table_schema,
    "Topology": _check_topology,
    "SchemaText": _check_schema_text,
    "Scope": lambda record: "a name contains a NUL" if any("\0" in each for each in record["tables"]) else "",
    "Marker": _check_marker,
    "SourceState": _check_state,
}
