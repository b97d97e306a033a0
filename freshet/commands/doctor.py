"""``freshet doctor``: checks what this machine has and says how to get what it lacks."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from freshet.settings import load_settings


def command(as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False) -> None:
    """Check that this machine has what Freshet needs. Exit code 1 if something essential is missing."""
    from freshet.doctor import examine, healthy

    checks = examine(load_settings().data_dir)
    if as_json:
        typer.echo(json.dumps({"healthy": healthy(checks), "checks": [asdict(check) for check in checks]}))
    else:
        for check in checks:
            typer.echo(f"{check.status:<8} {check.name}: {check.found}")
            if check.fix:
                typer.echo(f"{'':<8} → {check.fix}")
    if not healthy(checks):
        raise typer.Exit(1)
