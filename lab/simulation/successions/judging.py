"""What a reader of the topic is told of each row, against what was written to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from lab.simulation.kafka.log import PartitionLog
from stream.changes.assembling import Assembler
from stream.changes.checkpoint import Checkpoint
from stream.changes.items import Transaction
from stream.changes.start import Start
from stream.wire.events import VALUE, VOID

Told = dict[bytes, list[bytes | None]]
"""Key → its images in the order in which they were told; None where the row is void."""


def told(keyspace: str, topic_id: str, logs: Sequence[PartitionLog], rng: Random) -> Told:
    """As a change stream tells the committed records, whose partitions are read in any turns."""
    assembler = Assembler(Start(Checkpoint(keyspace, topic_id, (0,) * len(logs), {})))
    left = [log.committed(0, log.stable) for log in logs]
    found: Told = {}
    while any(left):
        partition = rng.choice([number for number, kept in enumerate(left) if kept])
        record = left[partition].pop(0)
        assembler.feed(partition, record.offset, record.value)
        for item in assembler.take():
            if isinstance(item, Transaction):
                _take(found, item)
    return found


def _take(found: Told, transaction: Transaction) -> None:
    for event in transaction.events:
        key = getattr(event, "key", None)
        if key is not None:  # a row
            operation = getattr(event, "operation", VOID)
            found.setdefault(key, []).append(getattr(event, "image", b"") if operation == VALUE else None)


def first_wrong(found: Told, written: Mapping[bytes, Sequence[bytes]]) -> str:
    """What a reader is told that was not written so; "" if there is nothing.

    Each image comes once, in the order of the writes; none is left out unless the row is called void after it. A void
    may come again: what two ancestors have told to different places is told without images.
    """
    for key, images in found.items():
        numbers = [None if image is None else _number(written.get(key, []), image) for image in images]
        if -1 in numbers:
            return f"{key!r} is told with an image that nobody has written"
        known = [number for number in numbers if number is not None]
        if known != sorted(set(known)):
            return f"{key!r} is told its writes in the order {known}"
        before, is_void = -1, False
        for number in numbers:
            if number is None:
                is_void = True
                continue
            if number > before + 1 and not is_void:
                return f"{key!r} is not told write {before + 1}"
            before, is_void = number, False
    return ""


def lacking(found: Told, written: Mapping[bytes, Sequence[bytes]]) -> str:
    """A row that a reader takes for another one than was written last; "" if there is none."""
    for key, images in written.items():
        last = found.get(key, [b""])[-1]
        if last is not None and last != images[-1]:
            return f"{key!r} is told {len(found.get(key, []))} times, and not its last write"
    return ""


def _number(images: Sequence[bytes], image: bytes) -> int:
    return images.index(image) if image in images else -1
