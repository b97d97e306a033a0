"""A table at a moment as Parquet files, or as one version of a Delta table: all of it, or nothing."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from consumers.store.manifest import sync_directory
from spark_jobs.engine.executors import check_executors, check_shared
from spark_jobs.export import DELTA, PARQUET, ExportError
from spark_jobs.exporting.delta import LOG, admit_datetimes, check_delta, delta_columns
from spark_jobs.output import exclusive, sync_tree
from spark_jobs.source.datasource import register_source
from spark_jobs.source.reading import Plan
from spark_jobs.streaming import address, spark_errors
from tokens.errors import FreshetError

ROWS_PER_FILE: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class TableReport:
    """What was written. ``incomplete``: whether rows may be missing, since the table was not read whole."""

    keyspace: str
    table: str
    rows: int
    files: int
    incomplete: bool


def check_target(target: Path, form: str = PARQUET) -> None:
    """Raises `ExportError` ``export_exists`` if there is something already. A Delta table gets one more version."""
    if target.exists() and not (form == DELTA and (target / LOG).is_dir()):
        raise ExportError(f"{target} exists", hint="give a new directory with --to")


def write_table(session: Any, planned: Plan, target: Path, *, form: str = PARQUET, moment: str = "") -> TableReport:
    """Writes the rows of a plan into ``target``, a file for each partition of the topic that has some.

    The directory gets its name last. ``moment``: what the history of a Delta table says of this version. Raises
    `ExportError`, `ExecutorError`, `RebuildError`, `SparkUnavailable`.
    """
    from pyspark.sql import functions as f

    root = Path(os.path.abspath(target))
    with exclusive(root):
        check_target(root, form)
        check_executors(session)
        check_shared(session, root.parent)
        if form == DELTA:
            check_delta(session)
            planned = replace(planned, columns=delta_columns(planned.columns))
        register_source(session, planned.kafka, planned)
        if form == DELTA:
            return _write_version(session, planned, root, moment)
        staging = root.with_name(f".{root.name}.partial")
        shutil.rmtree(staging, ignore_errors=True)
        place = {"keyspace": planned.keyspace, "table": planned.table}
        try:
            with spark_errors():
                rows = session.read.format("freshet").options(**place).load()
                rows.write.option("maxRecordsPerFile", ROWS_PER_FILE).parquet(address(staging))
                kinds = dict(session.read.parquet(address(staging)).groupBy("_kind").agg(f.count("*")).collect())
        except FreshetError:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        sync_tree(staging)
        staging.rename(root)
        sync_directory(root.parent)
    return _report(planned, kinds, len(list(root.glob("*.parquet"))))


def _write_version(session: Any, planned: Plan, root: Path, moment: str) -> TableReport:
    """One more version of a Delta table. A run that is killed leaves files that no version names."""
    from pyspark.sql import functions as f

    told = {"table": planned.table, "as_of": moment, "offsets": planned.end}
    place = {"keyspace": planned.keyspace, "table": planned.table}
    with spark_errors():
        rows = session.read.format("freshet").options(**place).load()
        admit_datetimes(session, root, rows)
        writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
        writer.option("userMetadata", json.dumps(told)).save(address(root))
        written = session.read.format("delta").load(address(root))
        kinds = dict(written.groupBy("_kind").agg(f.count("*")).collect())
        return _report(planned, kinds, len(written.inputFiles()))


def _report(planned: Plan, kinds: dict[str, int], files: int) -> TableReport:
    incomplete = kinds.pop("incomplete", 0) > 0
    return TableReport(planned.keyspace, planned.table, sum(kinds.values()), files, incomplete)
