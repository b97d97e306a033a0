"""``freshet token``: makes, hashes and checks the secrets of `[serve.tokens.NAME]` and `[consumer.tokens.NAME]`."""

from __future__ import annotations

import json
import sys
import time
from math import isfinite
from typing import Annotated, Any, Final

import typer
from pydantic import TypeAdapter, ValidationError

from freshet.sections.access import Tokens
from freshet.settings import load_settings
from freshet.settings_errors import SettingsError
from stream.access.grants import Access, AccessRefused, digest_of, moment, new_secret

DAY_S: Final = 86_400

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Make, hash and check the secrets that callers show."
)


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="The token's name in the settings: who shows it.")],
    role: Annotated[list[str] | None, typer.Option(help="read, fill, admin or metrics; repeatable.")] = None,
    keyspace: Annotated[list[str] | None, typer.Option(help="Only for this one; repeatable. Default: all.")] = None,
    days: Annotated[int, typer.Option(help="Days until it expires; 0: never.", min=0, max=36_500)] = 0,
    owner: Annotated[bool, typer.Option("--owner", help="For the owner protocol, not for the front.")] = False,
) -> None:
    """Print a new random secret, and on stderr what goes into the settings. The secret is kept nowhere else."""
    secret, roles = new_secret(), role or ["read"]
    digest = digest_of(secret.encode())
    _check(name, {"hash": digest, "roles": roles, "keyspaces": keyspace or []})
    lines = [
        f"[{'consumer' if owner else 'serve'}.tokens.{name}]",
        f'hash = "{digest}"',
        f"roles = {json.dumps(roles)}",
        *([f"keyspaces = {json.dumps(keyspace)}"] if keyspace else []),
    ]
    if days:
        lines.append(f"expires = {moment(time.time() + days * DAY_S)}")
    typer.echo("\n".join(lines), err=True)
    typer.echo(secret)


def _check(name: str, given: dict[str, Any]) -> None:
    """Raises `SettingsError` for what the settings would refuse."""
    try:
        TypeAdapter(Tokens).validate_python({name: given})
    except ValidationError as error:
        [finding, *_] = error.errors(include_url=False)
        what = str(finding["loc"][1]) if finding["loc"][1] != "[key]" else "the name"
        hint = "a name has letters, digits, _ and -; freshet token new --help has the roles"
        raise SettingsError(f"{what}: {finding['msg']}, not {finding['input']!r}", hint=hint) from None


@app.command("hash")
def hash_secret() -> None:
    """Print the hash of the secret on stdin, for the settings."""
    typer.echo(digest_of(_secret()))


@app.command("check")
def check(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say what the secret on stdin may do by the settings. Exit code 1 if nothing."""
    settings, secret, found = load_settings(), _secret(), list[dict[str, Any]]()
    if not settings.serve.credentials and not settings.consumer.credentials:
        raise SettingsError("the settings have no tokens, so nobody is asked for one", hint="freshet token new NAME")
    for listener, accepted in (("serve", settings.serve.credentials), ("consumer", settings.consumer.credentials)):
        if not accepted:
            continue
        try:
            grant = Access(accepted).of(secret)
        except AccessRefused as refused:
            typer.echo(f"{listener}: {refused}", err=True)
            continue
        expires = moment(grant.expires_s) if isfinite(grant.expires_s) else None
        keyspaces = sorted(grant.keyspaces) if grant.keyspaces is not None else None
        found.append(
            {
                "listener": listener,
                "name": grant.name,
                "roles": sorted(grant.roles),
                "keyspaces": keyspaces,
                "expires": expires,
            }
        )
    if as_json:
        typer.echo(json.dumps(found))
    else:
        for each in found:
            typer.echo(
                f"{each['listener']}: {each['name']}, roles {', '.join(each['roles'])},"
                f" keyspaces {', '.join(each['keyspaces']) if each['keyspaces'] is not None else 'all'},"
                f" {'expires ' + each['expires'] if each['expires'] else 'does not expire'}"
            )
    if not found:
        raise typer.Exit(1)


def _secret() -> bytes:
    if sys.stdin.isatty():
        typer.echo("type the secret, then Enter:", err=True)
    secret = sys.stdin.buffer.readline(1 << 20).rstrip(b"\r\n")
    if not secret:
        raise SettingsError("there is no secret on stdin", hint="freshet token check < FILE")
    return secret
