"""Records on the wire: Avro single-object encoding, one schema a record (``schemas/*.avsc``).

``C3 01``, the CRC-64-AVRO fingerprint of the writer's schema (8 bytes, little-endian), then the Avro body: any Avro
reader that has the schema can decode it, without a registry. A schema that is replaced stays in ``schemas/`` as
``Name.v1.avsc``: every fingerprint ever written stays readable, and is read as the current version
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
    "Marker": 1,
    "NameBinding": 1,
    "RowFrame": 1,
    "SourceState": 2,
    "TableImage": 1,
    "TableSchema": 1,
    "TableVoid": 1,
    "WriteIdsReset": 1,
}
"""All records, sorted, and the version that each of them has now. Earlier versions are read too."""
RECORDS: Final = tuple(VERSIONS)
"""Names of all records, sorted."""
_SCHEMAS: Final = Path(__file__).resolve().parents[2] / "schemas"  # a folder without code is no package to ask for
_OPERATIONS: Final = b"\x01\x02\x03"


BAD_FIELD: Final = "bad_field"
"""Code of what Avro lets through but history can't hold, whoever finds it: here, or the fold."""


class CodecError(FreshetError, ValueError):
    """A message that is no record of ours, or a record that cannot be.

    Codes: ``not_freshet`` (foreign magic, or empty), ``unknown_schema`` (fingerprint of no schema known here),
    ``truncated``, ``trailing_bytes``, ``bad_field``.
    """

    code = BAD_FIELD


@dataclass(frozen=True, slots=True)
class WireSchema:
    """One version of a record's schema. ``header`` is magic and fingerprint, the first ten bytes of each message."""

    name: str
    header: bytes
    writer: Any
    reader: Any
    """The current version's schema, or None where this is it."""


