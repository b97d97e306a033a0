"""The log of names: it has a share of the quota, and what is in it is looked at rarely."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from serving.bytecache.disk.directory import Directory
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.policy.pools import Value
from tests.serving.bytecache.stores import MIB, open_directory


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Called for each look at all entries."""
    look = Mock()
    in_use = Directory._numbers_in_use
    monkeypatch.setattr(Directory, "_numbers_in_use", lambda directory: (look(), in_use(directory))[1])
    return look


def small(directory: Directory, i: int) -> CachedFile | None:
    """A cached file that is shorter than its name, if it could be entered."""
    file = directory.enter(f"{i}{'/long' * 800}", "v", 100)
    if file is not None:
        directory.store(file, 0, memoryview(bytes(100)), Value.NORMAL, 0)
    return file


@pytest.mark.parametrize("key", ["", "07" * 32])
def test_new_files_are_cached_where_names_have_no_room(tmp_path: Path, looks: Mock, key: str) -> None:
    """What is read least leaves with its name. All entries are looked at once for many files; also after a restart."""
    (tmp_path / "key").write_text(key)
    options = {"quota": 16 * MIB, "shards": 2, "key_file": str(tmp_path / "key") if key else ""}
    for start in (0, 1_000):
        directory = open_directory(tmp_path / "cache", **options)  # type: ignore[arg-type]
        looks.reset_mock()
        files = [small(directory, i) for i in range(start, start + 1_000)]
        assert all(files)
        assert directory.names.length <= directory._names_quota()
        assert looks.call_count < 100
        last = [file for file in files[-50:] if file is not None]
        assert all(directory.read(file, 0, 100) == bytes(100) for file in last)
        assert sum(len(shard.table) for shard in directory.shards) > 100
        directory.close()


def test_a_log_that_cannot_be_written_anew_goes_on(
    tmp_path: Path, looks: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not tried again with each file, and no name is lost; once the disk takes it new files are cached again."""
    monkeypatch.setattr("serving.bytecache.disk.health.RETRY_S", 0.0)
    directory = open_directory(tmp_path / "cache", quota=16 * MIB, shards=1)
    with monkeypatch.context() as disk:
        disk.setattr(os, "replace", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        entered = [small(directory, i) for i in range(1_000)]
    assert looks.call_count < 20
    assert entered[-1] is None
    assert all(directory.names.by_path[file.path] is file for file in entered if file is not None)
    assert not (tmp_path / "cache/names.new").exists()
    monkeypatch.setattr("serving.bytecache.disk.names.RETRY_S", 0.0)
    assert small(directory, 1_000) is not None
    directory.close()
    directory = open_directory(tmp_path / "cache", quota=16 * MIB, shards=1)
    assert small(directory, 1_000) is directory.names.by_path[f"1000{'/long' * 800}"]
    directory.close()
