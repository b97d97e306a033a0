"""Where a stream may begin, by the markers of a topic that retention has cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from stream.changes.checkpoint import Checkpoint, CheckpointError, Place
from stream.changes.start import AfterPosition, FromTime
from stream.changes.starting import (
    CLOCK_AHEAD_S,
    StreamTooOld,
    _At,
    _back_to_markers,
    _begins_by,
    _earliest_second,
    _marker,
    _require_kept,
    _search,
    published_by_now,
    start_after,
    start_at_checkpoint,
    start_at_earliest,
    start_at_time,
)
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import Topic
from stream.publish.publisher import record_time_ms
from stream.wire.codec import NewerWireError, PartitionReader, header_of
from tests.consumers.histories import marker as told_marker
from tests.upgrades.next_version import HINT, announcement
from tokens import Position, Vector


def marker(number: int, epoch: int = 1, time_ms: int = 0) -> _At:
    """The first marker of a partition, whose source began at the fifth transaction."""
    return _At(0, time_ms, Place(epoch, number), f"MariaDB/0-1-{number}", "MariaDB/0-1-5", 0)


class Markers:
    """A log of which the markers are known: of each partition, with their shards. Each ends at 100."""

    def __init__(self, *markers: Sequence[tuple[str, _At]], low: int = 0) -> None:
        self._markers, self._low = markers, low
        self.partitions = range(len(markers))
        self.kafka, self.topic = KafkaCluster("127.0.0.1:1"), Topic("t", "id", len(markers))

    def lows(self, _: object) -> dict[int, int]:
        """As much of each has expired."""
        return dict.fromkeys(self.partitions, self._low)

    def ends(self, _: object) -> dict[int, int]:
        """As said above."""
        return dict.fromkeys(self.partitions, 100)

    def markers(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[tuple[int, str, _At]]:
        """Those in ranges of offsets."""
        for partition, (start, end) in ranges.items():
            for shard, each in self._markers[partition]:
                if start <= each.offset < end:
                    yield partition, shard, each


@pytest.mark.parametrize(
    ("first", "is_whole", "begins"),
    [
        (marker(8), False, True),
        (marker(9), False, True),
        (marker(12), False, False),
        (marker(12), True, True),
        (marker(1, epoch=2), True, False),
        (marker(1, epoch=2), False, False),
    ],
)
def test_a_partition_has_everything_after_a_position_by_its_first_marker(
    *, first: _At, is_whole: bool, begins: bool
) -> None:
    """One that begins with a later history lacks the rest of the one that the position is of, however whole it is."""
    skip = AfterPosition(1, Position.parse("MariaDB/0-1-9"))
    assert _begins_by(first, skip, is_whole=is_whole) is begins


@pytest.mark.parametrize(("times_ms", "second"), [((5_000, 7_999), 8), ((7_000, 5_000), 8), ((5_000, None), 0)])
def test_the_earliest_second_is_the_one_after_the_first_markers(times_ms: tuple[int | None, ...], second: int) -> None:
    """What a partition had of the second of its first marker may be gone. One without a marker tells no second."""

    log: Any = Markers(*([("shop/0", marker(9, time_ms=each))] if each is not None else [] for each in times_ms))
    assert _earliest_second(log) == second


@pytest.mark.parametrize(("said_again_at", "found"), [(None, 0), (60, 59)])
def test_where_a_shard_is_silent_nothing_is_known_to_lie_behind(
    said_again_at: int | None, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own marker has to say that a position is still to come: else a stream would begin after what it asked for."""
    monkeypatch.setattr("stream.changes.starting.WINDOW_RECORDS", 4)
    said = [("shop/0", marker(8)._replace(offset=2)), ("shop/1", marker(1)._replace(offset=90))]
    if said_again_at is not None:
        said.append(("shop/0", marker(8)._replace(offset=said_again_at)))
    said.append(("shop/0", marker(12)._replace(offset=10 if said_again_at is None else 70)))
    log: Any = Markers(said)
    low = _search(log, {"shop/0": AfterPosition(1, Position.parse("MariaDB/0-1-9"))})
    assert low == {0: found}


