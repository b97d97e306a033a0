"""For each planted bug a kept history that catches it, shrunk: breaks its rule with the bug, and no rule without.

A hunt takes thousands of histories, a kept history takes one. Kept are the ops, not the seed, so another choice of
random histories leaves them as they are. ``python -m lab.simulation.catches`` hunts those bugs that have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import typer

from lab.simulation.campaign import hunt, refuse_broken, shrink_failure
from lab.simulation.engine import run_one
from lab.simulation.planted.every import PLANTED_BUGS, planted_bugs
from lab.simulation.planted.kept import Catch, keep, kept_catches
from lab.simulation.planted.planting import PlantedBug
from lab.simulation.worlds import all_worlds

HINT: Final = "if the world or the bug has changed, hunt it again: python -m lab.simulation.catches"


def complaint(bug: PlantedBug, catch: Catch | None) -> str:
    """Why a kept catch does not show that the bug is caught; "" if it does."""
    if catch is None:
        return f"no history is kept that catches {bug.name}; {HINT}"
    world = all_worlds()[bug.world]
    unpatched = run_one(world, catch.ops).violations
    if unpatched:
        return f"the history that catches {bug.name} breaks a rule without it: {unpatched[0].rule}: {unpatched[0].what}"
    with bug.planted():
        found = run_one(world, catch.ops).violations
    if not found:
        return f"the kept history does not catch {bug.name} any more ({bug.what}); {HINT}"
    refuse_broken(bug, found[0])
    if found[0].rule != catch.rule:
        return f"{bug.name} broke {catch.rule!r} when its history was kept, now {found[0].rule!r}; {HINT}"
    return ""


def outdated(catches: Mapping[str, Catch]) -> list[PlantedBug]:
    """The planted bugs that no kept history catches."""
    return [bug for bug in PLANTED_BUGS if complaint(bug, catches.get(bug.name))]


def caught_anew(bug: PlantedBug, seed: int, histories: int) -> Catch | None:
    """Hunts the bug and shrinks the history that catches it. None: it survived."""
    failure = hunt(bug, seed, histories).failure
    if failure is None:
        return None
    with bug.planted():  # without the memo, which can hide a part of what a bug does
        failure.violation = run_one(all_worlds()[bug.world], failure.ops).violations[0]
    return Catch(failure.violation.rule, shrink_failure(failure, bug).ops)


def record(bugs: Iterable[PlantedBug], seed: int, histories: int) -> list[PlantedBug]:
    """Hunts each bug and keeps its catch at once. Forgets the catches of bugs that are gone. Returns the survivors."""
    names, survivors = {bug.name for bug in PLANTED_BUGS}, []
    for bug in bugs:
        catch = caught_anew(bug, seed, histories)
        others = {name: kept for name, kept in kept_catches().items() if name in names - {bug.name}}
        if catch is None:
            survivors.append(bug)
            keep(others)
        else:
            keep(others | {bug.name: catch})
            typer.echo(f"{bug.name}: {catch.rule} in {len(catch.ops)} ops")
    return survivors


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Planted bugs to hunt; none: those without a catch.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The seed of the histories.")] = 1,
    histories: Annotated[int, typer.Option("--histories", help="The most histories for each bug.")] = 10_000,
) -> None:
    """Hunt planted bugs and keep the histories that catch them; exit 1 if one survives."""
    bugs = [bug for name in names or () for bug in planted_bugs(name)] or outdated(kept_catches())
    survivors = record(bugs, seed, histories)
    for bug in survivors:
        typer.echo(f"{bug.name} survived {histories:,} histories: {bug.what}")
    if survivors:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
