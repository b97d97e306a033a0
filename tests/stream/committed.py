"""Read the committed records of a keyspace's topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import end_offsets, read_range, start_offsets
from stream.kafka.topics import events_topic
from stream.wire.checks import check
from stream.wire.codec import decode
from stream.wire.declarations import KINDS
from tests.consumers.consuming import until
from tests.patience import PATIENCE_S

LAST: Final = 100
"""Records at a partition's end among which its last marker usually is: each batch has one."""


def await_decided(kafka: KafkaCluster, topic: str, partitions: Iterable[int]) -> None:
    """Returns when each Kafka transaction in the partitions is committed or aborted there.

    Kafka acknowledges a commit before the partitions know of it, and until then their committed ends lie before it.
    """
    asked = [*partitions]

    def decided() -> bool:
        return end_offsets(kafka, topic, asked) == end_offsets(kafka, topic, asked, committed=False)

    until(decided, f"no transaction in {topic} is undecided")


def records(
    kafka: KafkaCluster, keyspace: str, partitions: int, *, repeats: bool = False
) -> dict[int, list[tuple[str, dict[str, Any]]]]:
    """Partition → (name, fields) of every committed record in the topic, checked, in order.

    Kafka acknowledges a commit before the partitions know of it. So this waits until everything up to the log's end is
    decided: whatever was acknowledged before the call is in what it returns. The transaction of a source that was
    killed is decided once the next one has begun. Declarations that are said again, as the identical bytes, are left
    out unless ``repeats``.
    """
    topic = events_topic(kafka, keyspace)
    found: dict[int, list[tuple[str, dict[str, Any]]]] = {}
    starts = start_offsets(kafka, topic, range(partitions))
    for partition, end in end_offsets(kafka, topic, range(partitions), committed=False).items():
        found[partition] = []
        said: set[bytes] = set()
        for message in read_range(kafka, topic, partition, starts[partition], end, timeout_s=PATIENCE_S):
            name, fields = decode(message.value())
            check(name, fields)
            if name in KINDS:
                if message.value() in said and not repeats:
                    continue
                said.add(message.value())
            found[partition].append((name, fields))
    return found


def last_position(kafka: KafkaCluster, keyspace: str, partition: int = 0) -> str:
    """The position of a partition's last committed marker; "" if it has none. As `records`, but reads only the end."""
    topic = events_topic(kafka, keyspace)
    [start] = start_offsets(kafka, topic, [partition]).values()
    [end] = end_offsets(kafka, topic, [partition], committed=False).values()
    for first in (max(start, end - LAST), start):
        for message in reversed([*read_range(kafka, topic, partition, first, end, timeout_s=PATIENCE_S)]):
            name, fields = decode(message.value())
            if name == "Marker":
                return str(fields["position"])
    return ""


def rows(found: dict[int, list[tuple[str, dict[str, Any]]]]) -> list[tuple[int, bytes, bytes, str]]:
    """(ordinal, key, image, gtid) of every row of every partition, by ordinal."""
    seen: list[tuple[int, bytes, bytes, str]] = []
    for records_of in found.values():
        for name, frame in records_of:
            if name == "RowFrame":
                gtids = [g for g, n in zip(frame["gtids"], frame["transactions"], strict=True) for _ in range(n)]
                numbers = [frame["ordinal"] + each for each in frame["ordinals"]]
                seen += zip(numbers, frame["keys"], frame["images"], gtids, strict=True)
    return sorted(seen)


def ordinals(records_of: list[tuple[str, dict[str, Any]]]) -> list[int]:
    """The numbers of all events of one partition, in order."""
    numbers: list[int] = []
    for name, fields in records_of:
        if name == "RowFrame":
            numbers += [fields["ordinal"] + each for each in fields["ordinals"]]
        elif name not in ("Marker", "SourceState", "SchemaText", "Topology"):
            numbers.append(fields["ordinal"])
    return numbers


def markers(found: dict[int, list[tuple[str, dict[str, Any]]]], partition: int = 0) -> list[dict[str, Any]]:
    """The markers of one partition in order."""
    return [fields for name, fields in found[partition] if name == "Marker"]
