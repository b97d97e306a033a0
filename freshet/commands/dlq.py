"""``freshet dlq``: shows, retries and dismisses messages that could not be folded."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from freshet.keyspaces import explain_unknown_keyspace
from freshet.settings import load_settings
from stream.kafka.connection import KafkaCluster
from stream.kafka.dead_letters import DeadLetter, dismiss, find_letter, read_letters, retry
from tokens.errors import printable

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Show, retry and dismiss messages that could not be folded.",
)

Keyspace = Annotated[str, typer.Argument(help="Keyspace whose dead letters to use.")]
Letter = Annotated[str, typer.Argument(help="Id of one letter: TOPIC/PARTITION/OFFSET.", metavar="LETTER")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
HEX_BYTES = 256


@contextmanager
def _cluster(keyspace: str) -> Iterator[KafkaCluster]:
    settings = load_settings()
    with explain_unknown_keyspace(settings, keyspace):
        yield settings.kafka.cluster


@app.command("list")
def list_letters(keyspace: Keyspace, as_json: AsJson = False) -> None:
    """List the unresolved letters of a keyspace, oldest first."""
    with _cluster(keyspace) as cluster:
        letters = read_letters(cluster, keyspace, values=False)
    for letter in letters:
        if as_json:
            typer.echo(json.dumps(_plain(letter), ensure_ascii=False))
        else:
            typer.echo(f"{letter.id}  {printable(letter.code)}  {letter.size} bytes  {printable(letter.reason)}")
    if not letters and not as_json:
        typer.echo(f"no dead letters in {keyspace}")


@app.command("show")
def show(keyspace: Keyspace, letter: Letter, as_json: AsJson = False) -> None:
    """Show one letter: why it is one, and whether this version can decode it."""
    with _cluster(keyspace) as cluster:
        found = find_letter(cluster, keyspace, letter)
    problem = found.problem()
    record = None if problem else found.record()
    if as_json:
        plain = _plain(found) | {
            "value": base64.b64encode(found.value).decode(),
            "decodes": problem is None,
            "problem": str(problem or ""),
            "record": record,
        }
        typer.echo(json.dumps(plain, ensure_ascii=False))
        return
    typer.echo(f"letter   {found.id}")
    typer.echo(f"code     {printable(found.code)}")
    typer.echo(f"reason   {printable(found.reason)}")
    typer.echo(f"size     {found.size} bytes" + ("" if found.is_complete else f", {len(found.value)} kept"))
    typer.echo(f"now      {f'{problem.code}: {problem}' if problem else 'decodes: `freshet dlq retry` puts it back'}")
    if record is not None:
        typer.echo(f"record   {printable(json.dumps(record, ensure_ascii=False))}")
    typer.echo(f"bytes    {found.value[:HEX_BYTES].hex(' ', 2)}" + ("…" if len(found.value) > HEX_BYTES else ""))


@app.command("retry")
def retry_letters(
    keyspace: Keyspace,
    letter: Annotated[str, typer.Argument(help="Id of one letter; all if not given.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be put back.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put messages that this version can decode back into their topic. Exit code 1 if some still can't be."""
    with _cluster(keyspace) as cluster:
        results = retry(cluster, keyspace, letter, dry_run=dry_run)
    for result in results:
        if as_json:
            plain = {"id": result.letter.id, "retried": not (result.problem or dry_run), "problem": result.problem}
            typer.echo(json.dumps(plain, ensure_ascii=False))
        else:
            done = "would be put back" if dry_run else "put back"
            typer.echo(f"{result.letter.id}  {result.problem or done}")
    if not results and not as_json:
        typer.echo(f"no dead letters in {keyspace}")
    if any(result.problem for result in results):
        raise typer.Exit(1)


@app.command("dismiss")
def dismiss_letters(
    keyspace: Keyspace,
    letter: Annotated[str, typer.Argument(help="Id of one letter.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Dismiss all letters of the keyspace.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take letters off the list without putting them back. What they voided is read from the source anyway."""
    if bool(letter) == every:
        raise typer.BadParameter("give the id of a letter, or --all")
    with _cluster(keyspace) as cluster:
        dismissed = dismiss(cluster, keyspace, letter)
    for each in dismissed:
        typer.echo(json.dumps({"id": each.id, "dismissed": True}) if as_json else f"{each.id}  dismissed")
    if not dismissed and not as_json:
        typer.echo(f"no dead letters in {keyspace}")


def _plain(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "code": letter.code,
        "reason": letter.reason,
        "size": letter.size,
    }
