"""What a publisher that opens makes of the markers that it finds, damaged and foreign ones among them."""

from __future__ import annotations

import pytest

from stream.publish.markers import Markers
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
