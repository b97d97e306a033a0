"""What an export commits, when, and what it forgets: without Spark, whose answers and frames are stood in for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq
import pytest

from spark_jobs.export import (
    NOTES,
    STAGED,
    Commit,
    ExportRequest,
    _export_batch,
    _pass_control_records,
    _settle,
    read_commit,
)
from spark_jobs.exporting import delta
from spark_jobs.exporting.changes import Exported, day_of
from spark_jobs.exporting.columns import table_of, typed
from spark_jobs.exporting.delta import _fitting, append_files, is_appended
from spark_jobs.offsets import OffsetsError, Range
from spark_jobs.output import RebuildError
from stream.kafka.connection import KafkaCluster

KAFKA = KafkaCluster("127.0.0.1:1")
NAME = f"{1:016x}.parquet"
PLACE = f"table=a.b/day=2026-01-02/part-0-{1:020d}-{NAME}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An export with one staged file, of a table without columns of its own."""
    (tmp_path / NOTES / STAGED).mkdir(parents=True)
    row = {"_kind": "value", "_partition": 0, "_offset": 1}
    pq.write_table(table_of([row], {}), tmp_path / NOTES / STAGED / NAME)
    return tmp_path


def test_files_that_are_in_their_places_are_no_commits_any_more(root: Path) -> None:
    """Compaction takes them away, and so may others: the next run would miss them, and end as damaged."""
    commit = Commit("shop", "t1", number=3, rows=7, files={NAME: PLACE})
    _settle(None, root, commit, set())
    kept = read_commit(root)
    assert kept == Commit("shop", "t1", number=3, rows=7)


@pytest.mark.parametrize(
    ("at", "reached", "after"), [(5, 7, 7), (5, 9, 9), (5, 12, 9), (9, 12, 9), (7, 5, 7), (None, 4, 4)]
)
def test_control_records_count_up_to_the_end_that_was_asked_for(at: int | None, reached: int, after: int) -> None:
    """Spark may have read messages beyond it, which were not exported: they are the next run's."""
    commit = Commit("shop", "t1", partitions={} if at is None else {0: Exported(at)})
    _pass_control_records(commit, {0: reached}, Range("t", "t1", {0: 0}, {0: 0}, {0: 9}))
    assert commit.partitions[0].offset == after


def test_what_was_read_of_another_topic_is_not_committed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark reads on in a topic that was made anew under the name; what is in a commit stays."""
    answer = {0: json.dumps({"rows": 1, "files": {NAME: PLACE}, "state": asdict(Exported(5))})}
    commit, chosen = Commit("shop", "t1"), Range("t", "t1", {0: 0}, {0: 0}, {0: 9})

    def changed(*_: object) -> None:
        raise OffsetsError("it is another one", code="topic_changed")

    monkeypatch.setattr("spark_jobs.export.answers", lambda *_: answer)
    monkeypatch.setattr("spark_jobs.export.check_topic", changed)
    with pytest.raises(OffsetsError):
        _export_batch(None, None, root, commit, chosen, ExportRequest("shop", KAFKA, root))
    assert read_commit(root) is None
    assert (commit.number, commit.partitions, (root / PLACE).exists()) == (0, {}, False)


class Frame:
    """A frame of Spark's: only its columns, name → type."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = dict(columns)

    @property
    def columns(self) -> list[str]:
        return [*self._columns]

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        return [*self._columns.items()]

    def withColumnRenamed(self, name: str, found: str) -> Frame:
        return Frame({found if each == name else each: kind for each, kind in self._columns.items()})

    def unionByName(self, other: Frame, *, allowMissingColumns: bool) -> Frame:
        assert allowMissingColumns
        shared = self._columns.keys() & other._columns.keys()
        assert all(self._columns[each] == other._columns[each] for each in shared), "Spark would refuse it"
        return Frame(self._columns | other._columns)


class Session:
    """A session that reads each staged file as a frame of these columns, a Delta table as one of those ``known``."""

    def __init__(self, columns: Mapping[str, str], known: Mapping[str, str] | None = None) -> None:
        self._columns = columns
        self._known = known or {}
        self.asked: list[str] = []

    @property
    def read(self) -> Self:
        return self

    def parquet(self, *_: str) -> Frame:
        return Frame(self._columns)

    def sql(self, statement: str) -> None:
        self.asked.append(statement)

    def format(self, _: str) -> Self:
        return self

    def load(self, _: str) -> Frame:
        return Frame(self._known)


