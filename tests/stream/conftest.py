"""What every test of a stream gets."""

from __future__ import annotations

import pytest

from tests.stream.memory_log import MemoryLog


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """An empty topic of two partitions."""
    log = MemoryLog()
    log.install(monkeypatch)
    return log
