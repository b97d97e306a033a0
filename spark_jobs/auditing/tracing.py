"""Which messages of the topic made the entries of some keys, for people who look at a difference."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from consumers.fold.catalog_state import name_key, table_key
from consumers.fold.objects import object_key, objects_prefix, set_key
from consumers.fold.state import schema_key
from spark_jobs.auditing.describe import IMAGE_CHARACTERS_MAX, KINDS
from spark_jobs.verify import StoresVerdict
from stream.kafka.announced import announced_before
from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import read_range
from stream.kafka.topics import events_topic
from stream.wire.checks import decode_folded
from stream.wire.codec import CodecError, NewerWireError, PartitionReader
from stream.wire.events import EVERY_TABLE
from stream.wire.keys import SEPARATOR

EVENTS_MAX: Final = 20
"""Of each key the last ones are kept."""
Event = dict[str, Any]


def with_events(verdict: StoresVerdict, kafka: KafkaCluster, starts: Mapping[int, int]) -> StoresVerdict:
    """The verdict with the events of the topic in each difference that is shown.

    ``starts``: partition → where to begin to look. Raises `TopicReadError`.
    """
    topic = events_topic(kafka, verdict.keyspace)
    partitions = []
    for each in verdict.partitions:
        keys = [bytes.fromhex(str(difference["key_hex"])) for difference in each.first]
        if keys:
            start = starts.get(each.partition, 0)
            messages = read_range(kafka, topic, each.partition, start, each.offset)
            reader = PartitionReader(earlier=announced_before(kafka, topic, each.partition, start))
            found = events_of(keys, ((int(message.offset() or 0), message.value()) for message in messages), reader)
            first = tuple(
                {**difference, "events": found[key]} for key, difference in zip(keys, each.first, strict=True)
            )
            partitions.append(replace(each, first=first))
        else:
            partitions.append(each)
    return replace(verdict, partitions=tuple(partitions))


def events_of(
    keys: Iterable[bytes], messages: Iterable[tuple[int, bytes | None]], reader: PartitionReader
) -> dict[bytes, list[Event]]:
    """Key → the last events that were about it, from messages as (offset, value). Markers are about the head only.

    A message that can't be read, or that the fold rejects, is told for each key: it may have been about any.
    """
    found: dict[bytes, deque[Event]] = {key: deque(maxlen=EVENTS_MAX) for key in keys}
    for offset, value in messages:
        try:
            name, event = decode_folded(reader, value)
        except (CodecError, NewerWireError, ValueError) as error:
            for events in found.values():
                events.append({"offset": offset, "event": "unreadable", "reason": str(error)[:IMAGE_CHARACTERS_MAX]})
            continue
        if name == "RowFrame":
            _add_rows(found, offset, event)
            continue
        told = {"offset": offset, "event": name} | {
            each: event[each]
            for each in ("shard", "epoch", "ordinal", "gtid", "change", "reason", "txn", "write_id", "kind", "name")
            if event.get(each) not in (None, "")
        }
        for key, events in found.items():
            if _is_about(name, event, key):
                events.append(told)
    return {key: list(events) for key, events in found.items()}


def _add_rows(found: Mapping[bytes, deque[Event]], offset: int, frame: Event) -> None:
    keys = frame["keys"]
    places = [place for place, key in enumerate(keys) if key in found]
    if not places:
        return
    of_row = [number for number, size in enumerate(frame["transactions"]) for _ in range(size)]
    for place in places:
        operation, image = frame["operations"][place], frame["images"][place]
        told: Event = {
            "offset": offset,
            "event": "row",
            "shard": frame["shard"],
            "epoch": frame["epoch"],
            "ordinal": frame["ordinal"] + frame["ordinals"][place],
            "gtid": frame["gtids"][of_row[place]],
            "kind": KINDS.get(operation, f"unknown kind {operation}"),
        }
        if image:
            told["image"] = image.decode(errors="backslashreplace")[:IMAGE_CHARACTERS_MAX]
        found[keys[place]].append(told)


def _is_about(name: str, event: Event, key: bytes) -> bool:
    """Whether an event that is no frame may have changed the entry of ``key``."""
    if name == "EpochStart":
        return True
    if name == "TableVoid":
        return event["table"] == EVERY_TABLE or key.startswith(event["table"].encode() + SEPARATOR)
    if name == "NameBinding":
        names = event["name"], event["previous_name"]
        return key in map(name_key, names) or key == table_key(event["table_id"])
    if name == "TableSchema":
        return key == schema_key(event["table"], event["shard"])
    if name in ("CommitTxn", "AbortTxn"):
        return key in {table_key(each["table_id"]) for each in event["write_ids"]}
    if name in ("CatalogObject", "CatalogSet"):
        kind, table = event["kind"], event["table_id"]
        if key == set_key(kind, table):
            return True
        if name == "CatalogObject":
            return key == object_key(kind, table, event["name"])
        return key.startswith(objects_prefix(kind, table))
    return "table_id" in event and key == table_key(event["table_id"])