def test_a_commit_is_in_its_tables_once_all_of_them_have_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its staged files are removed then: a run that is killed between two tables must find them."""
    staged, session = root / NOTES / STAGED, Session({"_kind": "string"})

    def fails(*_: object) -> None:
        raise RebuildError("killed")

    given: Any = (session, root, staged, {NAME: PLACE}, "app", 4, {})
    with monkeypatch.context() as patched:
        patched.setattr(delta, "_append", fails)
        with pytest.raises(RebuildError):
            append_files(*given)
    assert not is_appended(root / NOTES, 4)
    told: list[Any] = []
    monkeypatch.setattr(delta, "_append", lambda rows, table, *more: told.append((rows.columns, table.name, *more)))
    append_files(*given)
    assert told == [(["_kind"], "a.b", "app", 4, "{}")]
    assert is_appended(root / NOTES, 4)
    assert not is_appended(root / NOTES, 5)


@pytest.mark.parametrize(
    ("columns", "known", "is_asked"),
    [
        ({"at": "timestamp_ntz"}, {"_kind": "string"}, True),
        ({"at": "timestamp_ntz"}, {"_kind": "string", "seen": "timestamp_ntz"}, False),
        ({"at": "timestamp"}, {"_kind": "string"}, False),
        ({"at": "timestamp_ntz"}, {}, False),
    ],
)
def test_a_table_is_made_to_take_its_first_datetime(
    columns: dict[str, str], known: dict[str, str], is_asked: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta refuses the column else, in each run anew; a new table, and one that has such a column, are left alone."""
    session: Any = Session({"_kind": "string", **columns}, known)
    if known:
        (root / "a.b" / delta.LOG).mkdir(parents=True)
    order: list[str] = session.asked
    monkeypatch.setattr(delta, "_append", lambda *_: order.append("append"))
    append_files(session, root, root / NOTES / STAGED, {NAME: PLACE}, "app", 4, {})
    altered = f"ALTER TABLE delta.`file://{root}/a.b` SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
    assert order == ([altered] if is_asked else []) + ["append"]


def test_a_version_is_told_by_the_last_place_of_each_shard_in_any_partition() -> None:
    """Whichever partition has it: the numbers of a shard are those of all its partitions."""
    one, other = (2, 900), (2, 120)
    for first, second in ((one, other), (other, one)):
        partitions = {
            0: Exported(9, places={"shop/0": first, "old/0": (1, 5)}),
            3: Exported(9, places={"shop/0": second}),
        }
        assert Commit("shop", "t", partitions=partitions).places() == {"shop/0": one, "old/0": (1, 5)}


def test_a_column_has_the_type_that_it_had_first() -> None:
    """In the table, or in an earlier file of the same commit; the others are beside it, by the names of their types."""
    known = {"id": "bigint", "_kind": "string"}
    frames = [
        Frame({"_kind": "string", "ID": "bigint", "name": "string"}),
        Frame({"_kind": "string", "id": "string", "Name": "bigint"}),
        Frame({"_kind": "string", "id": "string", "id_string": "date", "name": "string"}),
    ]
    found = [_fitting(each, known).columns for each in frames]
    assert found == [
        ["_kind", "ID", "name"],
        ["_kind", "id_string", "Name_bigint"],
        ["_kind", "id_string_string", "id_string_date", "name"],
    ]


def test_of_columns_that_differ_in_their_case_alone_one_is_typed() -> None:
    """Spark takes their names for one, and could read none of them; the values of the others are kept as they are."""
    row = {"image": {"id": 1, "ID": 2, "Name": "x"}}
    found = table_of([row], {"id": "int", "ID": "int", "NAME": "text", "Name": "text"})
    assert found.column_names[-2:] == ["id", "NAME"]
    [kept] = found.to_pylist()
    assert (kept["id"], kept["NAME"], dict(kept["_untyped"])) == (1, None, {"ID": "2", "Name": '"x"'})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", True),
        ("bit", False),
        ("year", 1.5),
        ("int", "1"),
        ("int", 2**63),
        ("int", -(2**63) - 1),
        ("double", True),
        ("float", "1"),
        ("text", 1),
        ("varchar", ["x"]),
        ("date", "0000-00-00"),
        ("datetime", "2024-01-02 25:00:00"),
        ("binary", "AAE="),
        ("binary", {"base64": "?"}),
        ("binary", {}),
    ],
)
def test_a_value_without_a_form_in_its_columns_type_is_kept_as_it_is(kind: str, value: Any) -> None:
    """Whatever a description says, an image may have anything: it ends no export, and is no other value."""
    [row] = table_of([{"image": {"c": value}}], {"c": kind}).to_pylist()
    assert row["c"] is None
    assert json.loads(dict(row["_untyped"])["c"]) == value


@pytest.fixture(params=["America/New_York", "Asia/Tokyo"])
def elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose own time is not UTC."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
def test_times_are_of_utc_on_any_machine() -> None:
    """A TIMESTAMP of the log is in UTC, and the day of a change too; a DATETIME has no zone."""
    assert typed("timestamp", "2024-01-02 03:04:05").isoformat() == "2024-01-02T03:04:05+00:00"
    assert typed("datetime", "2024-01-02 03:04:05").isoformat() == "2024-01-02T03:04:05"
    assert (day_of(1_700_000_000 // 86_400 * 86_400), day_of(1_700_000_000 // 86_400 * 86_400 - 1)) == (
        "2023-11-14",
        "2023-11-13",
    )
