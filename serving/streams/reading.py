"""One reader's change stream: from where it begins, over Kafka until it has caught up, and then over the shared ring.

A reader that is too slow for the ring goes back to Kafka, by itself: it slows nobody. Wherever it is, it goes on from
its own checkpoint, so nothing is lost or told twice in between.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Final, NamedTuple

from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.streams.beginning import Beginning
from serving.streams.hub import POLL_S, Hub
from serving.streams.ring import BYTES_MAX, Ring
from stream.access.who import asking
from stream.changes.checkpoint import NOWHERE, Checkpoint, CheckpointError, Place
from stream.changes.following import Follower
from stream.changes.items import Item, Transaction, Unreadable, Watermark
from stream.changes.start import Start
from stream.changes.starting import (
    StreamTooOld,
    published_by_now,
    start_after,
    start_at_checkpoint,
    start_at_earliest,
    start_at_time,
)
from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import TopicReadError
from stream.kafka.topics import check_topics
from tokens import Vector
from tokens.errors import FreshetError

STREAMS_MAX: Final = 512
FOLLOWERS_MAX: Final = 32
"""Streams that read Kafka for themselves at a time; the others wait for one of them to catch up. Half of them are one
caller's at most."""
THREADS: Final = 8
BEGIN_TIMEOUT_S: Final = 20.0
BATCH_ITEMS: Final = 256
BATCH_BYTES: Final = 1024 * 1024
"""What a reader of the ring takes at a time: so much, and one transaction, stays in memory while it reads nothing."""
LENT_S: Final = 2.0
"""A stream whose reader has not asked for more for so long lends its reader of Kafka to one that waits."""


class FromNow(NamedTuple):
    """Begin with what is committed from now on."""


class FromSecond(NamedTuple):
    """Begin with the first transaction of a second."""

    second: int


class FromEarliest(NamedTuple):
    """Begin with the first that the topic can tell."""


class FromVector(NamedTuple):
    """Begin after the positions of a token."""

    vector: Vector


Begin = FromNow | FromEarliest | FromSecond | FromVector | Checkpoint


