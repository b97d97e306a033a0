"""Avro schemas that the topic itself announces (`SchemaText`): how a reader decodes what is newer than it. Pure.

An announced schema comes from the topic, as data. So it is refused before it is used unless decoding with it takes time
and memory in proportion to the message: a schema that contains itself would let a message recurse without bound (in
fastavro: until the process dies), and items without a size would let one claim any number of them.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final, NamedTuple

from fastavro import parse_schema
from fastavro.schema import fingerprint, to_parsing_canonical_form

TEXT_LENGTH_MAX: Final = 256 * 1024
DEPTH_MAX: Final = 32
STEPS_MAX: Final = 4096


class Announced(NamedTuple):
    """What a `SchemaText` says of a record's schema. ``text``: in parsing canonical form."""

    name: str
    text: str
    skippable: bool


class _Refused(Exception):
    """The schema must not be decoded with."""


class _Cost(NamedTuple):
    """Of the cheapest value: its bytes, and the steps to decode it."""

    size: int
    steps: int


_PRIMITIVES: Final = {each: _Cost(1, 1) for each in ("boolean", "int", "long", "bytes", "string")} | {
    "null": _Cost(0, 1),
    "float": _Cost(4, 1),
    "double": _Cost(8, 1),
}


def fingerprint_of(text: str) -> bytes:
    """The fingerprint, as messages carry it, of a schema in parsing canonical form."""
    return bytes.fromhex(fingerprint(text, "CRC-64-AVRO"))


@lru_cache(maxsize=256)
def announced_schema(text: str) -> Any:
    """The parsed schema. ``text`` must be without an `announcement_problem`."""
    return parse_schema(json.loads(text))


@lru_cache(maxsize=256)
def announcement_problem(text: str, announced: bytes) -> str:
    """Why ``text`` must not be decoded with; "" if it may. ``announced``: its fingerprint."""
    try:
        _examine(text, announced)
    except _Refused as refused:
        return str(refused)
    return ""


def _examine(text: str, announced: bytes) -> None:
    if len(text) > TEXT_LENGTH_MAX:
        raise _Refused(f"a schema of {len(text)} characters is too long")
    try:
        schema = json.loads(text)
        if schema["type"] != "record" or to_parsing_canonical_form(schema) != text:
            raise _Refused("the text is not the parsing canonical form of a record")
        parse_schema(schema)
        _cost(schema, {}, 0)
    except _Refused:
        raise
    except Exception as error:  # whatever json and fastavro raise for hostile text
        raise _Refused(f"not an Avro schema: {type(error).__name__}") from error
    if fingerprint_of(text) != announced:
        raise _Refused("the fingerprint is not that of the text")


def _cost(schema: Any, named: dict[str, _Cost | None], depth: int) -> _Cost:
    """``named``: the costs of named types; None for those that are being defined."""
    if depth > DEPTH_MAX:
        raise _Refused("the schema is nested too deeply")
    if isinstance(schema, str):
        cost = _PRIMITIVES.get(schema) or named[schema]
        if cost is None:
            raise _Refused("the schema contains itself")
    elif isinstance(schema, list):
        branches = [_cost(each, named, depth + 1) for each in schema]
        cost = _Cost(1 + min(each.size for each in branches), 1 + max(each.steps for each in branches))
    else:
        cost = _complex_cost(schema, named, depth)
    if cost.steps > STEPS_MAX:
        raise _Refused("the schema has too many fields")
    return cost


def _complex_cost(schema: dict[str, Any], named: dict[str, _Cost | None], depth: int) -> _Cost:
    match schema["type"]:
        case "array" | "map" as kind:
            items = _cost(schema["items" if kind == "array" else "values"], named, depth + 1)
            if kind == "array" and not items.size:
                raise _Refused("the items of an array have no size")
            return _Cost(1, 1 + items.steps)
        case "record":
            named[schema["name"]] = None
            fields = [_cost(field["type"], named, depth + 1) for field in schema["fields"]]
            cost = _Cost(sum(each.size for each in fields), 1 + sum(each.steps for each in fields))
        case "fixed" if schema["size"] >= 0:
            cost = _Cost(schema["size"], 1)
        case "enum":
            cost = _Cost(1, 1)
        case other:
            raise _Refused(f"{other!r} is not an Avro type")
    named[schema["name"]] = cost
    return cost
