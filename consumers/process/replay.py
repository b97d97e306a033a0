"""Replays a captured Hive notification log offline: what the catalog cache would know after each event. Pure.

The path is the live one: translator, framer, fold. Offline a table can't be fetched after a write. Unless
``with_images`` is false the event's own table is taken instead, which may differ from what the metastore stored
(docs/internals/catalog.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from consumers.fold.catalog_state import TRANSACTIONAL, TableState, decode_binding, decode_table, table_key
from consumers.fold.messages import fold_message
from consumers.fold.objects import PARTITION, decode_object, decode_set, objects_prefix, set_key
from consumers.fold.state import NAME_PREFIX, Head, PartitionState, Rejection
from consumers.owner.tables import why_unservable
from stream.sources.hive.messages import FLAVOR
from stream.sources.hive.translator import HiveTranslator
from stream.wire.batch import Framer
from stream.wire.keys import Layout, object_parts


class ReplayedPartition(NamedTuple):
    """What is known of one existing partition. ``image`` is None while the one after its last write is awaited."""

    values: list[str]
    image: bytes | None


class ReplayedTable(NamedTuple):
    """What is known of one existing table. ``write_ids`` is None for a table that is not transactional."""

    table_id: int
    write_ids: str | None
    servable: bool
    why: str
    image: bytes | None
    partitions: tuple[ReplayedPartition, ...] = ()
    partitions_whole: bool = False
    """Whether these are known to be all."""


class Replay:
    """Folds a log, row by row, into a partition in memory."""

    def __init__(self, catalog: str = "hive", *, with_images: bool = True) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.rejections: list[Rejection] = []
        self._shard = f"{catalog}/0"
        self._translator = HiveTranslator(catalog=catalog, with_images=with_images)
        self._framer = Framer(self._shard, Layout(1))
        self._state = PartitionState(Head(), self.entries.get)

    def feed(self, row: Mapping[str, Any]) -> int | None:
        """Folds one row of the log; returns its event id, None if it was folded before. Raises `HiveMessageError`."""
        transaction = self._translator.translate(row)
        if transaction is None:
            return None
        event_id = self._translator.last_event_id
        assert event_id is not None, "a translated event has an id"
        framer = self._framer
        if not framer.resume.epoch:
            framer.start_epoch(f"{FLAVOR}/{event_id - 1}", transaction.timestamp, "first_start")
            self._fold_batch()
        start = 0
        while True:
            end = framer.room(transaction, start)
            if end >= 0:
                framer.add(transaction, start, end)
                start = end
            if end < 0 or start == len(transaction.changes):
                self._fold_batch()
            if end >= 0 and start == len(transaction.changes):
                return event_id

    def _fold_batch(self) -> None:
        for _, value in self._framer.take().records:
            changes = fold_message(self._state, self._state.head.offset, value)
            changes.put_into(self.entries)
            self._state.apply(changes)
            self.rejections.extend(changes.rejections)

    def tables(self) -> dict[str, ReplayedTable]:
        """The tables that exist, by name."""
        found: dict[str, ReplayedTable] = {}
        for key in sorted(self.entries):
            if not key.startswith(NAME_PREFIX):
                continue
            table_id = decode_binding(self.entries[key]).table_id
            value = self.entries.get(table_key(table_id)) if table_id else None
            if value is None:
                continue
            state = decode_table(value)
            if not state.exists:
                continue
            name = key[len(NAME_PREFIX) :].decode()
            why = why_unservable(state, self._state.head.voids)
            text = state.ids.text(name) if state.kind == TRANSACTIONAL else None
            why_servable = f"its image follows the last write, {state.write_position}"
            members, is_whole = self._partitions(state)
            servable = not why
            found[name] = ReplayedTable(table_id, text, servable, why or why_servable, state.image, members, is_whole)
        return found

    def _partitions(self, table: TableState) -> tuple[tuple[ReplayedPartition, ...], bool]:
        """The table's partitions, in the order of their values, and whether these are all."""
        value = self.entries.get(set_key(PARTITION, table.table_id))
        group = decode_set(value) if value is not None else None
        if group is None or group.epoch != table.epoch:
            return (), False
        floor = max(group.void, table.objects_void)
        prefix = objects_prefix(PARTITION, table.table_id)
        members = []
        for key in sorted(key for key in self.entries if key.startswith(prefix)):
            state = decode_object(self.entries[key])
            if state.known_at > max(floor, group.base) and (state.exists or state.is_awaited):
                image = None if state.is_awaited else state.image
                members.append(ReplayedPartition(object_parts(key[len(prefix) :].decode()), image))
        return tuple(members), group.complete > 0 and group.base >= floor


def replay(
    rows: Iterable[Mapping[str, Any]], catalog: str = "hive", *, with_images: bool = True
) -> Iterator[tuple[int, dict[str, ReplayedTable]]]:
    """Yields the id of each event and the tables that exist after it.

    Raises `HiveMessageError` for a row without event id or time.
    """
    folded = Replay(catalog, with_images=with_images)
    for row in rows:
        event_id = folded.feed(row)
        if event_id is not None:
            yield event_id, folded.tables()
