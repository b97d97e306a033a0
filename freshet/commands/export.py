"""``freshet export``: a keyspace's change log as Parquet files or Delta tables, with Spark."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from freshet.commands.rebuild import AsJson, Bootstrap, DriverMemory, Master, SparkLog
from freshet.keyspaces import AsArgument, AsOption, explain_unknown_keyspace, full_table_name, one_keyspace
from freshet.settings import load_settings
from freshet.snapshots import no_address, set_place
from freshet.spark import spark_settings

if TYPE_CHECKING:
    from spark_jobs.session import SparkSettings
    from stream.kafka.connection import KafkaCluster


class Format(StrEnum):
    """What an export is written as."""

    PARQUET = "parquet"
    DELTA = "delta"


def command(
    keyspace: AsArgument = "",
    *,
    keyspace_option: AsOption = "",
    to: Annotated[
        Path,
        typer.Option(
            help="Directory for the files: a new one, or an export to go on with.", metavar="DIR", parser=no_address
        ),
    ],
    offsets: Annotated[str | None, typer.Option(help='Stop before these offsets, by partition: {"0": 17, …}.')] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is new, until Ctrl-C or SIGTERM.")] = False,
    table: Annotated[
        str | None,
        typer.Option(help="Write the rows of this table at one moment, instead of all changes."),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(help="With --table: the moment, a token or a time (default: now).")
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="Parquet files, or a Delta Lake table for each table.")
    ] = Format.PARQUET,
    base: Annotated[
        Path | None,
        typer.Option(
            help="With --table: a checkpoint or rebuild before the moment, to begin with.",
            metavar="DIR",
            parser=no_address,
        ),
    ] = None,
    snapshots: Annotated[
        str | None,
        typer.Option(
            help="With --table: begin with the newest snapshot there before the moment (default: the setting).",
            metavar="URI",
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    master: Master = "local[*]",
    driver_memory: DriverMemory = "1g",
    spark_log: SparkLog = None,
    as_json: AsJson = False,
) -> None:
    """Write a keyspace's changes as Parquet or Delta tables, each change exactly once (docs/operating/export.md).

    With --table: a table's rows, as they were at one moment."""
    from spark_jobs.export import ExportRequest, export, prepare
    from spark_jobs.offsets import parse_offsets
    from spark_jobs.session import spark_session

    if follow and offsets:
        raise typer.BadParameter("--follow has no end: it takes no --offsets")
    if table is None and (as_of or base or snapshots):
        raise typer.BadParameter("--as-of, --base and --snapshots need --table")
    if table is not None and (follow or offsets):
        raise typer.BadParameter("--table has one moment: it takes no --follow or --offsets")
    keyspace = one_keyspace(keyspace, keyspace_option)
    settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}})
    spark = spark_settings(master, driver_memory, spark_log, delta=form is Format.DELTA)
    if table is not None:
        with explain_unknown_keyspace(settings, keyspace):
            place = keyspace, full_table_name(settings, keyspace, table), form.value
            begin = base, set_place(settings, keyspace) if snapshots is None else snapshots
            _export_table(settings.kafka.cluster, place, as_of or "", begin, to, spark, as_json=as_json)
        return
    ends = None if offsets is None else parse_offsets(offsets)
    request = ExportRequest(keyspace, settings.kafka.cluster, to, ends, follow, format=form.value)
    with explain_unknown_keyspace(settings, keyspace):
        prepare(request)
        to.mkdir(parents=True, exist_ok=True)  # what can't be written is told before Spark starts
        with spark_session(f"freshet export {keyspace}", spark) as session:
            report = export(session, request)
    if as_json:
        typer.echo(json.dumps({"directory": str(to), **asdict(report)}))
    else:
        typer.echo(
            f"exported {report.rows} changes of {keyspace} into {report.files} files in {to} "
            f"({report.seconds:.1f} s); {report.total} in all"
        )


def _export_table(
    kafka: KafkaCluster,
    place: tuple[str, str, str],
    as_of: str,
    begin: tuple[Path | None, str],
    to: Path,
    spark: SparkSettings,
    *,
    as_json: bool,
) -> None:
    """Writes the rows of a table (``place``: keyspace, name, format) at one moment, and says how many.

    ``begin``: a checkpoint or rebuild, else the place of snapshots.
    """
    from spark_jobs.session import spark_session
    from spark_jobs.source.cut import parse_as_of
    from spark_jobs.source.reading import plan
    from spark_jobs.source.writing import check_target, write_table

    keyspace, table, form = place
    check_target(to, form)
    base, snapshots = begin
    planned = plan(kafka, keyspace, table, parse_as_of(as_of), str(base or ""), snapshots=snapshots)
    planned.check_whole()  # before Spark starts
    with spark_session(f"freshet export {table}", spark) as session:
        report = write_table(session, planned, to, form=form, moment=as_of)
    if as_json:
        typer.echo(json.dumps({"directory": str(to), **asdict(report)}))
        return
    typer.echo(f"wrote {report.rows} rows of {report.table} into {report.files} files in {to}")
    if report.incomplete:
        typer.echo("rows without a change may be missing: the table was not read whole (freshet backfill)")
