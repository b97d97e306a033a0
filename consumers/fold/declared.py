"""What the topic declares beside its data: descriptions of tables, their scope, shards, schema texts. Pure.

A publisher says each declaration again from time to time, as the same bytes, so that a state can begin anywhere. A
repeat is adopted only if it is newer than what is held under its name; it is never taken for an old event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from consumers.fold.shards import is_succeeded
from consumers.fold.state import TEXT_PREFIX, Head, Lookup, Scope, Topology, Void, schema_key
from stream.wire.announced import Announced
from stream.wire.codec import HEADER_SIZE, MAGIC, Record, decode, encode
from stream.wire.events import EVERY_TABLE


def adopt_schema(lookup: Lookup, event: Mapping[str, Any]) -> dict[bytes, bytes]:
    """The description that a `TableSchema` leaves. Each shard has its own: another one's says nothing of its rows."""
    key = schema_key(event["table"], event["shard"])
    held = lookup(key)
    if held is not None:
        _, before = decode(held)
        if (before["epoch"], before["ordinal"]) >= (event["epoch"], event["ordinal"]):
            return {}
    return {key: encode("TableSchema", dict(event))}


def table_descriptions(head: Head, lookup: Lookup, table: str) -> list[Record]:
    """What each shard here says of a row table that it publishes."""
    found = []
    for shard, lineage in head.lineages.items():
        value = lookup(schema_key(table, shard)) if not is_succeeded(head, shard, lineage.epoch) else None
        if value is not None:
            _, schema = decode(value)
            if is_in_scope(head, shard, schema["epoch"], schema["ordinal"]):
                found.append(schema)
    return found


def is_in_scope(head: Head, shard: str, epoch: int, ordinal: int) -> bool:
    """Whether a description that ``shard`` published at this place still counts."""
    scope = head.scopes.get(shard)
    return scope is None or (epoch, ordinal) > scope


def adopt_scope(head: Head, event: Mapping[str, Any]) -> tuple[dict[str, Scope], dict[tuple[str, str], Void]]:
    """The scope that a `Scope` event begins, and its void: what left the scope gets no events any more."""
    shard, scope = event["shard"], Scope(event["epoch"], event["ordinal"])
    held, void = head.scopes.get(shard), head.voids.get((EVERY_TABLE, shard))
    if held is not None and held >= scope:
        return {}, {}
    if void is not None and void[:2] >= scope:
        return {shard: scope}, {}
    return {shard: scope}, {(EVERY_TABLE, shard): Void(*scope, "")}


def adopt_topology(head: Head, event: Mapping[str, Any]) -> tuple[dict[str, Topology], dict[tuple[str, str], Void]]:
    """What a `Topology` changes. It has no number of its own: of two with the same one, the later in the log counts.

    The ancestors of an epoch stay succeeded in the epochs after it, which don't name them any more. A shard whose own
    range changes has left rows out until here that are its rows from here on: all of it is void.
    """
    shard = event["shard"]
    ancestors = {each["shard"]: each["epoch"] for each in event["ancestors"]}
    held = head.topologies.get(shard)
    over = [(each["shard"], each["epoch"]) for each in event["succeeded"]]
    if held is not None:
        over += held.succeeded.items()
        if held.epoch < event["epoch"]:
            over += held.ancestors.items()
    succeeded = dict(sorted(over))  # of two epochs the higher
    shards, ranges = tuple(sorted(event["shards"])), tuple((each["shard"], each["range"]) for each in event["ranges"])
    declared = Topology(event["epoch"], event["ordinal"], shards, ancestors, succeeded, ranges)
    if held is not None and (held == declared or held[:2] > declared[:2]):
        return {}, {}
    lineage, voids = head.lineages.get(shard), {}
    if held is not None and lineage is not None and held.range_of(shard) != declared.range_of(shard):
        voids[EVERY_TABLE, shard] = Void(lineage.epoch, lineage.ordinal, "")
    return {shard: declared}, voids


def adopt_text(event: Mapping[str, Any]) -> dict[bytes, bytes]:
    """The schema that a `SchemaText` announces."""
    told = Announced(event["name"], event["text"], event["skippable"])
    return {TEXT_PREFIX + bytes(event["fingerprint"]): json.dumps(told, ensure_ascii=False).encode()}


def decode_announced(lookup: Lookup, value: bytes) -> tuple[str, Record] | None:
    """A message of an unknown schema, read by the text that announced it; None if nothing did.

    Raises as `stream.wire.codec.decode`.
    """
    fingerprint = value[len(MAGIC) : HEADER_SIZE]
    told = lookup(TEXT_PREFIX + fingerprint)
    return None if told is None else decode(value, {fingerprint: Announced(*json.loads(told))})


def announced_texts(entries: Mapping[bytes, bytes]) -> dict[bytes, Announced]:
    """Fingerprint → what was announced of it, of all texts among a state's entries."""
    return {
        key.removeprefix(TEXT_PREFIX): Announced(*json.loads(told))
        for key, told in entries.items()
        if key.startswith(TEXT_PREFIX)
    }
