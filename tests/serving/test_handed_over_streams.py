"""Readers of change streams after a shard was handed over: the shared ring still has what the ended shard told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from serving.metrics import FrontMetrics
from serving.streams.hub import Hub
from serving.streams.reading import FromNow, Reading, Streams
from serving.streams.ring import Ring
from stream.changes.assembling import Assembler
from stream.changes.checkpoint import Checkpoint, Place
from stream.changes.items import Item, Transaction
from stream.changes.start import FromTime, LeavesOut, Start
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import Topic
from stream.wire.batch import Framer
from stream.wire.events import VALUE, RowChange, SourceTransaction, Topology
from stream.wire.keys import Layout, row_key
from tests.patience import PATIENCE_S
from tests.stream.changes.topics import KEYSPACE, TOPIC, Log, framer_of

OLD, NEW = "shop/S", "shop/C"
Told = list[tuple[str, int]]


class LogFollower:
    """Reads all that a log has at its first poll, as `stream.changes.following.Follower` does a topic."""

    def __init__(self, log: Log, start: Start) -> None:
        self._log, self._assembler = log, Assembler(start)
        self.begun = start.checkpoint.offsets

    @property
    def checkpoint(self) -> Checkpoint:
        return self._assembler.checkpoint

    @property
    def places(self) -> object:
        return self._assembler.places

    @property
    def left_out(self) -> dict[str, LeavesOut]:
        return self._assembler.left_out

    @property
    def skip_others(self) -> FromTime | None:
        return self._assembler.skip_others

    @property
    def offsets(self) -> tuple[int, ...]:
        return self._assembler.offsets

    def poll(self, _: float = 0.0) -> list[Item]:
        for partition, messages in enumerate(self._log.partitions):
            for offset in range(self.offsets[partition], len(messages)):
                self._assembler.feed(partition, offset, messages[offset])
        return self._assembler.take()

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Handover:
    """A log in which one shard succeeds another, and the ring of a front that reads it."""

    log: Log = field(default_factory=lambda: Log(Layout(2)))
    has_gone_on: bool = False

    def __post_init__(self) -> None:
        self._old, self._new = (framer_of(shard, self.log.layout) for shard in (OLD, NEW))
        self._hub = LogFollower(self.log, self.log.beginning())
        self.ring = Ring(self._hub.checkpoint, self._hub.offsets)

    def publish(self, *numbers: int) -> None:
        """Transactions of the shard that ends."""
        self._publish(self._old, numbers)

    def wait(self, *seconds: int) -> None:
        """Markers of the shard that ends, while nothing is written to it."""
        for second in seconds:
            self._old.stamp((1_700_000_000 + second) * 1_000)
            self.log.publish(self._old)

    def succeed(self, *numbers: int) -> None:
        """The other shard takes its place, and has transactions."""
        self._new.announce(Topology((NEW,), ((OLD, 1),)))
        self._publish(self._new, numbers)

    def go_on(self, *numbers: int) -> None:
        """More transactions of the successor."""
        self.has_gone_on = True
        self._publish(self._new, numbers)

    def _publish(self, framer: Framer, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            gtid = f"MariaDB/0-1-{number}"
            rows = [RowChange(row_key("shop.t", [key]), VALUE, b"{}") for key in range(4)]
            self.log.publish(framer, SourceTransaction(gtid, gtid, 1_700_000_000 + number, rows))

    def end_of(self, shard: str) -> dict[str, Place]:
        """Where the shared reader is in a shard."""
        return {shard: self._hub.checkpoint.places[shard]}

    def share(self) -> None:
        """The front's shared reader reads all that is there."""
        self.ring.append(self._hub.poll())


def run(monkeypatch: pytest.MonkeyPatch, handover: Handover, story: Callable[[Streams], Awaitable[None]]) -> None:
    """Runs ``story`` with the streams of a front that has the ring of ``handover``."""
    monkeypatch.setattr("serving.streams.reading.Follower", lambda _, __, start: LogFollower(handover.log, start))
    monkeypatch.setattr("serving.streams.reading.check_topics", lambda *_: Topic(KEYSPACE, TOPIC, 2))
    monkeypatch.setattr("serving.streams.reading.start_at_checkpoint", lambda *arguments: Start(arguments[-1]))
    monkeypatch.setattr(Hub, "start", lambda _: None)

    async def running() -> None:
        kafka = KafkaCluster("127.0.0.1:1")
        streams = Streams(kafka, FrontMetrics())
        hub = streams._hubs[KEYSPACE] = Hub(kafka, KEYSPACE, asyncio.get_running_loop())
        hub.ring = handover.ring
        try:
            await story(streams)
        finally:
            await streams.close()

    asyncio.run(running())


