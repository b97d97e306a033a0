"""Where a stream may begin, by the markers of a topic that retention has cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from stream.changes.checkpoint import Place
from stream.changes.start import AfterPosition
from stream.changes.starting import _At, _begins_by, _earliest_second
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
