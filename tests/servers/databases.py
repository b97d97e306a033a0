"""Databases of a server that one test, or one module of tests, has for itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from freshet.local.mariadb import MariaDBAddress


@contextmanager
def own_database(server: MariaDBAddress, *statements: str) -> Iterator[str]:
    """The name of a new database in which ``statements`` have run. It is dropped at the end."""
    name = f"db_{uuid.uuid4().hex[:12]}"
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        cursor.execute(f"USE {name}")
        for statement in statements:
            cursor.execute(statement)
    try:
        yield name
    finally:
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")
