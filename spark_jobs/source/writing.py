"""A table at a moment as Parquet files: all of it, or nothing."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from consumers.store.manifest import sync_directory
from spark_jobs.engine.executors import check_executors
from spark_jobs.export import ExportError
from spark_jobs.output import exclusive, sync_tree
from spark_jobs.source.datasource import register_source
from spark_jobs.source.reading import Plan
from spark_jobs.streaming import spark_failed

ROWS_PER_FILE: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class TableReport:
    """What was written. ``incomplete``: whether rows may be missing, since the table was not read whole."""

    keyspace: str
    table: str
    rows: int
    files: int
    incomplete: bool


def check_target(target: Path) -> None:
    """Raises `ExportError` ``export_exists`` if there is something already."""
    if target.exists():
        raise ExportError(f"{target} exists", hint="give a new directory with --to")


def write_table(session: Any, planned: Plan, target: Path) -> TableReport:
    """Writes the rows of a plan into ``target``, a file for each partition of the topic that has some.

    The directory gets its name last. Raises `ExportError`, `ExecutorError`, `RebuildError`.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    root = Path(os.path.abspath(target))
    with exclusive(root):
        check_target(root)
        check_executors(session)
        register_source(session, planned.kafka, planned)
        staging = root.with_name(f".{root.name}.partial")
        shutil.rmtree(staging, ignore_errors=True)
        place = {"keyspace": planned.keyspace, "table": planned.table}
        try:
            rows = session.read.format("freshet").options(**place).load()
            rows.write.option("maxRecordsPerFile", ROWS_PER_FILE).parquet(staging.as_uri())
            kinds = dict(session.read.parquet(staging.as_uri()).groupBy("_kind").agg(f.count("*")).collect())
        except PySparkException as error:
            shutil.rmtree(staging, ignore_errors=True)
            raise spark_failed(error) from error
        sync_tree(staging)
        staging.rename(root)
        sync_directory(root.parent)
    files = len(list(root.glob("*.parquet")))
    incomplete = kinds.pop("incomplete", 0) > 0
    return TableReport(planned.keyspace, planned.table, sum(kinds.values()), files, incomplete)
