"""What the injector does for a fault, and undoes when it is over: on links and clocks that note it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from freshet.local.errors import LocalServerError
from lab.faults.injector import Injector
from lab.faults.network import BOTH, LinkConditions
from lab.faults.schedule import FAULTS, NETWORK, Fault


class Link:
    """A link that notes what is done to it."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def set_conditions(self, conditions: LinkConditions, directions: Sequence[str] = BOTH) -> None:
        what = "holds" if conditions.blocked else "slows"
        self.steps.append(f"{what} {' and '.join(directions)}")

    def cut(self) -> None:
        self.steps.append("cuts")

    def reset(self) -> None:
        self.steps.append("resets")

    def clear(self) -> None:
        self.steps.append("clears")


class Rig:
    """A stack of two links without processes, its traffic, and an injector for both."""

    def __init__(self, clocks: Any = None) -> None:
        self.links = [Link(), Link()]
        traffic: Any = SimpleNamespace(clock_shift_s=0.0)
        self.said: list[str] = []
        stack: Any = SimpleNamespace(roles={}, links_of=lambda _: self.links, clocks=clocks)
        self.injector = Injector(stack, None, traffic, 7, self.said.append)
        self.traffic = traffic


def fault(target: str, kind: str, at_s: float = 0.0) -> Fault:
    """One that lasts for no time."""
    return Fault(at_s, target, kind, 0.0, 0.5)


BAD = {
    "cut": "cuts",
    "reset": "resets",
    "latency": "slows up and down",
    "slow": "slows up and down",
    "hole": "holds up and down",
    "hole_up": "holds up",
    "hole_down": "holds down",
    "lost_answers": "holds down",
}


@pytest.mark.parametrize("kind", NETWORK)
def test_a_bad_network_is_good_again_afterwards(kind: str) -> None:
    """Answers that are to be lost are held, and reset before the link is cleared: else they would arrive late."""
    rig = Rig()
    with rig.injector._fault(fault("serve>kafka", kind)):
        assert [link.steps for link in rig.links] == [[BAD[kind]]] * 2
    after = ["resets", "clears"] if kind == "lost_answers" else ["clears"]
    assert [link.steps[1:] for link in rig.links] == [after] * 2


@pytest.mark.parametrize("kind", FAULTS["clock"])
def test_a_clock_that_was_stepped_is_right_again_afterwards(kind: str) -> None:
    """By the kind of step, forward or back."""
    rig = Rig()
    with rig.injector._fault(fault("clock", kind)):
        assert (rig.traffic.clock_shift_s > 0) is (kind == "forward")
        assert rig.traffic.clock_shift_s != 0
    assert rig.traffic.clock_shift_s == 0


@pytest.mark.parametrize(
    ("clocks", "planned", "kind"),
    [
        (None, fault("disk", "eio_sync"), "full"),
        (None, fault("disk", "full"), "full"),
        (None, fault("disk", "slow_disk"), None),
        (None, fault("wall-clock", "back"), None),
        (SimpleNamespace(missing=["serve"]), fault("wall-clock", "back"), None),
        (SimpleNamespace(missing=[]), fault("wall-clock", "back"), "back"),
        (None, fault("serve>kafka", "cut"), "cut"),
    ],
)
def test_what_a_machine_has_not_is_left_out_or_made_simpler(clocks: Any, planned: Fault, kind: str | None) -> None:
    """Without a disk that can fail one is full; without other clocks none is stepped."""
    found = Rig(clocks).injector._supported(planned)
    assert (found and found.kind) == kind


def test_a_fault_that_can_not_be_injected_is_told_and_the_next_ones_are() -> None:
    """The run fails then, and not in silence; nothing is under way afterwards."""
    rig = Rig()
    broken, link = rig.links

    def cut() -> None:
        raise LocalServerError("it is not running")

    broken.cut = cut  # type: ignore[method-assign]
    rig.injector._follow([fault("serve>kafka", "cut"), fault("serve>kafka", "reset")])
    assert [each.endswith("it is not running") for each in rig.injector.errors] == [True]
    assert dict(rig.injector.met) == {"serve>kafka cut": 1, "serve>kafka reset": 1}
    assert rig.injector._now == {}
    assert link.steps == ["resets", "clears"]
    assert broken.steps == ["clears", "resets", "clears"]
