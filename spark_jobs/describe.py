"""Describes an item of a store for people who compare two of them. Pure."""

from __future__ import annotations

import struct
from typing import Any

from consumers.fold.entry import ABSENT, VALUE, VOID, decode_entry
from consumers.fold.state import CATALOG, META, SCHEMA_PREFIX
from stream.wire.codec import CodecError, decode

KINDS = {VALUE: "value", ABSENT: "absent", VOID: "void"}
IMAGE_CHARACTERS_MAX = 400


def describe_key(key: bytes) -> str:
    """A store key as text: ``shop.orders [17]``, ``head: offset``, ``catalog: …``."""
    if key.startswith(META):
        return "head: " + key[1:].replace(b"\0", b" ").decode(errors="backslashreplace")
    if key.startswith(CATALOG):
        return f"catalog: {key[1:].hex()}"
    table, separator, row = key.partition(b"\0")
    if not separator:
        return f"unreadable key {key.hex()}"
    return f"{table.decode(errors='backslashreplace')} {row.decode(errors='backslashreplace')}"


def describe_value(key: bytes, value: bytes | None) -> dict[str, Any]:
    """What a store holds for ``key``, decoded as far as it can be; ``{"missing": true}`` for None."""
    if value is None:
        return {"missing": True}
    try:
        if key.startswith(SCHEMA_PREFIX):
            return {"schema": decode(value)[1]}
        if key.startswith((META, CATALOG)):
            return {"text": value.decode()[:IMAGE_CHARACTERS_MAX]}
        entry = decode_entry(value)
    except (ValueError, struct.error, CodecError, RecursionError) as error:
        return {"unreadable": f"{type(error).__name__}: {error}", "bytes": value.hex()[:IMAGE_CHARACTERS_MAX]}
    described: dict[str, Any] = {
        "kind": KINDS.get(entry.kind, f"unknown kind {entry.kind}"),
        "shard": entry.shard,
        "epoch": entry.epoch,
        "ordinal": entry.ordinal,
        "position": entry.position,
        "timestamp": entry.timestamp,
    }
    if entry.origin:
        described["origin"] = entry.origin
    if entry.image:
        described["image"] = entry.image.decode(errors="backslashreplace")[:IMAGE_CHARACTERS_MAX]
    return described
