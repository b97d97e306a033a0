"""``freshet demo``: everything on one machine: real servers, real traffic, every answer checked."""

from __future__ import annotations

import json
from typing import Annotated

import typer

UNATTENDED_S = 20.0


def command(
    seconds: Annotated[
        float | None,
        typer.Option(
            envvar="DEMO_SECONDS",
            min=1,
            max=86_400,
            help="Seconds of traffic; default: until Ctrl-C on a terminal, else 20.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the traffic and the readers.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as one JSON object on stdout.")] = False,
) -> None:
    """Start everything on this machine, run traffic through it, check every answer, and rebuild with Spark."""
    from lab.demo.run import is_unattended, run_demo
    from spark_jobs.session import check_pyspark

    check_pyspark()  # else the demo would fail at its end
    if seconds is None and (is_unattended() or as_json):
        seconds = UNATTENDED_S
    findings = run_demo(seconds, seed, say=lambda text: typer.echo(text, err=as_json))
    typer.echo(json.dumps(findings.as_json()) if as_json else findings.summary())
    if not findings.passed:
        raise typer.Exit(1)
