"""What one partition of the topic gives of a table, as Arrow batches: its rows at a moment, or its changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from spark_jobs.exporting.changes import Changes, Exported
from spark_jobs.exporting.columns import table_of
from spark_jobs.offsets import Beginning, TopicBounds, choose_range, topic_bounds
from spark_jobs.source.cut import AsOf, AsOfError, Cut, Survey, cutter
from spark_jobs.source.filters import Used, keeps, only_partition
from spark_jobs.source.origins import Heads, Origin, newest_snapshots, stores_at
from spark_jobs.source.table import TablePartition
from stream.kafka.announced import announced_before
from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import read_range
from stream.kafka.topics import events_topic
from stream.wire.checks import decode_folded
from stream.wire.codec import CodecError, PartitionReader
from stream.wire.events import EVERY_TABLE
from stream.wire.keys import Layout

ROWS_PER_BATCH: Final = 10_000
LOOK_BACK: Final = 1_000
"""Offsets before a micro-batch in which the last places of its shards are looked for, first; then ten times as many."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is read: a keyspace's table, and for each partition the offsets; with the table's description at the cut.

    ``low``: the first offsets that are retained. ``base``: partition → what its state begins with. ``is_found``: that
    was found, not asked for, so changes are read from the topic's start all the same. ``is_now``: no moment was asked
    for; ``cut`` is where all partitions can be read to. ``ahead``: why no rows can begin with the base.
    ``last_columns``: those of the last description, wherever the cut lies.
    """

    kafka: KafkaCluster
    keyspace: str
    table: str
    topic_id: str
    low: dict[int, int]
    start: dict[int, int]
    end: dict[int, int]
    columns: dict[str, str]
    primary_key: tuple[str, ...]
    prefix: int = 0
    layout: str = ""
    cut: Cut = field(default_factory=dict)
    base: dict[int, Origin] = field(default_factory=dict)
    is_found: bool = False
    is_now: bool = False
    ahead: str = ""
    last_columns: dict[str, str] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        """The topic that is read."""
        return events_topic(self.kafka, self.keyspace)

    def schema(self) -> pa.Schema:
        """The columns of what is read: those that say what a row is, and the table's own."""
        return table_of([], self.columns).schema

    def of_changes(self) -> Plan:
        """The same for the changes: they are not in a snapshot that was found, and without a moment all are told."""
        start = dict.fromkeys(self.start, 0) if self.is_found else self.start
        changes = replace(self, start=start, ahead="")
        return replace(changes, cut={}, columns=self.last_columns) if self.is_now else changes

    def check_whole(self) -> None:
        """Raises `AsOfError` ``as_of_ahead`` if the base has more than is read, and `OffsetsError` ``offsets_expired``
        if retention has cut what it begins with.
        """
        if self.ahead:
            hint = "read it again in some seconds, or give an older base"
            raise AsOfError(self.ahead, hint=hint, code="as_of_ahead")
        bounds = TopicBounds(self.topic, self.topic_id, self.low, self.end)
        choose_range(bounds, self.end, self.start, Beginning.BASE if any(self.start.values()) else Beginning.TABLE)

    def partitions(self, filters: list[Used]) -> list[int]:
        """The partitions that may have rows for the filters."""
        only = None
        if self.layout:
            layout = Layout.parse(self.layout)
            only = only_partition(layout, self.table, self.primary_key, self.columns, self.prefix, filters)
        return sorted(self.end) if only is None else [only]

    def messages(self, partition: int, start: int, end: int) -> Iterator[tuple[int, bytes | None]]:
        """(offset, message) of a partition. Raises `stream.kafka.reader.TopicReadError`."""
        for message in read_range(self.kafka, self.topic, partition, start, end):
            yield message.offset(), message.value()


def plan(
    kafka: KafkaCluster,
    keyspace: str,
    table: str,
    as_of: AsOf,
    base: str = "",
    *,
    snapshots: str = "",
    whole: bool = True,
) -> Plan:
    """Reads what the topic says of the table and, if a moment is given, where it lies: the topic once, in this process.

    ``base``: a checkpoint or rebuild that it begins with; whoever reads rows asks `Plan.check_whole` whether they can.
    Without one, it begins with the newest snapshot before the moment at the place ``snapshots`` that rows can begin
    with, if there is one. ``whole``: all from there on must be retained. Else what is retained must describe the table:
    that does for a stream that goes on. Raises `AsOfError`, `OffsetsError` (``offsets_expired``: what is needed is no
    longer retained), `RebuildError`.
    """
    bounds = topic_bounds(kafka, events_topic(kafka, keyspace))
    draft = Plan(kafka, keyspace, table, bounds.topic_id, bounds.low, {}, bounds.end, {}, (), is_now=as_of.is_now)
    whole = whole or not as_of.is_now
    if base:
        return _plan_from(draft, bounds, as_of, stores_at(base, keyspace, bounds), whole=whole)
    planned = None
    for heads in newest_snapshots(snapshots, keyspace, bounds, as_of) if snapshots else ():
        planned = replace(_plan_from(draft, bounds, as_of, heads, whole=whole), is_found=True)
        if not planned.ahead:
            return planned
    if planned is not None and any(bounds.low.values()):
        return planned  # it can be read in some seconds, the topic's beginning never again
    return _plan_from(draft, bounds, as_of, {}, whole=whole)


