"""The schemas that a topic announces before a place: whoever begins there needs them (docs/internals/wire.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import read_range, start_offsets, windows_back
from stream.wire.announced import Announced
from stream.wire.codec import HEADER_SIZE, CodecError, PartitionReader, headers

WINDOW: Final = 1024
"""Offsets that are looked at first. A publisher says its schemas again every ten minutes, unless it is set."""
BYTES_MAX: Final = 512 * 1024 * 1024
"""It looks no further once it has read so much: twice `stream.publish.publisher.REPEAT_BYTES`, after which a publisher
says them again. What is older nobody announced; a foreign program may have written the message."""
_TEXTS: Final = headers("SchemaText")


def announced_before(kafka: KafkaCluster, topic: str, partition: int, offset: int) -> Iterator[dict[bytes, Announced]]:
    """What a partition announces before an offset, from there back, as a `PartitionReader` asks for it.

    Kafka is not asked before it is. Raises `TopicReadError`, `KafkaUnreachable`.
    """
    low, size = start_offsets(kafka, topic, [partition])[partition], 0
    for start, end in windows_back(low, offset, WINDOW):
        reader = PartitionReader()
        for message in read_range(kafka, topic, partition, start, end):
            value = message.value() or b""
            size += len(value)
            if value[:HEADER_SIZE] in _TEXTS:
                with suppress(CodecError):
                    reader.decode(value)
        yield reader.texts
        if size >= BYTES_MAX:
            return
