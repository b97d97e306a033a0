"""What a publisher that opens makes of the markers that it finds, damaged and foreign ones among them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stream.kafka.connection import KafkaCluster
from stream.publish import markers
from stream.publish.markers import Markers, read_markers
from stream.wire.codec import current_schema, encode


def _marker(shard: str, layout: str, continuity: int = 7, previous: int = 0, epoch: int = 3) -> bytes:
    return encode(
        "Marker",
        {
            "shard": shard,
            "epoch": epoch,
            "ordinal": 5,
            "position": "MariaDB/0-1-5",
            "timestamp": 1,
            "low_water": "MariaDB/0-1-1",
            "layout": layout,
            "whole": True,
            "continuity": continuity,
            "previous": previous,
            "reader_version": 1,
            "as_of_ms": 0,
        },
    )


def test_a_damaged_marker_is_passed_over() -> None:
    """One bad message near a tail must not keep the source from starting: nobody else would publish past it."""
    found = Markers()
    assert found.see("ks/0", 1, _marker("ks/0", "xxh3_64;buckets=4096;partitions=2"))
    assert not found.see("ks/0", 1, current_schema("Marker").header + b"\x02")
    assert found.own == {1: (3, 7)}


def test_a_stray_marker_does_not_say_what_the_layout_is() -> None:
    """The shard's own markers do; a foreign one counts only while there is none of them."""
    found = Markers()
    found.see("ks/0", 0, _marker("other/0", "xxh3_64;partitions=9"))
    assert found.layout == "xxh3_64;partitions=9"
    found.see("ks/0", 0, _marker("ks/0", "xxh3_64;partitions=2"))
    found.see("ks/0", 0, _marker("other/0", "xxh3_64;partitions=9"))
    assert found.layout == "xxh3_64;partitions=2"


@pytest.mark.parametrize(
    ("chain", "is_whole"),
    [
        ([(3, 7, 0), (3, 8, 7), (3, 9, 8)], True),
        ([(3, 7, 0), (3, 7, 0), (3, 8, 7)], True),
        ([(3, 7, 6), (4, 21, 20)], True),
        ([(3, 0, 0), (3, 8, 7)], True),
        ([(3, 7, 0), (3, 8, 0)], True),
        ([(3, 7, 0), (3, 9, 8)], False),
        ([(3, 7, 0), (3, 9, 8), (3, 10, 9)], False),
    ],
    ids=[
        "each follows the last",
        "one twice",
        "another epoch",
        "an older version's",
        "links none",
        "a gap",
        "not last",
    ],
)
def test_a_batch_that_is_missing_in_the_middle_is_noticed(chain: list[tuple[int, int, int]], *, is_whole: bool) -> None:
    """Of two producers that take turns one may have left its end out in a partition, and the other one not."""
    found = Markers()
    for epoch, continuity, previous in chain:
        found.see("ks/0", 1, _marker("ks/0", "xxh3_64;partitions=2", continuity, previous, epoch))
    assert found.gaps == ({} if is_whole else {1: 3})


def test_markers_that_are_read_again_from_further_back_are_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one of the larger window does not follow the last one of the smaller window before it."""
    chain = [_marker("ks/0", "xxh3_64;partitions=2", each, each - 1) for each in (7, 8, 9)]
    looks: list[tuple[int, int]] = []

    def read(_kafka: object, _topic: str, ranges: dict[int, tuple[int, int]], **_: Any) -> list[Any]:
        looks.append(ranges[1])
        return [SimpleNamespace(partition=lambda: 1, value=lambda at=at: chain[at]) for at in range(*ranges[1])]

    monkeypatch.setattr(markers, "WINDOW_RECORDS", 1)
    monkeypatch.setattr(markers, "start_offsets", lambda *_, **__: {1: 0})
    monkeypatch.setattr(markers, "end_offsets", lambda *_, **__: {1: 3})
    monkeypatch.setattr(markers, "read_ranges", read)
    found = read_markers(KafkaCluster("nowhere:1"), "events", [1], "ks/0", is_known=True)
    assert looks == [(2, 3), (0, 3)]
    assert (found.own, found.gaps) == ({1: (3, 9)}, {})
