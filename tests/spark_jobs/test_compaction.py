"""Small files of an exported day become few, and whoever lists the day finds each row once."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.exporting import compaction
from spark_jobs.exporting.compaction import compact_days
from stream.wire.events import VALUE
from tests.consumers.histories import frame, key, start
from tests.spark_jobs.test_export import description, exported, rows_in

DAY = "table=shop.items/day=2023-11-14"
OTHER_DAY = "table=%2A/day=2023-11-14"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An export in which a day has seven small files of two descriptions, and another day two."""
    for number in range(7):
        kinds = {"id": "int"} if number < 5 else {"id": "int", "name": "text"}
        rows = [(key(number), VALUE, b'{"id":%d}' % number, 10 + number)]
        messages = [start(), description(2, kinds), frame(rows)]
        part = tmp_path / f"part-{number}"
        exported(messages, part)
        for file in part.glob("table=*/day=*/*.parquet"):
            day = tmp_path / "out" / file.relative_to(part).parent
            day.mkdir(parents=True, exist_ok=True)
            if "items" in str(day) or number < 2:
                file.rename(day / f"part-0-{number:020d}-{number}.parquet")
    return tmp_path / "out"


def ordered(root: Path) -> list[Any]:
    """The rows of the day with many files, as its files in the order of their names have them."""
    return [row["_ordinal"] for row in rows_in(root) if row["table"] == "shop.items"]


def test_small_files_become_one_for_each_description(root: Path, tmp_path: Path) -> None:
    """All rows are there, in the log's order and with the columns that they had; a day with few files is left."""
    before, kept = rows_in(root), sorted((root / OTHER_DAY).iterdir())
    (root / DAY / "_SUCCESS").write_text("of another program")
    assert compact_days(root, [DAY, OTHER_DAY], tmp_path / "out" / "_freshet" / "compacting") == 1
    names = sorted(each.name for each in (root / DAY).glob("*.parquet"))
    assert [name[:27] for name in names] == [f"part-0-{number:020d}" for number in (0, 5)]
    assert rows_in(root) == before
    assert ordered(root) == list(range(10, 17))
    assert (root / DAY / "_SUCCESS").exists()
    assert sorted((root / OTHER_DAY).iterdir()) == kept
    assert not (root / "_freshet" / "compacting").exists()
    assert compact_days(root, [DAY], tmp_path / "scratch") == 0, "there is nothing to do twice"


def test_rows_that_are_written_some_at_a_time_are_written_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day of many rows is never all in memory, and large files are merged no further."""
    before = rows_in(root)
    monkeypatch.setattr(compaction, "GROUP_BYTES", 1)
    monkeypatch.setattr(compaction, "MERGED_BYTES", 1 + max(each.stat().st_size for each in (root / DAY).iterdir()))
    assert compact_days(root, [DAY], tmp_path / "scratch") == 1
    assert (rows_in(root), ordered(root)) == (before, list(range(10, 17)))
    assert len(list((root / DAY).iterdir())) == 4


def test_large_files_are_left(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has its size is not written again; it stays the same file."""
    monkeypatch.setattr(compaction, "SMALL_BYTES", 1)
    before = {each.stat().st_ino for each in (root / DAY).iterdir()}
    assert compact_days(root, [DAY], tmp_path / "scratch") == 0
    assert {each.stat().st_ino for each in (root / DAY).iterdir()} == before


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_around_the_exchange_leaves_each_row_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The next run removes what the killed one has left beside the days."""
    before, real = rows_in(root), compaction.exchange

    def die(one: Path, other: Path) -> None:
        if when == "after":
            real(one, other)
        raise KeyboardInterrupt

    scratch = tmp_path / "scratch"
    with monkeypatch.context() as patched:
        patched.setattr(compaction, "exchange", die)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process removes nothing
        with pytest.raises(KeyboardInterrupt):
            compact_days(root, [DAY], scratch)
    assert rows_in(root) == before
    assert list(scratch.iterdir())
    compact_days(root, [DAY], scratch)
    assert rows_in(root) == before
    assert len(list((root / DAY).iterdir())) == 2
    assert not scratch.exists()


@pytest.mark.parametrize("when", ["before", "meanwhile", "at the exchange"])
def test_a_day_that_somebody_removes_ends_no_export(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It stays removed, the other days are compacted, and nothing is left beside them."""
    removed, kept = "table=gone/day=2023-11-13", rows_in(root)
    shutil.copytree(root / DAY, root / removed)
    step = {"before": "_compact", "meanwhile": "_merge", "at the exchange": "exchange"}[when]
    real = getattr(compaction, step)

    def removing(*given: Path) -> Any:
        shutil.rmtree(root / removed, ignore_errors=True)
        return real(*given)

    monkeypatch.setattr(compaction, step, removing)
    assert compact_days(root, [removed, DAY], tmp_path / "scratch") == 1
    assert rows_in(root) == kept
    assert not (root / removed).exists()
    assert not (tmp_path / "scratch").exists()


def test_a_file_system_that_can_not_exchange_keeps_small_files(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There two steps would be needed, between which a reader would miss a day or find rows twice."""

    def refuse(*_: Path) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(compaction, "exchange", refuse)
    before = sorted(root.rglob("*.parquet"))
    assert compact_days(root, [DAY], tmp_path / "scratch") == 0
    assert sorted(root.rglob("*.parquet")) == before


def test_a_file_that_comes_meanwhile_stays(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not in the new directory, which would take its place: the day waits for the next time."""
    before, real, late = rows_in(root), compaction._merge, root / DAY / "late"

    def merging(*given: Any) -> None:
        late.write_text("of another program")
        real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(compaction, "_merge", merging)
        assert compact_days(root, [DAY], tmp_path / "scratch") == 0
    assert (late.exists(), rows_in(root)) == (True, before)
    assert compact_days(root, [DAY], tmp_path / "scratch") == 1
    assert (late.exists(), rows_in(root)) == (True, before)
