"""Ranges of offsets: checked before Spark starts, each error with its code."""

from __future__ import annotations

import pytest

from spark_jobs.offsets import OffsetsError, TopicBounds, choose_range, parse_offsets

BOUNDS = TopicBounds("freshet.shop.events", "t1", {0: 0, 1: 5}, {0: 10, 1: 20})


def test_without_ends_everything_committed_is_read() -> None:
    """The default range is what the topic retains, up to the last stable offsets."""
    chosen = choose_range(BOUNDS)
    assert (chosen.start, chosen.end, chosen.messages) == ({0: 0, 1: 5}, {0: 10, 1: 20}, 25)


@pytest.mark.parametrize(
    ("ends", "starts", "code"),
    [
        ({0: 11, 1: 20}, None, "offsets_beyond_end"),
        ({0: 10}, None, "bad_offsets"),
        ({0: 10, 1: 20, 2: 0}, None, "bad_offsets"),
        ({0: 10, 1: 3}, None, "offsets_expired"),
        ({0: 10, 1: 20}, {0: 0, 1: 4}, "offsets_expired"),
        ({0: 3, 1: 20}, {0: 4, 1: 6}, "bad_offsets"),
    ],
)
def test_a_range_that_cannot_be_read_is_refused(ends: dict[int, int], starts: dict[int, int] | None, code: str) -> None:
    """Each kind of impossible range has its own code, and a hint."""
    with pytest.raises(OffsetsError) as refused:
        choose_range(BOUNDS, ends, starts)
    assert refused.value.code == code
    assert refused.value.hint


def test_offsets_are_read_from_json() -> None:
    """Partition numbers, which are text as JSON keys, become integers."""
    assert parse_offsets('{"0": 17, "1": 0}') == {0: 17, 1: 0}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "17", '{"a": 1}', '{"0": "1"}', '{"0": -1}', '{"0": true}', '{"0": 1.5}']
)
def test_invalid_offsets_are_refused(text: str) -> None:
    """Anything but partition → non-negative integer is refused."""
    with pytest.raises(OffsetsError) as refused:
        parse_offsets(text)
    assert refused.value.code == "bad_offsets"