def test_a_transaction_whose_order_to_a_position_is_unknown_is_told() -> None:
    """Twice is better than never: of another domain the position says nothing."""
    skip = AfterPosition(1, Position.parse("MariaDB/0-1-9"))
    told = [skip.told(Place(1, 1), f"MariaDB/{each}", 0, []) for each in ("0-1-8", "0-1-9", "0-1-10", "1-1-8")]
    assert told == [None, None, [], []]
    reached = [skip.is_reached(Place(1, 1), f"MariaDB/{each}", 0) for each in ("0-1-8", "0-1-9", "0-1-10", "1-1-8")]
    assert reached == [False, True, True, True], "and nothing waits for what can't be told"


def test_a_checkpoint_whose_anchor_has_expired_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may be the right one, and says so no more: its reader is told how far back a stream can begin."""
    monkeypatch.setattr("stream.changes.starting.start_offsets", lambda *_: {0: 5})
    monkeypatch.setattr("stream.changes.starting.end_offsets", lambda *_, **__: {0: 9})
    monkeypatch.setattr("stream.changes.starting.read_ranges", lambda *_: iter(()))
    monkeypatch.setattr("stream.changes.starting._earliest_second", lambda _: 7)
    kafka, topic = KafkaCluster("127.0.0.1:1"), Topic("t", "id", 1)
    with pytest.raises(StreamTooOld) as refused:
        start_at_checkpoint(kafka, "shop", topic, Checkpoint("shop", "id", (5,), {}, (77,)))
    assert refused.value.earliest == 7
    unanchored = Checkpoint("shop", "id", (5,))
    assert start_at_checkpoint(kafka, "shop", topic, unanchored).checkpoint == unanchored


def test_a_checkpoint_behind_the_end_of_its_topic_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of which no anchor is known: the offset comes again, with something else behind it."""
    monkeypatch.setattr("stream.changes.starting.start_offsets", lambda *_: {0: 0, 1: 0})
    ends = {True: {0: 9, 1: 3}, False: {0: 9, 1: 4}}
    monkeypatch.setattr("stream.changes.starting.end_offsets", lambda *_, committed=True: ends[committed])
    kafka, topic = KafkaCluster("127.0.0.1:1"), Topic("t", "id", 2)
    with pytest.raises(CheckpointError) as lost:
        start_at_checkpoint(kafka, "shop", topic, Checkpoint("shop", "id", (5, 5)))
    assert lost.value.code == "checkpoint_lost"
    at_end = Checkpoint("shop", "id", (5, 4))
    assert start_at_checkpoint(kafka, "shop", topic, at_end).checkpoint == at_end, "an open transaction hides it only"


@pytest.mark.parametrize(
    ("before", "markers", "is_kept"),
    [
        (marker(8), [], True),
        (None, [marker(8)], True),
        (None, [marker(12)], False),
        (None, [], False),
        (marker(12), [marker(8)], True),
        (marker(12), [marker(12)], False),
    ],
)
def test_a_stream_begins_after_a_position_only_where_all_that_follows_it_is_kept(
    *, before: _At | None, markers: Sequence[_At], is_kept: bool
) -> None:
    """A marker that is past the position proves nothing of what lies between: retention may have taken it."""
    log: Any = Markers([("shop/0", each._replace(offset=20)) for each in markers], low=10)
    skip = AfterPosition(1, Position.parse("MariaDB/0-1-9"))
    with nullcontext() if is_kept else pytest.raises(StreamTooOld):
        _require_kept(log, "shop/0", skip, {0: before} if before is not None else {})


