"""``freshet sink``: a copy of tables in another database, kept up to date by the change stream."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, Final

import sqlalchemy as sa
import structlog
import typer

from freshet.commands.get import front_client
from freshet.keyspaces import AsArgument, AsOption, full_table_name, one_keyspace, shards_in
from freshet.sections.secrets import secret_in
from freshet.settings import load_settings
from serving.client import FreshetClient
from serving.sink.awaiting import AwaitedShards
from serving.sink.errors import SinkError
from serving.sink.running import READERS, SHARD_WAIT_S, Sink
from tokens import Vector
from tokens.errors import one_line

log = structlog.get_logger(__name__)

_NO_VALUES: Final = (1264, 1265, 1292, 1366, 1406)
"""What MariaDB and MySQL answer to a value that is too long, too large, or none of its column's type."""
_NO_VALUE_OF_ITS_TYPE: Final = "22"
"""The class of SQLSTATE of these."""


def command(
    keyspace: AsArgument,
    to: Annotated[
        str,
        typer.Argument(metavar="URL", help="The database of the copy, as SQLAlchemy writes it, without a password."),
    ] = "",
    *,
    keyspace_option: AsOption = "",
    table: Annotated[list[str], typer.Option(help="A table to copy, db.table, or without db as for curl; repeatable.")],
    url: Annotated[str, typer.Option(help="The front (default: that of the settings).")] = "",
    follow_schemas: Annotated[
        bool, typer.Option("--follow-schemas", help="Make a table whose columns change anew, and read it again.")
    ] = False,
    password_file: Annotated[
        Path | None, typer.Option(help="A file with the password of the copy's database.", metavar="FILE")
    ] = None,
    readers: Annotated[int, typer.Option(min=1, max=64, help="Tables that are read side by side.")] = READERS,
    once: Annotated[bool, typer.Option("--once", help="End when the copy has all that was committed by now.")] = False,
) -> None:
    """Copy tables into another database, and keep the copy up to date.

    Tables that are missing there are made. Checkpoints are in the copy, in the table freshet_sink: kill it whenever you
    like, and start it again with the same words. One process for a keyspace and a database.
    """
    if not to:  # as it was written before keyspaces came first
        keyspace, to = "", keyspace
    keyspace = one_keyspace(keyspace, keyspace_option)
    settings = load_settings()
    shards = shards_in(settings, keyspace)
    table = [full_table_name(settings, keyspace, each) for each in table]
    engine = _engine(to, password_file)
    with front_client(settings, url) as client:
        sink = Sink(client, keyspace, engine, table, shards, follows_schemas=follow_schemas, readers=readers)
        try:
            sink.run(is_done=_reached(client, keyspace, frozenset(shards)) if once else lambda _: False)
        except sa.exc.SQLAlchemyError as error:
            raise _failure(error) from None  # what the driver says may have values of rows in it
        finally:
            engine.dispose()


def _failure(error: sa.exc.SQLAlchemyError) -> SinkError:
    if isinstance(error, sa.exc.DBAPIError) and error.orig is not None and _does_not_fit(error.orig):
        words, hint, code = "a column of the copy does not take a value", "give it a type that does", "sink_value"
    else:
        words, hint, code = "the database of the copy", "mend it", "sink_failed"
    hint += ", and start again: the copy goes on where it was"
    return SinkError(one_line(f"{words}: {_said(error)}")[:500], hint=hint, code=code)


def _does_not_fit(error: BaseException) -> bool:
    """Whether a database has refused a value, which it would have had to cut."""
    state = getattr(error, "sqlstate", None) or ""
    return state.startswith(_NO_VALUE_OF_ITS_TYPE) or next(iter(error.args), None) in _NO_VALUES


def _said(error: sa.exc.SQLAlchemyError) -> str:
    """What failed, without what a driver says of it: `Duplicate entry 'alice@example.com' for key 'email'`."""
    if not isinstance(error, sa.exc.DBAPIError) or error.orig is None:
        return str(error)
    number = getattr(error.orig, "sqlstate", None) or next((each for each in error.orig.args if type(each) is int), "")
    return " ".join(f"{type(error.orig).__name__} {number} at {error.statement or 'no statement'}".split())


def _engine(to: str, password_file: Path | None) -> sa.Engine:
    """The database of the copy. No error shows the URL, which may have a password in it. Raises `SinkError`."""
    try:
        url = sa.make_url(to)
        if password_file is not None:
            url = url.set(password=secret_in(password_file, "--password"))
        elif url.password is not None or {"password", "passwd"} & url.query.keys():
            log.warning("a command line can be read by all users of this machine", hint="use --password-file")
        engine = sa.create_engine(url, hide_parameters=True)  # else errors would show rows
    except (sa.exc.ArgumentError, ImportError, ValueError) as error:
        reason = error if password_file is not None or isinstance(error, ImportError) else "it is not as SQLAlchemy's"
        raise SinkError(
            one_line(f"the URL of the copy can't be used: {reason}"),
            hint="sqlite:///copy.db, mysql+pymysql://…, postgresql+psycopg://…",
        ) from None
    if engine.dialect.name in ("mysql", "mariadb"):
        sa.event.listen(engine, "connect", _prepare)
    return engine


def _prepare(connection: Any, _: Any) -> None:
    """A TIMESTAMP takes what is written as of the session's zone, and the stream tells moments in UTC.

    And a value that does not fit its column is refused, whatever the server's own ``sql_mode``: else it is cut, and a
    key that was cut is found by no DELETE.
    """
    with closing(connection.cursor()) as cursor:
        cursor.execute("SET time_zone = '+00:00', sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')")


def _reached(client: FreshetClient, keyspace: str, shards: frozenset[str]) -> Callable[[Vector], bool]:
    """Whether a watermark is at or past where the keyspace is now."""
    wanted = Vector()
    awaited = AwaitedShards(shards, SHARD_WAIT_S)
    for event in client.stream(keyspace, heartbeat_ms=250):
        wanted = Vector.parse_known(event.token)[0] if event.token else wanted
        if awaited.are_in(wanted):
            break

    def is_reached(vector: Vector) -> bool:
        return vector.merge(wanted) == vector

    return is_reached
