"""Which partition a row is in, as far as a client can tell: the rule of `stream.wire.keys.Layout`. Pure.

The client knows the simple keys: integers, text and bytes. Of any other it tells nothing, and the request goes to any
front. A wrong partition costs a step: the front that is asked finds the right one.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec


class Sharing(NamedTuple):
    """How keys are shared among partitions. ``buckets`` 0: a layout of before there were any."""

    partitions: int
    buckets: int


class KeyColumns(NamedTuple):
    """A table's key. ``name``: ``db.table``; ``prefix``: how many leading columns choose the partition; 0: all."""

    name: str
    kinds: tuple[str, ...]
    prefix: int


def sharing_of(layout: str) -> Sharing | None:
    """The meaning of a layout's text; None of one that this version does not know."""
    partitioner, *parts = layout.split(";")
    found = dict(part.partition("=")[::2] for part in parts if not part.startswith("x-"))
    numbers = [found.pop("partitions", ""), found.pop("buckets", "0")]
    if partitioner != "xxh3_64" or found or not all(each.isascii() and each.isdigit() for each in numbers):
        return None
    partitions, buckets = map(int, numbers)
    return Sharing(partitions, buckets) if partitions else None


def partition_of(sharing: Sharing, key: KeyColumns, values: Sequence[object]) -> int | None:
    """The partition of the row with these key values; None if that can't be told here."""
    import xxhash

    if len(values) != len(key.kinds):
        return None
    written = [_canonical(kind, value) for kind, value in zip(key.kinds, values, strict=True)]
    if None in written:
        return None
    if key.prefix:
        hashed = msgspec.json.encode(written[: key.prefix])
    else:
        hashed = key.name.encode() + b"\0" + msgspec.json.encode(written)
    number: int = xxhash.xxh3_64_intdigest(hashed)
    if not sharing.buckets:
        return number % sharing.partitions
    return number % sharing.buckets * sharing.partitions // sharing.buckets


def _canonical(kind: str, value: object) -> Any:
    """The canonical value, as in a store's key; None if only a front knows it."""
    if (kind == "int" and type(value) is int) or (kind == "text" and type(value) is str):
        return value
    return {"base64": b64encode(value).decode()} if kind == "binary" and isinstance(value, bytes) else None
