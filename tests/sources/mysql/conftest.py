"""Fixtures of the MySQL source's tests: a reader of a live server, and a session to change its data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from freshet.local.mariadb import MariaDBAddress
from stream.sources.mariadb.connection import connect
from tests.sources.mariadb.conftest import Source, settings_of


@pytest.fixture
def source(mysql: MariaDBAddress, mysql_database: str) -> Iterator[Source]:
    """A source over an empty database of the shared server."""
    made = Source(settings_of(mysql, "MySQL"), mysql_database)
    yield made
    made.close()


@pytest.fixture
def source_of() -> Iterator[Callable[[Any, str], Source]]:
    """Makes sources over databases of a test's own servers."""
    made: list[Source] = []

    def make(address: Any, database: str) -> Source:
        settings = settings_of(address, "MySQL")
        session = connect(settings)
        with session.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {database}")
        session.close()
        made.append(Source(settings, database))
        return made[-1]

    yield make
    for each in made:
        each.close()
