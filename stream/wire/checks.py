"""Which decoded records are valid: what Avro lets through, but history cannot hold. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from operator import ge
from typing import Final

from stream.shards.map import ShardMapError, map_of
from stream.wire.announced import announcement_problem
from stream.wire.codec import BAD_FIELD, READER_VERSION, SKIPPED, CodecError, NewerWireError, PartitionReader, Record
from stream.wire.events import KEYLESS_OPERATIONS, VALUE
from stream.wire.frames import INT_MAX, LONG_MAX
from stream.wire.keys import KeyFormatError, Layout, LayoutError, is_row_key, object_parts

_WITHOUT_NUMBER: Final = frozenset({"BeforeImages", "Marker", "SourceState", "SchemaText", "Topology"})
"""Records that repeat the last ordinal assigned instead of having one of their own."""
_NOT_FOLDED: Final = frozenset({SKIPPED, "BeforeImages", "SourceState"})
_OPERATIONS: Final = b"\x01\x02\x03"


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


def _do_increase(ordinals: Sequence[int]) -> bool:
    return ordinals[0] >= 1 and not any(map(ge, ordinals, islice(ordinals, 1, None)))


def _check_ordinals(frame: Record) -> None:
    ordinals, base = frame["ordinals"], frame["ordinal"]
    if not _do_increase(ordinals):
        raise _bad_field("RowFrame", "ordinals do not increase")
    if base < 0 or ordinals[-1] > INT_MAX or base + ordinals[-1] > LONG_MAX:
        raise _bad_field("RowFrame", f"ordinal {base} + {ordinals[-1]} is out of range")


def check(name: str, record: Record) -> None:
    """Refuse an invalid decoded record. Raises `CodecError` ``bad_field``.

    Raises `NewerWireError` for a marker that only later readers understand.
    """
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


def decode_folded(reader: PartitionReader, value: bytes | None) -> tuple[str, Record]:
    """The name and the fields of a message's record, as `PartitionReader.decode`; refuses what `check_folded` does."""
    name, record = reader.decode(value or b"")
    check_folded(name, record)
    return name, record


def check_folded(name: str, record: Record) -> None:
    """Refuse a decoded record of which the fold takes nothing, for those who read a topic beside it.

    Single invalid rows of a frame are left to the caller, and records that the fold passes over are not looked at.
    Raises as `check`.
    """
    if name == "RowFrame":
        check_frame(record)
        if record["ordinal"] + max(record["ordinals"]) > LONG_MAX:
            raise _bad_field("RowFrame", "an ordinal is out of range")
    elif name not in _NOT_FOLDED:
        check(name, record)


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


def _check_object(record: Record) -> str:
    problem = _check_set_of(record)
    if problem or record["change"] not in ("image", "written", "dropped"):
        return problem or f"invalid change {record['change']!r}"
    try:
        object_parts(record["name"])
    except KeyFormatError as error:
        return str(error)
    return ""


def _check_set(record: Record) -> str:
    is_valid = record["change"] in ("begun", "complete", "void")
    return _check_set_of(record) or ("" if is_valid else f"invalid change {record['change']!r}")


def _check_set_of(record: Record) -> str:
    kind = record["kind"]
    is_valid = kind and "\0" not in kind and record["table_id"] >= 0
    return "" if is_valid else f"invalid kind {kind!r} or table {record['table_id']}"


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
    if record["reader_version"] > READER_VERSION:
        raise NewerWireError(f"the stream needs reader version {record['reader_version']}, this is {READER_VERSION}")
    try:
        Layout.parse(record["layout"])
    except LayoutError as error:
        return str(error)
    return ""


def _check_before_images(record: Record) -> str:
    ordinals, images = record["ordinals"], record["images"]
    if len(ordinals) != len(images) or not ordinals:
        return f"{len(images)} images of {len(ordinals)} rows"
    if not _do_increase(ordinals):
        return "ordinals do not increase"
    return "" if record["ordinal"] + ordinals[-1] <= LONG_MAX else "an ordinal is out of range"


def _check_table_schema(record: Record) -> str:
    if not record["table"]:
        return "table is empty"
    columns = len(record["primary_key"])
    return "" if 0 <= record["prefix"] <= columns else f"prefix {record['prefix']} of {columns} key columns"


def _check_topology(record: Record) -> str:
    if not all(map(_is_shard, record["shards"])):
        return "a shard has no valid name"
    for ancestors in (record["ancestors"], record["succeeded"]):
        bad = [each for each in ancestors if not _is_lineage(each["shard"], each["epoch"])]
        if bad:
            return f"invalid ancestor {bad[0]['shard']!r}, epoch {bad[0]['epoch']}"
        if len({each["shard"] for each in ancestors}) < len(ancestors):
            return "an ancestor is named twice"
    return _problem_of_map(record)


def _problem_of_map(record: Record) -> str:
    ranges = tuple((each["shard"], each["range"]) for each in record["ranges"])
    if not ranges:
        return ""
    if not {shard for shard, _ in ranges} <= set(record["shards"]):
        return "a shard of the map is none of the shards"
    try:
        map_of(ranges)
    except ShardMapError as error:
        return str(error)
    return ""


def _check_schema_text(record: Record) -> str:
    if not record["name"] or "\0" in record["name"]:
        return f"invalid name {record['name']!r}"
    return announcement_problem(record["text"], record["fingerprint"])


_RULES: Final[dict[str, Callable[[Record], str]]] = {
    "AllocWriteId": _check_ids("table_id", "txn", "write_id"),
    "BeforeImages": _check_before_images,
    "TableImage": _check_image,
    "CatalogObject": _check_object,
    "CatalogSet": _check_set,
    "CommitTxn": _check_txn_end,
    "AbortTxn": _check_txn_end,
    "WriteIdsReset": _check_ids("table_id"),
    "NameBinding": lambda record: (
        "" if record["name"] and record["table_id"] >= 0 else "name is empty or table id negative"
    ),
    "KeylessRow": lambda record: (
        ""
        if record["table"] and record["operation"] in KEYLESS_OPERATIONS
        else f"invalid operation {record['operation']!r}"
    ),
    "TableVoid": lambda record: "" if record["table"] else "table is empty",
    "TableBackfill": lambda record: "" if record["table"] else "table is empty",
    "TableSchema": _check_table_schema,
    "Topology": _check_topology,
    "SchemaText": _check_schema_text,
    "Scope": lambda record: "a name contains a NUL" if any("\0" in each for each in record["tables"]) else "",
    "Marker": _check_marker,
    "SourceState": _check_state,
}
