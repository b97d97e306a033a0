"""Builds the owner protocol's answers to `Status` and `Describe`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from consumers.fold.backfills import backfilled_tables
from consumers.fold.declared import is_in_scope, table_descriptions
from consumers.owner.partitions import Ownership, Partition
from consumers.owner.protocol import (
    Describe,
    Description,
    PartitionStatus,
    SchemaColumn,
    ShardStatus,
    Standing,
    Statuses,
)


def status_of(
    ownership: Ownership,
    partitions: Sequence[Partition],
    request_id: int,
    stands: Callable[[str, int], Standing | None],
) -> Statuses:
    """The answer to `consumers.owner.protocol.Status`: how each of ``partitions`` is, and who owns it."""
    now = time.time()
    statuses = [partition_status(each, now) for each in partitions]
    for each in statuses:
        each.standing = stands(each.keyspace, each.partition)
    return Statuses(request_id, ownership.is_ready, ownership.instance, statuses, ownership.is_draining)


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
            partition.lag_seconds(now, shard, each),
            each.as_of_ms,
            round(partition.shard_silent_seconds(shard, each), 1),
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
        tables=backfilled_tables(head),
        verdict=partition.verdict,
    )


def describe_table(owned: Sequence[Partition], request: Describe) -> Description:
    """The answer to `Describe`: the newest description of the table in any owned partition, and the layout.

    The newest scope of a shard counts for all of them: a partition that is behind may hold what it has taken out.
    Ordinals order the descriptions of one shard. Between shards the time at the source chooses: it proves nothing, but
    a front that is told the wrong one is corrected by its first `Get`. One that dropped the table has nothing to say.
    """
    layout = next((each.store.visible.layout for each in owned if each.store.visible.layout), "")
    newest: dict[str, dict[str, Any]] = {}
    for partition in owned:
        store = partition.store
        for schema in table_descriptions(store.visible, store.get, request.table) if request.table else ():
            known = newest.get(schema["shard"])
            if known is None or (schema["epoch"], schema["ordinal"]) > (known["epoch"], known["ordinal"]):
                newest[schema["shard"]] = schema
    in_scope = [
        schema
        for shard, schema in newest.items()
        if all(is_in_scope(each.store.visible, shard, schema["epoch"], schema["ordinal"]) for each in owned)
    ]
    if not in_scope:
        return Description(request.id, False, layout, request.table)
    latest = max(in_scope, key=lambda schema: (bool(schema["primary_key"]), schema["timestamp"], schema["shard"]))
    return _description(request.id, layout, latest)


def _description(request_id: int, layout: str, schema: dict[str, Any]) -> Description:
    return Description(
        request_id,
        True,
        layout,
        schema["table"],
        [SchemaColumn(each["name"], each["kind"], each["exact"], each["sql_type"]) for each in schema["columns"]],
        schema["primary_key"],
        schema["cacheable"],
        schema["reason"],
        schema["shard"],
        schema["prefix"],
    )
