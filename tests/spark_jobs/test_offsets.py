"""Ranges of offsets: checked before Spark starts, each error with its code."""

from __future__ import annotations

import pytest

from spark_jobs.offsets import Beginning, OffsetsError, TopicBounds, choose_range, parse_offsets

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


@pytest.mark.parametrize("behind", Beginning)
def test_what_retention_has_passed_is_named_with_a_way_out(behind: Beginning) -> None:
    """An export has no base, nor has a rebuild that goes on: nobody could give a newer one."""
    with pytest.raises(OffsetsError, match=rf"begins at offset 5, {behind} 4$") as refused:
        choose_range(BOUNDS, None, {0: 0, 1: 4}, behind)
    assert refused.value.code == "offsets_expired"
    assert (refused.value.hint == "give a newer base") is (behind is Beginning.BASE)


def test_a_topic_that_has_lost_its_end_is_told_from_offsets_that_were_given() -> None:
    """Where nobody gave any, no later ones can be given."""
    with pytest.raises(OffsetsError, match=r"\[0\] ends at offset 10, the export ends at 12") as refused:
        choose_range(BOUNDS, None, {0: 12, 1: 20}, Beginning.EXPORT)
    assert refused.value.code == "offsets_beyond_end"
    assert "lost" in refused.value.hint


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