def test_the_last_marker_of_each_shard_is_looked_for_in_each_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that says little would else be read from where others are: what it had not finished there is lost."""
    monkeypatch.setattr("stream.changes.starting.WINDOW_RECORDS", 4)
    spoken, quiet = ("shop/0", marker(8)), ("shop/1", marker(3))
    log: Any = Markers(
        [(spoken[0], spoken[1]._replace(offset=98)), (quiet[0], quiet[1]._replace(offset=97))],
        [(quiet[0], quiet[1]._replace(offset=20)), (spoken[0], spoken[1]._replace(offset=99))],
    )
    seen, checkpoint = _back_to_markers(log, "shop", {0: 100, 1: 100})
    assert checkpoint.offsets == (98, 21)
    assert seen.bases() == {"shop/0": Place(1, 8), "shop/1": Place(1, 3)}


def test_a_token_of_several_keyspaces_begins_a_stream_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session's token names all that it has seen; of other keyspaces the topic has nothing."""
    log = Markers([("shop/0", marker(8))])
    monkeypatch.setattr("stream.changes.starting._Log", lambda *_: log)
    token = Vector({shard: (1, Position.parse("MariaDB/0-1-9")) for shard in ("shop/0", "bank/0")})
    start = start_after(log.kafka, "shop", log.topic, token)
    assert set(start.skips) == {"shop/0"}
    with pytest.raises(CheckpointError):
        start_after(log.kafka, "other", log.topic, token)


