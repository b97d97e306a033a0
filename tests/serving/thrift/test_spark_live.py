"""Spark SQL at the Thrift front, with writes at the metastore beside it: it never sees an older table."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from freshet.local.artifacts import jars
from freshet.local.errors import ArtifactError
from freshet.local.hive.home import metastore_home
from tests.servers.hive_catalog import HiveCatalog
from tests.servers.standalone import spark_environment
from tests.serving.stack import eventually
from tests.serving.thrift.test_thrift_live import Installation, answered, installation

__all__ = ["installation"]

PROGRAM = Path(__file__).with_name("spark_engine.py")
OF_SPARK = re.compile("hadoop-client|log4j|slf4j")
"""Jars that Spark has, and gives to Hive's client too."""


class Spark:
    """Two sessions of Spark in one process. A context manager."""

    def __init__(self, uri: str, directory: Path, hive: Sequence[Path]) -> None:
        self._log = directory / "spark.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    str(PROGRAM),
                    uri,
                    str(directory / "warehouse"),
                    ",".join(f"file://{each}" for each in hive),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=directory,
                env=spark_environment(),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def sql(self, statement: str, session: int = 0) -> Any:
        """The rows, as texts; the condition of an error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([session, statement]) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("="):
                return json.loads(line[1:])
        raise AssertionError(self._log.read_text()[-2000:])

    def column(self, statement: str, session: int = 0) -> list[str]:
        """The first value of each row."""
        return [row[0] for row in self.sql(statement, session)]


@pytest.fixture
def spark(installation: Installation, tmp_path: Path) -> Iterator[Spark]:
    try:
        hive = [*jars("engine"), *sorted((metastore_home() / "lib").glob("*.jar"))]
    except ArtifactError as error:
        pytest.skip(f"the jars of Hive's client cannot be had: {error}")
    host, port = installation.front
    with Spark(
        f"thrift://{host}:{port}", tmp_path, [each for each in hive if not OF_SPARK.search(each.name)]
    ) as opened:
        yield opened


def test_spark_reads_what_it_and_others_have_written(installation: Installation, spark: Spark) -> None:
    """Each statement sees all that was done before it, by either session or at the metastore, and the cache answers."""
    db = f"s{uuid.uuid4().hex[:8]}"
    for statement in (
        f"CREATE DATABASE {db}",
        f"USE {db}",
        "CREATE TABLE plain (a INT, b STRING) STORED AS PARQUET",
        "INSERT INTO plain VALUES (1,'x'),(2,'y')",
        "CREATE TABLE parts (a INT, b STRING) PARTITIONED BY (d STRING, n INT) STORED AS PARQUET",
        "INSERT INTO parts PARTITION (d, n) SELECT a, b, concat('2024-01-0', a), a FROM plain",
        "INSERT INTO parts PARTITION (d='a b/c=d%', n=3) VALUES (3,'z')",
        "ALTER TABLE parts ADD COLUMNS (c BIGINT)",
    ):
        assert spark.sql(statement) == [], statement
    spark.sql(f"USE {db}", 1)
    assert spark.sql("SELECT a, c, n FROM parts ORDER BY a", 1) == [[a, "None", a] for a in "123"]
    assert spark.column("SELECT a FROM parts WHERE n > 1 AND d LIKE '2024%'") == ["2"]
    odd = "d=a b%2Fc%3Dd%25/n=3"
    assert spark.column("SHOW PARTITIONS parts", 1) == ["d=2024-01-01/n=1", "d=2024-01-02/n=2", odd]

    spark.sql("ALTER TABLE parts DROP PARTITION (d='2024-01-01')", 1)
    assert spark.column("SHOW PARTITIONS parts") == ["d=2024-01-02/n=2", odd]
    spark.sql("ALTER TABLE parts PARTITION (d='2024-01-02', n=2) RENAME TO PARTITION (d='2024-01-09', n=9)")
    assert spark.column("SELECT n FROM parts ORDER BY a", 1) == ["9", "3"]
    spark.sql("INSERT INTO parts PARTITION (d, n) SELECT 4, 'w', 5L, '2024-02-01', 4")
    assert spark.column("SELECT sum(a) FROM parts", 1) == ["9"]

    spark.sql("CREATE VIEW v AS SELECT a FROM plain WHERE a > 1")
    assert spark.column("SELECT * FROM v", 1) == ["2"]
    spark.sql("ALTER VIEW v AS SELECT b FROM plain", 1)
    assert spark.column("SELECT * FROM v ORDER BY b") == ["x", "y"]
    spark.sql("DROP VIEW v")
    spark.sql("ALTER TABLE plain RENAME TO moved", 1)
    assert spark.sql("SELECT * FROM plain") == "TABLE_OR_VIEW_NOT_FOUND"
    assert spark.column("SELECT a FROM moved ORDER BY a") == ["1", "2"]
    spark.sql("DROP TABLE moved")
    spark.sql("CREATE TABLE moved STORED AS ORC AS SELECT 'anew' AS z")
    assert spark.column("SELECT * FROM moved", 1) == ["anew"]

    with HiveCatalog(installation.catalog.address, db) as beside:
        for version in ("1", "2", "3"):
            beside.alter("moved", v=version)
            assert spark.sql("SHOW TBLPROPERTIES moved ('v')") == [["v", version]]
        beside.alter("parts", rename_to="others")
        assert spark.sql("SELECT * FROM parts", 1) == "TABLE_OR_VIEW_NOT_FOUND"
        assert spark.column("SELECT sum(a) FROM others", 1) == ["9"]

    for call, statement in (
        ("get_table_req", "DESCRIBE others"),
        ("fetch_partition_names_req", "SHOW PARTITIONS others"),
        ("get_partitions_by_names_req", "SELECT * FROM others"),
        ("get_partition_names_ps_req", "SHOW PARTITIONS others PARTITION (d='2024-02-01')"),
    ):
        before = answered(installation, call)

        def is_answered(call: str = call, statement: str = statement, before: float = before) -> bool:
            spark.sql(statement)
            return answered(installation, call) > before

        eventually(is_answered, what=f"{call} from the cache")
    assert spark.sql(f"DROP DATABASE {db} CASCADE") == []
    assert spark.sql(f"SHOW DATABASES LIKE '{db}'", 1) == []
