"""Shrinks a failing history: leaves out ops and makes integers smaller as long as the same rule breaks."""

from __future__ import annotations

from collections.abc import Callable

from lab.simulation.engine import History

RUNS_MAX = 3_000


def shrink(ops: History, fails: Callable[[History], bool], *, runs_max: int = RUNS_MAX) -> History:
    """The smallest history found that still ``fails``, as ``ops`` must. Deterministic; at most ``runs_max`` runs."""
    budget = [runs_max]

    def still(candidate: History) -> bool:
        if budget[0] <= 0:
            return False
        budget[0] -= 1
        return fails(candidate)

    best = list(ops)
    while budget[0] > 0:
        smaller = _simplify(_leave_out(best, still), still)
        if smaller == best:
            break
        best = smaller
    return best


def _leave_out(ops: History, still: Callable[[History], bool]) -> History:
    """Delta debugging: tries to leave out chunks of ops, of halving size."""
    size = max(len(ops) // 2, 1)
    while True:
        at = 0
        while at < len(ops):
            candidate = ops[:at] + ops[at + size :]
            if len(candidate) < len(ops) and still(candidate):
                ops = candidate
            else:
                at += size
        if size == 1:
            return ops
        size = max(size // 2, 1)


def _simplify(ops: History, still: Callable[[History], bool]) -> History:
    """Tries to make each integer smaller."""
    for at in range(len(ops)):
        for field in range(1, len(ops[at])):
            value = ops[at][field]
            for simpler in (0, 1, value // 2 if isinstance(value, int) else 0):
                if not isinstance(value, int) or simpler >= value:
                    continue
                candidate = [*ops[:at], (*ops[at][:field], simpler, *ops[at][field + 1 :]), *ops[at + 1 :]]
                if still(candidate):
                    ops = candidate
                    break
    return ops
