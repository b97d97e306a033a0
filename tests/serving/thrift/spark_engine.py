"""Spark with Hive's client, as a program: a statement a line, as JSON, and its rows or its error a line, after ``=``.

Started as ``python spark_engine.py URI WAREHOUSE JARS``. A statement is (session, text); there are two sessions.
"""

from __future__ import annotations

import json
import sys
from typing import Any

HIVE = "4.0.1"
"""The version of the client. The one that Spark brings calls ``get_table``, which a metastore 4 does not have."""


def session_of(uri: str, warehouse: str, jars: str) -> Any:
    """The first session. ``jars``: Hive's, with commas between them."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": warehouse,
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.hive.metastore.version": HIVE,
        "spark.sql.hive.metastore.jars": "path",
        "spark.sql.hive.metastore.jars.path": jars,
        "spark.hadoop.hive.metastore.uris": uri,
        "spark.hadoop.hive.exec.dynamic.partition.mode": "nonstrict",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main() -> None:
    """Answers statements until there are no more."""
    from pyspark.errors import PySparkException

    first = session_of(*sys.argv[1:])
    sessions = [first, first.newSession()]
    for line in sys.stdin:
        session, statement = json.loads(line)
        try:
            rows: Any = [[*map(str, row)] for row in sessions[session].sql(statement).collect()]
        except PySparkException as error:
            rows = error.getCondition() or str(error)
        sys.stdout.write(f"={json.dumps(rows)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
