"""The simulated PostgreSQL answers what the product asks as a real one does."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from lab.simulation.postgres.server import SimulatedPostgres
from lab.simulation.postgres.sessions import Driver
from lab.simulation.postgres.tables import GOODS, PARTS, Definition, Row, goods, parts
from stream.sources.key_range import KeyRange
from stream.sources.mariadb.by_key import SelectedRow
from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.mariadb.snapshot import SnapshotRead
from stream.sources.postgres import connection
from stream.sources.postgres.snapshot import PostgresSnapshotReader
from tests.lab.simulation.mariadb.conftest import Alone
from tests.sources.postgres.test_snapshots import session

ROWS: list[tuple[Definition, Row]] = [
    *((GOODS, goods(row, version)) for row, version in ((0, 1), (1, 5), (2, 14))),
    *((PARTS, parts(number, 7)) for number in range(2)),
]


def made(settings: ConnectionSettings) -> None:
    """Makes the tables and their rows on a real server."""
    with session(settings) as sql:
        sql.execute("CREATE SCHEMA shop")
        sql.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        for table in (GOODS, PARTS):
            columns = ", ".join(f"{name} {kind.shown}" for name, kind in table.columns)
            sql.execute(f"CREATE TABLE {table.name} ({columns}, PRIMARY KEY ({', '.join(table.key)}))".encode())
        sql.execute(f"ALTER TABLE {PARTS.name} REPLICA IDENTITY FULL".encode())
        for table, row in ROWS:
            values = [None if row[name] is None else kind.text(row[name]) for name, kind in table.columns]
            marks = ", ".join(["%s"] * len(values))
            sql.execute(f"INSERT INTO {table.name} VALUES ({marks})".encode(), values)


def simulated() -> SimulatedPostgres:
    """The same on a simulated one."""
    server = SimulatedPostgres(Alone())
    for table in (GOODS, PARTS):
        server.create(table)
    transaction = server.begin()
    for table, row in ROWS:
        server.put(transaction, table.name, table.key_of(row), lambda _, row=row: row)  # type: ignore[misc]
    server.commit(transaction)
    return server


def answers(reader: PostgresSnapshotReader) -> dict[str, Any]:
    """What a reader is told, but for positions and times."""
    wanted: dict[str, list[list[object]]] = {
        GOODS.name: [[0], [1], [2], [7]],
        PARTS.name: [["x", 1], ["y", 1]],
        "shop.nothing": [[1]],
    }
    found: dict[str, Any] = {name: _shown(read) for name, read in reader.read(wanted).items()}
    found["no number"] = _shown(reader.read({GOODS.name: [["no number"], [0]]})[GOODS.name])
    for descending in (False, True):
        for after in (None, [1]):
            read = reader.read_range(GOODS.name, KeyRange(limit=1, descending=descending, after=after))
            found[f"{descending} {after}"] = _shown(read)
    for where in ((), (("version", 1 << 40),)):
        read = reader.read_range(GOODS.name, KeyRange(where=where))
        found[f"count {where}"] = read.rows.number if isinstance(read, SnapshotRead) else read
    for table in (GOODS, PARTS):
        info = reader.table(table.name)
        found[f"{table.name} is"] = (
            info.columns,
            [each.sql_type for each in info.columns],
            info.primary_key,
            info.problem,
        )
    return found


def _shown(read: object) -> object:
    if not isinstance(read, SnapshotRead):
        return type(read).__name__
    rows = read.rows if isinstance(read.rows, tuple) else (*read.rows.rows, read.rows.number, read.rows.more)
    return [(row.key, row.image) if isinstance(row, SelectedRow) else _kind(row) for row in rows]


def _kind(row: object) -> object:
    return row if row is None or isinstance(row, int) else type(row).__name__


def test_reads_are_told_the_same(empty: ConnectionSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of each type, absent ones, keys that can't be, pages, counts, descriptions, and what is said of no table."""
    made(empty)
    reader = PostgresSnapshotReader(empty)
    real = answers(reader)
    reader.close()
    server = simulated()
    monkeypatch.setattr(connection, "_session_class", lambda: Driver(server))
    assert answers(PostgresSnapshotReader(empty)) == real
    assert sum(row is not None for row in real[GOODS.name]) == 3


def test_an_unknown_statement_is_an_error() -> None:
    """What the model does not know it does not guess."""
    found = Driver(simulated()).connect(connect_timeout=1.0)
    with pytest.raises(Exception, match="VACUUM"):
        found.execute("VACUUM")
    found.close()
    with pytest.raises(psycopg.OperationalError):
        found.execute("ROLLBACK")