class Streams:
    """All change streams of a front. Belongs to one event loop."""

    def __init__(
        self,
        kafka: KafkaCluster,
        metrics: FrontMetrics,
        *,
        streams_max: int = STREAMS_MAX,
        ring_bytes_max: int = BYTES_MAX,
    ) -> None:
        self._kafka = kafka
        self._metrics = metrics
        self._streams_max, self._ring_bytes_max = streams_max, ring_bytes_max
        self._hubs: dict[str, Hub] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="streams")
        self._followers = asyncio.Semaphore(FOLLOWERS_MAX)
        self._held_by: Counter[str] = Counter()
        """Readers of Kafka that a caller has, or waits for."""
        self._caller_of: dict[Follower, str] = {}
        self._readings: set[Reading] = set()
        self._following = 0
        self.stopping = asyncio.Event()
        """Set when the front stops: each stream ends."""

    def poll(self, follower: Follower) -> asyncio.Future[list[Item]]:
        """What a follower has, from a thread."""
        return asyncio.get_running_loop().run_in_executor(self._threads, follower.poll, POLL_S)

    def hub(self, keyspace: str) -> Hub:
        """The shared reader of a keyspace, which reads."""
        hub = self._hubs.get(keyspace)
        if hub is None:
            hub = self._hubs[keyspace] = Hub(self._kafka, keyspace, asyncio.get_running_loop(), self._ring_bytes_max)
        hub.start()
        return hub

    async def begin(
        self, keyspace: str, begin: Begin, *, ends_now: bool = False, ends_at_handover: bool = False
    ) -> Reading:
        """A stream that has begun. Close it. Raises `ReadError`.

        ``ends_now``: it ends with what is there by now. ``ends_at_handover``: when it has told all of a shard that
        others have succeeded.
        """
        if len(self._readings) >= self._streams_max:
            raise ReadError("too_many_streams", f"{len(self._readings)} streams are open already")
        reading = Reading(self, keyspace)
        self._readings.add(reading)
        self._count()
        try:
            if ends_now:
                reading.end_at(await self._published(keyspace))
            await reading.begin(begin, ends_at_handover=ends_at_handover)
        except BaseException:
            await reading.close()
            raise
        return reading

    def forget(self, reading: Reading) -> None:
        """A stream has ended."""
        self._readings.discard(reading)
        self._count()

    def _count(self, following: int = 0) -> None:
        self._following += following
        self._metrics.streams.labels("own").set(self._following)
        self._metrics.streams.labels("shared").set(len(self._readings) - self._following)

    async def take_follower(self, keyspace: str, start: Callable[[], Start] | Start) -> Follower:
        """Kafka's own reader for one stream, if one is free. Give it back. Raises `ReadError`."""
        caller = asking.get()
        try:
            async with asyncio.timeout(BEGIN_TIMEOUT_S):
                await self._acquire(caller)
        except TimeoutError:
            raise ReadError(
                "too_many_streams",
                f"{FOLLOWERS_MAX} streams are catching up, or half as many of {caller or 'this caller'}",
            ) from None
        self._count(following=1)

        def open_follower() -> Follower:
            topic = check_topics(self._kafka, keyspace)
            return Follower(self._kafka, topic, start if isinstance(start, Start) else start())

        opening = asyncio.get_running_loop().run_in_executor(self._threads, open_follower)
        try:
            follower = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)  # the reader has left meanwhile
            self._release(caller)
            raise
        except Exception as error:
            self._release(caller)
            if isinstance(error, FreshetError):
                raise read_error(error) from error
            raise
        self._caller_of[follower] = caller
        return follower

    async def _acquire(self, caller: str) -> None:
        """Waits for a free reader of Kafka; takes the one that was used least lately from a stream that lends it.

        A caller who has his half waits for one of his own.
        """
        while True:
            has_half = caller != "" and self._held_by[caller] >= FOLLOWERS_MAX // 2
            if has_half:
                await asyncio.sleep(LENT_S / 4)
            elif await self._acquired(caller):
                return
            lending = [
                reading
                for reading in self._readings
                if reading.lends_since is not None and (reading.caller == caller or not has_half)
            ]
            if lending:
                await min(lending, key=lambda reading: reading.lends_since or 0.0).lend()

    async def _acquired(self, caller: str) -> bool:
        """Whether a reader of Kafka came free soon."""
        self._held_by[caller] += 1  # already while it waits, else several at once would have more than their half
        try:
            async with asyncio.timeout(LENT_S / 4):
                await self._followers.acquire()
        except BaseException as error:
            self._held_by[caller] -= 1
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    async def give_back(self, follower: Follower) -> None:
        """Closes a reader that nobody polls."""
        self._release(self._caller_of.pop(follower))
        await asyncio.shield(asyncio.to_thread(follower.close))

    def _release(self, caller: str) -> None:
        self._held_by[caller] -= 1
        self._held_by += Counter()  # forgets who has none
        self._followers.release()
        self._count(following=-1)

    async def _published(self, keyspace: str) -> tuple[int, ...]:
        """As `stream.changes.starting.published_by_now`. Raises `ReadError`."""

        def look() -> tuple[int, ...]:
            return published_by_now(self._kafka, keyspace, check_topics(self._kafka, keyspace))

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, look)
        except FreshetError as error:
            raise read_error(error) from error

    def start_of(self, keyspace: str, begin: FromEarliest | FromSecond | FromVector | Checkpoint) -> Start:
        """Where to read from. Blocks. Raises `StreamTooOld`, `CheckpointError`, Kafka's errors."""
        topic = check_topics(self._kafka, keyspace)
        if isinstance(begin, FromEarliest):
            return start_at_earliest(self._kafka, keyspace, topic)
        if isinstance(begin, FromSecond):
            return start_at_time(self._kafka, keyspace, topic, begin.second)
        if isinstance(begin, FromVector):
            return start_after(self._kafka, keyspace, topic, begin.vector)
        return start_at_checkpoint(self._kafka, keyspace, topic, begin)

    async def close(self) -> None:
        """Ends all streams and readers."""
        self.stopping.set()
        hubs, self._hubs = list(self._hubs.values()), {}
        await asyncio.gather(*(asyncio.to_thread(hub.stop) for hub in hubs))
        self._threads.shutdown(wait=False, cancel_futures=True)


