"""Change streams beside a shard that is silent for long: they share the front's reader, whatever they begin with."""

from __future__ import annotations

import asyncio

import pytest

from serving.streams.beginning import Beginning
from serving.streams.reading import FromNow, FromSecond, FromVector, Reading, Streams
from stream.changes.checkpoint import Checkpoint, Place
from stream.changes.items import Mark, RecordEvent, RowEvent, Transaction, Watermark
from stream.changes.start import AfterPosition, FromTime, Start
from stream.kafka.connection import KafkaCluster
from stream.publish.publisher import Publisher
from stream.publish.topology import DeclaredTopology
from stream.wire.events import VALUE, RowChange, SourceTransaction
from stream.wire.keys import Layout, row_key
from tests.patience import PATIENCE_S
from tests.serving.test_handed_over_streams import NEW as LIVE
from tests.serving.test_handed_over_streams import OLD as SILENT
from tests.serving.test_handed_over_streams import Handover, join, names, read, run
from tests.serving.test_streams import PARTITIONS, Source, begun, numbers, told
from tests.serving.test_streams import run as run_on_kafka
from tests.stream.changes.topics import KEYSPACE
from tokens import Position, Vector

BASE = 1_700_000_000
"""The second of transaction 0 of `Handover`."""


@pytest.mark.parametrize("knows", [False, True])
def test_a_stream_from_a_second_joins_beside_a_silent_shard_and_still_begins_at_that_second(
    monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    """When the shard speaks again, what it says of before is left out, from the ring and after being lent, too."""
    log = Handover()
    log.publish(1, 2, 3)
    log.share()
    begins_at, places = log.log.ends, log.end_of(SILENT) if knows else {}
    log.go_on(4, 5)
    log.share()
    skip = FromTime(BASE + 5)
    start = Start(Checkpoint(KEYSPACE, "topic-id", begins_at, places), dict.fromkeys(places, skip), skip)
    monkeypatch.setattr("serving.streams.reading.start_at_time", lambda *_: start)

    async def story(streams: Streams) -> None:
        reading: Reading = await streams.begin(KEYSPACE, FromSecond(BASE + 5))
        assert names(await join(reading)) == [(LIVE, 5)]
        assert set(reading.watermark.marks) == {LIVE}
        log.publish(4)
        log.go_on(6)
        log.share()
        assert names(await read(reading, 6)) == [(LIVE, 6)]
        assert set(reading.watermark.marks) == {LIVE}
        reading._ring = None  # it was too slow for the ring
        log.publish(5, 6)
        log.go_on(7)
        log.share()
        assert sorted(names(await join(reading))) == [(LIVE, 7), (SILENT, 5), (SILENT, 6)]
        await reading.close()

    run(monkeypatch, log, story)


def test_a_stream_after_a_token_joins_beside_a_shard_that_is_silent(
    kafka: KafkaCluster, keyspace_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token does not name it, and its last word is out of sight: nothing of it is told before it speaks again."""
    monkeypatch.setattr("stream.changes.starting.WINDOW_RECORDS", 4)
    shards = (f"{keyspace_name}/0", f"{keyspace_name}/1")

    def speak(first: int, count: int) -> None:
        with Publisher(
            kafka, keyspace_name, shards[1], Layout(PARTITIONS), topology=DeclaredTopology(shards)
        ) as silent:
            silent.open(lambda: ("MariaDB/0-2-0", BASE))
            for number in range(first, first + count):
                gtid = f"MariaDB/0-2-{number}"
                change = RowChange(row_key("shop.t", [number]), VALUE, b"{}")
                silent.publish(SourceTransaction(gtid, gtid, BASE + number, (change,)))
            silent.flush()

    async def story(streams: Streams, source: Source) -> None:
        async with begun(streams, keyspace_name, FromNow()) as shared:
            await asyncio.to_thread(speak, 1, 2)
            for _ in range(30):  # a batch each: the other shard is far behind
                last = await asyncio.to_thread(source.publish, 1)
            epoch = 0
            async with asyncio.timeout(PATIENCE_S):
                async for batch in shared.batches(0.2):
                    for item, _ in batch:
                        if isinstance(item, Transaction) and item.shard == shards[0]:
                            epoch = item.place.epoch
                    if epoch and any(isinstance(i, Transaction) and i.gtid.endswith(f"-1-{last}") for i, _ in batch):
                        break
            vector = Vector.parse(f"time=0;shard={shards[0]};epoch={epoch};position=MariaDB/0-1-20")
            async with begun(streams, keyspace_name, FromVector(vector)) as reading:
                assert await numbers(reading, last) == [number for number in range(21, last + 1) if told(number)]
                async with asyncio.timeout(PATIENCE_S):
                    async for batch in reading.batches(0.05):
                        assert batch == []
                        if reading._ring is not None:
                            break
                await asyncio.to_thread(speak, 3, 1)
                assert await numbers(reading, 3) == [3]

    run_on_kafka(kafka, keyspace_name, story)


def test_a_shared_watermark_tells_of_a_shard_once_it_has_come_to_the_beginning() -> None:
    """Its mark may say so: nothing follows it that is left out."""
    beginning = Beginning({"a": AfterPosition(1, Position.parse("MariaDB/0-1-2"))})
    places = {"a": Place(1, 1), "b": Place(1, 1)}

    def reached(number: int) -> set[str]:
        marks = {shard: Mark(Place(1, number), f"MariaDB/0-1-{number}", 0, 0) for shard in places}
        return set(beginning.reached(Watermark(marks, Checkpoint(KEYSPACE, "id", (0,), places), (0,)), places))

    assert [reached(number) for number in (1, 2, 3)] == [{"b"}, {"a", "b"}, {"a", "b"}]


def test_a_shared_watermark_ends_the_wait_for_a_second_by_the_sources_clock() -> None:
    """A shard that is quiet has no transaction of that second or later: its stream would tell no mark of it."""
    beginning, places = Beginning({"a": FromTime(BASE + 5)}), {"a": Place(1, 1)}

    def reached(second: int) -> set[str]:
        marks = {"a": Mark(Place(1, 1), "MariaDB/0-1-1", BASE, 1_000 * second)}
        return set(beginning.reached(Watermark(marks, Checkpoint(KEYSPACE, "id", (0,), places), (0,)), places))

    assert [reached(BASE + after) for after in (4, 5)] == [set(), {"a"}]


def test_a_void_of_the_position_itself_is_told_from_the_ring_too() -> None:
    """The shared reader may have read it with the transaction of that position, of which this stream wants no row."""
    position, checkpoint = "MariaDB/0-1-2", Checkpoint(KEYSPACE, "id", (0,))
    row, void = RowEvent(1, b"k", VALUE, b"{}"), RecordEvent(2, "TableVoid", {"table": "shop.t", "reason": ""})
    item = Transaction("a", Place(1, 2), position, position, BASE, "", [row, void], checkpoint, 100)
    beginning = Beginning({"a": AfterPosition(1, Position.parse(position))})
    item.cached["a choice"] = b"what is told of both"
    rest = beginning.told(item, is_known=True)
    assert rest is not None
    assert (rest.events, rest.cached, len(item.events)) == ([void], {}, 2)
    assert beginning.told(item, is_known=True) is item
