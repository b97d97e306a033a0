"""Where a stream may begin, by the markers of a topic that retention has cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from stream.changes.checkpoint import Checkpoint, Place
from stream.changes.start import AfterPosition
from stream.changes.starting import StreamTooOld, _At, _begins_by, _earliest_second, start_at_checkpoint
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import Topic
from tokens import Position


def marker(number: int, epoch: int = 1, time_ms: int = 0) -> _At:
    """The first marker of a partition, whose source began at the fifth transaction."""
    return _At(0, time_ms, Place(epoch, number), f"MariaDB/0-1-{number}", "MariaDB/0-1-5", 0)


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

    class Log:
        partitions = range(len(times_ms))

        def lows(self, _: object) -> dict[int, int]:
            return dict.fromkeys(self.partitions, 0)

        def ends(self, _: object) -> dict[int, int]:
            return dict.fromkeys(self.partitions, 9)

        def markers(self, ranges: Mapping[int, object]) -> Iterator[tuple[int, str, _At]]:
            for partition in ranges:
                time_ms = times_ms[partition]
                if time_ms is not None:
                    yield partition, "shop/0", marker(9, time_ms=time_ms)

    log: Any = Log()
    assert _earliest_second(log) == second


def test_a_transaction_whose_order_to_a_position_is_unknown_is_told() -> None:
    """Twice is better than never: of another domain the position says nothing."""
    skip = AfterPosition(1, Position.parse("MariaDB/0-1-9"))
    left_out = [skip.leaves_out(Place(1, 1), f"MariaDB/{each}", 0) for each in ("0-1-8", "0-1-9", "0-1-10", "1-1-8")]
    assert left_out == [True, True, False, False]


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