class Reading:
    """One stream. Iterate `batches`; then, or before, `close` it."""

    def __init__(self, streams: Streams, keyspace: str) -> None:
        self._streams, self._keyspace = streams, keyspace
        self.caller = asking.get()
        self._hub = streams.hub(keyspace)
        self._hub.readers += 1
        self._is_closed = False
        self._told_at: float | None = None
        """When its reader got what it has not come back for; None: it waits for more."""
        self._follower: Follower | None = None
        self._polling: asyncio.Future[list[Item]] | None = None
        self._ring: Ring | None = None
        self._number = 0
        self._ring_end: Watermark | None = None
        """The last one that was taken from the ring's end."""
        self._end: tuple[int, ...] | None = None
        self._places: dict[str, Place] = {}
        """What it has told, or passed over, of each shard."""
        self._read: tuple[int, ...] = ()
        """Partition → the offset up to which it was told what nobody can read: the ring has that for long, and other
        checkpoints than its own lie before it."""
        self._beginning = Beginning()
        self._going: set[str] | None = None
        """The shards that were going on when they were told, if it ends once one is over."""
        self._began: tuple[int, ...] = ()
        """Partition → the offset of its beginning. The ring may still have what was said before."""
        self.watermark: Watermark
        """The last one, with a checkpoint after all that was told. Set once the stream has begun."""

    def end_at(self, offsets: tuple[int, ...]) -> None:
        """It ends when all has been told that is whole before these, partition by partition."""
        self._end = offsets

    @property
    def has_ended(self) -> bool:
        """Whether all that is whole has been told of what it was asked for. Half a transaction may never be whole."""
        if self._is_over:
            return True
        read = self.watermark.read
        return self._end is not None and all(at >= end for at, end in zip(read, self._end, strict=True))

    @property
    def _is_over(self) -> bool:
        """Whether it ends since a shard is over."""
        going = self._going
        return going is not None and any(mark.is_over for shard, mark in self.watermark.marks.items() if shard in going)

    async def begin(self, begin: Begin, *, ends_at_handover: bool = False) -> None:
        """Finds the beginning. Raises `ReadError`."""
        await self._find(begin)
        if ends_at_handover:
            self._going = set(self.watermark.checkpoint.places)
            self._began = self.watermark.checkpoint.offsets

    async def _find(self, begin: Begin) -> None:
        if isinstance(begin, FromNow):
            await self._begin_now()
            return
        streams, keyspace, wanted = self._streams, self._keyspace, begin
        self._follower = await streams.take_follower(keyspace, lambda: streams.start_of(keyspace, wanted))
        follower = self._follower
        self._beginning = Beginning(follower.left_out, follower.skip_others)
        self.watermark = Watermark({}, follower.checkpoint, follower.offsets)
        self._places, self._read = follower.places, follower.offsets

    async def _begin_now(self) -> None:
        """At the ring's end. It lies before whatever is committed after this."""
        deadline = asyncio.get_running_loop().time() + BEGIN_TIMEOUT_S
        while (ring := self._hub.ring) is None:
            moved = self._hub.moved
            self._hub.start()
            if (left := deadline - asyncio.get_running_loop().time()) <= 0:
                failure = self._hub.failure
                raise ReadError("stream_unavailable", str(failure) if failure else "Kafka does not answer in time")
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, 1)):
                    await moved.wait()
        self._number, self.watermark = ring.end()
        self._ring, self._places = ring, dict(self.watermark.checkpoint.places)
        self._read = self.watermark.read

    async def batches(self, wait_s: float) -> AsyncIterator[list[tuple[Item, Checkpoint]]]:
        """What follows, each item with the checkpoint after it; an empty batch now and then, after up to ``wait_s``.

        Watermarks are not among the items. Raises `ReadError` if the stream can't go on.
        """
        while not self._streams.stopping.is_set():
            items = await (self._from_kafka() if self._follower is not None else self._from_ring(wait_s))
            batch = self._told(items)
            if self._follower is not None and not self._is_over:
                await self._join_ring(self._follower)
            self._told_at = monotonic()
            try:
                yield batch
            finally:
                self._told_at = None

    @property
    def lends_since(self) -> float | None:
        """Since when it does not need its reader of Kafka, by the monotonic clock; None: it has none or needs it."""
        told_at = self._told_at
        is_idle = self._follower is not None and told_at is not None and monotonic() - told_at >= LENT_S
        return told_at if is_idle else None

    async def lend(self) -> None:
        """Gives its reader of Kafka back. It takes another one when its own reader comes back."""
        follower, self._follower = self._follower, None
        if follower is not None:
            self._beginning.shards = follower.left_out
            await self._streams.give_back(follower)

    def _told(self, items: Iterable[Item]) -> list[tuple[Item, Checkpoint]]:
        """What is new of ``items``, up to where a shard is over: who went on behind that would never be told of it."""
        told = []
        for item in items:
            if self._is_new(item) and (rest := self._after_beginning(item)) is not None:
                told.append((rest, self._pass(rest)))
            if self._is_over:
                break
        return told

    def _is_new(self, item: Item) -> bool:
        if isinstance(item, Watermark):
            marks = item.marks
            if self._follower is None:
                marks = self._beginning.reached(item, self._places)
                self._forget_ended(item)
            checkpoint = item.checkpoint.at_or_past(self._places)
            self._places |= checkpoint.places
            self.watermark = Watermark(marks, checkpoint, item.read)
            self._read = tuple(map(max, self._read, item.read))
            # An older one may have a shard that was over before: who goes on behind its end would end at once.
            if self._going is not None and all(
                at >= first for at, first in zip(item.checkpoint.offsets, self._began, strict=True)
            ):
                follows = self._follower is not None  # it shows only shards of which it has read something
                self._going |= {shard for shard, mark in marks.items() if follows or not mark.is_over}
            return False
        if isinstance(item, Unreadable):
            return item.offset >= self._read[item.partition]
        return item.place > self._places.get(item.shard, NOWHERE)

    def _after_beginning(self, item: Item) -> Item | None:
        """What of a new item does not lie before the beginning."""
        if self._follower is not None or not isinstance(item, Transaction):
            return item
        told = self._beginning.told(item, is_known=item.shard in self._places)
        if told is None:
            self._places[item.shard] = item.place
        return told

    def _pass(self, item: Item) -> Checkpoint:
        if isinstance(item, Transaction):
            self._places[item.shard] = item.place
            if self._going is not None:
                self._going.add(item.shard)
        checkpoint = item.checkpoint.at_or_past(self._places)
        self.watermark = Watermark(self.watermark.marks, checkpoint, self.watermark.read)
        return checkpoint

    def _forget_ended(self, watermark: Watermark) -> None:
        """Lets go of shards of which the ring has nothing more: else no checkpoint is that of the item ever again."""
        for shard, mark in watermark.marks.items():
            if mark.is_over and self._places.get(shard, NOWHERE) <= mark.place:
                self._places.pop(shard, None)

    async def _from_kafka(self) -> list[Item]:
        follower = self._follower
        assert follower is not None
        self._polling = self._streams.poll(follower)
        try:
            return await asyncio.shield(self._polling)
        except FreshetError as error:
            raise read_error(error) from error

    async def _join_ring(self, follower: Follower) -> None:
        """Goes on there, if it can. All that ``follower`` has read must have been told: shards may be over by now."""
        ring = self._hub.ring
        if ring is None:
            self._hub.start()
        elif (joined := ring.join(follower.places, follower.begun, follower.offsets)) is not None:
            self._ring, self._number, self._follower = ring, joined.number, None
            self._beginning.shards = follower.left_out
            for shard, place in joined.passed.items():
                self._beginning.pass_over(shard, is_known=shard in self._places)
                self._places[shard] = max(place, self._places.get(shard, NOWHERE))
            await self._streams.give_back(follower)

    async def _from_ring(self, wait_s: float) -> list[Item]:
        moved, ring = self._hub.moved, self._ring
        found = (
            ring.read(self._number, BATCH_ITEMS, BATCH_BYTES) if ring is not None and ring is self._hub.ring else None
        )
        if found is None and ring is not None and ring.lost is not None:
            raise read_error(ring.lost)  # its offsets may be there again, with other events
        if found is None:
            checkpoint, streams, keyspace = self.watermark.checkpoint, self._streams, self._keyspace
            self._ring = None
            self._follower = await streams.take_follower(
                keyspace, lambda: self._beginning.added_to(streams.start_of(keyspace, checkpoint))
            )
            return []
        self._number = found.number
        if found.watermark is not None and found.watermark is not self._ring_end:
            self._ring_end = found.watermark
            return [*found.items, found.watermark]
        if not found.items:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await moved.wait()
        return found.items

    async def close(self) -> None:
        """Gives back what it has. It may be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self._hub.readers -= 1
        self._streams.forget(self)
        follower, self._follower = self._follower, None
        if follower is not None:
            if self._polling is not None:
                await asyncio.wait([self._polling])  # one thread at a time may use it
            await self._streams.give_back(follower)


def _close_unwanted(opening: asyncio.Future[Follower]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.get_loop().run_in_executor(None, opening.result().close)  # it waits for Kafka; nobody else may


def read_error(error: FreshetError) -> ReadError:
    """An error of the stream as its reader gets it."""
    if isinstance(error, StreamTooOld | CheckpointError):
        return ReadError(error.code, str(error), hint=error.hint)
    if isinstance(error, TopicReadError) and error.code == "offset_out_of_range":
        hint = "retention has passed this reader: read anew, and start from a second or from now"
        return ReadError("stream_too_old", str(error), hint=hint)
    if error.code == "checkpoint_lost":
        return ReadError("checkpoint_lost", str(error), hint=error.hint)
    return ReadError("stream_unavailable", str(error), hint=error.hint)
