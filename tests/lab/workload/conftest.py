"""A workload catalog on the session's MariaDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from freshet.local.mariadb import MariaDBAddress
from lab.workload.catalog import WorkloadCatalog
from stream.sources.mariadb.connection import ConnectionSettings


@pytest.fixture
def server(mariadb: MariaDBAddress) -> ConnectionSettings:
    """Where the session's MariaDB is."""
    return ConnectionSettings(mariadb.host, mariadb.port, mariadb.user, mariadb.password)


@pytest.fixture
def new_session(server: ConnectionSettings, database: str) -> Iterator[Callable[[], WorkloadCatalog]]:
    """Makes sessions of one catalog, closed afterwards."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(WorkloadCatalog(server, database))


@pytest.fixture
def catalog(new_session: Callable[[], WorkloadCatalog]) -> WorkloadCatalog:
    """A session of an empty catalog."""
    session = new_session()
    session.create_schema()
    return session
