"""The export as Delta tables: killed between two appends, it has each change once; and a table at several moments."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.export import NOTES, ExportError, ExportRequest, prepare
from spark_jobs.exporting.delta import delta_columns
from stream.wire.events import VALUE
from tests.consumers.histories import frame, key, marker, start
from tests.docs.naming import ROOT
from tests.patience import PATIENCE_S
from tests.spark_jobs.test_export import description, rows_in
from tests.spark_jobs.topics import TestTopic

Topics = Callable[[int], TestTopic]

PROGRAM = """
import json, os, signal, sys
from dataclasses import replace
from pathlib import Path
import spark_jobs.exporting.delta as delta
from freshet.spark import spark_settings
from spark_jobs.export import ExportRequest, export
from spark_jobs.output import RebuildError
from spark_jobs.session import spark_session
from spark_jobs.source.cut import AsOf
from spark_jobs.source.reading import plan
from spark_jobs.source.writing import write_table
from stream.kafka.connection import KafkaCluster

bootstrap, keyspace, root, log, end, survives = sys.argv[1:]
kafka, root = KafkaCluster(bootstrap), Path(root)
real, appended = delta._append, []

def append(*given):
    if len(appended) == int(survives):
        os.kill(os.getpid(), signal.SIGKILL)
    real(*given)
    appended.append(given[1].name)

delta._append = append
settings = spark_settings("local[2]", "1g", Path(log), delta=True)
small = {"spark.databricks.delta.snapshotPartitions": "1", "spark.sql.shuffle.partitions": "1"}
request = ExportRequest(keyspace, kafka, root / "changes", format="delta")
with spark_session("delta", replace(settings, extra={**settings.extra, **small})) as session:
    first = export(session, replace(request, ends={0: int(end)}))
    second = export(session, request)
    for seconds in (1_700_000_001, None):
        planned = plan(kafka, keyspace, "shop.items", AsOf(seconds=seconds))
        write_table(session, planned, root / "items", form="delta", moment=str(seconds))
    load = lambda path, **options: session.read.format("delta").options(**options).load("file://" + str(path))
    history = lambda path: session.sql(f"DESCRIBE HISTORY delta.`file://{path}`").orderBy("version").collect()
    found = {
        "rows": [first.rows, second.rows],
        "appended": appended,
        "tables": {
            path.name: [row.asDict() for row in load(path).collect()]
            for path in sorted((root / "changes").iterdir()) if not path.name.startswith("_")
        },
        "history": [[row.operation, json.loads(row.userMetadata or "{}"), row.operationMetrics.get("numRemovedFiles")]
                    for row in history(root / "changes" / "shop.items")],
        "files": len(load(root / "changes" / "shop.items").inputFiles()),
        "as_of": [json.loads(row.userMetadata)["as_of"] for row in history(root / "items")],
        "items": [sorted(row._key for row in load(root / "items", versionAsOf=each).collect() if row._key)
                  for each in (0, 1)],
    }
    try:
        delta.compact(session, root, ["items/nothing"])
    except RebuildError as error:
        found["said"] = str(error)
    print(json.dumps(found, default=str))