@pytest.mark.parametrize("said_at", [(0, 10), (10, 99)])
def test_a_token_of_an_epoch_that_never_was_begins_no_stream(
    said_at: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that follows would be left out for good, without a word. A position of the last epoch may be yet to come."""
    log = Markers([("shop/0", marker(8, epoch)._replace(offset=at)) for epoch, at in zip((4, 5), said_at, strict=True)])
    monkeypatch.setattr("stream.changes.starting._Log", lambda *_: log)

    def begin(epoch: int) -> Mapping[str, Any]:
        token = Vector({"shop/0": (epoch, Position.parse("MariaDB/0-1-99"))})
        return start_after(log.kafka, "shop", log.topic, token).skips

    assert set(begin(5)) == {"shop/0"}
    with pytest.raises(CheckpointError) as refused:
        begin(6)
    assert refused.value.code == "checkpoint_lost"


def test_an_epoch_that_begins_behind_the_place_of_a_stream_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Markers before the beginning are of the epoch before; the token's own has come since."""
    monkeypatch.setattr("stream.changes.starting.WINDOW_RECORDS", 4)
    log = Markers([("shop/0", marker(8, epoch)._replace(offset=at)) for at in range(100) for epoch in [4 + (at > 60)]])
    monkeypatch.setattr("stream.changes.starting._Log", lambda *_: log)
    start = start_after(log.kafka, "shop", log.topic, Vector({"shop/0": (5, Position.parse("MariaDB/0-1-8"))}))
    assert start.checkpoint.places == {"shop/0": Place(4, 8)}


def test_a_shard_whose_name_says_no_keyspace_may_be_of_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that names it begins a stream where the topic has it."""
    log = Markers([("bare", marker(8))])
    monkeypatch.setattr("stream.changes.starting._Log", lambda *_: log)
    token = Vector({"bare": (1, Position.parse("MariaDB/0-1-9"))})
    assert set(start_after(log.kafka, "shop", log.topic, token).skips) == {"bare"}


def test_a_stream_begins_with_the_first_second_that_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies before it may be gone; behind it each shard is left out up to it, also one that says nothing yet."""
    kept = [("shop/0", marker(9, time_ms=5_000)._replace(offset=20)), ("shop/0", marker(12)._replace(offset=70))]
    log = Markers(kept, low=10)
    monkeypatch.setattr("stream.changes.starting._Log", lambda *_: log)
    monkeypatch.setattr("stream.changes.starting.offsets_for_timestamp", lambda *_: {0: 50})
    first = 6 + CLOCK_AHEAD_S
    with pytest.raises(StreamTooOld) as refused:
        start_at_time(log.kafka, "shop", log.topic, first - 1)
    assert refused.value.earliest == first
    start = start_at_time(log.kafka, "shop", log.topic, first)
    assert start == start_at_earliest(log.kafka, "shop", log.topic)
    assert (start.skips, start.skip_others) == ({"shop/0": FromTime(first)}, FromTime(first))
    assert (start.checkpoint.offsets, start.checkpoint.places) == ((21,), {"shop/0": Place(1, 9)})
    assert published_by_now(log.kafka, "shop", log.topic) == (71,)


def test_a_server_whose_clock_is_ahead_of_its_sources_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it committed at 11.1 is published at 10.6 by the source's clock, and Kafka's index has it at that time."""
    published_ms = record_time_ms(0, 1_700_000_011, 1_700_000_010.6)
    times_ms = [1_700_000_000_000, 1_700_000_005_000, published_ms, published_ms + 1_000]
    markers = [marker(number, time_ms=time)._replace(offset=number) for number, time in enumerate(times_ms)]
    log = Markers([("shop/0", each) for each in markers])

    def search(*asked: Any) -> dict[int, int]:
        return {0: next(number for number, time in enumerate(times_ms) if time >= asked[-1] * 1000)}

    monkeypatch.setattr("stream.changes.starting._Log", lambda *_: log)
    monkeypatch.setattr("stream.changes.starting.offsets_for_timestamp", search)
    start = start_at_time(log.kafka, "shop", log.topic, 1_700_000_011)
    assert start.checkpoint.offsets[0] <= 2
    assert start.skip_others == FromTime(1_700_000_011)


@pytest.mark.parametrize("lows", [{0: 0, 1: 0}, {0: 0, 1: 10}])
def test_the_beginning_of_a_topic_is_told_if_nothing_of_it_is_gone(
    lows: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a partition that has lost its own, the rest of the others would be told as if it were all."""
    log = Markers(*[[("shop/0", marker(9, time_ms=5_000)._replace(offset=20))]] * 2)
    monkeypatch.setattr(log, "lows", lambda _: lows)
    monkeypatch.setattr("stream.changes.starting._Log", lambda *_: log)
    monkeypatch.setattr("stream.changes.starting.offsets_for_timestamp", lambda *_: {0: 50, 1: 50})
    start = start_at_earliest(log.kafka, "shop", log.topic)
    assert start.checkpoint.offsets == ((0, 0) if not any(lows.values()) else (21, 21))


@pytest.mark.parametrize(
    ("checkpoint", "code"),
    [
        (Checkpoint("bank", "id", (5,)), "bad_checkpoint"),
        (Checkpoint("shop", "other", (5,)), "checkpoint_lost"),
        (Checkpoint("shop", "id", (5, 5)), "checkpoint_lost"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(checkpoint: Checkpoint, code: str) -> None:
    """Its offsets lead to other events here. Kafka is not asked."""
    with pytest.raises(CheckpointError) as refused:
        start_at_checkpoint(KafkaCluster("127.0.0.1:1"), "shop", Topic("t", "id", 1), checkpoint)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("said", "is_beginning"),
    [
        ({}, True),
        ({"whole": False}, False),
        ({"position": "nonsense"}, False),
        ({"low_water": "nonsense"}, False),
    ],
)
def test_only_a_whole_marker_can_be_a_beginning(said: dict[str, Any], is_beginning: bool) -> None:
    """One in the middle of a transaction has parts of it before it, which would never be told."""
    message = told_marker(5, **said)
    assert (_marker(PartitionReader(), message) is not None) is is_beginning
    assert _marker(PartitionReader(), message[:-1]) is None


def test_a_marker_that_only_a_newer_version_can_read_is_no_beginning() -> None:
    """One before it is, if there is any: the stream that begins there says that it needs a newer Freshet."""
    reader, schema = PartitionReader(), HINT | {"name": "freshet.Marker"}
    reader.decode(announcement(schema, "shop/0"))
    message = header_of(schema) + b"\x02s\0"
    with pytest.raises(NewerWireError):
        reader.decode(message)
    assert _marker(reader, message) is None
