"""``freshet simulate``: runs seeded histories through the real pure code and checks them against an oracle."""

from __future__ import annotations

import json
from contextlib import closing, nullcontext
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

COUNTED_OF_SLOW_WORLDS: Final = 2
"""Where statements are counted, a slow world runs at least one of so many of the histories."""


def command(
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same histories.")] = 1,
    histories: Annotated[
        int, typer.Option("--histories", help="How many histories; of slow worlds fewer, unless one is named.", min=1)
    ] = 10_000,
    world: Annotated[str, typer.Option("--world", help="A world's name, or all.", metavar="all|NAME")] = "all",
    mutate: Annotated[
        str,
        typer.Option("--mutate", help="Plant this bug, or each in turn; check that it is caught.", metavar="all|NAME"),
    ] = "",
    detection: Annotated[
        bool,
        typer.Option(
            "--detection",
            help="With --mutate: also without motifs; count by rule and by module. In slow worlds fewer histories.",
        ),
    ] = False,
    near: Annotated[
        bool, typer.Option("--near", help="Run histories near those that are kept for planted bugs, without a bug.")
    ] = False,
    first: Annotated[int, typer.Option("--first", help="Number of the first history of the seed.", min=0)] = 0,
    jobs: Annotated[int, typer.Option("--jobs", help="Number of processes.", min=1)] = 1,
    statements: Annotated[
        bool,
        typer.Option("--statements", help="Print, as Markdown, which statements of the product the histories execute."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run seeded histories against an oracle; exit 1 if a rule breaks, or if a planted bug survives."""
    console = Console()
    if statements and mutate:
        raise typer.BadParameter("--statements counts without planted bugs")
    if near and (statements or mutate):
        raise typer.BadParameter("--near runs alone: no bug is planted, and no statement counted")
    if statements:
        failed = _count(world, seed, histories, first, jobs, as_json)
    elif mutate:
        failed = _mutate(console, mutate, seed, histories, jobs, detection, as_json)
    else:
        failed = _simulate(console, world, seed, histories, first, jobs, near, as_json)
    if failed:
        raise typer.Exit(1)


def _simulate(
    console: Console, world: str, seed: int, histories: int, first: int, jobs: int, near: bool, as_json: bool
) -> bool:
    from lab.simulation.campaign import shrink_failure, simulate
    from lab.simulation.reports import report_json, report_lines
    from lab.simulation.worlds import worlds_named

    reports = []
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    with bar if console.is_terminal and not as_json else nullcontext():
        for each, count in worlds_named(world, histories):
            task = bar.add_task(each.name, total=count)

            def shown(total: Any, task: Any = task) -> None:
                bar.update(task, completed=total.histories)

            reports.append(simulate(each.name, seed, count, first=first, jobs=jobs, near=near, shown=shown))
            if not as_json:
                typer.echo("\n".join(report_lines(reports[-1])))
    failures = [shrink_failure(report.failure, near=near) for report in reports if report.failure is not None]
    if as_json:
        found = [{"world": each.failure.world, "text": each.text, "ops": each.ops} for each in failures]
        typer.echo(json.dumps({"reports": [report_json(report) for report in reports], "failures": found}))
        return bool(failures)
    for failure in failures:
        typer.echo(failure.text)
    return bool(failures)


def _count(world: str, seed: int, histories: int, first: int, jobs: int, as_json: bool) -> bool:
    from lab.simulation.campaign import shrink_failure
    from lab.simulation.statements import count_histories, count_json, count_lines
    from lab.simulation.worlds import worlds_named

    wanted = {
        each.name: range(first, first + max(count, histories // COUNTED_OF_SLOW_WORLDS))
        for each, count in worlds_named(world, histories)
    }
    counted, failures = count_histories(wanted, seed, jobs)
    typer.echo(json.dumps(count_json(counted)) if as_json else "\n".join(count_lines(counted)))
    for failure in failures:
        typer.echo(shrink_failure(failure).text, err=True)
    return bool(failures)


def _mutate(console: Console, name: str, seed: int, histories: int, jobs: int, detection: bool, as_json: bool) -> bool:
    from lab.simulation.campaign import hunt_all, shrink_failure, unpatched_failures
    from lab.simulation.planted.every import planted_bugs
    from lab.simulation.reports import detection_lines, hunt_json, hunt_lines

    bugs = planted_bugs(name)

    def hunted(motifs: bool) -> list[Any]:
        found = []
        with closing(hunt_all(bugs, seed, histories, jobs, motifs=motifs, shared=detection)) as results:
            for caught in results:
                found.append(caught)
                if console.is_terminal and not as_json:
                    console.print(f"[dim]{len(found)}/{len(bugs)} {caught.bug.name}[/dim]", highlight=False)
        return found

    found = hunted(True)
    without = hunted(False) if detection else []
    broken = unpatched_failures(found, seed) + unpatched_failures(without, seed, motifs=False)
    unpatched = [f"history {each.number} of {each.world} breaks {each.violation.rule!r} unpatched" for each in broken]
    survived = sum(not each.rule for each in found)
    if as_json:
        told = {
            "mutations": [hunt_json(each) for each in found],
            "without_motifs": [hunt_json(each) for each in without],
            "survived": survived,
            "unpatched": unpatched,
        }
        typer.echo(json.dumps(told))
        return bool(survived or unpatched)
    typer.echo("\n".join(hunt_lines(found)))
    if detection:
        typer.echo("\n".join(["", *detection_lines(found, without)]))
    if name != "all" and found[0].failure is not None:
        typer.echo(shrink_failure(found[0].failure, found[0].bug).text)
    for line in unpatched:
        typer.echo(f"seed {seed} proves nothing: {line}")
    return bool(survived or unpatched)
