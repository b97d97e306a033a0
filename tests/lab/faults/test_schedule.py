"""The schedule of faults: given by its seed, and wide enough."""

from __future__ import annotations

from itertools import pairwise

from lab.blackbox.availability import PLANNED
from lab.faults.schedule import FAULTS, LASTS_S, schedule

OF_CLUSTERS = {"slow_disk"}
"""Kinds that only `lab.cluster` has."""


def test_a_seed_gives_the_same_faults_again_and_another_seed_others() -> None:
    """A failing run can be repeated by its seed."""
    assert schedule(7, 600) == schedule(7, 600)
    assert schedule(7, 600) != schedule(8, 600)


def test_a_targets_timeline_does_not_depend_on_which_other_targets_there_are() -> None:
    """So that a failing run can be made smaller, target by target."""
    alone = schedule(3, 600, ["consume"])
    assert alone == [fault for fault in schedule(3, 600) if fault.target == "consume"]


def test_every_fault_ends_in_time_and_before_the_targets_next_one() -> None:
    """After the last second everything is whole; and nothing is killed that is killed already."""
    for seed in range(50):
        faults = schedule(seed, 300)
        assert all(fault.at_s + fault.for_s <= 300 for fault in faults)
        for target in FAULTS:
            own = [fault for fault in faults if fault.target == target]
            assert all(a.at_s + a.for_s <= b.at_s for a, b in pairwise(own))


def test_half_an_hour_meets_every_kind_at_every_target() -> None:
    """Every fault in the table really occurs."""
    met = {(fault.target, fault.kind) for fault in schedule(1, 1800)}
    assert met == {(target, kind) for target, kinds in FAULTS.items() for kind in kinds}
    assert {kind for _, kind in met} == set(LASTS_S) - PLANNED - OF_CLUSTERS
