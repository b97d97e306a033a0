"""An export as Delta tables: the files of a commit are appended to their tables, each commit once.

Delta keeps the number of the last commit in each table's log, in the same transaction as the files (``txnAppId``,
``txnVersion``), and passes over an append of a number that it has. So a commit may be appended again after a kill.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, Final

from consumers.store.manifest import write_atomically
from spark_jobs.exporting.columns import FIXED
from spark_jobs.session import SparkUnavailable
from spark_jobs.streaming import address, spark_errors

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
REFUSED: Final = frozenset(" ,;{}()\n\t=")
"""No name of a Delta column has these; such columns are untyped."""
DATETIME: Final = "timestamp_ntz"
"""A date and a time without a time zone. Tables that have none can be read by older versions of Delta."""
FEATURE: Final = "timestampNtz"
LOG: Final = "_delta_log"
APPENDED_NAME: Final = "appended.json"
"""The number of the last commit that is in all of its tables: its staged files may be removed."""
_FIXED: Final = {each.name for each in FIXED}


def check_delta(session: Any) -> None:
    """Raises `SparkUnavailable` ``delta_missing`` unless the session was started for Delta."""
    if SETTINGS["spark.sql.extensions"] not in session.conf.get("spark.sql.extensions", ""):
        options = " ".join(f"--conf {name}={value}" for name, value in SETTINGS.items())
        raise SparkUnavailable(
            "this Spark was started without Delta Lake",
            hint=f"submit with --packages …,{PACKAGE} {options}",
            code="delta_missing",
        )


def delta_columns(columns: Mapping[str, str]) -> dict[str, str]:
    """The columns of a table (name → kind) that Delta can have; the others are untyped."""
    return {name: kind for name, kind in columns.items() if not REFUSED & {*name}}


def append_files(
    session: Any, root: Path, staged: Path, files: Mapping[str, str], app: str, number: int, told: Mapping[str, Any]
) -> None:
    """Appends staged files (name → place below ``root``) to the tables that the places name, once for each ``number``.

    ``files`` is in the order of the log, so that a column has the type that it had first. ``told``: what each table's
    history says of this version. Raises `RebuildError` if Spark failed, ``OSError`` or an ``ArrowException`` if a
    file can't be read.
    """
    import pyarrow.parquet as pq

    alike: dict[str, dict[bytes, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, place in files.items():  # their names are random
        columns = pq.read_schema(staged / name).serialize().to_pybytes()
        alike[table_in(place)][columns].append(address(staged / name))
    with spark_errors():
        for table, groups in sorted(alike.items()):
            known = _types(session, root / table)
            frames = [_fitting(session.read.parquet(*group), known) for group in groups.values()]
            rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
            admit_datetimes(session, root / table, rows)
            _append(rows, root / table, app, number, json.dumps(told))
    write_atomically(staged.parent / APPENDED_NAME, json.dumps(number).encode())


def is_appended(notes: Path, number: int) -> bool:
    """Whether the commit of this number is in all of its tables."""
    try:
        return bool(json.loads((notes / APPENDED_NAME).read_bytes()) == number)
    except (FileNotFoundError, ValueError):
        return False  # it is appended once more, which changes nothing


def table_in(place: str) -> str:
    """The directory of the Delta table to which a file of an export belongs."""
    return place.partition("/")[0].removeprefix("table=")


def admit_datetimes(session: Any, table: Path, rows: Any) -> None:
    """Has a table that is there already take its first column of the type `DATETIME`, if ``rows`` have one.

    A new table takes it at once. To this one, Delta adds a column, but not the feature that such a column needs.
    """
    if DATETIME not in dict(rows.dtypes).values():
        return
    types = _types(session, table)
    if types and DATETIME not in types.values():
        feature = f"SET TBLPROPERTIES ('delta.feature.{FEATURE}' = 'supported')"
        session.sql(f"ALTER TABLE delta.`{address(table)}` {feature}")


def _types(session: Any, table: Path) -> dict[str, str]:
    """Column → type of a table that is there already. Names are alike whatever their case."""
    if not (table / LOG).is_dir():
        return {}
    return {name.lower(): kind for name, kind in session.read.format("delta").load(address(table)).dtypes}


def _fitting(frame: Any, known: dict[str, str]) -> Any:
    """The frame with another name for each column that has another type than in the table: a Delta column has one."""
    own = {name.lower() for name in frame.columns}
    for name, kind in frame.dtypes:
        found = name
        while name not in _FIXED and (
            known.get(found.lower(), kind) != kind or (found != name and found.lower() in own)
        ):
            found = f"{found}_{kind}"
        known[found.lower()] = kind
        if found != name:
            own.add(found.lower())
            frame = frame.withColumnRenamed(name, found)
    return frame


def _append(rows: Any, table: Path, app: str, number: int, told: str) -> None:
    from pyspark.sql import functions as f

    day = f.date_from_unix_date(f.floor(f.unix_seconds("_time") / 86400).cast("int"))  # of UTC, in any session
    dated = rows.withColumn("day", f.coalesce(day, f.lit("1970-01-01").cast("date")))
    writer = dated.write.format("delta").mode("append").partitionBy("day").option("mergeSchema", "true")
    writer = writer.option("txnAppId", app).option("txnVersion", number).option("userMetadata", told)
    writer.save(address(table))


def compact(session: Any, root: Path, tables: Iterable[str]) -> None:
    """Makes few files of many small ones; readers of earlier versions find theirs. Raises `RebuildError`."""
    with spark_errors():
        for table in sorted(tables):
            session.sql(f"OPTIMIZE delta.`{address(root / table)}`")