async def read(reading: Reading, last: int) -> list[tuple[Transaction, Checkpoint]]:
    """What a stream tells up to a transaction of the successor, which the front shares once the stream has joined."""
    found: list[tuple[Transaction, Checkpoint]] = []
    async with asyncio.timeout(PATIENCE_S):
        async for batch in reading.batches(0.01):
            found += [(item, checkpoint) for item, checkpoint in batch if isinstance(item, Transaction)]
            if found and names(found)[-1] == (NEW, last):
                return found
    raise AssertionError("the stream has ended")


async def read_to_the_end(reading: Reading) -> list[tuple[Transaction, Checkpoint]]:
    """What a stream tells until it ends."""
    found: list[tuple[Transaction, Checkpoint]] = []
    async with asyncio.timeout(PATIENCE_S):
        async for batch in reading.batches(0.01):
            found += [(item, checkpoint) for item, checkpoint in batch if isinstance(item, Transaction)]
            if reading.has_ended:
                return found
    raise AssertionError("the stream goes no further, and has no end")


def names(found: list[tuple[Transaction, Checkpoint]]) -> Told:
    """Shard and number of each transaction."""
    return [(item.shard, int(item.gtid.rpartition("-")[2])) for item, _ in found]


async def join(reading: Reading) -> list[tuple[Transaction, Checkpoint]]:
    """What a stream tells until it has joined the ring and read all that is there."""
    found: list[tuple[Transaction, Checkpoint]] = []
    async with asyncio.timeout(PATIENCE_S):
        async for batch in reading.batches(0.01):
            found += [(item, checkpoint) for item, checkpoint in batch if isinstance(item, Transaction)]
            ring = reading._ring
            if ring is not None and reading._number == ring.end()[0]:
                return found
    raise AssertionError("the stream has ended")


@pytest.mark.parametrize("ends_at_once", [False, True])
def test_who_comes_back_after_a_handover_is_told_nothing_of_the_ended_shard(
    monkeypatch: pytest.MonkeyPatch, ends_at_once: bool
) -> None:
    """Its checkpoint does not name that shard: what the ring has of it is older than the successor's rows it has."""
    handover = Handover()
    handover.publish(1, 2, 3)
    if not ends_at_once:
        handover.share()
    handover.succeed(4, 5)
    handover.share()

    async def story(streams: Streams) -> None:
        reading = await streams.begin(KEYSPACE, FromNow())
        checkpoint = reading.watermark.checkpoint
        assert set(checkpoint.places) == {NEW}
        await reading.close()
        reading = await streams.begin(KEYSPACE, Checkpoint.parse(str(checkpoint)))
        assert await join(reading) == []
        assert set(reading.watermark.checkpoint.places) == {NEW}
        handover.go_on(6)
        handover.share()
        assert names(await read(reading, 6)) == [(NEW, 6)]
        await reading.close()

    run(monkeypatch, handover, story)


def test_who_reads_a_handover_for_itself_is_told_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has told the ended shard's transactions before it joins the ring, which begins with them."""
    handover = Handover()
    beginning = handover.log.beginning().checkpoint
    handover.publish(1, 2, 3)
    handover.share()
    handover.succeed(4, 5)
    handover.share()

    async def story(streams: Streams) -> None:
        reading = await streams.begin(KEYSPACE, beginning)
        assert sorted(names(await join(reading))) == [(NEW, 4), (NEW, 5), (OLD, 1), (OLD, 2), (OLD, 3)]
        handover.go_on(6)
        handover.share()
        assert names(await read(reading, 6)) == [(NEW, 6)]
        await reading.close()

    run(monkeypatch, handover, story)


@pytest.mark.parametrize("begins", ["now", "before", "behind"])
def test_a_stream_may_end_where_a_shard_is_handed_over(monkeypatch: pytest.MonkeyPatch, begins: str) -> None:
    """All of the ended shard is told by then, and the end's checkpoint goes on; one that begins later does not end."""
    handover = Handover()
    beginning = handover.log.beginning().checkpoint
    handover.publish(1, 2)
    handover.share()

    def succeed() -> None:
        handover.publish(3)
        handover.succeed(4)
        handover.share()

    async def story(streams: Streams) -> None:
        if begins == "behind":
            succeed()
            reading = await streams.begin(KEYSPACE, FromNow(), ends_at_handover=True)
            handover.go_on(5)
            handover.share()
            assert names(await read(reading, 5)) == [(NEW, 5)]
            assert not reading.has_ended
            return
        reading = await streams.begin(KEYSPACE, FromNow() if begins == "now" else beginning, ends_at_handover=True)
        assert not reading.has_ended
        succeed()
        found = await read_to_the_end(reading)
        assert [each for each in names(found) if each[0] == OLD] == [
            (OLD, n) for n in ((3,) if begins == "now" else (1, 2, 3))
        ]
        told = {number for _, number in names(found)}
        again = await streams.begin(
            KEYSPACE, Checkpoint.parse(str(reading.watermark.checkpoint)), ends_at_handover=True
        )
        handover.go_on(5)
        handover.share()
        assert [number for _, number in names(await read(again, 5))] == [n for n in (4, 5) if n not in told]
        assert not again.has_ended

    run(monkeypatch, handover, story)


