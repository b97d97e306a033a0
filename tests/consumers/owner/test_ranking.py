"""The order of rows by the values of columns, also of values that nobody should send."""

from __future__ import annotations

import pytest

from consumers.owner.ranges.order import Ranking

KEY = [("id", "int", True)]


ODD = [("decimal", "NaN"), ("decimal", "-sNaN"), ("decimal", "Infinity"), ("time", "1:2:NaN")]


@pytest.mark.parametrize(("kind", "value"), ODD)
def test_a_value_that_no_server_has_is_refused(kind: str, value: str) -> None:
    """A page names the row after which it goes on. NaN has no order: to compare it would fail later, unexpectedly."""
    ranking = Ranking([("c", kind, False)], KEY, 0)
    with pytest.raises(ValueError, match=r"are no values|is no number"):
        ranking.after(b"s.t\0[1]", f'["{value}"]'.encode())
    with pytest.raises(ValueError, match=r"is no key|is no number"):
        Ranking([], [("c", kind, False)], 0).after(f's.t\0["{value}"]'.encode(), b"")


def test_times_are_in_the_order_of_their_lengths_below_zero_too() -> None:
    """A TIME has hours beyond a day, and a sign that its text begins with: neither is in the order of texts."""
    times = ["-838:59:59", "-100:00:00", "-99:00:00", "-00:00:01.5", "-00:00:01", "00:00:00", "00:00:00.5", "100:00:00"]
    alone, beside = Ranking([], [("c", "time", True)], 0), Ranking([("c", "time", True)], KEY, 0)
    ranks = [alone.rank(f's.t\0["{each}"]'.encode(), b"") for each in times]
    assert ranks == sorted(ranks)
    ranks = [beside.rank(b"s.t\0[1]", f'{{"c":"{each}"}}'.encode()) for each in times]
    assert ranks == sorted(ranks)
