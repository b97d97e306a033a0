"""Builds the owner protocol's answers to `Status` and `Describe`."""

from __future__ import annotations

import time

from consumers.fold.declared import table_description
from consumers.owner.partitions import Ownership, Partition
from consumers.owner.protocol import (
    Describe,
    Description,
    PartitionStatus,
    SchemaColumn,
    ShardStatus,
    Status,
    Statuses,
)


def status_of(ownership: Ownership, request: Status) -> Statuses:
    """The answer to `Status`."""
    now = time.time()
    partitions = [partition_status(each, now) for each in ownership.of(request.keyspace)]
    return Statuses(request.id, ownership.is_ready, ownership.instance, partitions)


def partition_status(partition: Partition, now: float) -> PartitionStatus:
    """The status of one partition; ``now`` in seconds since 1970."""
    store = partition.store
    head = store.visible
    shards = [
        ShardStatus(
            shard,
            each.epoch,
            each.ordinal,
            each.watermark,
            each.watermark_timestamp,
            each.low_water,
            partition.lag_seconds(now, each.watermark_timestamp),
            each.as_of_ms,
        )
        for shard, each in sorted(head.lineages.items())
    ]
    return PartitionStatus(
        keyspace=partition.keyspace,
        partition=partition.number,
        offset=head.offset,
        committed=store.committed_offset,
        position=partition.position,
        end=partition.end,
        ready=partition.ready,
        state=partition.state,
        shards=shards,
        entries=store.estimated_entries(),
        pending_rows=store.pending_rows,
        overlay_entries=len(partition.overlay),
        overlay_bytes=partition.overlay.bytes,
        layout=head.layout,
        topic_id=store.manifest.topic_id,
        silent_seconds=round(partition.silent_seconds, 1),
    )


def describe_table(ownership: Ownership, request: Describe) -> Description:
    """The answer to `Describe`: the newest description of the table in any owned partition, and the layout."""
    owned = ownership.of(request.keyspace)
    layout = next((each.store.visible.layout for each in owned if each.store.visible.layout), "")
    newest: dict[str, object] | None = None
    place = (0, 0)
    for partition in owned:
        store = partition.store
        schema = table_description(store.visible, store.get, request.table) if request.table else None
        if schema is not None and (newest is None or (schema["epoch"], schema["ordinal"]) > place):
            newest, place = schema, (schema["epoch"], schema["ordinal"])
    if newest is None:
        return Description(request.id, False, layout, request.table)
    return _description(request.id, layout, newest)


def _description(request_id: int, layout: str, schema: dict[str, object]) -> Description:
    columns = schema["columns"]
    keys = schema["primary_key"]
    assert isinstance(columns, list)
    prefix = schema["prefix"]
    assert isinstance(keys, list)
    assert isinstance(prefix, int)
    return Description(
        request_id,
        True,
        layout,
        str(schema["table"]),
        [SchemaColumn(each["name"], each["kind"], each["exact"]) for each in columns],
        keys,
        bool(schema["cacheable"]),
        str(schema["reason"]),
        str(schema["shard"]),
        prefix,
    )
