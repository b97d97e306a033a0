"""Messages that nobody can read, in change streams: each reader is told once, over Kafka or over the shared ring."""

from __future__ import annotations

import asyncio

import pytest

from serving.streams.reading import Begin, FromNow, Reading, Streams
from stream.changes.checkpoint import Checkpoint
from stream.changes.items import Unreadable
from tests.patience import PATIENCE_S
from tests.serving.test_handed_over_streams import Handover, run
from tests.stream.changes.topics import KEYSPACE


def spoil(log: Handover) -> None:
    """A message that nobody can read is in the topic, and in the ring."""
    log.log.partitions[0].append(b"of nobody")
    log.publish(len(log.log.partitions[0]))
    log.share()


async def told(reading: Reading) -> list[int]:
    """The offsets of what nobody can read, until the stream has joined the ring and read all that is there."""
    found: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        async for batch in reading.batches(0.01):
            found += [item.offset for item, _ in batch if isinstance(item, Unreadable)]
            ring = reading._ring
            if ring is not None and reading._number == ring.end()[0]:
                return found
    raise AssertionError("the stream has ended")


@pytest.mark.parametrize("begins", ["before", "behind", "now"])
def test_a_stream_that_joins_the_ring_is_told_once_of_what_nobody_can_read(
    monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    """The ring still has it: each new connection was told anew, and a sink that connects after it read all again."""
    log = Handover()
    beginning = log.log.beginning().checkpoint
    log.publish(1)
    log.share()
    first = len(log.log.partitions[0])
    spoil(log)
    known = str(log.ring.end()[1].checkpoint)
    begin: dict[str, Begin] = {"before": beginning, "behind": Checkpoint.parse(known), "now": FromNow()}

    async def story(streams: Streams) -> None:
        reading = await streams.begin(KEYSPACE, begin[begins])
        assert await told(reading) == ([first] if begins == "before" else [])
        second = len(log.log.partitions[0])
        spoil(log)
        assert await told(reading) == [second]
        await reading.close()

    run(monkeypatch, log, story)