def header_of(schema: Any) -> bytes:
    """The ten bytes that a message written with this Avro schema (as parsed JSON) starts with."""
    return MAGIC + bytes.fromhex(_fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


def schema_files(name: str) -> list[str]:
    """The files of a record's versions, the current one first."""
    return [f"{name}.avsc", *(f"{name}.v{version}.avsc" for version in range(1, VERSIONS[name]))]


def _schema(file: str) -> Any:
    return json.loads((_SCHEMAS / file).read_text(encoding="utf-8"))


def _load() -> tuple[dict[str, WireSchema], dict[bytes, WireSchema]]:
    """The current schema of each record by name, and every version's by header. Files are read by name only."""
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
"""What a row frame of the current version starts with: readers that look for something else skip it by this."""


def header(name: str) -> bytes:
    """The first ten bytes of each message that `encode` writes for ``name``."""
    return _CURRENT[name].header


def headers(name: str) -> frozenset[bytes]:
    """The first ten bytes of all versions of ``name`` that can be read."""
    return frozenset(known.header for known in _KNOWN.values() if known.name == name)


def encode(name: str, record: Record) -> bytes:
    """One message: ``record`` (fields as in ``schemas/<name>.avsc``) in single-object encoding.

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
    """Name and fields of one message, whichever known version it was written with; raises `CodecError`.

    The fields are typed, not yet plausible: see `check`.
    """
    schema = _KNOWN.get(value[:HEADER_SIZE])
    if schema is None:
        raise _foreign(value)
    body = BytesIO(value)
    body.seek(HEADER_SIZE)
    try:
        record: Record = schemaless_reader(body, schema.writer, schema.reader)
    except Exception as error:
        raise _undecodable(schema.name, value, error) from error
    if body.tell() != len(value):
        raise CodecError(
            f"{schema.name} ends at byte {body.tell()} of {len(value)}: the rest belongs to nothing",
            code="trailing_bytes",
        )
    return schema.name, record


def _foreign(value: bytes) -> CodecError:
    if MAGIC.startswith(value[:2]) and value and len(value) < HEADER_SIZE:
        return CodecError(f"message ends inside its header ({len(value)} bytes)", code="truncated")
    if value[:2] != MAGIC:
        return CodecError(
            f"message of {len(value)} bytes starts with {value[:4].hex() or 'nothing'}, not with c301",
            hint="something else writes into this topic",
            code="not_freshet",
        )
    return CodecError(
        f"schema with fingerprint {value[2:HEADER_SIZE].hex()} is not known here",
        hint="written by a newer version? update, then `freshet dlq retry`",
        code="unknown_schema",
    )


def _undecodable(name: str, value: bytes, error: Exception) -> CodecError:
    if isinstance(error, (EOFError, StopIteration)) or "Expected" in str(error):
        return CodecError(f"{name} of {len(value)} bytes is cut off", code="truncated")
    return CodecError(f"{name} of {len(value)} bytes: {type(error).__name__}: {error}", code=BAD_FIELD)


def _refuse(name: str, what: str) -> CodecError:
    return CodecError(f"{name}: {what}", code=BAD_FIELD)


def check_frame(frame: Record) -> None:
    """Refuse a decoded `RowFrame` that nothing can be taken from: `CodecError` ``bad_field``.

    Its columns differ in length, or its shard, epoch or ordinals cannot be. What is wrong with single rows is left to
    the fold, which takes the others; `check` refuses the frame for that too.
    """
    rows, transactions = len(frame["keys"]), frame["transactions"]
    count = len(transactions)
    if not rows == len(frame["images"]) == len(frame["operations"]) == len(frame["ordinals"]) or not rows:
        raise _refuse("RowFrame", f"row columns differ in length ({rows} keys)")
    if not count == len(frame["gtids"]) == len(frame["timestamps"]):
        raise _refuse("RowFrame", f"transaction columns differ in length ({count} transactions)")
    positions, origins = frame["positions"], frame["origins"]
    if (positions and len(positions) != count) or (origins and len(origins) != count):
        raise _refuse("RowFrame", "positions or origins are neither absent nor one a transaction")
    if sum(transactions) != rows or min(transactions) < 0:
        raise _refuse("RowFrame", f"transactions hold {sum(transactions)} of {rows} rows")
    if frame["ordinal"] + min(frame["ordinals"]) < 1:
        raise _refuse("RowFrame", "an ordinal is below 1")
    if not _is_lineage(frame["shard"], frame["epoch"]):
        raise _no_lineage("RowFrame", frame)


def _is_lineage(shard: str, epoch: int) -> bool:
    return epoch > 0 and bool(shard) and "\0" not in shard


def _no_lineage(name: str, record: Record) -> CodecError:
    return _refuse(name, f"invalid shard {record['shard']!r} or epoch {record['epoch']}")


def _check_rows(frame: Record) -> None:
    """Refuse a frame that `check_frame` lets through, but of which the fold would refuse a row."""
    keys, images, operations = frame["keys"], frame["images"], frame["operations"]
    if min(frame["transactions"]) < 1:
        raise _refuse("RowFrame", "a transaction has no rows")
    if operations.translate(None, _OPERATIONS):
        raise _refuse("RowFrame", "an operation is not 1, 2 or 3")
    _check_ordinals(frame)
    for key in keys:
        if not is_row_key(key):
            raise _refuse("RowFrame", f"{key[:40]!r} is no row key")
    if any((operation == VALUE) != bool(image) for operation, image in zip(operations, images, strict=True)):
        raise _refuse("RowFrame", "a value has no image, or another operation has one")


def _check_ordinals(frame: Record) -> None:
    ordinals, base = frame["ordinals"], frame["ordinal"]
    if ordinals[0] < 1 or any(map(ge, ordinals, islice(ordinals, 1, None))):
        raise _refuse("RowFrame", "ordinals do not rise")
    if base < 0 or ordinals[-1] > INT_MAX or base + ordinals[-1] > LONG_MAX:
        raise _refuse("RowFrame", f"ordinal {base} + {ordinals[-1]} is out of range")


def check(name: str, record: Record) -> None:
    """Refuse a decoded record that cannot be: `CodecError` ``bad_field``."""
    if name == "RowFrame":
        check_frame(record)
        _check_rows(record)
        return
    if not _is_lineage(record["shard"], record["epoch"]):
        raise _no_lineage(name, record)
    if any("\0" in record.get(field, "") for field in ("table", "name", "previous_name")):
        raise _refuse(name, "a name in it holds a NUL, which ends names in the store's keys")
    if record["ordinal"] < (0 if name in ("Marker", "SourceState") else 1):
        raise _refuse(name, f"ordinal {record['ordinal']} is out of range")
    rule = _RULES.get(name)
    problem = rule(record) if rule else ""
    if problem:
        raise _refuse(name, problem)


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
    return "" if record["name"] else "it has no name"


def _check_end(record: Record) -> str:
    if record["txn"] < 1:
        return f"transaction {record['txn']} is out of range"
    bad = [pair for pair in record["write_ids"] if pair["table_id"] < 1 or pair["write_id"] < 1]
    return f"write id {bad[0]} is out of range" if bad else ""


def _check_state(record: Record) -> str:
    if record["sequence"] < 1 or not 0 <= record["partial_events"] <= INT_MAX:
        return f"sequence {record['sequence']}, partial events {record['partial_events']} out of range"
    return "" if bool(record["partial_gtid"]) or not record["partial_events"] else "partial events of no transaction"


_RULES: Final[dict[str, Callable[[Record], str]]] = {
    "AllocWriteId": _check_ids("table_id", "txn", "write_id"),
    "TableImage": _check_image,
    "CommitTxn": _check_end,
    "AbortTxn": _check_end,
    "WriteIdsReset": _check_ids("table_id"),
    "NameBinding": lambda record: "" if record["name"] and record["table_id"] >= 0 else "it binds no name",
    "TableVoid": lambda record: "" if record["table"] else "it names no table",
    "TableSchema": lambda record: "" if record["table"] else "it names no table",
    "Marker": lambda record: "" if record["position"] and record["layout"] else "it has no position or no layout",
    "SourceState": _check_state,
}
