"""What the tests of faults share: they need real servers of their own, and time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.faults.network import Network
from lab.faults.rig import FaultyStack
from tests.servers import choice
from tests.sources.mariadb.conftest import source, source_of

__all__ = ["rig", "server_files", "source", "source_of"]


@pytest.fixture(scope="session")
def server_files() -> None:
    """Fetches the servers' files before a test's time runs."""
    choice.prefetch({"new_kafka", "new_mariadb"})


@pytest.fixture
def rig(
    server_files: None,  # noqa: ARG001
    tmp_path: Path,
) -> Iterator[FaultyStack]:
    """Kafka and MariaDB up; our processes are the test's to start."""
    with Network() as network, FaultyStack(tmp_path, network, tmp_path / "stores") as stack:
        yield stack
    shutil.rmtree(tmp_path, ignore_errors=True)
