"""``freshet compare``: the order of two tokens, positions or write-id lists, and why."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tokens.comparison import compare_texts


def command(
    a: Annotated[str, typer.Argument(help="A position, event token, vector or write-id list.")],
    b: Annotated[str, typer.Argument(help="What to compare it with, of the same kind.")],
    flavor: Annotated[
        str | None,
        typer.Option("--flavor", help="Flavor of positions that are written without one.", metavar="FLAVOR"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say whether A is newer or older than B, the same, or unknown, and why.

    Of two write-id lists, A is the cached one and B the reader's. A serves B if it is newer or the same.
    """
    found = compare_texts(a, b, flavor)
    answer = found.order.name.lower()
    if as_json:
        plain = {"kind": found.kind, "a": found.a, "b": found.b, "order": answer, "why": found.why, **found.details}
        typer.echo(json.dumps(plain, ensure_ascii=False))
    else:
        typer.echo(f"{answer}: {found.why}")
