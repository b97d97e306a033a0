"""Readers of change streams beside each other, over a real Kafka: slow ones, many, and topics that lost their start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from threading import Event, current_thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.streams.beginning import Beginning
from serving.streams.hub import _REPLACED, Hub
from serving.streams.reading import (
    FOLLOWERS_MAX,
    Begin,
    FromEarliest,
    FromNow,
    FromSecond,
    FromVector,
    Reading,
    Streams,
    _close_unwanted,
)
from serving.streams.ring import Joined, Ring
from stream.access.who import asking
from stream.changes.assembling import LogReplaced
from stream.changes.checkpoint import Checkpoint, CheckpointError, Place
from stream.changes.following import Follower
from stream.changes.items import Item, Mark, Transaction, Unreadable, Watermark
from stream.changes.start import FromTime, LeavesOut, Start
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.reader import TopicReadError
from stream.kafka.topics import Topic, ensure_topics, events_topic
from stream.publish.publisher import Publisher
from stream.publish.shard_producer import PublisherLost
from stream.publish.topology import DeclaredTopology
from stream.wire.batch import Batch, BatchLimits
from stream.wire.events import VALUE, RowChange, SourceTransaction
from stream.wire.keys import Layout, row_key
from tests.patience import PATIENCE_S
from tests.stream.publishing import publisher, transaction
from tokens import Vector

PARTITIONS = 2


class Source:
    """A publisher of numbered transactions."""

    def __init__(self, kafka: KafkaCluster, keyspace: str) -> None:
        ensure_topics(kafka, keyspace, PARTITIONS)
        self._publisher: Publisher = publisher(kafka, keyspace, PARTITIONS)
        self._publisher.open(lambda: ("MariaDB/0-1-0", 1_700_000_000))
        self.last = 0

    def publish(self, count: int) -> int:
        """``count`` more; the number of the last one."""
        for _ in range(count):
            self.last += 1
            self._publisher.publish(transaction(self.last))
        self._publisher.flush()
        return self.last

    def close(self) -> None:
        """Ends it."""
        self._publisher.close()


def told(number: int) -> bool:
    """Whether a transaction of `transaction` changes anything."""
    return bool(transaction(number).changes)


async def numbers(reading: Reading, last: int, pause_s: float = 0.0) -> list[int]:
    """The transactions that a stream tells, up to ``last``, which changes something."""
    found: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        async for batch in reading.batches(0.2):
            found += [int(item.gtid.rpartition("-")[2]) for item, _ in batch if isinstance(item, Transaction)]
            if last in found:
                return found
            await asyncio.sleep(pause_s)
    raise AssertionError("the stream has ended")


def run(kafka: KafkaCluster, keyspace: str, story: Callable[[Streams, Source], Awaitable[None]], **limits: int) -> None:
    """Runs ``story`` with a topic that has begun."""

    async def running() -> None:
        source = await asyncio.to_thread(Source, kafka, keyspace)
        streams = Streams(kafka, FrontMetrics(), **limits)
        try:
            await story(streams, source)
        finally:
            await streams.close()
            await asyncio.to_thread(source.close)

    asyncio.run(running())


@asynccontextmanager
async def begun(streams: Streams, keyspace: str, begin: Begin, *, ends_now: bool = False) -> AsyncIterator[Reading]:
    """A stream, closed afterwards."""
    reading = await streams.begin(keyspace, begin, ends_now=ends_now)
    try:
        yield reading
    finally:
        await reading.close()


def test_a_slow_reader_slows_nobody_and_misses_nothing(kafka: KafkaCluster, keyspace_name: str) -> None:
    """The shared ring passes a reader that stops: it goes back to Kafka, and is told each transaction once."""

    async def story(streams: Streams, source: Source) -> None:
        async with (
            begun(streams, keyspace_name, FromNow()) as fast,
            begun(streams, keyspace_name, FromNow()) as slow,
        ):
            await asyncio.to_thread(source.publish, 3)
            assert await numbers(slow, 3) == await numbers(fast, 3) == [1, 2, 3]
            last = await asyncio.to_thread(source.publish, 198)
            expected = [number for number in range(4, last + 1) if told(number)]
            assert await numbers(fast, last) == expected
            ring = streams.hub(keyspace_name).ring
            assert ring is not None
            assert ring.read(3, 1) is None, "the ring still has what the slow reader wants"
            assert await numbers(slow, last) == expected

    run(kafka, keyspace_name, story, ring_bytes_max=30_000)


def test_readers_from_everywhere_are_told_the_same(kafka: KafkaCluster, keyspace_name: str) -> None:
    """From each checkpoint, each position and a second: the same rest of the history, from Kafka and from the ring."""

    async def story(streams: Streams, source: Source) -> None:
        checkpoints: dict[int, Checkpoint] = {}
        epoch = 0
        async with begun(streams, keyspace_name, FromNow()) as reading:
            last = await asyncio.to_thread(source.publish, 41)
            async with asyncio.timeout(PATIENCE_S):
                async for batch in reading.batches(0.2):
                    for item, checkpoint in batch:
                        assert isinstance(item, Transaction)
                        epoch = item.place.epoch
                        checkpoints[int(item.gtid.rpartition("-")[2])] = checkpoint
                    if last in checkpoints:
                        break
        for number in (1, 2, 39, 40):
            vector = Vector.parse(f"time=0;shard={keyspace_name}/0;epoch={epoch};position=MariaDB/0-1-{number}")
            beginnings: list[Begin] = [FromVector(vector)]
            if number in checkpoints:
                beginnings.append(Checkpoint.parse(str(checkpoints[number])))
            for begin in beginnings:
                async with begun(streams, keyspace_name, begin) as reading:
                    assert await numbers(reading, last) == [each for each in range(number + 1, last + 1) if told(each)]

    run(kafka, keyspace_name, story)


def test_a_topic_that_lost_its_start_says_how_far_back_it_goes(kafka: KafkaCluster, keyspace_name: str) -> None:
    """After retention a checkpoint, a position and a second of before are refused, and never begin later in silence."""

    async def story(streams: Streams, source: Source) -> None:
        async with begun(streams, keyspace_name, FromNow()) as reading:
            first = reading.watermark.checkpoint
            await numbers(reading, await asyncio.to_thread(source.publish, 3))
            second = reading.watermark.checkpoint
            [epoch] = [place.epoch for place in second.places.values()]
            last = await asyncio.to_thread(source.publish, 2)
            await numbers(reading, last)
        topic = events_topic(kafka, keyspace_name)
        cut = [TopicPartition(topic, partition, offset - 1) for partition, offset in enumerate(second.offsets)]
        admin = AdminClient(client_settings(kafka))
        await asyncio.to_thread(lambda: [each.result() for each in admin.delete_records(cut).values()])
        vector = Vector.parse(f"time=0;shard={keyspace_name}/0;epoch={epoch};position=MariaDB/0-1-1")
        for begin in (first, FromVector(vector), FromSecond(1_700_000_001)):
            with pytest.raises(ReadError) as refused:
                await streams.begin(keyspace_name, begin)
            assert refused.value.code == "stream_too_old"
            assert "can start at second" in refused.value.hint
        async with begun(streams, keyspace_name, second) as reading:
            assert await numbers(reading, last) == [each for each in range(4, last + 1) if told(each)]

    run(kafka, keyspace_name, story)


def test_earliest_is_the_beginning_of_a_whole_topic(kafka: KafkaCluster, keyspace_name: str) -> None:
    """Also of one that begins with a backlog of long ago, which lies in Kafka under the times of its publication."""

    async def story(streams: Streams, source: Source) -> None:
        last = await asyncio.to_thread(source.publish, 9)
        async with begun(streams, keyspace_name, FromEarliest()) as reading:
            began, *found = await numbers(reading, last)
            assert (began, found) == (0, [number for number in range(1, last + 1) if told(number)])

    run(kafka, keyspace_name, story)


def test_a_topic_of_which_a_partition_has_expired_has_no_earliest_second(
    kafka: KafkaCluster, keyspace_name: str
) -> None:
    """What the others still have is not the whole of any second: it is refused, and nothing is left out in silence."""

    async def story(streams: Streams, source: Source) -> None:
        await asyncio.to_thread(source.publish, 3)
        async with begun(streams, keyspace_name, FromEarliest()):
            pass
        await asyncio.to_thread(source.close)  # it would mark the partition again
        cut = [TopicPartition(events_topic(kafka, keyspace_name), 0, OFFSET_END)]
        admin = AdminClient(client_settings(kafka))
        await asyncio.to_thread(lambda: [each.result() for each in admin.delete_records(cut).values()])
        with pytest.raises(ReadError, match="without a marker") as refused:
            await streams.begin(keyspace_name, FromEarliest())
        assert (refused.value.code, "start from now" in refused.value.hint) == ("stream_too_old", True)

    run(kafka, keyspace_name, story)


def publish_and_die(kafka: KafkaCluster, keyspace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second shard's source: two whole transactions, and the first batch of a large one before it is killed."""
    shards = (f"{keyspace}/0", f"{keyspace}/1")
    limits = BatchLimits(batch_bytes=20_000)
    source = Publisher(kafka, keyspace, shards[1], Layout(PARTITIONS), topology=DeclaredTopology(shards), limits=limits)
    source.open(lambda: ("MariaDB/0-2-0", 1_700_000_000))

    def numbered(number: int, rows: int) -> SourceTransaction:
        changes = [RowChange(row_key("shop.t", [key]), VALUE, b"{}") for key in range(rows)]
        return SourceTransaction(f"MariaDB/0-2-{number}", f"MariaDB/0-2-{number}", 1_700_000_000 + number, changes)

    source.publish(numbered(1, 1))
    source.publish(numbered(2, 3))
    source.flush()
    commit = source._commit

    def commit_and_die(batch: Batch) -> None:
        commit(batch)
        source._mark_lost(PublisherLost("killed"))

    monkeypatch.setattr(source, "_commit", commit_and_die)
    with pytest.raises(PublisherLost):
        source.publish(numbered(3, 5_000))


