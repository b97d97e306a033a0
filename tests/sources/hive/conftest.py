"""A metastore that several modules of the Hive source's tests begin with."""

from __future__ import annotations

import pytest

from lab.simulation.hive.metastore import Metastore


@pytest.fixture
def server() -> Metastore:
    """A full-ACID table ``s.a`` with two open writers."""
    server = Metastore()
    server.create("s.a", "full")
    server.open_txns(2)
    server.allocate("s.a", [1, 2])
    return server
