"""A store and a cache directory for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.bytecache.disk.directory import Directory
from tests.serving.bytecache.stores import DirectoryStore, open_directory


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """An empty remote store."""
    (tmp_path / "remote").mkdir()
    return DirectoryStore(tmp_path / "remote")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    """An empty cache directory."""
    opened = open_directory(tmp_path / "cache")
    yield opened
    opened.close()
