"""From where on a read of PostgreSQL may be taken for the present, and up to where its log is told. Simulated."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lab.simulation.postgres import sessions
from lab.simulation.postgres.sessions import Driver, PostgresSession
from lab.simulation.postgres.tables import GOODS
from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.mariadb.gtid import PostgresPlace
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.snapshot import SnapshotRead
from stream.sources.postgres import connection, locks, schema
from stream.sources.postgres.schema import PostgresSchema
from stream.sources.postgres.server import ServerState, Slot
from stream.sources.postgres.snapshot import PostgresSnapshotReader
from tests.sources.postgres.test_simulated import simulated

SETTINGS = ConnectionSettings(product="PostgreSQL")


def test_what_is_logged_after_the_writers_were_asked_for_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who logs a commit then is none of them, and the read may not see it: a place behind it would call it fresh."""
    server = simulated()
    end = server.end
    told = sessions._ASKED[locks.WRITERS]

    def writers(session: PostgresSession, given: object) -> list[tuple[Any, ...]]:
        found = told(session, given)
        server.create(replace(GOODS, table="logged_meanwhile"))
        return found

    monkeypatch.setitem(sessions._ASKED, locks.WRITERS, writers)
    monkeypatch.setattr(connection, "_session_class", lambda: Driver(server))
    reader = PostgresSnapshotReader(SETTINGS)
    found = reader.read({GOODS.name: [[0]]})[GOODS.name]
    reader.close()
    assert isinstance(found, SnapshotRead)
    assert server.end > end
    assert (found.position, found.end) == (str(PostgresPlace(1, end)),) * 2


@pytest.mark.parametrize("is_read", [False, True])
def test_a_slot_that_no_connector_reads_confirms_nothing(monkeypatch: pytest.MonkeyPatch, is_read: bool) -> None:
    """One that was made anew begins where it was made: the source would pass commits that nobody has told."""
    known = PostgresSchema(SETTINGS, TableFilter(("s",)), lambda _: True, "p", "slot", 0)
    monkeypatch.setattr(schema, "connect", lambda _: SimpleNamespace(close=lambda: None, closed=False))
    monkeypatch.setattr(schema, "slot_of", lambda *_: Slot(24, is_read, is_reserved=True))
    monkeypatch.setattr(schema, "read_state", lambda _: ServerState(7_000, PostgresPlace(3, 48), 48))
    assert str(known.confirmed()) == (str(PostgresPlace(3, 24)) if is_read else "None")
    known.close()
