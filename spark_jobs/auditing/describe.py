"""Describes an item of a store for people who compare two of them. Pure."""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from consumers.fold.catalog_state import decode_binding, decode_table
from consumers.fold.entry import ABSENT, VALUE, VOID, decode_entry
from consumers.fold.objects import decode_drops, decode_object, decode_set
from consumers.fold.state import CATALOG, DROPS, META, NAME_PREFIX, OBJECT, SCHEMA_PREFIX, SET, TABLE
from stream.wire.codec import CodecError, decode

KINDS: Final = {VALUE: "value", ABSENT: "absent", VOID: "void"}
IMAGE_CHARACTERS_MAX: Final = 400
_CATALOG_DECODERS: Final[dict[bytes, Any]] = {
    TABLE: decode_table,
    OBJECT: decode_object,
    SET: decode_set,
    DROPS: decode_drops,
}


def describe_key(key: bytes) -> str:
    """A store key as text: ``shop.orders [17]``, ``head: offset``, ``catalog: partition ["x"] of table 7``."""
    if key.startswith(META):
        return "head: " + _text(key[1:].replace(b"\0", b" "))
    if key.startswith(CATALOG):
        return "catalog: " + _describe_object(key[1:2], key[2:])
    table, separator, row = key.partition(b"\0")
    if not separator:
        return f"unreadable key {key.hex()}"
    return f"{_text(table)} {_text(row)}"


def _describe_object(what: bytes, rest: bytes) -> str:
    if what == TABLE:
        return f"table {_text(rest)}"
    kind, _, others = rest.partition(b"\0")
    table, _, name = others.partition(b"\0")
    of = f" of table {_text(table)}" if table not in (b"", b"0") else ""
    named = {OBJECT: f"{_text(kind)} {_text(name)}", SET: f"all of kind {_text(kind)}", DROPS: f"dropped {_text(kind)}"}
    return f"{named[what]}{of}" if what in named else (what + rest).hex()


def describe_value(key: bytes, value: bytes | None) -> dict[str, Any]:
    """What a store holds for ``key``, decoded as far as it can be; ``{"missing": true}`` for None.

    Its tag is among it: shard, epoch, ordinal and, where there is one, position.
    """
    if value is None:
        return {"missing": True}
    try:
        if key.startswith(SCHEMA_PREFIX):
            return {"schema": decode(value)[1]}
        if key.startswith(NAME_PREFIX):
            return _fields(decode_binding(value))
        if key.startswith(META):
            return {"text": value.decode()[:IMAGE_CHARACTERS_MAX]}
        if key.startswith(CATALOG):
            return _fields(_CATALOG_DECODERS[key[1:2]](value))
        entry = decode_entry(value)
    except (ValueError, KeyError, struct.error, CodecError, RecursionError) as error:
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
        described["image"] = _text(entry.image)[:IMAGE_CHARACTERS_MAX]
    return described


def _fields(state: msgspec.Struct) -> dict[str, Any]:
    return {name: _plain(each) for name, each in msgspec.structs.asdict(state).items()}


def _plain(value: Any) -> Any:
    """A decoded state as JSON values; bytes as text that is cut."""
    if isinstance(value, bytes):
        return _text(value)[:IMAGE_CHARACTERS_MAX]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if isinstance(value, msgspec.Struct):
        return _fields(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")
