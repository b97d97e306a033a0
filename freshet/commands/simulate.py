"""``freshet simulate``: seeded histories through the real pure code, judged by a plain list of the truth."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from lab.simulation.campaign import Caught
    from lab.simulation.engine import Report

EMPTY_SHOWN = 12


def command(
    seed: Annotated[int, typer.Option("--seed", help="Which histories; the same seed gives the same ones.")] = 1,
    histories: Annotated[int, typer.Option("--histories", help="How many of each world.", min=1)] = 10_000,
    world: Annotated[str, typer.Option("--world", help="A world's name, or all.", metavar="all|NAME")] = "all",
    mutate: Annotated[
        str, typer.Option("--mutate", help="Plant this bug, or each in turn, and see it caught.", metavar="all|NAME")
    ] = "",
    first: Annotated[int, typer.Option("--first", help="Number of the first history of the seed.", min=0)] = 0,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes.", min=1)] = 1,
    as_json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run seeded histories against an oracle; exit 1 if a rule breaks, or if a planted bug survives."""
    console = Console()
    if mutate:
        failed = _mutate(console, mutate, seed, histories, jobs, as_json_)
    else:
        failed = _simulate(console, world, seed, histories, first, jobs, as_json_)
    if failed:
        raise typer.Exit(1)


def _simulate(console: Console, world: str, seed: int, histories: int, first: int, jobs: int, plain: bool) -> bool:
    from lab.simulation.campaign import as_json, shrunk, simulate
    from lab.simulation.worlds import worlds_named

    reports = []
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    with bar if console.is_terminal and not plain else nullcontext():
        for each in worlds_named(world):
            task = bar.add_task(each.name, total=histories)

            def shown(total: Report, task: Any = task) -> None:
                bar.update(task, completed=total.histories)

            reports.append(simulate(each.name, seed, histories, first=first, jobs=jobs, shown=shown))
    failures = [shrunk(report.failure) for report in reports if report.failure is not None]
    if plain:
        found = [{"world": each.failure.world, "text": each.text, "ops": each.ops} for each in failures]
        typer.echo(json.dumps({"reports": [as_json(report) for report in reports], "failures": found}))
        return bool(failures)
    for report in reports:
        _print(report)
    for failure in failures:
        typer.echo(failure.text)
    return bool(failures)


def _print(report: Report) -> None:
    from lab.simulation.worlds import all_worlds

    world = all_worlds()[report.world]
    rate = report.histories / report.seconds if report.seconds else 0
    empty, cells = report.empty(world), len(world.faults) * len(world.states)
    outcome = "no rule broken" if report.failure is None else f"{report.failure.violation.rule!r} broken"
    typer.echo(f"{report.world}: {report.histories} histories of seed {report.seed}, {rate:,.0f}/s a core, {outcome}")
    typer.echo("  " + ", ".join(f"{count} × {name}" for name, count in report.answers.most_common()))
    typer.echo(f"  faults × states met: {cells - len(empty)} of {cells}")
    for fault, state in empty[:EMPTY_SHOWN]:
        typer.echo(f"    never met: {fault} × {state}")
    if len(empty) > EMPTY_SHOWN:
        typer.echo(f"    and {len(empty) - EMPTY_SHOWN} more (--json names all)")


def _mutate(console: Console, name: str, seed: int, histories: int, jobs: int, plain: bool) -> bool:
    from lab.simulation.campaign import hunts, shrunk
    from lab.simulation.planted.every import planted_bugs

    bugs = planted_bugs(name)
    found: list[Caught] = []
    for caught in hunts(bugs, seed, histories, jobs):
        found.append(caught)
        if console.is_terminal and not plain:
            console.print(f"[dim]{len(found)}/{len(bugs)} {caught.bug.name}[/dim]", highlight=False)
    survivors = [each for each in found if not each.rule]
    if plain:
        typer.echo(json.dumps({"mutations": [_row(each) for each in found], "survived": len(survivors)}))
        return bool(survivors)
    rows = [("planted bug", "world", "caught by", "after", "the bug")]
    for each in sorted(found, key=lambda each: (bool(each.rule), each.histories)):
        bug = each.bug
        rows.append((bug.name, bug.world, each.rule or "SURVIVED", f"{each.histories:,}", bug.what))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        typer.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]))
    typer.echo(f"{len(found) - len(survivors)} of {len(found)} planted bugs caught")
    if name != "all" and found[0].failure is not None:
        typer.echo(shrunk(found[0].failure, found[0].bug).text)
    return bool(survivors)


def _row(caught: Caught) -> dict[str, object]:
    return {
        "name": caught.bug.name,
        "world": caught.bug.world,
        "what": caught.bug.what,
        "caught_by": caught.rule,
        "histories": caught.histories,
    }
