"""Runs many histories over several processes, hunts planted bugs, and shrinks failures."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from lab.simulation.engine import BrokenHistory, History, Report, Violation, run_many, run_one, share_of
from lab.simulation.near import near_worlds
from lab.simulation.planted.every import planted_bugs
from lab.simulation.planted.planting import PlantedBug, PlantedBugError
from lab.simulation.pool import mapped
from lab.simulation.shrink import shrink
from lab.simulation.worlds import all_worlds

SLICE: Final = 500
"""Histories per unit of work of a process."""
BROKEN: Final = ("NameError", "UnboundLocalError", "SyntaxError")
"""Errors of a planted bug that is itself broken. They do not count as caught."""


@dataclass(frozen=True, slots=True)
class ShrunkFailure:
    """A failure with a short history. ``story``: one line in words for each op. ``near``: see `simulate`."""

    failure: BrokenHistory
    ops: History
    story: list[str]
    near: bool

    @property
    def text(self) -> str:
        """The rule, the story, the ops, and the command that runs the history again."""
        failure = self.failure
        lines = [f"{failure.violation.rule}: {failure.violation.what}"]
        lines += [f"  {number:2}. {line}" for number, line in enumerate(self.story, 1)]
        command = (
            f"freshet simulate --world {failure.world} --seed {failure.seed} --first {failure.number} --histories 1"
            f"{' --near' if self.near else ''}"
        )
        return "\n".join([*lines, f"  ops: {self.ops}", f"  reproduce: {command}"])


def shrink_failure(failure: BrokenHistory, planted: PlantedBug | None = None, *, near: bool = False) -> ShrunkFailure:
    """Shrinks a failure. ``planted``: the bug that was in the code, and is planted again meanwhile."""
    world = all_worlds()[failure.world]
    rule = failure.violation.rule

    def fails(ops: History) -> bool:
        found = run_one(world, ops).violations
        return bool(found) and found[0].rule == rule

    def work() -> ShrunkFailure:
        ops = shrink(failure.ops, fails)
        outcome = run_one(world, ops, trace=True)
        violation = outcome.violations[0] if outcome.violations else failure.violation
        story = outcome.trace or [str(op) for op in ops]
        found = BrokenHistory(failure.world, failure.seed, failure.number, failure.ops, violation)
        return ShrunkFailure(found, ops, story, near)

    if planted is None:
        return work()
    with planted.planted():
        return work()


def simulate(
    world: str,
    seed: int,
    histories: int,
    *,
    first: int = 0,
    jobs: int = 1,
    near: bool = False,
    shown: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Runs ``histories`` of a world, from number ``first`` on, until one fails.

    ``near``: those of `lab.simulation.near`. ``shown`` is called with the sum of the reports after each slice.
    """
    total = Report(world, seed)
    starts = range(first, first + histories, SLICE)
    parts = [(world, seed, start, min(start + SLICE, first + histories), near) for start in starts]
    with closing(mapped(_run_slice, parts, jobs)) as reports:
        for report in reports:
            total.add(report)
            shown(total)
            if total.failure is not None:
                break
    return total


def _run_slice(part: tuple[str, int, int, int, bool]) -> Report:
    world, seed, start, end, near = part
    worlds = near_worlds() if near else all_worlds()
    return run_many(worlds[world], seed, range(start, end))


@dataclass(frozen=True, slots=True)
class HuntResult:
    """The result of hunting a planted bug. ``rule``: the rule that caught it; "": it survived."""

    bug: PlantedBug
    rule: str
    histories: int
    seconds: float
    failure: BrokenHistory | None


def hunt(bug: PlantedBug, seed: int, histories: int, *, first: int = 0, motifs: bool = True) -> HuntResult:
    """Runs up to ``histories`` of the bug's world, from number ``first`` on, with the bug planted, until it is caught.

    Raises `PlantedBugError` if the bug does not fit the code or is itself broken.
    """
    report = run_many(all_worlds(motifs=motifs)[bug.world], seed, range(first, first + histories), during=bug.planted())
    failure = report.failure
    rule = failure.violation.rule if failure is not None else ""
    if failure is not None:
        refuse_broken(bug, failure.violation)
    return HuntResult(bug, rule, report.histories, report.seconds, failure)


def refuse_broken(bug: PlantedBug, violation: Violation) -> None:
    """Raises `PlantedBugError` if the violation shows that the planted bug is itself broken."""
    if violation.what.startswith(BROKEN):
        raise PlantedBugError(f"planted bug {bug.name} is itself broken: {violation.what}")


def hunt_all(
    bugs: list[PlantedBug], seed: int, histories: int, jobs: int = 1, *, motifs: bool = True, shared: bool = False
) -> Generator[HuntResult, None, None]:
    """Hunts each bug, over ``jobs`` processes. Gives the results in the order of ``bugs``.

    ``shared``: in slow worlds fewer histories, so that each bug is hunted for about as long.
    """
    worlds = all_worlds()
    counts = {name: share_of(world, histories) if shared else histories for name, world in worlds.items()}
    parts = [(bug.name, seed, counts[bug.world], motifs) for bug in bugs]
    return mapped(_hunt_named, parts, jobs)


def _hunt_named(part: tuple[str, int, int, bool]) -> HuntResult:
    name, seed, histories, motifs = part
    return hunt(planted_bugs(name)[0], seed, histories, motifs=motifs)


def unpatched_failures(found: Iterable[HuntResult], seed: int, *, motifs: bool = True) -> list[BrokenHistory]:
    """The failures without a bug, in as many histories as any hunt took. If there are any, the hunts prove nothing."""
    longest: dict[str, int] = {}
    for each in found:
        longest[each.bug.world] = max(longest.get(each.bug.world, 0), each.histories)
    worlds = all_worlds(motifs=motifs)
    reports = [run_many(worlds[world], seed, range(histories)) for world, histories in longest.items()]
    return [report.failure for report in reports if report.failure is not None]
