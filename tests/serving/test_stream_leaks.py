"""Streams that fail, or whose readers leave, keep nothing: neither a place among the streams nor a thread's reader."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from threading import Event
from typing import Any

import pytest

from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.streams import hub as hubs
from serving.streams.hub import IDLE_S, Hub
from serving.streams.reading import FromSecond, Reading, Streams
from serving.streams.ring import Joined, Ring
from stream.changes.checkpoint import Checkpoint
from stream.changes.following import Follower
from stream.changes.items import Item
from stream.changes.start import FromTime, Start
from stream.changes.starting import StreamTooOld
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import Topic
from tests.patience import PATIENCE_S
from tests.serving.test_streams import Following

KAFKA = KafkaCluster("127.0.0.1:1")
BEGIN = Start(Checkpoint("shop", "id", (0,)))
start_hub = Hub.start
"""As it is; tests here start none by themselves."""


@pytest.fixture(autouse=True)
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no Kafka, and no thread looks for one."""
    monkeypatch.setattr("serving.streams.reading.check_topics", lambda *_: Topic("t", "id", 1))
    monkeypatch.setattr(Hub, "start", lambda _: None)


def test_streams_that_can_not_begin_take_no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody could begin one any more after some readers who asked for what is gone."""

    def gone(*_: object) -> Start:
        raise StreamTooOld("it is gone", 7)

    async def story() -> None:
        streams = Streams(KAFKA, FrontMetrics(), streams_max=1)
        for _ in range(3):
            with pytest.raises(ReadError) as refused:
                await streams.begin("shop", FromSecond(1))
            assert refused.value.code == "stream_too_old"
        assert (len(streams._readings), streams.hub("shop").readers, streams._following) == (0, 0, 0)
        assert dict(streams._held_by) == {}, "a caller who has none is not remembered"
        await streams.close()

    monkeypatch.setattr("serving.streams.reading.start_at_time", gone)
    monkeypatch.setattr("serving.streams.reading.Follower", lambda *_: Following(fails=False))
    asyncio.run(story())


def test_a_reader_of_kafka_that_a_thread_polls_is_not_closed_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client may crash the process; its reader may leave at any moment all the same."""
    goes_on = Event()

    class Slow(Following):
        is_done = False

        def poll(self, timeout_s: float) -> list[Item]:
            goes_on.wait(PATIENCE_S)
            self.is_done = True
            return super().poll(timeout_s)

    following = Slow(fails=False)
    monkeypatch.setattr("serving.streams.reading.start_at_time", lambda *_: BEGIN)
    monkeypatch.setattr("serving.streams.reading.Follower", lambda *_: following)

    async def story() -> None:
        streams, was_done = Streams(KAFKA, FrontMetrics()), list[bool]()

        async def give_back(_: Follower) -> None:
            was_done.append(following.is_done)

        monkeypatch.setattr(streams, "give_back", give_back)
        reading = await streams.begin("shop", FromSecond(1))
        batches: Any = reading.batches(0.1)
        asked = asyncio.create_task(anext(batches))
        async with asyncio.timeout(PATIENCE_S):
            while reading._polling is None:  # noqa: ASYNC110 - it says so nowhere else
                await asyncio.sleep(0)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            closing = asyncio.create_task(reading.close())
            await asyncio.sleep(0)
            goes_on.set()
            await closing
        assert was_done == [True]
        await streams.close()

    asyncio.run(story())


def test_a_stream_that_joins_the_others_takes_along_what_it_still_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a shard that has begun meanwhile nothing is left out any more, whatever the clock of its source does."""
    skip = FromTime(9)
    following = Following(fails=False)
    following.left_out = {"a": skip, "b": skip}
    monkeypatch.setattr("serving.streams.reading.start_at_time", lambda *_: BEGIN)
    monkeypatch.setattr("serving.streams.reading.Follower", lambda *_: following)

    async def story() -> None:
        streams = Streams(KAFKA, FrontMetrics())
        hub = streams.hub("shop")
        hub.ring = Ring(following.checkpoint, (0,))
        reading: Reading = await streams.begin("shop", FromSecond(9))
        assert reading._beginning.shards == {"a": skip, "b": skip}
        following.left_out = {"b": skip}
        async with asyncio.timeout(PATIENCE_S):
            await anext(aiter(reading.batches(0.1)))
        assert (reading._follower, reading._beginning.shards) == (None, {"b": skip})
        await reading.close()
        await streams.close()

    monkeypatch.setattr(Ring, "join", lambda *_: Joined(0, {}))
    asyncio.run(story())


def test_a_shared_reader_goes_on_for_a_while_after_its_last_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long there was one: who comes back a moment later must not wait for a new one."""
    now = [1_000.0]
    monkeypatch.setattr(hubs, "monotonic", lambda: now[0])
    loop = asyncio.new_event_loop()
    hub = Hub(KAFKA, "shop", loop)
    loop.close()
    hub.readers = 1
    now[0] += 10 * IDLE_S
    assert not hub._is_idle()
    hub.readers = 0
    now[0] += IDLE_S - 1
    assert not hub._is_idle()
    now[0] += 2
    assert hub._is_idle()


def test_a_shared_reader_that_follows_again_fails_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who begins when it is away the next time would be told why it was the time before."""
    monkeypatch.setattr(hubs, "check_topics", lambda *_: Topic("t", "id", 1))
    monkeypatch.setattr(hubs, "start_and_end", lambda *_: (BEGIN, (0,)))
    monkeypatch.setattr(hubs, "Follower", lambda *_: nullcontext())
    loop = asyncio.new_event_loop()
    hub = Hub(KAFKA, "shop", loop)
    loop.close()
    monkeypatch.setattr(hub, "failure", StreamTooOld("it was", 7))
    hub._stops.set()
    hub._follow(None)
    assert (hub.failure, hub.ring is not None) == (None, True)


def test_a_shared_reader_that_begins_again_waits_for_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long after the last ones it would end at once, and the next ones would wait in vain."""
    now = 1_000.0
    monkeypatch.setattr(hubs, "monotonic", lambda: now)
    monkeypatch.setattr(Hub, "_run", lambda _: None)
    loop = asyncio.new_event_loop()
    hub = Hub(KAFKA, "shop", loop)
    loop.close()
    now += 10 * IDLE_S
    start_hub(hub)
    assert not hub._is_idle()