def test_who_goes_on_at_any_event_before_an_end_is_told_of_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch in which a shard is over has what follows as well: nothing of that is told before the end."""
    handover = Handover()
    handover.publish(1, 2)
    handover.share()

    async def story(streams: Streams) -> None:
        reading = await streams.begin(KEYSPACE, FromNow(), ends_at_handover=True)
        handover.publish(3, 4)
        handover.succeed(5)
        handover.share()
        handover.go_on(6, 7)
        handover.share()
        found = await read_to_the_end(reading)
        assert sorted(names(found)) == [(NEW, 5), (OLD, 3), (OLD, 4)]
        for _, checkpoint in found:
            again = await streams.begin(KEYSPACE, Checkpoint.parse(str(checkpoint)), ends_at_handover=True)
            await read_to_the_end(again)
            await again.close()
        assert reading.watermark.checkpoint not in [checkpoint for _, checkpoint in found]
        await reading.close()

    run(monkeypatch, handover, story)


def test_a_stream_ends_at_a_handover_that_is_in_its_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins by time among the markers of a quiet shard, so it knows of no place of it."""
    handover = Handover()
    start = Start(handover.log.beginning().checkpoint, skip_others=FromTime(1_700_000_009))
    handover.publish(1, 2, 3)
    handover.wait(8, 9, 10, 11)
    handover.succeed(14, 15)
    handover.share()

    async def story(streams: Streams) -> None:
        monkeypatch.setattr("serving.streams.reading.start_at_checkpoint", lambda *_: start)
        reading = await streams.begin(KEYSPACE, start.checkpoint, ends_at_handover=True)
        async with asyncio.timeout(PATIENCE_S):
            async for _ in reading.batches(0.01):
                if reading.has_ended:
                    return

    run(monkeypatch, handover, story)


def test_who_goes_on_after_such_an_end_is_not_ended_by_what_the_ring_has_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shared ring still has the marks of the time when the ended shard went on."""
    handover = Handover()
    handover.publish(1, 2)
    handover.share()

    async def story(streams: Streams) -> None:
        reading = await streams.begin(KEYSPACE, FromNow(), ends_at_handover=True)
        handover.succeed(4)
        handover.share()
        async with asyncio.timeout(PATIENCE_S):
            async for _ in reading.batches(0.01):
                if reading.has_ended:
                    break
        again = await streams.begin(
            KEYSPACE, Checkpoint.parse(str(reading.watermark.checkpoint)), ends_at_handover=True
        )
        told: list[int] = []
        async with asyncio.timeout(PATIENCE_S):
            async for batch in again.batches(0.01):
                told += [int(item.gtid.rpartition("-")[2]) for item, _ in batch if isinstance(item, Transaction)]
                assert not again.has_ended
                if told:
                    break
                if again._follower is None and not handover.has_gone_on:
                    handover.go_on(5)
                    handover.share()
        assert told == [5]

    run(monkeypatch, handover, story)


@pytest.mark.parametrize("shared", [0, 1, 3])
def test_who_knows_of_a_handover_before_the_shared_reader_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, shared: int
) -> None:
    """To the ring the shard goes on, and its transactions there, or to come there, look like new ones."""
    handover = Handover()
    handover.publish(*range(1, shared + 1))
    handover.share()
    handover.publish(*range(shared + 1, 4))
    handover.succeed(4)
    ahead = LogFollower(handover.log, handover.log.beginning())
    ahead.poll()

    async def story(streams: Streams) -> None:
        reading = await streams.begin(KEYSPACE, ahead.checkpoint)
        batches = aiter(reading.batches(0.01))
        assert [await anext(batches) for _ in range(3)] == [[], [], []]
        assert reading._ring is None
        handover.share()
        assert await join(reading) == []
        handover.go_on(5)
        handover.share()
        assert names(await read(reading, 5)) == [(NEW, 5)]
        await reading.close()

    run(monkeypatch, handover, story)


def test_readers_from_before_a_handover_share_encodings_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do where they have the item's own checkpoint, which no longer names the ended shard."""
    handover = Handover()
    handover.publish(1)
    handover.share()

    async def story(streams: Streams) -> None:
        before = await streams.begin(KEYSPACE, FromNow())
        handover.publish(2)
        handover.share()
        handover.succeed(3)
        handover.share()
        assert names(await join(before)) == [(OLD, 2), (NEW, 3)]
        after = await streams.begin(KEYSPACE, FromNow())
        handover.go_on(4)
        handover.share()
        for reading in (before, after):
            [(item, checkpoint)] = await read(reading, 4)
            assert checkpoint is item.checkpoint
            await reading.close()

    run(monkeypatch, handover, story)
