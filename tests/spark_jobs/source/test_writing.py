"""A table at a moment gets its name when all of it is there, whatever an earlier run has left beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from spark_jobs.export import ExportError
from spark_jobs.output import RebuildError
from spark_jobs.source import writing
from spark_jobs.source.reading import Plan
from spark_jobs.source.writing import TableReport, write_table
from stream.kafka.connection import KafkaCluster

PLANNED = Plan(KafkaCluster("127.0.0.1:1"), "shop", "shop.t", "t1", {0: 0}, {0: 0}, {0: 9}, {"id": "int"}, ("id",))


class Session:
    """Spark, its reader, its frames and its writer: all that `write_table` asks for. ``kinds``: what it has written."""

    def __init__(self, kinds: dict[str, int], *, fails: bool = False) -> None:
        self._kinds, self._fails = kinds, fails
        self.read = self.write = self
        self._is_written = False

    def format(self, _: str) -> Self:
        return self

    def options(self, **given: str) -> Self:
        assert given == {"keyspace": "shop", "table": "shop.t"}
        return self

    def load(self) -> Self:
        return self

    def option(self, *_: object) -> Self:
        return self

    def parquet(self, uri: str) -> Self:
        """Writes at first, and fails where there is something, as Spark does; then it reads."""
        if not self._is_written:
            directory = Path(uri.removeprefix("file://"))
            directory.mkdir()
            (directory / "part-0.parquet").touch()
            self._is_written = True
            if self._fails:
                raise RebuildError("an executor has no memory left")
        return self

    def groupBy(self, column: str) -> Self:
        assert column == "_kind"
        return self

    def agg(self, _: object) -> Self:
        return self

    def collect(self) -> list[tuple[str, int]]:
        return [*self._kinds.items()]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory whose name a URL would have otherwise."""
    found = tmp_path / "my 100% tables #1 é"
    found.mkdir()
    return found


@pytest.fixture
def write(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Session], TableReport]:
    """Writes the table into ``home / "out"``."""
    for name in ("check_executors", "check_shared", "register_source"):
        monkeypatch.setattr(writing, name, lambda *_: None)
    monkeypatch.setattr("pyspark.sql.functions.count", lambda _: None)
    return lambda session: write_table(session, PLANNED, home / "out")


@pytest.mark.parametrize(
    ("kinds", "rows", "incomplete"),
    [({"value": 3, "void": 1}, 4, False), ({"value": 3, "incomplete": 2}, 3, True), ({}, 0, False)],
)
def test_what_a_killed_run_left_is_in_no_ones_way(
    kinds: dict[str, int], rows: int, incomplete: bool, write: Callable[[Session], TableReport], home: Path
) -> None:
    """Spark writes into no directory that is there. That a table was not read whole is no row of it."""
    left: Any = home / ".out.partial"
    left.mkdir()
    (left / "part-7.parquet").touch()
    assert write(Session(kinds)) == TableReport("shop", "shop.t", rows, 1, incomplete)
    assert [each.name for each in home.iterdir()] == ["out"]
    assert [each.name for each in (home / "out").iterdir()] == ["part-0.parquet"]
    with pytest.raises(ExportError) as refused:
        write(Session(kinds))
    assert refused.value.code == "export_exists"


def test_a_table_that_could_not_be_written_is_not_there(write: Callable[[Session], TableReport], home: Path) -> None:
    """Nor a part of it, which would be read as the table."""
    with pytest.raises(RebuildError, match="no memory"):
        write(Session({}, fails=True))
    assert [*home.iterdir()] == []
