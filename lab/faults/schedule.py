"""Which fault happens when: a pure function of a seed, so that a run can be repeated.

Each target has its own timeline: its faults follow each other, and faults of different targets overlap. A target goes
through all its kinds in random order before a kind is repeated.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

GAP_S: Final = 25.0
"""Mean time between the end of a target's fault and its next one."""

NETWORK: Final = ("latency", "slow", "cut", "reset", "hole", "hole_up", "hole_down", "lost_answers")
FAULTS: Final[dict[str, Sequence[str]]] = {
    "kafka": ("kill", "pause"),
    "mariadb": ("kill", "pause"),
    "source-rows": ("kill", "kill", "pause", "stop"),
    "source-catalog": ("kill", "kill", "pause", "stop"),
    "consume": ("kill", "kill", "pause", "stop", "no_files"),
    "serve": ("kill", "pause", "stop", "no_files"),
    "source-rows>kafka": NETWORK,
    "source-catalog>kafka": NETWORK,
    "consume>kafka": NETWORK,
    "serve>kafka": NETWORK,
    "source-rows>mariadb": NETWORK,
    "source-catalog>mariadb": NETWORK,
    "serve>mariadb": NETWORK,
    "serve>owner": NETWORK,
    "writers>mariadb": ("lost_answers", "lost_answers", "cut", "reset", "hole"),
    "disk": ("full", "eio_write", "eio_sync", "eio_read", "eio_names", "eio_all"),
    "clock": ("forward", "back", "far_back"),
    "wall-clock": ("forward", "back", "far_back"),
}
"""Target → its kinds of faults. ``a>b`` is the network from a to b, ``clock`` the clock of the writers' sessions,
``wall-clock`` the wall clock of our processes.
"""
SECOND_CONSUMER: Final[dict[str, Sequence[str]]] = {
    "consume-2": FAULTS["consume"],
    "consume-2>kafka": NETWORK,
    "serve>owner-2": NETWORK,
}
"""Additional targets when two consumers share the partitions."""

LASTS_S: Final[Mapping[str, tuple[float, float]]] = {
    "kill": (0.0, 5.0),
    "stop": (0.0, 2.0),
    "pause": (0.2, 14.0),
    "no_files": (1.0, 4.0),
    "latency": (2.0, 8.0),
    "slow": (2.0, 8.0),
    "cut": (0.5, 8.0),
    "reset": (0.0, 0.0),
    "hole": (0.5, 14.0),
    "hole_up": (0.5, 8.0),
    "hole_down": (0.5, 8.0),
    "lost_answers": (0.1, 6.0),
    "full": (2.0, 8.0),
    "slow_disk": (2.0, 12.0),
    "eio_write": (1.0, 8.0),
    "eio_sync": (1.0, 8.0),
    "eio_read": (1.0, 8.0),
    "eio_names": (1.0, 8.0),
    "eio_all": (0.5, 8.0),
    "forward": (3.0, 10.0),
    "back": (3.0, 10.0),
    "far_back": (3.0, 10.0),
    "drain": (0.0, 2.0),
    "join": (4.0, 12.0),
    "upgrade": (0.0, 0.0),
}
"""Kind → shortest and longest duration in seconds. A consumer group waits less than 14 s for a silent member."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One fault: begins at ``at_s`` and lasts ``for_s``, both in seconds; ``amount`` (0 to 1) is its severity."""

    at_s: float
    target: str
    kind: str
    for_s: float
    amount: float

    def line(self, seed: int) -> str:
        """The fault as one line of the log."""
        lasts = f" for {self.for_s:.2f} s" if self.for_s else ""
        return f"{self.at_s:8.2f} s  seed {seed}  {self.target} {self.kind}{lasts} ({self.amount:.2f})"


def schedule(
    seed: int,
    seconds: float,
    targets: Sequence[str] = tuple(FAULTS),
    gap_s: float = GAP_S,
    known: Mapping[str, Sequence[str]] = FAULTS | SECOND_CONSUMER,
) -> list[Fault]:
    """All faults that begin and end within ``seconds``, in order. ``gap_s``: mean time between a target's faults.

    ``known``: the kinds of each target.
    """
    faults: list[Fault] = []
    for target in targets:
        rng = random.Random(f"{seed}/faults/{target}")
        at_s, kinds = rng.uniform(0, gap_s), list[str]()
        while True:
            if not kinds:
                kinds = rng.sample(known[target], len(known[target]))
            kind = kinds.pop()
            shortest, longest = LASTS_S[kind]
            for_s = shortest + (longest - shortest) * rng.random() ** 2
            if at_s + for_s > seconds:
                break
            faults.append(Fault(round(at_s, 3), target, kind, round(for_s, 3), round(rng.random(), 3)))
            at_s += for_s + rng.expovariate(1 / gap_s)
    return sorted(faults)