def _plan_from(draft: Plan, bounds: TopicBounds, as_of: AsOf, heads: Heads, *, whole: bool) -> Plan:
    """As `plan`, with what it begins with."""
    bases = {partition: head for partition, (_, head) in heads.items()}
    starts = {partition: bases[partition].head.offset if partition in bases else 0 for partition in bounds.low}
    retained = {partition: max(low, starts[partition]) for partition, low in bounds.low.items()}
    behind = Beginning.BASE if bases else Beginning.TABLE
    chosen = choose_range(bounds, None, starts if whole else retained, behind)
    survey = Survey(draft.table, as_of)
    for each in bases.values():
        each.check(as_of)
        for event in each.descriptions(draft.table):
            survey.describe(event)
    draft = replace(draft, start=starts)
    for partition in sorted(chosen.end):
        messages = draft.messages(partition, chosen.start[partition], chosen.end[partition])
        base_here = bases.get(partition)
        told = (base_here.reached(), base_here.texts(), base_here.over()) if base_here is not None else ()
        survey.read(partition, (value for _, value in messages), *told)
    try:
        known = survey.description()
    except AsOfError:
        draft.check_whole()  # it may lie in what is gone
        raise
    refusals = (each.ahead(survey.cut) for each in bases.values() if as_of.is_now)
    return replace(
        draft,
        columns=known.columns,
        primary_key=known.primary_key,
        prefix=known.prefix,
        layout=survey.layout,
        cut=survey.cut,
        base={partition: origin for partition, (origin, _) in heads.items()},
        ahead=next(filter(None, refusals), ""),
        last_columns=survey.last_description().columns,
    )


def table_batches(planned: Plan, partition: int, filters: list[Used]) -> Iterator[pa.Table]:
    """The table's rows in a partition at the plan's moment, which pass the filters."""
    base = planned.base[partition].read(planned.table) if partition in planned.base else None
    state = TablePartition(planned.table, partition, planned.cut, base, planned.prefix, is_now=planned.is_now)
    state.fold(planned.messages(partition, planned.start[partition], planned.end[partition]))
    yield from _batches(state.rows(), planned, filters)


def change_batches(
    planned: Plan, partition: int, start: int, end: int, filters: list[Used], *, low: int | None = None
) -> Iterator[pa.Table]:
    """The table's changes in a range of a partition, each once, typed by the plan's columns.

    ``low``: the range follows others; where its shards were is looked for before it, from this offset on.
    """
    reader = PartitionReader(earlier=announced_before(planned.kafka, planned.topic, partition, start))
    places = {} if low is None else _places_before(planned, partition, low, start, reader)
    changes = Changes(partition, Exported(start, places=places), reader)
    before = cutter(planned.cut, reader)

    def rows() -> Iterator[dict[str, Any]]:
        for offset, value in planned.messages(partition, start, end):
            kept = before(value)
            if kept != b"" or value == b"":
                changes.add([offset], [kept])
                for table, _, _, group in changes.take():
                    if table in (planned.table, EVERY_TABLE):
                        yield from group

    yield from _batches(rows(), planned, filters)


def _batches(rows: Iterator[dict[str, Any]], planned: Plan, filters: list[Used]) -> Iterator[pa.Table]:
    waiting: list[dict[str, Any]] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == ROWS_PER_BATCH:
            yield keeps(table_of(waiting, planned.columns), filters)
            waiting = []
    yield keeps(table_of(waiting, planned.columns), filters)


def _places_before(
    planned: Plan, partition: int, low: int, start: int, reader: PartitionReader
) -> dict[str, tuple[int, int]]:
    """Shard → its last place before an offset. Each batch ends with a marker, which says it for its shard."""
    back = LOOK_BACK
    while True:
        first = max(low, start - back)
        places: dict[str, tuple[int, int]] = {}
        told: set[str] = set()
        for _, value in planned.messages(partition, first, start):
            try:
                name, event = decode_folded(reader, value)
            except CodecError:
                continue
            if "ordinal" in event and "shard" in event:
                last = max([event["ordinal"], *(event["ordinal"] + each for each in event.get("ordinals", ()))])
                places[event["shard"]] = max(places.get(event["shard"], (0, 0)), (event["epoch"], last))
                told |= {event["shard"]} if name == "Marker" else set()
        if first == low or (told and told == places.keys()):
            return places
        back *= 10


def check_topic(planned: Plan, topic_id: str) -> None:
    """Raises `AsOfError` if the topic was deleted and made again."""
    if planned.topic_id != topic_id:
        raise AsOfError(
            f"the topic is another one: its id was {topic_id}, now it is {planned.topic_id}",
            hint="begin a new query, with a new checkpoint",
        )
