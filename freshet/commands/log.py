"""``freshet log``: the committed transactions of a keyspace, printed or kept in files or in a topic."""

from __future__ import annotations

from pathlib import Path
from time import sleep
from typing import Annotated
from urllib.parse import unquote_to_bytes

import msgspec
import typer

from freshet.commands.get import front_client
from freshet.settings import Settings, load_settings
from freshet.snapshots import no_address
from serving.changelog.errors import ChangeLogError
from serving.changelog.files import Heading, LogFiles
from serving.changelog.writing import Included, write_log
from serving.client import FreshetClient, NotFoundError, Unavailable, Unreachable

DAY_S = 86_400
PAUSE_S = 1.0


def command(
    keyspace: Annotated[str, typer.Argument(help="The keyspace.")],
    table: Annotated[
        list[str] | None, typer.Option(metavar="DB.TABLE", help="A table; repeatable. Default: all.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Print the history of this row of the one table, e.g. 7 or 7,2.")
    ] = None,
    begin: Annotated[
        str,
        typer.Option(
            "--from", help="Where to begin: earliest, now, seconds (-3600: an hour ago), a token or a checkpoint."
        ),
    ] = "earliest",
    to: Annotated[
        Path | None,
        typer.Option(help="Write into files in this directory, instead of printing.", metavar="DIR", parser=no_address),
    ] = None,
    to_topic: Annotated[
        str, typer.Option(metavar="NAME", help="Write into this topic, one record a transaction, instead of printing.")
    ] = "",
    keep_days: Annotated[
        float | None,
        typer.Option(
            min=0.01, help="Remove files that ended longer ago; of a topic: when it is made. Default: keep all."
        ),
    ] = None,
    before: Annotated[
        bool,
        typer.Option("--before", help="Tell what rows were before, too, where the keyspace has before_images set."),
    ] = False,
    keyless: Annotated[
        bool,
        typer.Option(
            "--keyless", help="Tell rows of tables without a primary key, too, where the keyspace has keyless_rows set."
        ),
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is committed later.")] = False,
    url: Annotated[str, typer.Option(help="The front (default: that of the settings).")] = "",
) -> None:
    """Print the committed transactions of a keyspace, or keep a complete log of them in files or in a topic.

    Files have one transaction a line, in JSON; a topic has one a record, in Avro. With --to and --to-topic the log goes
    on where it ends, exactly: kill it whenever you like, and start it again with the same words. One process for a
    keyspace and a directory, or for a topic.
    """
    settings, tables = load_settings(), sorted(set(table or ()))
    is_kept = to is not None or bool(to_topic)
    if to is not None and to_topic:
        raise ChangeLogError("a log is kept in files or in a topic", hint="run two, each with one of both")
    if not is_kept and keep_days is not None:
        raise ChangeLogError("--keep-days is of files and topics", hint="name the directory with --to, or --to-topic")
    if is_kept and key is not None:
        raise ChangeLogError("a log of one row is not kept", hint="leave --key out, or --to and --to-topic")
    keep_s = keep_days * DAY_S if keep_days is not None else None
    included = Included(include_before=before, include_keyless=keyless)
    words = [word for word, is_given in (("before", before), ("keyless", keyless)) if is_given]
    heading = Heading(keyspace, tables, included=words)
    with front_client(settings, url) as client:
        if to is not None:
            _into_files(client, to, heading, begin, keep_s, once=not follow, included=included)
        elif to_topic:
            _into_topic(settings, client, to_topic, heading, begin, keep_s, once=not follow, included=included)
        else:
            _show(client, keyspace, begin, tables, key, follow=follow, included=included)


def _into_files(
    client: FreshetClient,
    to: Path,
    heading: Heading,
    begin: str,
    keep_s: float | None,
    *,
    once: bool,
    included: Included,
) -> None:
    try:
        with LogFiles(to, heading, keep_s=keep_s) as files:
            write_log(client, heading.keyspace, files, begin, tables=heading.tables, once=once, **included)
    except OSError as error:
        raise ChangeLogError(
            f"the log in {to} can't be written: {error.strerror or error}",
            hint="mend it, and start again: the log goes on where it was",
            code="log_failed",
        ) from error


def _into_topic(
    settings: Settings,
    client: FreshetClient,
    name: str,
    heading: Heading,
    begin: str,
    keep_s: float | None,
    *,
    once: bool,
    included: Included,
) -> None:
    # Not above: files need neither Kafka's client nor Avro.
    from serving.changelog.records import own_framing, registry_framing
    from serving.changelog.topic import LogTopic, check_name

    kafka, registry = settings.kafka.cluster, settings.schema_registry.registry
    check_name(kafka, name)
    framing = registry_framing(registry, name) if registry is not None else own_framing()

    def kinds(table: str) -> dict[str, str]:
        """The columns of a table as the front knows it; none of one that is gone. It waits as the log does."""
        while True:
            try:
                return {column.name: column.kind for column in client.describe(heading.keyspace, table).columns}
            except NotFoundError:
                return {}
            except (Unavailable, Unreachable):
                if once:
                    raise
                sleep(PAUSE_S)

    with LogTopic(kafka, name, heading, framing, kinds, keep_s=keep_s) as log:
        write_log(client, heading.keyspace, log, begin, tables=heading.tables, once=once, **included)


def _show(
    client: FreshetClient,
    keyspace: str,
    begin: str,
    tables: list[str],
    key: str | None,
    *,
    follow: bool,
    included: Included,
) -> None:
    columns = [unquote_to_bytes(each) for each in key.split(",")] if key is not None else None
    events = client.stream(
        keyspace,
        begin,
        tables=tables,
        key=columns,
        include_rows=True,
        **included,
        until="" if follow else "now",
    )
    for event in events:
        if event.kind not in ("watermark", "end"):
            typer.echo(msgspec.json.encode(event))
