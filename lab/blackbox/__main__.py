"""Judges a recorded history again: ``python -m lab.blackbox FILE [--json]``. Exit code 1: it breaks a rule."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from lab.blackbox.judging import judge, read_history


def main(
    file: Annotated[Path, typer.Argument(help="A recording, as `make soak` keeps it of a failed run.", dir_okay=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Judge a recorded history of reads and commits."""
    with file.open(encoding="utf-8") as lines:
        history = read_history(lines)
    complaints = judge(history)
    counts = {"commits": len(history.commits), "reads": len(history.reads)}
    if as_json:
        typer.echo(json.dumps(counts | {"complaints": [each._asdict() for each in complaints]}))
    else:
        for each in complaints:
            typer.echo(f"{file}:{each.line}: {each.rule}: {each.what}")
        rules = Counter(each.rule for each in complaints)
        broken = ", ".join(f"{count} × {rule}" for rule, count in rules.items())
        typer.echo(f"{counts['commits']} commits, {counts['reads']} reads: {broken or 'no rule broken'}")
    raise typer.Exit(1 if complaints else 0)


if __name__ == "__main__":
    typer.run(main)
