"""``freshet export``: a keyspace's change log as Parquet files, with Spark."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from freshet.commands.rebuild import AsJson, Bootstrap, DriverMemory, Master, SparkLog
from freshet.keyspaces import explain_unknown_keyspace
from freshet.settings import load_settings
from freshet.spark import spark_settings


def command(
    keyspace: Annotated[str, typer.Option(help="The keyspace to export.")],
    to: Annotated[Path, typer.Option(help="Directory for the files: a new one, or an export to go on with.")],
    offsets: Annotated[str | None, typer.Option(help='Stop before these offsets, by partition: {"0": 17, …}.')] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is new, until Ctrl-C or SIGTERM.")] = False,
    bootstrap: Bootstrap = None,
    master: Master = "local[*]",
    driver_memory: DriverMemory = "1g",
    spark_log: SparkLog = None,
    as_json: AsJson = False,
) -> None:
    """Write a keyspace's changes as Parquet by table and day, each exactly once (docs/operating/export.md)."""
    from spark_jobs.export import ExportRequest, export, prepare
    from spark_jobs.offsets import parse_offsets
    from spark_jobs.session import spark_session

    if follow and offsets:
        raise typer.BadParameter("--follow has no end: it takes no --offsets")
    settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}})
    ends = None if offsets is None else parse_offsets(offsets)
    request = ExportRequest(keyspace, settings.kafka.cluster, to, ends, follow)
    spark = spark_settings(master, driver_memory, spark_log)
    with explain_unknown_keyspace(settings, keyspace):
        prepare(request)
        with spark_session(f"freshet export {keyspace}", spark) as session:
            report = export(session, request)
    if as_json:
        typer.echo(json.dumps({"directory": str(to), **asdict(report)}))
    else:
        typer.echo(
            f"exported {report.rows} changes of {keyspace} into {report.files} files in {to} "
            f"({report.seconds:.1f} s); {report.total} in all"
        )