"""
"""Exports up to ``end`` and then all, and reads it back; dies before the append with the number ``survives``."""


@pytest.mark.slow
@pytest.mark.nightly
def test_a_delta_export_that_is_killed_between_two_tables_has_each_change_once(topic: Topics, tmp_path: Path) -> None:
    """One table has the commit and another has not: the next run appends it to that one alone.

    A second commit follows, with another type of a column; then its files are fewer, and each change is there once.
    """
    filled = topic(1)
    second: dict[str, Any] = {"timestamps": [1_700_000_020]}
    filled.write(0, [start(), description(2, {"id": "int", "a b": "text"})])
    filled.write(
        0, [frame([(key(1), VALUE, b'{"id":1,"a b":"x"}', 3)]), description(4, {"id": "text", "seen": "datetime"})]
    )
    filled.write(0, [frame([(key(2), VALUE, b'{"id":"2","seen":"2024-01-02 03:04:05"}', 5)]), b"garbage"])
    filled.write(0, [marker(5, whole=True, timestamp=1_700_000_000, as_of_ms=1_700_000_010_000)])
    end = filled.ends()[0]
    filled.write(0, [frame([(key(3), VALUE, b'{"id":"3"}', 6)], **second)])
    filled.write(0, [marker(6, whole=True, timestamp=1_700_000_020, as_of_ms=1_700_000_030_000)])

    def run(survives: int) -> subprocess.CompletedProcess[str]:
        place = [filled.kafka.bootstrap, filled.keyspace, str(tmp_path), str(tmp_path / "spark.log")]
        command = [sys.executable, "-c", PROGRAM, *place, str(end), str(survives)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False)

    assert run(1).returncode == -signal.SIGKILL
    assert (tmp_path / "changes" / "%2A" / "_delta_log").is_dir()
    assert not (tmp_path / "changes" / "shop.items").exists()
    done = run(100)
    assert done.returncode == 0, done.stderr + (tmp_path / "spark.log").read_text()[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["appended"] == ["%2A", "shop.items", "shop.items"], "the first is passed over by Delta"
    assert found["rows"] == [0, 1], "what the killed run had committed is no news"
    for rows in found["tables"].values():
        rows.sort(key=lambda row: (row["_partition"], row["_offset"], row["_ordinal"] or 0))
    assert [row["_kind"] for row in found["tables"]["%2A"]] == ["epoch_start", "unreadable"]
    one, other, third = found["tables"]["shop.items"]
    assert (one["id"], one["id_string"], one["_untyped"], one["day"]) == (1, None, {"a b": '"x"'}, "2023-11-14")
    assert (other["id"], other["id_string"], other["seen"]) == (None, "2", "2024-01-02 03:04:05")
    assert (third["id"], third["id_string"], third["_ordinal"]) == (None, "3", 6)
    appends = [told for operation, told, _ in found["history"] if operation == "WRITE"]
    assert [told["commit"] for told in appends] == [1, 2]
    assert appends[-1]["offsets"] == {"0": filled.ends()[0]}
    assert appends[-1]["places"] == {"shop/0": [1, 6]}
    [(_, _, removed)] = [each for each in found["history"] if each[0] == "OPTIMIZE"]
    assert int(removed) > 1
    assert found["files"] == 1
    assert found["as_of"] == ["1700000001", "None"]
    assert found["items"] == [["[1]", "[2]"], ["[1]", "[2]", "[3]"]]
    assert found["said"].startswith("Spark failed: ")
    assert list((tmp_path / "changes" / NOTES / "staged").iterdir()) == []
    assert rows_in(tmp_path / "changes") == []
    with pytest.raises(ExportError, match="as delta, not as parquet") as refused:
        prepare(ExportRequest(filled.keyspace, filled.kafka, tmp_path / "changes"))
    assert refused.value.code == "export_exists"


DATETIMES = """
import json, sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
import pyarrow.parquet as pq
from freshet.spark import spark_settings
from spark_jobs.exporting.columns import table_of
from spark_jobs.exporting.delta import append_files
from spark_jobs.session import spark_session
from spark_jobs.source.writing import _write_version
from spark_jobs.streaming import address

class Reading:
    "A session whose source `freshet` has these rows."
    def __init__(self, session, rows):
        self.sql, self.read, self._session, self._rows = session.sql, self, session, rows
    def format(self, form):
        return self._session.read.format(form) if form == "delta" else self
    def options(self, **_):
        return self
    def load(self):
        return self._rows

root = Path(sys.argv[1]) / "my 100% lake #1 \u00e9"
staged = root / "_freshet" / "staged"
staged.mkdir(parents=True)
row = {"_kind": "value", "_partition": 0, "_offset": 1, "image": {"at": "2024-01-02 03:04:05"}}
planned = SimpleNamespace(keyspace="shop", table="a.b", end={0: 1})
settings = spark_settings("local[1]", "1g", Path(sys.argv[2]), delta=True)
small = {"spark.databricks.delta.snapshotPartitions": "1", "spark.sql.shuffle.partitions": "1"}
found = []
with spark_session("delta", replace(settings, extra={**settings.extra, **small})) as session:
    load = lambda path: session.read.format("delta").load(address(path))
    for number, columns in enumerate(({}, {"at": "datetime"}), 1):
        name = f"{number}.parquet"
        pq.write_table(table_of([row], columns), staged / name)
        append_files(session, root, staged, {name: f"table=a.b/day=2024-01-02/part-0-{name}"}, "app", number, {})
        rows = session.read.parquet(address(staged / name))
        _write_version(Reading(session, rows), planned, root / "at", "")
        found += [[str(row.asDict().get("at")) for row in load(root / each).collect()] for each in ("a.b", "at")]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_a_first_datetime_joins_a_delta_table_that_is_there(tmp_path: Path) -> None:
    """Of changes, and of a table at a moment; in a directory whose name a URL would have otherwise."""
    command = [sys.executable, "-c", DATETIMES, str(tmp_path), str(tmp_path / "spark.log")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr + (tmp_path / "spark.log").read_text()[-3000:]
    of_changes, at_a_moment, *later = json.loads(done.stdout.splitlines()[-1])
    assert (of_changes, at_a_moment) == (["None"], ["None"])
    assert [sorted(each) for each in later] == [["2024-01-02 03:04:05", "None"], ["2024-01-02 03:04:05"]]


def test_names_that_delta_refuses_are_no_columns() -> None:
    """They would end the export; their values are kept untyped."""
    assert delta_columns({"a": "int", "b c": "int", "d=e": "int", "straße": "int"}) == {"a": "int", "straße": "int"}
