"""Builds messages of a topic for tests of the fold: short calls, real wire bytes."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

from fastavro import parse_schema, schemaless_writer
from fastavro.schema import to_parsing_canonical_form

from consumers.fold.messages import fold_message
from consumers.fold.state import Changes, Head, PartitionState
from stream.wire.announced import fingerprint_of
from stream.wire.codec import HEADER_SIZE, VERSIONS, CodecError, current_schema, encode, header_of
from stream.wire.events import VALUE

LAYOUT = "xxh3_64;partitions=1"
SHARD = "shop/0"
SCHEMAS = Path(__file__).parents[2] / "schemas"


def gtid(sequence: int, domain: int = 0) -> str:
    """A MariaDB GTID of server 1."""
    return f"MariaDB/{domain}-1-{sequence}"


def key(number: int, table: str = "shop.items") -> bytes:
    """The key of row ``number``."""
    return f"{table}\0[{number}]".encode()


def frame(rows: list[tuple[bytes, int, bytes, int]], *, shard: str = SHARD, epoch: int = 1, **columns: Any) -> bytes:
    """A frame of single-row transactions: (key, operation, image, ordinal); the GTID's sequence is the ordinal."""
    ordinals = [row[3] for row in rows]
    record = {
        "shard": shard,
        "epoch": epoch,
        "ordinal": ordinals[0] - 1 if ordinals else 0,
        "keys": [row[0] for row in rows],
        "images": [row[2] for row in rows],
        "operations": bytes(row[1] for row in rows),
        "ordinals": [ordinal - ordinals[0] + 1 for ordinal in ordinals],
        "transactions": [1] * len(rows),
        "gtids": [gtid(ordinal) for ordinal in ordinals],
        "positions": [],
        "timestamps": [1_700_000_000] * len(rows),
        "origins": [],
    } | columns
    return encode_frame(record)


def encode_frame(record: dict[str, Any]) -> bytes:
    """A frame as it is written now, or as the first version wrote it if it lies in a way that now has no form."""
    try:
        return encode("RowFrame", record)
    except CodecError:
        return encode_version_1("RowFrame", record)


def encode_version_1(name: str, record: dict[str, Any]) -> bytes:
    """A record as its first version was written."""
    schema = json.loads((SCHEMAS / f"{name}.v1.avsc").read_text(encoding="utf-8"))
    out = BytesIO()
    out.write(header_of(schema))
    schemaless_writer(out, parse_schema(schema), record)
    return out.getvalue()


def of_tomorrow(message: bytes) -> tuple[bytes, bytes]:
    """A message as a newer version of its record, with a field that this version lacks; and what announces that."""
    name = next(name for name in VERSIONS if current_schema(name).header == message[:HEADER_SIZE])
    schema = json.loads(current_schema(name).text)
    schema["fields"].append({"name": "mood", "type": "string"})
    text = to_parsing_canonical_form(schema)
    record = {"shard": SHARD, "epoch": 1, "ordinal": 1, "name": name, "text": text, "skippable": False}
    announcement = encode("SchemaText", record | {"fingerprint": fingerprint_of(text)})
    return header_of(schema) + message[HEADER_SIZE:] + b"\x08good", announcement


def value(number: int, image: bytes, ordinal: int, **more: Any) -> bytes:
    """A frame of one row with a value."""
    return frame([(key(number), VALUE, image, ordinal)], **more)


def marker(ordinal: int, *, sequence: int | None = None, shard: str = SHARD, epoch: int = 1, **fields: Any) -> bytes:
    """A marker for everything up to ``ordinal``."""
    record = {
        "shard": shard,
        "epoch": epoch,
        "ordinal": ordinal,
        "position": gtid(ordinal if sequence is None else sequence),
        "timestamp": 1_700_000_000,
        "low_water": gtid(0),
        "layout": LAYOUT,
        "whole": True,
    } | fields
    return encode("Marker", record)


def event(name: str, ordinal: int, /, *, shard: str = SHARD, epoch: int = 1, **fields: Any) -> bytes:
    """Any other event that carries an ordinal of its own."""
    place = {
        "shard": shard,
        "epoch": epoch,
        "ordinal": ordinal,
        "gtid": gtid(ordinal),
        "timestamp": 1_700_000_000,
        "position": gtid(ordinal),
    }
    return encode(name, place | fields)


def start(*, shard: str = SHARD, epoch: int = 1, sequence: int = 0) -> bytes:
    """The beginning of a shard's epoch."""
    return event("EpochStart", 1, shard=shard, epoch=epoch, position=gtid(sequence), reason="first_start")


class Folded:
    """A partition in memory: folds messages one by one, keeps the codes of rejections."""

    def __init__(self, *messages: bytes) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.state = PartitionState(Head(), self.entries.get)
        self.rejection_codes: list[str] = []
        for message in messages:
            self.fold(message)

    def fold(self, message: bytes) -> Changes:
        """Folds one message at the next offset."""
        changes = fold_message(self.state, self.state.head.offset, message)
        changes.put_into(self.entries)
        self.state.apply(changes)
        self.rejection_codes += [letter.code for letter in changes.rejections]
        return changes
