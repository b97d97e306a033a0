"""A front of a fleet finds owners again after a third of the instances is lost, with the topic and without it."""

from __future__ import annotations

import pytest

from lab.fleet.__main__ import measure


@pytest.mark.parametrize("watch", [True, False])
def test_a_front_finds_the_owners_of_a_fleet_again(watch: bool) -> None:
    """Who follows the topic at once, without asking; who does not, by asking, within the cap and a minute."""
    found = measure(30, 300, 400, watch=watch, seed=1)
    assert found["seconds until 99.9 % of reads are not led astray"] <= (1.0 if watch else 60.0)
    assert found["entries that are wrong then"] <= (0 if watch else 15)  # that nobody has read since
    assert found["most batches in a second"] <= 400
    assert not watch or found["batches in the first 120 s"] == 0
