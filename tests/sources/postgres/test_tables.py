"""What the catalog says of tables while others make and alter some. The server is simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from lab.simulation.postgres import sessions
from lab.simulation.postgres.server import SimulatedPostgres
from lab.simulation.postgres.sessions import Driver, PostgresSession
from lab.simulation.postgres.tables import GOODS, PARTS, Definition
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError
from stream.sources.mariadb.schema import TableFilter
from stream.sources.postgres import connection, tables
from stream.sources.postgres.snapshot import PostgresSnapshotReader
from stream.sources.postgres.tables import read_tables
from tests.lab.simulation.mariadb.conftest import Alone

SETTINGS = ConnectionSettings(product="PostgreSQL", read_timeout_s=7.0)
RENAMED = replace(GOODS, columns=(("number", GOODS.columns[0][1]), *GOODS.columns[1:]), key=("number",))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> SimulatedPostgres:
    """A server with one table, to which all sessions lead."""
    found = SimulatedPostgres(Alone())
    found.create(GOODS)
    monkeypatch.setattr(connection, "_session_class", lambda: Driver(found))
    return found


@pytest.fixture
def session(server: SimulatedPostgres) -> Iterator[Any]:  # noqa: ARG001
    """A session of it."""
    with connection.session(SETTINGS) as found:
        yield found


def between_two_answers(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Somebody commits a change of the catalog once, after the first answer of what tables are made of."""
    left = [change]
    for sql in (
        tables._COLUMNS + tables._IN_ORDER,
        tables._COLUMNS + tables._ONE + tables._IN_ORDER,
        tables._TABLES,
        tables._TABLES + tables._ONE,
    ):

        def answer(session: PostgresSession, given: Any, tell: Any = sessions._ASKED[sql]) -> list[tuple[Any, ...]]:
            found: list[tuple[Any, ...]] = tell(session, given)
            while left:
                left.pop()()
            return found

        monkeypatch.setitem(sessions._ASKED, sql, answer)


def is_now(server: SimulatedPostgres, definition: Definition) -> None:
    """ALTER TABLE."""
    begun = server.catalog.get(definition.name, [])
    server.create(definition)
    server.catalog[definition.name] = [*begun, *server.catalog[definition.name]]


@pytest.mark.parametrize("change", [PARTS, RENAMED])
def test_a_table_that_is_made_or_altered_amid_a_look_is_seen_by_the_next(
    server: SimulatedPostgres, session: Any, monkeypatch: pytest.MonkeyPatch, change: Definition
) -> None:
    """Columns of one moment and a key of another are no table: the source ended where somebody made one."""
    before = read_tables(session, TableFilter(("shop",)), "p")
    between_two_answers(monkeypatch, lambda: is_now(server, change))
    assert read_tables(session, TableFilter(("shop",)), "p") == before
    now = read_tables(session, TableFilter(("shop",)), "p").tables[change.name]
    assert now.primary_key == change.key


def test_a_table_that_is_altered_while_it_is_described_is_that_of_before(
    server: SimulatedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or that of after: who asks for one table gets no mixture either."""
    between_two_answers(monkeypatch, lambda: is_now(server, RENAMED))
    reader = PostgresSnapshotReader(SETTINGS)
    assert [reader.table(GOODS.name).primary_key for _ in range(2)] == [GOODS.key, RENAMED.key]
    reader.close()


def test_a_look_that_fails_leaves_its_session_to_be_asked_again(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a transaction that has failed, or in the snapshot of before, nothing more would be told."""

    def fail() -> None:
        raise MariaDBError("no right to see it")

    between_two_answers(monkeypatch, fail)
    with pytest.raises(MariaDBError):
        read_tables(session, TableFilter(("shop",)), "p")
    assert not session._is_open
    assert list(read_tables(session, TableFilter(("shop",)), "p").tables) == [GOODS.name]


@pytest.mark.parametrize(("second", "left"), [([GOODS.name, PARTS.name], {GOODS.name}), ([PARTS.name], set())])
def test_a_lock_that_a_second_look_does_not_find_is_none(
    session: Any, monkeypatch: pytest.MonkeyPatch, second: list[str], left: set[str]
) -> None:
    """Each CREATE SCHEMA, GRANT ON SCHEMA and first temporary table voided all tables: they lock pg_namespace briefly.

    Both looks are before the snapshot: what was committed in between is seen.
    """
    looks = [[GOODS.name], second]

    def answer(asked: PostgresSession, _: Any) -> list[tuple[Any, ...]]:
        assert not asked._is_open
        return [(name,) for name in looks.pop(0)]

    monkeypatch.setitem(sessions._ASKED, tables._LOCKED, answer)
    assert read_tables(session, TableFilter(("shop",)), "p").locked == left
    assert looks == []
