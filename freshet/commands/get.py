"""``freshet get``: a row as the front answers it, with the decision and why."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote_to_bytes

import typer

from freshet.sections.sources import MariaDBSourceSettings
from freshet.settings import Settings, load_settings
from freshet.settings_errors import SettingsError
from tokens import Position, TokenError
from tokens.errors import printable
from tokens.mariadb import MariadbPosition
from tokens.mysql import MysqlPosition

if TYPE_CHECKING:
    from serving.client import FreshetClient
    from serving.client.answers import Row

ANY = ("0.0.0.0", "::")


def command(
    keyspace: Annotated[str, typer.Argument(help="The keyspace.")],
    table: Annotated[str, typer.Argument(help="Table: db.table, or without db if the keyspace has one database.")],
    key: Annotated[str, typer.Argument(help="Primary key: columns comma-separated, percent-encoded.")],
    after: Annotated[
        str | None,
        typer.Option(metavar="GTID", help="Demand what this transaction wrote, e.g. what SELECT @@last_gtid said."),
    ] = None,
    token: Annotated[str | None, typer.Option(help="Demand what the session of this token has seen.")] = None,
    shard: Annotated[str | None, typer.Option(help="The shard of the GTID, if the keyspace has several.")] = None,
    max_wait_ms: Annotated[
        int | None, typer.Option(help="How long the cache may take to get there before the source is asked.", min=0)
    ] = None,
    last_known: Annotated[
        bool, typer.Option(help="Where a DDL has voided the row, its image of before will do, if nothing is demanded.")
    ] = False,
    url: Annotated[
        str, typer.Option(help="The front (default: that of the settings, serve.host and serve.port).")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask the front for a row by its primary key. Prints the row, who answered, how fresh it is, and why.

    With neither --after nor --token nothing is demanded, so nothing is proved: the answer is `eventual`.
    Exit code 1 if there is no such row.
    """
    from serving.client.errors import HistoryLost

    _refuse_empty({"--after": after, "--token": token, "--shard": shard})
    settings = load_settings()
    position = _position(settings, keyspace, after) if after else ""
    with front_client(settings, url) as client:
        session = client.session(token)
        if position:
            session.observe(settings.shard_of(keyspace, shard or ""), position)
        columns = [unquote_to_bytes(each) for each in key.split(",")]
        if last_known and not token and not position:
            row = client.get_row(keyspace, table, *columns, last_known=True)
        else:
            try:
                row = session.get_row(keyspace, table, *columns, max_wait_ms=max_wait_ms)
            except HistoryLost as lost:
                lost.hint = (
                    f"continue with --token '{printable(lost.token)}'" if lost.token else "ask again without --after"
                )
                raise
    if as_json:
        typer.echo(json.dumps(_plain(row), ensure_ascii=False))
    else:
        _show(row)
    if not row.found:
        raise typer.Exit(1)


def _refuse_empty(given: dict[str, str | None]) -> None:
    """Wrong use where an option's value is empty, as a shell's unset variable is: it would demand nothing."""
    for option, value in given.items():
        if value is not None and not value.strip():
            raise typer.BadParameter("is empty: is the variable set?", param_hint=option)


def front_client(settings: Settings, url: str = "") -> FreshetClient:
    """A client of the front that shows what the settings say. ``url``: of another front than theirs."""
    from serving.client import FreshetClient, Tls

    if url and not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"{url} does not begin with http:// or https://", param_hint="--url")
    own = settings.client.tls
    tls = Tls(own.ca, own.certificate, own.key)
    return FreshetClient(url or front_url(settings), token=settings.front_secret, tls=tls)


def front_url(settings: Settings, port: int | None = None) -> str:
    """Where the front of the settings is, from this machine. ``port``: that is to stand for ``serve.port``."""
    host = "127.0.0.1" if settings.serve.host in ANY else settings.serve.host
    scheme = "https" if settings.serve.tls.certificate else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.serve.port if port is None else port}"


def _position(settings: Settings, keyspace: str, gtid: str) -> str:
    """A GTID as the server says it, as a position: with the name of its kind. Raises `SettingsError`."""
    if "/" in gtid:
        return gtid
    source = settings.keyspace(keyspace).source
    if not isinstance(source, MariaDBSourceSettings) or source.is_postgres:
        raise SettingsError(
            f"the settings don't say what kind of position {gtid} is",
            hint="write it with its kind: MariaDB/0-1-5, MySQL56/uuid:1-5, or Postgres/1:16/B374D848",
        )
    try:
        return str(Position.parse(gtid, MysqlPosition.flavor if source.is_mysql else MariadbPosition.flavor))
    except TokenError as error:
        hint = "give what SELECT @@last_gtid says on MariaDB (0-1-5), or MySQL's GTID (uuid:5)"
        raise SettingsError(f"--after: {error}", hint=hint, code=error.code) from error


def _plain(row: Row) -> dict[str, Any]:
    return {
        "found": row.found,
        "row": row.value,
        "served_from": row.served_from,
        "freshness": row.freshness,
        "why": row.why,
        "token": row.token,
    }


def _show(row: Row) -> None:
    """The columns of the row, then the answer's own fields, apart from them."""
    if row.value is None:
        typer.echo("there is no such row")
    else:
        width = max(map(len, row.value), default=0)
        for name, value in row.value.items():
            typer.echo(f"{printable(name):<{width}}  {_text(value)}")
    typer.echo("")
    for name in ("served_from", "freshness", "why", "token"):
        typer.echo(f"{name:<11}  {getattr(row, name)}")
    if row.freshness == "eventual" and sys.stdout.isatty():
        typer.echo("\nNothing was demanded. Ask again with --after GTID or --token TOKEN to have it proved.", err=True)


def _text(value: Any) -> str:
    """A value as one line: what others have written into a row can't pass for a line of the answer."""
    if value is None:
        return "NULL"
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
