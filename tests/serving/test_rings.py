"""What is remembered of a day: each point of a coarser ring is what the finer ones in its time come to."""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import groupby
from typing import cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.http.status.rings import STEP_S, UNKNOWN, Hours, Moment, Rings, Worst

DAY_S = 24 * 3_600
NOW = 1_000_000_000.0
AGES = st.one_of(st.just(float(UNKNOWN)), st.floats(0, 1e6))
COUNTS = st.integers(0, 1_000)
MOMENTS = st.builds(
    Moment,
    st.just(0.0),
    st.lists(AGES, min_size=3, max_size=3).map(lambda ages: array("d", ages)),
    st.lists(st.integers(0, 1), min_size=3, max_size=3).map(lambda looks: array("I", looks)),
    st.fixed_dictionaries({name: st.builds(Worst, AGES, COUNTS, COUNTS) for name in ("shop", "payroll")}),
    st.tuples(COUNTS, COUNTS, COUNTS),
    st.dictionaries(st.sampled_from(["void", "behind"]), st.integers(1, 100)),
)
"""What may be seen at a moment; when is said by the test."""


@st.composite
def days(draw: st.DrawFn) -> list[Moment]:
    """Up to two days of looks, some close together, some after a night without any."""
    at, found = NOW, []
    for moment in draw(st.lists(MOMENTS, min_size=1, max_size=60)):
        at += draw(st.one_of(st.floats(10, 11), st.floats(10, 4_000)))
        found.append(moment._replace(at=at))
    return found


@given(days())
def test_a_point_is_what_its_moments_come_to(moments: list[Moment]) -> None:
    """Of ages and of records behind the largest that is known, of counts the sum, and how often one was unknown."""
    rings = Rings()
    for each in moments:
        rings.add(each)
    for hours, step_s in STEP_S.items():
        kept = [each for each in moments if each.at > moments[-1].at - hours * 3_600]
        groups = [list(some) for _, some in groupby(moments, lambda each, step_s=step_s: each.at // step_s)]  # type: ignore[misc]
        points = rings.last(hours, moments[-1].at)
        expected = [some for some in groups if some[-1].at >= kept[0].at]
        assert [point.at for point in points] == [some[-1].at for some in expected]
        for point, some in zip(points, expected, strict=True):
            assert list(point.ages_s) == [max(ages) for ages in zip(*(each.ages_s for each in some), strict=True)]
            for name, worst in point.worst.items():
                assert worst.age_s == max(each.worst[name].age_s for each in some)
                assert worst.behind == max(each.worst[name].behind for each in some)
                assert worst.unknown == sum(each.worst[name].unknown for each in some)
            assert list(point.unknown) == [sum(looks) for looks in zip(*(each.unknown for each in some), strict=True)]
            assert point.counts == tuple(map(sum, zip(*(each.counts for each in some), strict=True)))
            assert point.misses == sum((Counter(each.misses) for each in some), Counter())


@pytest.mark.parametrize("hours", get_args(Hours))
def test_days_of_looks_take_bounded_memory(hours: int) -> None:
    """After two days each ring has its hours, and not a point more."""
    rings = Rings()
    at = NOW
    while at < NOW + 2 * DAY_S:
        rings.add(Moment(at, array("d", [1.0]), array("I", [0]), {"shop": Worst(1.0, 0, 0)}, (1, 0, 0), {}))
        at += STEP_S[1]
    asked = cast("Hours", hours)
    points = rings.last(asked, at)
    most = hours * 3_600 / STEP_S[asked]
    assert most - 1 <= len(points) <= most + 1
    assert rings.last(asked, at + DAY_S) == []
    assert len(rings.last(asked, 0)) <= most + 1  # what is kept, however far back somebody looks
    looks_in_a_point = STEP_S[asked] / STEP_S[1]
    assert {point.counts[0] for point in points[1:-1]} == {looks_in_a_point}