def test_a_stream_until_now_tells_all_that_is_whole_and_does_not_wait_for_half_a_transaction(
    kafka: KafkaCluster, keyspace_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard's source that died amid a large one may not come back for hours, and its last word may be far back."""
    monkeypatch.setattr("stream.changes.starting.WINDOW_RECORDS", 4)  # so the other shard is not in sight of the end

    async def story(streams: Streams, source: Source) -> None:
        async with begun(streams, keyspace_name, FromNow()) as reading:
            beginning = reading.watermark.checkpoint
        await asyncio.to_thread(publish_and_die, kafka, keyspace_name, monkeypatch)
        last = await asyncio.to_thread(source.publish, 41)
        found: list[Transaction] = []
        async with begun(streams, keyspace_name, beginning, ends_now=True) as reading:
            async with asyncio.timeout(PATIENCE_S):
                async for batch in reading.batches(0.2):
                    found += [item for item, _ in batch if isinstance(item, Transaction)]
                    if reading.has_ended:
                        break
        # its epoch began at 0
        assert [each.gtid for each in found if each.shard.endswith("/1")] == [f"MariaDB/0-2-{n}" for n in (0, 1, 2)]
        assert [each.gtid for each in found if each.shard.endswith("/0")] == [
            f"MariaDB/0-1-{number}" for number in range(1, last + 1) if told(number)
        ]

    run(kafka, keyspace_name, story)


def test_a_front_has_a_bound_of_streams(kafka: KafkaCluster, keyspace_name: str) -> None:
    """One more is refused, and begins once another has ended."""

    async def story(streams: Streams, source: Source) -> None:
        del source
        async with begun(streams, keyspace_name, FromNow()):
            with pytest.raises(ReadError) as refused:
                await streams.begin(keyspace_name, FromNow())
            assert refused.value.code == "too_many_streams"
        async with begun(streams, keyspace_name, FromNow()):
            pass

    run(kafka, keyspace_name, story, streams_max=1)


def test_a_reader_that_trickles_lends_its_reader_of_kafka(
    kafka: KafkaCluster, keyspace_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one, for three streams that never catch up: each is told everything once, whoever stops in between."""
    monkeypatch.setattr("serving.streams.reading.FOLLOWERS_MAX", 1)
    monkeypatch.setattr("serving.streams.reading.LENT_S", 0.05)
    monkeypatch.setattr(Ring, "join", lambda *_: None)

    async def story(streams: Streams, source: Source) -> None:
        async with begun(streams, keyspace_name, FromNow()) as reading:
            beginning = reading.watermark.checkpoint
        last = await asyncio.to_thread(source.publish, 30)
        expected = [number for number in range(1, last + 1) if told(number)]
        async with begun(streams, keyspace_name, beginning) as first:
            trickling = first.batches(0.2)
            found: list[int] = []
            async with asyncio.timeout(PATIENCE_S):
                while not found:
                    batch = await anext(trickling)
                    found = [int(item.gtid.rpartition("-")[2]) for item, _ in batch if isinstance(item, Transaction)]
            for _ in range(2):
                async with begun(streams, keyspace_name, beginning) as other:
                    assert await numbers(other, last) == expected
            last = await asyncio.to_thread(source.publish, 3)
            async with asyncio.timeout(PATIENCE_S):
                while last not in found:
                    batch = await anext(trickling)
                    found += [int(item.gtid.rpartition("-")[2]) for item, _ in batch if isinstance(item, Transaction)]
            assert found == [number for number in range(1, last + 1) if told(number)]

    run(kafka, keyspace_name, story)


def test_a_reader_that_lends_knows_which_shards_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks go back: a later transaction with an earlier time would be left out by the reader that it takes then."""

    async def story() -> None:
        streams = Streams(KafkaCluster("127.0.0.1:1"), FrontMetrics())
        monkeypatch.setattr(Streams, "hub", lambda *_: SimpleNamespace(readers=0))
        given: list[Any] = []

        async def give_back(follower: Any) -> None:
            given.append(follower)

        monkeypatch.setattr(streams, "give_back", give_back)
        reading, ahead = Reading(streams, "ks"), FromTime(9)
        reading._beginning = Beginning({"ks/0": ahead, "ks/1": ahead})
        follower = reading._follower = cast("Follower", SimpleNamespace(left_out={"ks/1": ahead}))
        await reading.lend()
        assert (given, reading._beginning.shards) == ([follower], {"ks/1": ahead})

    asyncio.run(story())


def test_what_a_stalled_reader_holds_is_bounded() -> None:
    """A batch of the ring ends once it is large enough, and has one item at least."""
    ring = Ring(Checkpoint("ks", "id", (0,)), (0,), bytes_max=100_000)
    ring.append([item(number, 1_000) for number in range(1, 9)])
    found = ring.read(0, 100, 6_000)
    assert found is not None
    assert (len(found.items), found.number, found.watermark) == (3, 3, None)
    alone = ring.read(3, 100, 1)
    assert alone is not None
    assert len(alone.items) == 1


def test_a_stream_that_can_not_begin_holds_no_reader_of_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the error is: else some failures later no stream could catch up any more."""

    def fails(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    async def story() -> None:
        streams = Streams(KafkaCluster("127.0.0.1:1"), FrontMetrics())
        for _ in range(FOLLOWERS_MAX + 1):
            with pytest.raises(KafkaException):
                await streams.take_follower("shop", Start(Checkpoint("shop", "id", (0,))))
        await streams.close()

    monkeypatch.setattr("serving.streams.reading.BEGIN_TIMEOUT_S", 0.2)
    monkeypatch.setattr("serving.streams.reading.check_topics", fails)
    asyncio.run(story())


def test_one_caller_leaves_readers_of_kafka_for_the_streams_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of streams that never catch up half are one caller's: its next one waits for one of them, others begin."""
    begin = Start(Checkpoint("shop", "id", (0,)))

    async def take(streams: Streams, caller: str) -> Follower:
        asking.set(caller)
        return await streams.take_follower("shop", begin)

    async def story() -> None:
        streams = Streams(KafkaCluster("127.0.0.1:1"), FrontMetrics())
        half = FOLLOWERS_MAX // 2
        wanted = [asyncio.create_task(take(streams, "much")) for _ in range(half + 1)]
        done, waiting = await asyncio.wait(wanted, timeout=PATIENCE_S, return_when=asyncio.FIRST_EXCEPTION)
        [refused] = [each for each in done if each.exception() is not None]
        assert not waiting
        assert getattr(refused.exception(), "code", "") == "too_many_streams"
        others = await asyncio.gather(*(take(streams, "other") for _ in range(half)))
        assert len(others) == half
        await streams.give_back(next(each for each in wanted if each is not refused).result())
        await take(streams, "much")
        await streams.close()

    monkeypatch.setattr("serving.streams.reading.BEGIN_TIMEOUT_S", 3.0)
    monkeypatch.setattr("serving.streams.reading.LENT_S", 0.05)
    monkeypatch.setattr("serving.streams.reading.Follower", lambda *_: Following(fails=False))
    monkeypatch.setattr("serving.streams.reading.check_topics", lambda *_: Topic("t", "id", 1))
    asyncio.run(story())


def test_a_reader_of_kafka_that_nobody_wants_any_more_is_closed_beside() -> None:
    """Closing waits for Kafka, perhaps for seconds: no other request of the front may."""
    closed: list[str] = []

    async def story() -> None:
        loop, is_closed = asyncio.get_running_loop(), asyncio.Event()

        class Unwanted:
            def close(self) -> None:
                closed.append(current_thread().name)
                loop.call_soon_threadsafe(is_closed.set)

        opening: Any = loop.create_future()
        opening.set_result(Unwanted())
        _close_unwanted(opening)
        async with asyncio.timeout(PATIENCE_S):
            await is_closed.wait()

    asyncio.run(story())
    assert closed != [current_thread().name]


def test_the_shared_reader_goes_on_in_no_other_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that was made anew while it paused has other events at the same offsets: its readers must be told."""
    monkeypatch.setattr("serving.streams.hub.check_topics", lambda *_: Topic("t", "second", 1))
    loop = asyncio.new_event_loop()
    hub = Hub(KafkaCluster("127.0.0.1:1"), "shop", loop)
    with pytest.raises(CheckpointError) as refused:
        hub._follow(Checkpoint("shop", "first", (5,)))
    loop.close()
    assert refused.value.code in _REPLACED


def test_readers_of_the_ring_hear_that_the_log_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their checkpoints may be valid in the log that came after: nobody would ever tell them."""

    async def story() -> None:
        streams = Streams(KafkaCluster("127.0.0.1:1"), FrontMetrics())
        hub = streams._hubs["shop"] = Hub(KafkaCluster("127.0.0.1:1"), "shop", asyncio.get_running_loop())
        hub.ring = Ring(Checkpoint("shop", "id", (0,)), (0,))
        async with begun(streams, "shop", FromNow()) as reading:
            hub._keep_following()
            with pytest.raises(ReadError) as told:
                await anext(aiter(reading.batches(0.1)))
        assert told.value.code == "checkpoint_lost"
        assert not hub.ring
        await streams.close()

    def follows(hub: Hub, _: Checkpoint | None) -> None:
        hub._stops.set()
        raise LogReplaced("lost")

    monkeypatch.setattr(Hub, "start", lambda _: None)
    monkeypatch.setattr(Hub, "_follow", follows)
    asyncio.run(story())


class Following:
    """A reader of Kafka that has read one message, and then fails or reads no more; for the first poll it waits."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.polls, self.is_closed = fails, 0, False
        self.checkpoint, self.places = Checkpoint("shop", "id", (0,)), dict[str, Place]()
        self.read: dict[str, Place] = {}
        self.begun = (0,)
        self.left_out: dict[str, LeavesOut] = {}
        self.skip_others: FromTime | None = None
        self.items: list[Item] = [Unreadable(0, 7, "bad_field", "", self.checkpoint)]

    @property
    def offsets(self) -> tuple[int, ...]:
        return (6 + self.polls,)

    def poll(self, _: float) -> list[Item]:
        self.polls += 1
        self.places = self.read
        if self.polls == 1:
            return self.items
        if self.fails:
            raise LogReplaced("lost")
        return []

    def close(self) -> None:
        self.is_closed = True


def test_who_leaves_while_its_reader_of_kafka_is_opened_holds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening one waits for Kafka: after some readers who didn't, no stream could catch up any more."""
    following, goes_on = Following(fails=False), Event()

    async def story() -> None:
        loop, is_opening = asyncio.get_running_loop(), asyncio.Event()

        def slow(*_: object) -> Topic:
            loop.call_soon_threadsafe(is_opening.set)
            goes_on.wait(PATIENCE_S)
            return Topic("t", "id", 1)

        monkeypatch.setattr("serving.streams.reading.check_topics", slow)
        streams = Streams(KafkaCluster("127.0.0.1:1"), FrontMetrics())
        taking = asyncio.create_task(streams.take_follower("shop", Start(Checkpoint("shop", "id", (0,)))))
        async with asyncio.timeout(PATIENCE_S):
            await is_opening.wait()
            taking.cancel()
            goes_on.set()
            with pytest.raises(asyncio.CancelledError):
                await taking
            while not following.is_closed:  # noqa: ASYNC110 - a thread closes it
                await asyncio.sleep(0.01)
        assert (streams._followers._value, sum(streams._held_by.values())) == (FOLLOWERS_MAX, 0)
        await streams.close()

    monkeypatch.setattr("serving.streams.reading.Follower", lambda *_: following)
    asyncio.run(story())


def test_who_waits_in_vain_for_a_reader_of_kafka_counts_as_having_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a caller whose streams were refused while others caught up would have used up his half for good."""
    monkeypatch.setattr("serving.streams.reading.BEGIN_TIMEOUT_S", 0.05)
    monkeypatch.setattr("serving.streams.reading.FOLLOWERS_MAX", 2)

    async def story() -> None:
        asking.set("one")
        streams = Streams(KafkaCluster("127.0.0.1:1"), FrontMetrics())
        for _ in range(2):  # others have them
            await streams._followers.acquire()
        with pytest.raises(ReadError) as refused:
            await streams.take_follower("shop", Start(Checkpoint("shop", "id", (0,))))
        assert (refused.value.code, streams._held_by["one"]) == ("too_many_streams", 0)
        await streams.close()

    asyncio.run(story())


def test_a_ring_that_nobody_fills_any_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared reader ends when it is idle: the next one would go on in its ring, behind a gap that nobody sees."""

    async def story() -> None:
        hub = Hub(KafkaCluster("127.0.0.1:1"), "shop", asyncio.get_running_loop())
        hub.ring = Ring(Checkpoint("shop", "id", (0,)), (0,))
        moved = hub.moved
        hub.start()
        async with asyncio.timeout(PATIENCE_S):
            await moved.wait()
        assert hub.ring is None
        hub.stop()

    monkeypatch.setattr(Hub, "_follow", lambda *_: None)
    asyncio.run(story())


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_joins_the_others_once_it_has_begun(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """Before it may not: it leaves out what they are told. It gives its reader of Kafka back, also when that fails."""
    following = Following(fails)
    monkeypatch.setattr("serving.streams.reading.Follower", lambda *_: following)
    monkeypatch.setattr("serving.streams.reading.check_topics", lambda *_: Topic("t", "id", 1))
    monkeypatch.setattr("serving.streams.reading.start_at_time", lambda *_: Start(following.checkpoint))
    monkeypatch.setattr(Hub, "start", lambda _: None)

    async def story() -> None:
        streams = Streams(KafkaCluster("127.0.0.1:1"), FrontMetrics())
        hub = streams._hubs["shop"] = Hub(KafkaCluster("127.0.0.1:1"), "shop", asyncio.get_running_loop())
        hub.ring = Ring(Checkpoint("shop", "id", (0,), {"a": Place(1, 1)}), (8,))  # behind that shard, which is silent
        hub.ring.append([Unreadable(0, 8, "bad_field", "", following.checkpoint)])
        async with begun(streams, "shop", FromSecond(1)) as reading:
            batches = reading.batches(0.1)
            assert [each.offset for each, _ in await anext(batches) if isinstance(each, Unreadable)] == [7]
            if fails:
                with pytest.raises(ReadError) as ended:
                    await anext(batches)
                assert ended.value.code == "checkpoint_lost"
            else:
                assert await anext(batches) == []
                assert following.is_closed
                assert [each.offset for each, _ in await anext(batches) if isinstance(each, Unreadable)] == [8]
        assert following.is_closed
        assert streams._followers._value == FOLLOWERS_MAX
        await streams.close()

    asyncio.run(story())


def test_a_stream_that_is_to_end_says_why_it_can_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is looked up first, and Kafka may be away then, too."""

    def fails(*_: object) -> None:
        raise TopicReadError("Kafka is away", hint="wait")

    async def story() -> None:
        streams = Streams(KafkaCluster("127.0.0.1:1"), FrontMetrics())
        with pytest.raises(ReadError, match="Kafka is away"):
            await streams.begin("shop", FromSecond(1), ends_now=True)
        await streams.close()

    monkeypatch.setattr("serving.streams.reading.published_by_now", fails)
    monkeypatch.setattr("serving.streams.reading.Follower", lambda *_: Following(fails=False))
    monkeypatch.setattr("serving.streams.reading.check_topics", lambda *_: Topic("t", "id", 1))
    monkeypatch.setattr("serving.streams.reading.start_at_time", lambda *_: Start(Checkpoint("shop", "id", (0,))))
    monkeypatch.setattr(Hub, "start", lambda _: None)
    asyncio.run(story())


def test_a_shared_reader_ends_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front that stops waits for it, and nothing else would end it."""
    told: list[bool] = []
    monkeypatch.setattr(Hub, "_follow", lambda hub, _: told.append(hub._stops.wait(PATIENCE_S)))
    loop = asyncio.new_event_loop()
    hub = Hub(KafkaCluster("127.0.0.1:1"), "shop", loop)
    hub.start()
    hub.stop()
    loop.close()
    assert told == [True]


def test_a_stream_tells_nothing_that_its_watermarks_have_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left out before its beginning is in the ring that it joins, too."""
    passed = Checkpoint("shop", "id", (0,), {"a": Place(1, 5)})
    following = Following(fails=False)
    following.items = [Watermark({}, passed, passed.offsets)]
    following.read = dict(passed.places)
    monkeypatch.setattr("serving.streams.reading.Follower", lambda *_: following)
    monkeypatch.setattr("serving.streams.reading.check_topics", lambda *_: Topic("t", "id", 1))
    monkeypatch.setattr("serving.streams.reading.start_at_time", lambda *_: Start(Checkpoint("shop", "id", (0,))))
    monkeypatch.setattr(Hub, "start", lambda _: None)

    async def story() -> None:
        streams = Streams(KafkaCluster("127.0.0.1:1"), FrontMetrics())
        hub = streams._hubs["shop"] = Hub(KafkaCluster("127.0.0.1:1"), "shop", asyncio.get_running_loop())
        hub.ring = Ring(Checkpoint("shop", "id", (0,)), (0,))
        hub.ring.append([item(number) for number in (4, 5, 6)])
        async with begun(streams, "shop", FromSecond(1)) as reading:
            assert await numbers(reading, 6) == [6]
        await streams.close()

    asyncio.run(story())


def item(number: int, size: int = 100) -> Item:
    """A transaction of one shard."""
    place = Place(1, number)
    gtid = f"MariaDB/0-1-{number}"
    return Transaction("a", place, gtid, gtid, 0, "", [], Checkpoint("ks", "id", (0,), {"a": place}), size)


def test_a_ring_lets_in_only_who_lacks_nothing() -> None:
    """A reader may join once it has what was dropped; one that asks for what was dropped is told so."""
    ring = Ring(Checkpoint("ks", "id", (0,), {"a": Place(1, 2)}), (5,), bytes_max=3_000)
    assert (ring.join({}, [0], [4]), ring.join({"a": Place(1, 2)}, [0], [0])) == (None, Joined(0, {}))
    assert ring.join({}, [0], [5]) == Joined(0, {"a": Place(1, 2)})  # it began behind all of that shard
    ring.append([item(number) for number in range(3, 13)])
    joined = ring.join({"a": Place(1, 99)}, [0], [0])
    assert joined
    first = joined.number
    found = ring.read(first, 100)
    assert found is not None
    dropped_to = min(each.place for each in found.items if isinstance(each, Transaction)).ordinal - 1
    assert ring.read(first - 1, 1) is None
    assert (ring.join({"a": Place(1, dropped_to)}, [0], [0]), ring.join({"a": Place(1, dropped_to - 1)}, [0], [0])) == (
        joined,
        None,
    )


def test_a_ring_lets_in_nobody_who_lacks_what_nobody_can_read() -> None:
    """An unreadable message lies behind no marker: a reader at the same places may not have read it yet."""
    checkpoint = Checkpoint("ks", "id", (0,), {"a": Place(1, 2)})
    ring = Ring(checkpoint, (0,), bytes_max=1_500)
    ring.append([Unreadable(0, 7, "bad_field", "", checkpoint), *(item(number) for number in range(3, 6))])
    assert (ring.join({"a": Place(1, 99)}, [0], [7]), ring.join({"a": Place(1, 99)}, [0], [8]) is not None) == (
        None,
        True,
    )


def test_a_ring_lets_in_who_begins_after_a_shard_is_over() -> None:
    """Such a reader never hears of that shard: it lacks nothing once it is past the offsets behind it."""
    ring = Ring(Checkpoint("ks", "id", (0,), {"a": Place(1, 2)}), (0,))
    ring.append([Watermark({}, Checkpoint("ks", "id", (7,), {"b": Place(1, 1)}), (7,))])
    assert (ring.join({"b": Place(1, 1)}, [0], [6]), ring.join({"b": Place(1, 1)}, [0], [7])) == (None, Joined(0, {}))


def test_what_is_dropped_later_lets_nobody_in_before_the_end_of_a_shard() -> None:
    """A message that nobody can read lies before the offsets behind which that shard is over: these count on."""
    over = Checkpoint("ks", "id", (7,), {"b": Place(1, 1)})
    ring = Ring(Checkpoint("ks", "id", (0,), {"a": Place(1, 2)}), (0,), bytes_max=1_500)
    ring.append([Unreadable(0, 2, "bad_field", "", over), Watermark({}, over, (7,))])
    ring.append([Unreadable(0, offset, "bad_field", "", over) for offset in (8, 9, 10)])
    assert ring.read(0, 1) is None, "the ring still has the first message"
    assert (ring.join({"b": Place(1, 1)}, [0], [6]), ring.join({"b": Place(1, 1)}, [0], [7])) == (None, Joined(2, {}))


def test_a_ring_lets_in_who_is_past_all_that_a_silent_shard_said() -> None:
    """Such a reader has not heard of that shard: what the ring has of it lies before the reader's beginning."""
    ring = Ring(Checkpoint("ks", "id", (0,)), (0,))
    ring.append([item(1), Watermark({}, Checkpoint("ks", "id", (3,), {"a": Place(1, 1)}), (8,))])
    ring.append([Watermark({}, Checkpoint("ks", "id", (9,), {"a": Place(1, 1), "b": Place(1, 1)}), (20,))])
    read = {"b": Place(1, 1)}
    assert (ring.join(read, [0], [7]), ring.join(read, [0], [8])) == (None, Joined(0, {"a": Place(1, 1)}))
    ring.append([item(2)])
    assert ring.join(read, [0], [99]) is None, "nobody knows yet how far the shard's new transaction goes"


def test_watermarks_do_not_fill_the_ring() -> None:
    """A quiet keyspace for a week drops nothing that a reader still needs."""
    ring = Ring(Checkpoint("ks", "id", (0,)), (0,), bytes_max=5_000)
    ring.append([item(1)])
    for _ in range(1_000):
        ring.append([Watermark({}, Checkpoint("ks", "id", (0,), {"a": Place(1, 1)}), (0,))])
    assert ring.join({"a": Place(1, 1)}, [0], [0]) == Joined(0, {})
    assert ring.end()[0] == 2


def test_a_reader_at_the_end_of_the_ring_is_told_each_later_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing changes a watermark takes the place of the one before it: its shards and clock must still come."""

    def watermark(*shards: str, as_of_ms: int) -> Watermark:
        marks = {shard: Mark(Place(1, 1), "MariaDB/0-1-1", 0, as_of_ms) for shard in shards}
        places = {shard: Place(1, 1) for shard in shards}
        return Watermark(marks, Checkpoint("shop", "id", (as_of_ms,), places), (as_of_ms,))

    async def story() -> None:
        streams = Streams(KafkaCluster("127.0.0.1:1"), FrontMetrics())
        hub = streams._hubs["shop"] = Hub(KafkaCluster("127.0.0.1:1"), "shop", asyncio.get_running_loop())
        ring = hub.ring = Ring(Checkpoint("shop", "id", (0,)), (0,))
        async with begun(streams, "shop", FromNow()) as reading:
            batches = aiter(reading.batches(0.01))
            for mark in (
                watermark("a", as_of_ms=1),
                watermark("a", "b", as_of_ms=2),
                watermark("a", "b", as_of_ms=3),
            ):
                ring.append([mark])
                assert await anext(batches) == []
                assert (reading.watermark.marks, reading.watermark.checkpoint.offsets) == (
                    mark.marks,
                    mark.checkpoint.offsets,
                )
            quiet = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            assert not quiet.done(), "it would ask again and again, and nobody else be answered"
            assert await quiet == []
        await streams.close()

    monkeypatch.setattr(Hub, "start", lambda _: None)
    asyncio.run(story())
