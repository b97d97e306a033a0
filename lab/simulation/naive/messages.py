"""Decodes messages with fastavro and the files in ``schemas/`` alone: no code of `stream.wire`.

Only the current versions are read: the simulator's publishers write no others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

from fastavro import parse_schema, schemaless_reader
from fastavro.schema import fingerprint, to_parsing_canonical_form

Record = dict[str, Any]

SCHEMAS: Final = Path(__file__).parents[3] / "schemas"
MAGIC: Final = b"\xc3\x01"
HEADER: Final = 10
PASSED_OVER: Final = ""
"""The name of a record that is unknown and may be passed over."""
_MEMO: Final = 32_768


class Unreadable(Exception):
    """A message that becomes a dead letter. Its text is the letter's code."""


def known_schemas(folder: Path = SCHEMAS) -> dict[bytes, tuple[str, Any]]:
    """Fingerprint → name and schema, of each current version in a folder."""
    found = {}
    for path in folder.glob("*.avsc"):
        if "." not in path.stem:
            schema = json.loads(path.read_text(encoding="utf-8"))
            number = bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
            found[number] = (path.stem, parse_schema(schema))
    return found


_KNOWN: Final = known_schemas()


def read_message(value: bytes | None, announced: Mapping[bytes, Record]) -> tuple[str, Record]:
    """The name and the fields of a message. ``announced``: fingerprint → the `SchemaText` that tells its schema.

    The record is shared: callers must not change it. Raises `Unreadable`.
    """
    if value is None or value[:2] != MAGIC[: len(value)] or not value:
        raise Unreadable("not_freshet")
    if len(value) < HEADER:
        raise Unreadable("truncated")
    told = announced.get(value[2:HEADER])
    if value[2:HEADER] not in _KNOWN and told is not None:
        if not told["skippable"]:
            raise ValueError(f"{told['name']} needs a newer reader: nothing may be folded past it")
        return PASSED_OVER, {}
    found = _read(value)
    if isinstance(found, str):
        raise Unreadable(found)
    return found


@lru_cache(maxsize=_MEMO)
def _read(value: bytes) -> tuple[str, Record] | str:
    """The record, or the code of the dead letter."""
    name, schema = _KNOWN.get(value[2:HEADER], ("", None))
    if not name:
        return "unknown_schema"
    if name in ("BeforeImages", "KeylessRow"):
        return PASSED_OVER, {}  # for change streams: not even damage of it concerns the state
    if name == "SourceState":
        return name, {}  # it is for publishers: not even damage of it concerns the state
    body = BytesIO(value[HEADER:])
    try:
        record: Record = schemaless_reader(body, schema, None)
        if name == "RowFrame":
            record = _unpacked(record)
    except (EOFError, StopIteration):
        return "truncated"
    except Exception as error:  # noqa: BLE001 - whatever fastavro raises for damaged bytes
        return "truncated" if "Expected" in str(error) else "bad_field"
    if body.read(1):
        return "trailing_bytes"
    return (name, record) if _is_sound(name, record) else "bad_field"


def _is_sound(name: str, record: Record) -> bool:
    """Whether history can hold the record. Fields that no fault of the worlds touches are trusted."""
    least = 0 if name in ("Marker", "SchemaText", "Topology", "RowFrame") else 1
    return bool(record["shard"]) and "\0" not in record["shard"] and record["epoch"] > 0 and record["ordinal"] >= least


def _unpacked(frame: Record) -> Record:
    """The rows of a frame as (key, image, operation, ordinal, transaction), and its transactions."""
    operations, count = frame["operations"], frame["transactions"]
    rows = len(operations)
    if not 0 < count <= rows:
        raise ValueError("the transactions do not fit the rows")
    lengths = _block(frame["lengths"], 2 * rows)
    if sum(lengths) != len(frame["rows"]):
        raise ValueError("the lengths do not add up")
    ends = [0, *accumulate(lengths)]
    texts = [frame["rows"][begin:end] for begin, end in pairwise(ends)]
    sizes = [size + 1 for size in _block(frame["sizes"], count)]
    if sum(sizes) != rows:
        raise ValueError("the transactions have other rows")
    ordinal, ordinals = frame["ordinal"], []
    for step in _block(frame["ordinals"], rows):
        ordinal += step + 1
        ordinals.append(ordinal)
    holders = [txn for txn, size in enumerate(sizes) for _ in range(size)]
    numbers = _block(frame["gtid_numbers"], count)
    gtids = frame["gtids"] or [f"{frame['gtid_prefix']}{frame['gtid_base'] + number}" for number in numbers]
    return {
        "shard": frame["shard"],
        "epoch": frame["epoch"],
        "ordinal": frame["ordinal"],
        "rows": list(zip(texts[:rows], texts[rows:], operations, ordinals, holders, strict=True)),
        "positions": frame["positions"] or gtids,
        "timestamps": [frame["timestamp"] + each for each in _block(frame["timestamps"], count)],
    }


def _block(block: bytes, size: int) -> list[int]:
    if not block:
        return [0] * size
    width = len(block) // size
    if width * size != len(block) or width not in (1, 2, 4, 8):
        raise ValueError("a block of another length")
    return [int.from_bytes(block[at : at + width], "little") for at in range(0, len(block), width)]
